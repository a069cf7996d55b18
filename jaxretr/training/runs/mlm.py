"""Masked language modelling: a small encoder from scratch, or an encoder that learns a domain."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import MlmConfig, Optimizer
from jaxretr.data.token_store import ids_dtype, random_windows
from jaxretr.data.tokens import Template
from jaxretr.models.backbones.backbone_config import BACKBONE, Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params, define
from jaxretr.models.backbones.masked_lm import MaskedLm, MaskedLmShape, fresh_head
from jaxretr.models.hub.dual_encoder_folder import states_use, use_note
from jaxretr.models.hub.encoder_params import export_encoder, names_of
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.models.hub.model_shapes import encoder_shape
from jaxretr.models.starts import context_start
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.hosts import fingerprint
from jaxretr.runtime.parallel.mesh import check_cpu_devices
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.corpus_tokens import abstract_rows
from jaxretr.training.runs.encoder_start import backbone_of, new_bert
from jaxretr.training.runs.outline import Outline
from jaxretr.training.runs.text_pretraining import LanguageModelRun, TextData, TokenPrograms
from jaxretr.training.state import StepNumbers, TrainState
from jaxretr.training.steps.mlm import MaskedBatch, mask, masked_lm_loss, prediction_places

log = logging.getLogger(__name__)

# Characters of a document after which nothing is read: no window is drawn from there.
_LONGEST_DOCUMENT = 1 << 16


class MlmRun(LanguageModelRun):
    """Combines text, masking, model and step to a run."""

    def __init__(self, config: MlmConfig, mesh: Mesh, workdir: Path):
        start = None if config.start is None else backbone_of(config.start)
        template = Template.PASSAGE_PAIR if start is None else Template(f"passage_{start.config.passage_template}")
        tokenizer = None if start is None else start.tokenizer
        data = TextData(config.data, "bert", template, workdir / "data", _LONGEST_DOCUMENT, tokenizer)
        self.start = None if start is None else next(iter(start.params.values()))[BACKBONE]
        self.start_head = None if start is None else start.mlm_head
        # An encoder that continues to learn a language keeps its use; an encoder with layers on top is not used alone.
        self.use = None
        if start is not None and not start.config.dense and states_use(str(config.start)):
            self.use = use_note(dataclasses.replace(start.config, shared=True))
        self.bert = mlm_bert(config, None if start is None else start.config.backbone, len(data.tokenizer))
        check_cpu_devices(mesh, self.bert.widest)
        mask_id: Any = data.tokenizer.mask_token_id
        if mask_id is None:
            raise UserError(f"{config.start}: the tokenizer has no [MASK]; give the encoder's own tokenizer")
        self.mask_id, self.special = mask_id, np.array(data.tokenizer.all_special_ids)
        programs, read = mlm_programs(config, self.bert, mesh), {"encoder": fingerprint([self.start, self.start_head])}
        super().__init__(programs, data, read)

    @staticmethod
    def outline(config: MlmConfig, mesh: Mesh, size: CorpusSize) -> Outline:
        start = None if config.start is None else encoder_shape(config.start).backbone
        bert = mlm_bert(config, start, config.data.vocab_size)
        width = config.data.max_length
        places = prediction_places(width, config.mask_rate)

        def batch(rows: int, training: bool) -> MaskedBatch:
            of_places = [abstract_rows(mesh, dtype, rows, places) for dtype in ("int32", "int32", "float32")]
            tokens = abstract_rows(mesh, ids_dtype(bert.vocab_size), rows, width)
            return MaskedBatch(tokens, abstract_rows(mesh, "int32", rows), *of_places)

        return mlm_programs(config, bert, mesh).outline(config.data.held_out, batch)

    def make_batch(self, rows: np.ndarray, rng: np.random.Generator, training: bool) -> MaskedBatch:
        """Mask random windows of the rows."""
        return mask(
            rng,
            *random_windows(self.data.store, rows, self.config.data.max_length, rng),
            rate=self.config.mask_rate,
            mask_id=self.mask_id,
            special=self.special,
            vocab_size=len(self.data.tokenizer),
        )

    def first_parameters(self, seed: int) -> Params:
        """Return the parameters of a new encoder, or of `start`; a head that `start` lacks is drawn."""
        if self.start is None:
            assert isinstance(self.bert, BertConfig)  # as every new encoder is
            return context_start(self.bert, seed)
        return {"bert": self.start, "head": self.start_head or fresh_head(self.bert, seed)}

    def init(self) -> TrainState:
        """Return the state before the first step; a new head has been trained by then, with the encoder frozen."""
        steps = self.config.head_warmup if self.start is not None and self.start_head is None else 0
        if not steps:
            return super().init()
        log.info("%s: no head of masked language modelling; training one for %d steps", self.config.start, steps)
        rates = Optimizer(learning_rate=self.config.head_learning_rate, weight_decay=0.0, warmup=0.05, final=0.05)
        config = dataclasses.replace(
            self.config, optimizer=rates, train=dataclasses.replace(self.config.train, steps=steps)
        )
        programs = mlm_programs(config, self.bert, self.mesh, frozen=("bert",))
        head = programs.first_state(self.first_parameters(self.config.train.seed))
        for number in range(steps):
            # Batches that the training itself does not draw.
            head, values = programs.step(head, self.batch(self.config.train.steps + number))
            if (number + 1) % self.config.train.log_every == 0 or number + 1 == steps:
                log.info("head, step %d: loss %.4f", number + 1, float(values["loss"]))
        first = TrainState.create(head.weights, self.programs.optimizer, numbers=StepNumbers.of(self.config))
        return sharding.put(first, self.mesh)

    def save_model(self, state: TrainState, folder: Path) -> None:
        """Write a Hugging Face folder (BertForMaskedLM, or that of the architecture)."""
        params: Any = jax.device_get(state.params)
        if jax.process_index() == 0:
            tensors = export_encoder(self.bert, params["bert"], mlm_head=params["head"])
            write_folder(folder, *tensors, self.data.tokenizer)
            if self.use is not None:
                self.use.write(folder)


def mlm_programs(config: MlmConfig, bert: MaskedLmShape, mesh: Mesh, *, frozen: tuple[str, ...] = ()) -> TokenPrograms:
    """Return the compiled programs of a run whose encoder has this shape; `frozen` as of `TokenPrograms`."""
    loss = masked_lm_loss(bert, config.dtype)

    def params() -> Params:
        return define(lambda rngs: MaskedLm(bert, dtype=config.dtype, rngs=rngs))[1]

    return TokenPrograms(config, loss, params, mesh, chunk=config.chunk, dropout=config.dropout > 0, frozen=frozen)


def mlm_bert(config: MlmConfig, start: Backbone | None, vocabulary: int) -> MaskedLmShape:
    """Return the shape of a run's encoder.

    Args:
      start: shape of the encoder that it starts from; None: a new one.
      vocabulary: number of entries of a new encoder's vocabulary.

    Raises:
      UserError: an encoder without BERT's layers.
      UsageError: windows of the text that are longer than its positions.
    """
    if start is not None and not names_of(start).masked_lm:
        raise UserError(
            f"{config.start}: is {names_of(start).display_name}, and masked language modelling goes on with BERT, those of the same "
            "layers and ModernBERT; give one of these"
        )
    bert: Any = start or new_bert(config.bert, vocabulary, max(512, config.data.max_length))
    if config.data.max_length > bert.max_position_embeddings:
        raise UsageError(
            f"{config.start}: has {bert.max_position_embeddings} positions, the config asks for "
            f"{config.data.max_length}; lower data.max_length"
        )
    return dataclasses.replace(bert, hidden_dropout_prob=config.dropout, attention_probs_dropout_prob=config.dropout)
