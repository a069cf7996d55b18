"""Wiring of a cross-encoder's run: judged pairs, the model, the compiled step, re-ranking of the dev questions."""

import dataclasses
import functools
import logging
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import (
    ContrastiveConfig,
    ContrastiveData,
    Distillation,
    Encoder,
    ExampleData,
    Negatives,
    RerankerConfig,
    token_stores,
)
from jaxretr.data.batches import QuestionBatches
from jaxretr.data.token_store import ids_dtype
from jaxretr.data.tokens import tokenizer_fingerprint
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.any_scorer import holds_cross_encoder
from jaxretr.models.backbones.adapter_layers import init_adapter, merge_lora
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.layers import Params
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.models.scorers.cross_encoder import HEAD, abstract_params
from jaxretr.models.scorers.cross_encoder_shape import CrossEncoderConfig
from jaxretr.models.scorers.pair_frame import PairFrame
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel.hosts import fingerprint
from jaxretr.runtime.parallel.mesh import check_cpu_devices, to_host
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.corpus_tokens import abstract_rows, width_of
from jaxretr.training.runs.cross_encoder_start import load_cross_encoder, start_shape
from jaxretr.training.runs.outline import Outline, token_shapes
from jaxretr.training.runs.pair_draws import PairDraws
from jaxretr.training.runs.reranking import RerankingSet
from jaxretr.training.runs.run_examples import read_run_examples
from jaxretr.training.runs.run_inputs import Inputs, judged_digest
from jaxretr.training.runs.teacher_start import scorer_rows
from jaxretr.training.runs.text_pretraining import TokenPrograms, TokenRun
from jaxretr.training.runs.whole_corpus import activation_bytes
from jaxretr.training.state import TrainState
from jaxretr.training.steps.cross_encoder import PairBatch, pair_loss

log = logging.getLogger(__name__)

# The ids around a pair in a plan, one of [CLS] and two of [SEP]; a plan depends only on their number.
FRAME = (1,), (2,), (2,)


