"""Pretraining a small encoder by masked language modelling."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import MlmConfig
from jaxretr.data.tokens import Template
from jaxretr.models.bert import BertConfig
from jaxretr.models.bert_params import export_bert
from jaxretr.models.context_start import context_start
from jaxretr.models.hf_folder import write_folder
from jaxretr.models.layers import Params, bind, define
from jaxretr.models.mlm import BertMaskedLm
from jaxretr.objectives.mlm import MaskedBatch, mask
from jaxretr.objectives.token_step import masked_sum
from jaxretr.recipes.text_pretraining import LanguageModelRun, TextData
from jaxretr.state import TrainState


class MlmRun(LanguageModelRun):
    """Wires text, masking, model and step together."""

    def __init__(self, config: MlmConfig, mesh: Mesh, workdir: Path):
        data = TextData(config.data, "bert", Template.PASSAGE_PAIR, workdir / "data", config.data.max_length)
        shape = config.bert
        self.bert = BertConfig(
            vocab_size=len(data.tokenizer),
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.intermediate_size,
            max_position_embeddings=max(512, config.data.max_length),
        )
        make = lambda rngs: BertMaskedLm(self.bert, dtype=config.dtype, rngs=rngs)  # noqa: E731
        graph, _ = define(make)
        mask_id: Any = data.tokenizer.mask_token_id
        special = np.array(data.tokenizer.all_special_ids)

        def loss(params: Params, batch: MaskedBatch) -> tuple[jax.Array, jax.Array]:
            logits = bind(graph, params)(batch.tokens, batch.lengths, batch.positions)
            chosen = jnp.take_along_axis(logits, batch.labels[..., None], axis=-1)[..., 0]
            return masked_sum(jax.nn.logsumexp(logits, axis=-1) - chosen, jnp.asarray(batch.weights))

        def batch(rows: np.ndarray, rng: np.random.Generator, training: bool) -> MaskedBatch:
            return mask(
                rng,
                data.tokens[rows],
                data.lengths[rows],
                rate=config.mask_rate,
                mask_id=mask_id,
                special=special,
                vocab_size=self.bert.vocab_size,
            )

        super().__init__(config, mesh, lambda seed: context_start(self.bert, seed), loss, batch, data)

    def save_model(self, state: TrainState, folder: Path) -> None:
        """Writes a Hugging Face folder (BertForMaskedLM)."""
        params: Any = jax.device_get(state.params)
        write_folder(folder, *export_bert(self.bert, params["bert"], mlm_head=params["head"]), self.data.tokenizer)
