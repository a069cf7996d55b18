"""Checkpoints of the original DPR code: .cp files, which hold both towers."""

import re
from collections.abc import Mapping
from pathlib import Path

from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.hub.architecture import EncoderCheckpoint
from jaxretr.models.hub.bert_family import DPR_PREFIXES
from jaxretr.models.hub.encoder_params import check_sizes, names_of, translate
from jaxretr.models.hub.tensor_files import TensorFiles, load_torch
from jaxretr.runtime.errors import UserError, some_names


def read_dpr_cp(
    path: str | Path, *, num_attention_heads: int | None = None
) -> tuple[EncoderCheckpoint, EncoderCheckpoint]:
    """Read both towers of a checkpoint of the original DPR code (a .cp file; needs torch).

    Such a file does not state the model's shape: sizes are taken from the tensors, and the rest is that of BERT-base
    (64 dimensions per head, exact gelu, eps 1e-12).

    Args:
      path: the file.
      num_attention_heads: number of heads, if they do not have 64 dimensions.

    Returns:
      The question encoder and the context encoder.

    Raises:
      UserError: torch is missing, or the file is not a DPR checkpoint or is incomplete.
    """
    state = load_torch(path, ignore_objects=True)
    model = state.get("model_dict") if isinstance(state, Mapping) else None
    if not isinstance(model, Mapping):
        raise UserError(f"{path}: holds no 'model_dict'; give a .cp file of DPR's train_dense_encoder.py")
    tensors = TensorFiles.of(model, str(path))
    prefixes = ("question_model.", "ctx_model.")
    if strange := [name for name in tensors.names if not name.startswith(prefixes)]:
        raise UserError(
            f"{path}: {len(strange)} tensors belong to neither question_model nor ctx_model: {some_names(strange)}; "
            "give the checkpoint of a biencoder (not of a reader)"
        )
    question, context = (
        _tower(tensors.select(lambda name, prefix=prefix: name.startswith(prefix)), prefix, num_attention_heads)
        for prefix in prefixes
    )
    return question, context


def _tower(tensors: TensorFiles, prefix: str, heads: int | None) -> EncoderCheckpoint:
    names = set(tensors.names)

    def shape(name: str) -> tuple[int, ...]:
        if prefix + name not in names:
            raise UserError(
                f"{tensors.where}: {prefix}{name} is missing; give a complete checkpoint of a BERT biencoder"
            )
        return tensors.shape(prefix + name)

    vocabulary, size = shape("embeddings.word_embeddings.weight")
    numbers = [
        int(found[1]) for name in names if (found := re.match(re.escape(prefix) + r"encoder\.layer\.(\d+)\.", name))
    ]
    bert = BertConfig(
        vocab_size=vocabulary,
        hidden_size=size,
        num_hidden_layers=max(numbers, default=-1) + 1,
        num_attention_heads=heads or max(size // 64, 1),
        intermediate_size=shape("encoder.layer.0.intermediate.dense.weight")[0],
        max_position_embeddings=shape("embeddings.position_embeddings.weight")[0],
        type_vocab_size=shape("embeddings.token_type_embeddings.weight")[0],
    )
    check_sizes(bert, tensors.where)
    projection = prefix + "encode_proj.weight"
    projected = tensors.shape(projection)[0] if projection in names else 0
    return translate(bert, names_of(bert).prepared(tensors), prefix, DPR_PREFIXES[prefix], projected=projected)
