"""Writing Hugging Face folders: BertModel (or the model of the same layers that it was read from), and DPR's two encoders."""

import copy
from pathlib import Path
from typing import Any, Literal

import jax

from jaxretr.models.backbones.backbone_config import BACKBONE, Backbone
from jaxretr.models.backbones.layers import Params
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import WORDS_HEAD, DualEncoderConfig, Side, tower
from jaxretr.models.hub.dual_encoder_folder import use_note
from jaxretr.models.hub.encoder_params import export_encoder, names_of
from jaxretr.models.hub.export_note import ExportNote
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.mesh import to_host

_DPR_PREFIXES = {"question": "question_encoder.bert_model.", "passage": "ctx_encoder.bert_model."}


def choose_layout(config: DualEncoderConfig, asked: Literal["bert", "dpr"] | None) -> Literal["bert", "dpr"]:
    """The layout that can hold a model.

    Args:
      asked: the layout that the user named; None: dpr for a model with a projection, else bert.

    Raises:
      UserError: the layout has no place for the projection, or is of another architecture or pooling.
    """
    if config.query_weights:
        raise UserError("transformers has no place for query weights; use to=sentence-transformers")
    if config.pooling == "unicoil":
        raise UserError("transformers has no place for UniCOIL's head; use to=jaxretr, or to=pyserini for an index")
    layout = asked or ("dpr" if config.projection_size else "bert")
    if layout == "bert" and config.projection_size:
        raise UserError(
            "BertModel has no projection, but this model ends in one; use layout=dpr, or to=sentence-transformers"
        )
    if layout == "dpr" and (config.inner_dense or config.projection_activation != "identity"):
        more = f"{len(config.inner_dense) + 1} linear layers" if config.inner_dense else config.projection_activation
        raise UserError(
            f"DPR's projection is one linear layer alone, but this model has {more}; use to=sentence-transformers"
        )
    if layout == "dpr" and config.pooling != "cls":
        raise UserError(
            f"DPR's encoders pool [CLS], but this model pools the {config.pooling}; use to=sentence-transformers"
        )
    if layout == "dpr" and (kind := names_of(config.backbone).display_name) != "BERT":
        remedy = "to=sentence-transformers" if config.projection_size else "layout=bert"
        raise UserError(f"DPR's encoders are BERT, but this model is {kind}; use {remedy}")
    return layout


def write(folder: Path, encoder: DualEncoder, layout: Literal["bert", "dpr"]) -> ExportNote:
    """Write one folder, or question/ and passage/ for two towers and for DPR.

    Returns:
      The note for jaxretr.json: everything that config.json has no place for.
    """
    config = encoder.config
    note = use_note(config, layout, separate=layout == "dpr" or not config.shared)
    lengths: dict[Side, int] = {"question": config.max_question_length, "passage": config.max_passage_length}
    # One folder for both: only the first is written.
    for side, place in zip(lengths, dict.fromkeys(note.folders(folder)), strict=False):
        length = lengths[side] if note.separate else max(lengths.values())
        prefix = _DPR_PREFIXES[side] if layout == "dpr" else ""
        files = tower_checkpoint(config.backbone, tower(encoder.params, side), prefix)
        write_folder(place, *files, tokenizer_for(encoder, length))
    return note


def tower_checkpoint(backbone: Backbone, params: Params, prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of config.json and the tensors of one tower, with a sparse encoder's head; with a DPR prefix the projection
    is among them."""
    host = jax.tree.map(to_host, params)
    projection = host.get("projection") if prefix else None
    head = host.get(WORDS_HEAD)
    return export_encoder(backbone, host[BACKBONE], mlm_head=head, prefix=prefix, projection=projection)


def tokenizer_for(encoder: DualEncoder, length: int) -> Any:
    """The model's tokenizer, which cuts at `length` tokens when other libraries ask it to truncate."""
    tokenizer = copy.deepcopy(encoder.tokenizer)
    tokenizer.model_max_length = length
    # Settings that the tokenizer's last call left would be written too, and text-embeddings-inference would obey them.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer
