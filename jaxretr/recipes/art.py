"""Wiring of an ART run: the corpus and its tokens on the devices, the two models, the compiled programs."""

import logging
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr import optim
from jaxretr.config import ArtConfig
from jaxretr.data.batches import MadeAhead, QuestionBatches
from jaxretr.data.token_store import TokenStore, ids_dtype
from jaxretr.errors import UsageError
from jaxretr.models.embed import DualEncoderConfig, JointConfig, abstract_params
from jaxretr.models.scorers.teachers import Teacher
from jaxretr.objectives.art import ArtProgram, QuestionBatch, make_step
from jaxretr.parallel import sharding
from jaxretr.parallel.hosts import fingerprint
from jaxretr.parallel.mesh import check_cpu_devices
from jaxretr.recipes.art_texts import read_art_texts
from jaxretr.recipes.corpus_sizes import CorpusSize
from jaxretr.recipes.corpus_tokens import corpus_tokens
from jaxretr.recipes.encoder_start import frozen_branches, load_model, model_config
from jaxretr.recipes.outline import (
    INDEX,
    SCORER,
    TOKENS,
    AbstractCorpus,
    Outline,
    abstract_tokens,
    of_state,
    training_step,
)
from jaxretr.recipes.step_questions import StepQuestions
from jaxretr.recipes.suites import Suites
from jaxretr.recipes.teacher_start import OnDevices, load_teacher, stored, teacher_shape
from jaxretr.recipes.whole_corpus import (
    DevSet,
    WholeCorpus,
    abstract_train_state,
    activation_bytes,
    initial_state,
    put_batch,
    put_forms,
    refresh_is_due,
    save_model,
    select,
    splits,
)
from jaxretr.state import CorpusState, TrainState

log = logging.getLogger(__name__)


class ArtState(NamedTuple):
    """What an ART run carries and saves: without the index, a resumed run would search another one."""

    train: TrainState
    index: CorpusState


class ArtPrograms:
    """What an ART run compiles; it depends on the config, the shapes of the models and the size of the corpus alone."""

    def __init__(
        self,
        config: ArtConfig,
        encoder: DualEncoderConfig | JointConfig,
        teacher: Teacher,
        corpus_rows: int,
        mesh: Mesh,
    ):
        """Builds the step; nothing is compiled yet.

        Args:
          config: of the run.
          encoder: of its dual encoder, or of the two that are trained jointly.
          teacher: what its scorer is.
          corpus_rows: passages of the corpus.
          mesh: the devices.

        Raises:
          UsageError: settings that do not apply to ART.
        """
        if config.typos.multi_positive or config.typos.passage_self_teaching_weight:
            raise UsageError(
                "typos.multi_positive and typos.passage_self_teaching_weight need judged passages, and ART has none; "
                "leave them out"
            )
        top_k = min(config.art.top_k, corpus_rows)
        if top_k < config.art.top_k:
            log.warning("art.top_k=%d, but the corpus has %d passages: using %d", config.art.top_k, top_k, top_k)
        self.program = ArtProgram(
            encoder=encoder,
            encoder_dtype=config.encoder.dtype,
            corpus_rows=corpus_rows,
            index=config.index,
            chunk=config.art.chunk,
            activation_bytes=activation_bytes(config.encoder, mesh),
            seed=config.train.seed,
            shard_parameters=splits(config.mesh, encoder, mesh),
            teacher=teacher,
            scorer=config.scorer,
            art=config.art,
            top_k=top_k,
            temperature=config.art.temperature or float(encoder.embedding_size) ** 0.5,
            typos=config.typos,
        )
        self.frozen = frozen_branches(config.encoder, config.joint)
        self.optimizer = optim.build(config.optimizer, config.train.steps)
        self.train_step = make_step(self.program, self.optimizer, mesh)