class CrossEncoderRun(TokenRun):
    """A cross-encoder's run."""

    def __init__(self, config: RerankerConfig, mesh: Mesh, workdir: Path):
        config.check()
        self.model = load_cross_encoder(config.encoder, config.train.seed)
        check_cpu_devices(mesh, self.model.config.backbone.widest)
        stores = token_stores(config.data, workdir)

        # ---- examples ------------------------------------------------------------------------------------------------
        self.examples = read_run_examples(as_supervised(config))
        self.draws = PairDraws(self.examples, config.negatives, config.train.seed)
        self.batches = QuestionBatches(len(self.examples.texts), config.train.batch_size, config.train.seed)
        model = self.model
        self.passages = scorer_rows(model, self.examples.passages, stores, "passage")
        self.questions = scorer_rows(model, self.examples.texts, stores, "training question")

        # ---- programs ------------------------------------------------------------------------------------------------
        super().__init__(cross_encoder_programs(config, model.config, model.texts.frame, mesh))

        # ---- evaluation ----------------------------------------------------------------------------------------------
        judged, corpus = self.examples.evaluated_on(config.data, self.draws.searched)
        self.dev = RerankingSet(judged, corpus, config.data)
        pairs = config.train.batch_size * self.draws.places
        note(log.info, "%d questions, %d pairs a step", len(self.examples.texts), pairs)

    @staticmethod
    def outline(config: RerankerConfig, mesh: Mesh, size: CorpusSize) -> Outline:
        """Leave the evaluation out: the size of its batches depends on the machine; see `jaxretr.training.loop.outline`."""
        shape, encoder = start_shape(config.encoder), config.encoder
        frame = PairFrame(*FRAME, encoder.max_length)
        ids, k = ids_dtype(shape.backbone.vocab_size), 1 + config.negatives.count

        def batch(rows: int, training: bool) -> PairBatch:
            questions = token_shapes(mesh, ids, min(encoder.max_question_length, frame.room), rows)
            passages = token_shapes(mesh, ids, frame.room, rows, k)
            is_present = abstract_rows(mesh, "bool", rows, k)
            teacher = abstract_rows(mesh, "float32", rows, k) if config.ranking.has_teacher else None
            return PairBatch(
                questions.tokens, questions.lengths, passages.tokens, passages.lengths, is_present, teacher
            )

        return cross_encoder_programs(config, shape, frame, mesh).outline(0, batch)

    # ---- as train.py calls it ----------------------------------------------------------------------------------------

    def inputs(self) -> Inputs:
        """Fingerprints of the data and of the model that the run begins with."""
        config, params = self.config, self.model.params
        candidates = fingerprint([np.concatenate(self.dev.rows)] if self.dev.questions else [])
        read = {
            "passages": self.passages.content,
            "questions": self.questions.content,
            "examples": fingerprint(self.examples.draws.content),
            "dev questions": judged_digest(self.dev.questions, self.dev.qrels),
            "dev run": "none" if config.data.dev_run is None else candidates,
            "tokenizer": tokenizer_fingerprint(self.model.tokenizer),
            "encoder": fingerprint(params if holds_cross_encoder(config.encoder.path) else params[BACKBONE]),
        }
        batch = fingerprint(tuple(self._on_host(0)))
        return Inputs(read, {"batch": batch, "candidates": candidates, "weights": fingerprint(params)})

    def first_parameters(self, seed: int) -> Params:
        """Return the parameters of the model that the run starts from."""
        params, adapter = self.model.params, self.config.encoder.adapter
        if adapter is not None:
            params = {**params, "adapter": init_adapter(adapter, self.model.config.backbone, seed)}
        return params

    def evaluate(self, state: TrainState) -> dict[str, float]:
        """Metrics of the dev questions' candidates in the model's order."""
        return self.dev.metrics(self._trained(state)) if self.dev.questions else {}

    def evaluated(self) -> str:
        """Return a text for the log that names the dev questions and their pairs."""
        questions = len(self.dev.questions)
        return f"{questions} questions, {sum(map(len, self.dev.rows))} pairs" if questions else ""

    def save_model(self, state: TrainState, folder: Path) -> None:
        """Write the folder that `CrossEncoder.from_pretrained` and sentence-transformers read."""
        model = self._trained(state)
        if jax.process_index() == 0:
            model.save(folder)

    def _trained(self, state: TrainState) -> CrossEncoder:
        """Return the model with a state's parameters; called by all processes."""
        model, adapter = self.model, self.config.encoder.adapter
        params = jax.tree.map(to_host, state.weights)
        if adapter is not None:
            params = {BACKBONE: merge_lora(params[BACKBONE], params["adapter"], adapter), HEAD: params[HEAD]}
        return CrossEncoder(
            model.config,
            params,
            model.tokenizer,
            model.texts,
            max_question_length=model.max_question_length,
            dtype=model.dtype,
        )

    def _on_host(self, number: int) -> PairBatch:
        chosen = self.batches.indices(number)
        rows, teacher = self.draws.rows(chosen, number)
        is_present = rows != NO_PASSAGE
        flat = np.where(is_present, rows, 0).reshape(-1)
        tokens, lengths = self.passages.select(flat, width_of(self.passages))
        return PairBatch(
            *self.questions.select(chosen, width_of(self.questions)),
            tokens.reshape(*rows.shape, -1),
            lengths.reshape(rows.shape),
            is_present,
            teacher,
        )


def cross_encoder_programs(
    config: RerankerConfig, shape: CrossEncoderConfig, frame: PairFrame, mesh: Mesh
) -> TokenPrograms:
    """Return the compiled programs of a run whose cross-encoder has this shape."""
    adapter = config.encoder.adapter
    frozen = () if adapter is None else (BACKBONE,)
    loss = pair_loss(config, shape, frame, frozen, activation_bytes(config.encoder, mesh))
    params, dropout = functools.partial(abstract_params, shape, adapter), config.encoder.dropout > 0
    return TokenPrograms(config, loss, params, mesh, dropout=dropout, frozen=frozen)


def as_supervised(config: RerankerConfig) -> ContrastiveConfig:
    """Return the supervised run of a dual encoder that reads the same files and draws the same passages from them."""
    names = [field.name for field in dataclasses.fields(ExampleData)]
    # Which scores an example needs; the loss itself is the cross-encoder's.
    compares = "margin_mse" if config.ranking.loss == "margin_mse" else "kl"
    return ContrastiveConfig(
        name=config.name,
        train=config.train,
        data=ContrastiveData(**{name: getattr(config.data, name) for name in names}),
        encoder=Encoder(config.encoder.path),
        negatives=Negatives(static=config.negatives.static, mined=config.negatives.mined),
        distillation=Distillation(loss=compares if config.ranking.has_teacher else "none"),
    )
