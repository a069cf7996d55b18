"""Wiring of a cross-encoder's run: judged pairs, the model, the compiled step, re-ranking of the dev questions."""

import dataclasses
import functools
import logging
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import ContrastiveConfig, ContrastiveData, Encoder, ExampleData, Negatives, RerankerConfig
from jaxretr.data.batches import MadeAhead, QuestionBatches
from jaxretr.data.corpus import Corpus
from jaxretr.data.token_store import TokenStore, ids_dtype
from jaxretr.data.tokens import tokenizer_fingerprint
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.encode import note_cut
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.models.scorers.cross_encoder import abstract_params
from jaxretr.models.scorers.cross_encoder_shape import CrossEncoderConfig
from jaxretr.models.scorers.pair_frame import PairFrame
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.hosts import fingerprint
from jaxretr.runtime.parallel.mesh import check_cpu_devices, to_host
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.corpus_tokens import abstract_rows, width_of
from jaxretr.training.runs.cross_encoder_start import holds_cross_encoder, load_cross_encoder, start_shape
from jaxretr.training.runs.outline import Outline, token_shapes
from jaxretr.training.runs.pair_draws import PairDraws, check
from jaxretr.training.runs.reranking import RerankingSet
from jaxretr.training.runs.run_examples import read_run_examples
from jaxretr.training.runs.run_inputs import Inputs, judged_digest
from jaxretr.training.runs.text_pretraining import TokenPrograms
from jaxretr.training.runs.whole_corpus import (
    Judged,
    activation_bytes,
    dev_questions,
    put_batch,
)
from jaxretr.training.state import TrainState
from jaxretr.training.steps.cross_encoder import PairBatch, PairProgram, pair_loss

log = logging.getLogger(__name__)

# The ids around a pair in a plan, one of [CLS] and two of [SEP]; a plan depends only on their number.
FRAME = (1,), (2,), (2,)


class CrossEncoderRun:
    """A cross-encoder's run with the methods that train.py calls."""

    def __init__(self, config: RerankerConfig, mesh: Mesh, workdir: Path):
        check_settings(config)
        self.config, self.mesh = config, mesh
        self.model = load_cross_encoder(config.encoder, config.train.seed)
        check_cpu_devices(mesh, self.model.config.backbone.widest)
        stores = Path(config.data.token_cache) if config.data.token_cache else workdir / "tokens"

        # ---- examples ------------------------------------------------------------------------------------------------
        self.examples = read_run_examples(as_supervised(config))
        self.draws = PairDraws(self.examples, config.negatives, config.train.seed)
        self.batches = QuestionBatches(len(self.examples.texts), config.train.batch_size, config.train.seed)
        self.made = MadeAhead(self._on_host)
        model = self.model
        self.questions = TokenStore.build(
            stores,
            self.examples.texts,
            model.tokenizer,
            model.question_template,
            model.question_length,
            prompt=model.question_form,
        )
        self.passages = TokenStore.build(
            stores,
            self.examples.passages,
            model.tokenizer,
            model.passage_template,
            model.passage_length,
            prompt=model.passage_form,
        )

        note_cut(self.questions.truncated, len(self.examples.texts), "training question", model.question_length)
        note_cut(self.passages.truncated, len(self.examples.passages), "passage", model.passage_length)

        # ---- programs ------------------------------------------------------------------------------------------------
        self.programs = cross_encoder_programs(config, model.config, model.texts.frame, mesh)

        # ---- evaluation ----------------------------------------------------------------------------------------------
        searched = self.draws.searched
        whole = self.examples.passages
        corpus = Corpus(*(column[:searched] for column in (whole.ids, whole.titles, whole.texts)))
        judged = dev_questions(config.data)
        if config.data.held_out:
            assert self.examples.dev is not None
            judged = Judged(self.examples.dev.questions, self.examples.dev.qrels)
        self.dev = RerankingSet(judged, corpus, config.data)
        pairs = config.train.batch_size * self.draws.places
        note(log.info, "%d questions, %d pairs a step", len(self.examples.texts), pairs)

    @staticmethod
    def outline(config: RerankerConfig, mesh: Mesh, size: CorpusSize) -> Outline:
        """Return the programs of a run and the shapes of their arguments, see `jaxretr.training.loop.outline`.

        The evaluation is not among them: the size of its batches depends on the machine.
        """
        check_settings(config)
        shape, encoder = start_shape(config.encoder), config.encoder
        frame = PairFrame(*FRAME, encoder.max_length)
        ids, k = ids_dtype(shape.backbone.vocab_size), 1 + config.negatives.count

        def batch(rows: int, training: bool) -> PairBatch:
            questions = token_shapes(mesh, ids, min(encoder.max_question_length, frame.room), rows)
            passages = token_shapes(mesh, ids, frame.room, rows, k)
            there = abstract_rows(mesh, "bool", rows, k)
            return PairBatch(questions.tokens, questions.lengths, passages.tokens, passages.lengths, there)

        return cross_encoder_programs(config, shape, frame, mesh).outline(config, 0, batch)

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

    def init(self) -> TrainState:
        """Return the state before the first step."""
        # A copy: the first step donates these buffers, and the model keeps its own.
        params = jax.tree.map(np.array, self.model.params)
        return sharding.put(TrainState.create(params, self.programs.optimizer), self.mesh)

    def abstract_state(self) -> TrainState:
        """Return the shapes and shardings of the state."""
        return self.programs.abstract_state()

    def step(self, state: TrainState, number: int, batch: PairBatch) -> tuple[TrainState, dict[str, jax.Array]]:
        """Training step `number` with its batch."""
        return self.programs.step(state, batch)

    def refreshed(self, state: TrainState, number: int) -> TrainState:
        """Return the state itself, as there is no index."""
        return state

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

    def batch(self, number: int) -> PairBatch:
        """Return the pairs of step `number`, a function of (seed, number) alone."""
        return PairBatch(*(put_batch(self.mesh, x) for x in self.made[number]))

    def _trained(self, state: TrainState) -> CrossEncoder:
        """Return the model with a state's parameters; called by all processes."""
        model = self.model
        params = jax.tree.map(to_host, state.weights)
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
        rows = self.draws.rows(chosen, number)
        there = rows != NO_PASSAGE
        flat = np.where(there, rows, 0).reshape(-1)
        tokens, lengths = self.passages.select(flat, width_of(self.passages))
        return PairBatch(
            *self.questions.select(chosen, width_of(self.questions)),
            tokens.reshape(*rows.shape, -1),
            lengths.reshape(rows.shape),
            there,
        )