class ArtRun(ArtPrograms):
    """An ART run as train.py sees it."""

    def __init__(self, config: ArtConfig, mesh: Mesh, workdir: Path):
        self.config, self.mesh = config, mesh
        self.model = load_model(config.encoder, config.joint, config.train.seed)
        check_cpu_devices(mesh, self.model.config.backbone.widest)
        placed = OnDevices(mesh)
        self.scorer = load_teacher(config.scorer, placed)
        self.scorer_params, self._scorer_print = self.scorer.params, placed.fingerprint
        stores = Path(config.data.token_cache) if config.data.token_cache else workdir / "tokens"
        texts = read_art_texts(config.data, stores)
        self.corpus, self.questions = texts.corpus, texts.questions

        # ---- programs ------------------------------------------------------------------------------------------------
        super().__init__(config, self.model.config, self.scorer.teacher, len(self.corpus), mesh)

        # ---- corpus --------------------------------------------------------------------------------------------------
        self.whole = WholeCorpus(self.model, self.corpus, self.program, mesh, stores, config.index.dtype)
        self.scorer_passages = corpus_tokens(
            TokenStore.build(
                stores,
                self.corpus,
                self.scorer.tokenizer,
                self.scorer.passage_template,
                self.scorer.passage_length,
                prompt=self.scorer.passage_form,
            ),
            self.whole.rows,
            mesh,
        )

        # ---- questions -----------------------------------------------------------------------------------------------
        self.batches = QuestionBatches(len(self.questions), config.train.batch_size, config.train.seed)
        questions = [question.text for question in self.questions]
        self.read = StepQuestions(questions, config.typos, self.model, stores, config.train.seed)
        self.target_rows = TokenStore.build(
            stores,
            questions,
            self.scorer.tokenizer,
            self.scorer.question_template,
            self.scorer.question_length,
            prompt=self.scorer.question_form,
        )
        self.made = MadeAhead(self._on_host)
        self.dev = DevSet(texts.dev, self.corpus, self.model, mesh, stores, config.typos)
        self.suites = Suites(config.train.suites, self.model, self.program, config.index, mesh, stores)

    @staticmethod
    def outline(config: ArtConfig, mesh: Mesh, size: CorpusSize) -> Outline:
        """The programs of a run and the shapes of their arguments, as `jaxretr.train.outline` describes it."""
        encoder, shape = model_config(config.encoder, config.joint), teacher_shape(config.scorer)
        run = ArtPrograms(config, encoder, shape.teacher, size.searched, mesh)
        split = run.program.shard_parameters
        state = abstract_train_state(abstract_params(encoder), run.optimizer, mesh, run.frozen, split=split)
        corpus = AbstractCorpus(config.encoder, encoder, mesh, size)
        index, passages = corpus.index(config.index), corpus.tokens
        ids = ids_dtype(shape.vocabulary)
        scorer_passages = corpus.passages(ids, shape.passage_length)
        scorer = sharding.abstract(stored(shape.teacher, shape.teacher.abstract_params(), config.scorer.dtype), mesh)
        questions, forms = corpus.questions(config.train.batch_size, config.typos)
        targets = abstract_tokens(mesh, ids, config.train.batch_size, shape.question_length)
        batch = QuestionBatch(questions.tokens, questions.lengths, targets.tokens, targets.lengths, forms)
        resident = {**of_state(state), TOKENS: (passages, scorer_passages), INDEX: index, SCORER: scorer}
        programs = [
            training_step(run.train_step, (state, index, passages, scorer_passages, scorer, batch), resident),
            corpus.refresh(run.program, state, index),
        ]
        if config.data.has_dev_questions:
            programs += corpus.evaluation(run.program, state, index, config.train, searches=True)
        return Outline(programs, resident)

    # ---- as train.py calls it ----------------------------------------------------------------------------------------

    def inputs(self) -> dict[str, str]:
        """Fingerprints of the data and of the models that the run begins with."""
        return {
            "corpus": self.whole.store.key,
            "questions": f"{self.read.store.key} {self.target_rows.key}",
            "encoder": fingerprint(self.model.params),
            "scorer": self._scorer_print,
        }

    def init(self) -> ArtState:
        """The pretrained weights and an index made with them."""
        split = self.program.shard_parameters
        train = initial_state(self.model, self.optimizer, self.mesh, self.frozen, split=split)
        return ArtState(train, self.whole.encode(train))

    def abstract_state(self) -> ArtState:
        """The shapes and shardings of the state."""
        split = self.program.shard_parameters
        train = abstract_train_state(self.model.params, self.optimizer, self.mesh, self.frozen, split=split)
        return ArtState(train, self.whole.abstract_index())

    def step(self, state: ArtState, number: int, batch: QuestionBatch) -> tuple[ArtState, dict[str, jax.Array]]:
        """One ART step; every R steps the index is refreshed first."""
        train, index = self.refreshed(state, number)
        train, index, values, _ = self.train_step(
            train, index, self.whole.passages, self.scorer_passages, self.scorer_params, batch
        )
        return ArtState(train, index), values

    def refreshed(self, state: ArtState, number: int) -> ArtState:
        """The state with a fresh index, if one is due before step `number`."""
        train, index = state
        if refresh_is_due(number, self.config.index.refresh_every, self.config.train, bool(self.dev.questions)):
            index = self.whole.refresh(train, index)
        return ArtState(train, index)

    def evaluate(self, state: ArtState) -> dict[str, float]:
        """Retrieval metrics of the dev questions over the whole corpus, and of the suites, with the current weights."""
        return {**self.dev.metrics(state.train, self.whole, state.index), **self.suites.metrics(state.train)}

    def save_model(self, state: ArtState, folder: Path) -> None:
        """Writes the model's folder."""
        save_model(self.model, state.train, folder)

    def batch(self, number: int) -> QuestionBatch:
        """The questions of step `number`, a function of (seed, number) alone."""
        arrays, forms = self.made[number]
        return QuestionBatch(*(put_batch(self.mesh, x) for x in arrays), forms=put_forms(self.mesh, forms))

    def _on_host(self, number: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, np.ndarray] | None]:
        """The arrays of a step: tokens, lengths, targets and their lengths; forms. The teacher reads no typos."""
        chosen = self.batches.indices(number)
        tokens, lengths, forms = self.read.of_step(chosen, number)
        return (tokens, lengths, *select(self.target_rows, chosen)), forms