def cross_encoder_programs(
    config: RerankerConfig, shape: CrossEncoderConfig, frame: PairFrame, mesh: Mesh
) -> TokenPrograms:
    """Return the compiled programs of a run whose cross-encoder has this shape."""
    program = PairProgram(
        shape,
        frame,
        config.encoder.dtype,
        config.ranking.loss,
        config.ranking.positive_weight,
        config.ranking.chunk,
        activation_bytes(config.encoder, mesh),
    )
    params, dropout = functools.partial(abstract_params, shape), config.encoder.dropout > 0
    return TokenPrograms.of(config, pair_loss(program), params, mesh, dropout=dropout)


def as_supervised(config: RerankerConfig) -> ContrastiveConfig:
    """Return the supervised run of a dual encoder that reads the same files and draws the same passages from them."""
    names = [field.name for field in dataclasses.fields(ExampleData)]
    return ContrastiveConfig(
        name=config.name,
        train=config.train,
        data=ContrastiveData(**{name: getattr(config.data, name) for name in names}),
        encoder=Encoder(config.encoder.path),
        negatives=Negatives(static=config.negatives.static, mined=config.negatives.mined),
    )


def check_settings(config: RerankerConfig) -> None:
    """Refuse settings that contradict each other."""
    check(config.negatives)
    if bool(config.negatives.mined) != (config.data.mined is not None):
        raise UsageError("negatives.mined and data.mined go together; set both, or neither")
    if config.ranking.chunk < 1 or config.data.dev_depth < 1:
        raise UsageError("ranking.chunk and data.dev_depth must be at least 1")
    if not config.ranking.positive_weight > 0:
        raise UsageError(f"ranking.positive_weight={config.ranking.positive_weight}: must be above 0")
    if config.ranking.positive_weight != 1 and config.ranking.loss != "binary":
        raise UsageError("ranking.positive_weight is of the binary loss; leave it out, or set ranking.loss=binary")
    if not 0 <= config.encoder.dropout < 1:
        raise UsageError(f"encoder.dropout={config.encoder.dropout}: must be from 0 to below 1")
    if config.data.dev_run is not None and not config.data.has_dev_questions:
        raise UsageError("data.dev_run ranks the dev questions' passages; set data.dev_questions as well")
