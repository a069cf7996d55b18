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
from jaxretr.data.token_store import TokenStore
from jaxretr.data.tokens import Template
from jaxretr.errors import UsageError
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.models.scorer import Prompt
from jaxretr.models.t5 import T5Config
from jaxretr.objectives.art import ArtProgram, QuestionBatch, make_step
from jaxretr.parallel import sharding
from jaxretr.parallel.hosts import fingerprint
from jaxretr.parallel.mesh import check_cpu_devices
from jaxretr.recipes.art_texts import read_art_texts
from jaxretr.recipes.encoder_start import load_encoder
from jaxretr.recipes.step_questions import StepQuestions
from jaxretr.recipes.whole_corpus import (
    DevSet,
    WholeCorpus,
    abstract_train_state,
    activation_bytes,
    corpus_tokens,
    frozen_branches,
    initial_state,
    put_batch,
    put_forms,
    refresh_is_due,
    save_encoder,
    select,
)
from jaxretr.state import CorpusState, TrainState

log = logging.getLogger(__name__)


class ArtState(NamedTuple):
    """What an ART run carries and saves: without the index, a resumed run would search another one."""

    train: TrainState
    index: CorpusState


class ArtRun:
    """An ART run as train.py sees it."""

    def __init__(self, config: ArtConfig, mesh: Mesh, workdir: Path):
        self.config, self.mesh = config, mesh
        self.model = load_encoder(config.encoder, config.train.seed)
        check_cpu_devices(mesh, self.model.config.bert.widest)
        self.scorer = QuestionScorer.from_pretrained(
            config.scorer.path,
            max_length=config.scorer.max_length,
            max_question_length=config.scorer.max_question_length,
            dtype=config.scorer.dtype,
        )
        stores = Path(config.data.token_cache) if config.data.token_cache else workdir / "tokens"
        texts = read_art_texts(config.data, stores)
        self.corpus, self.questions = texts.corpus, texts.questions

        # ---- programs ------------------------------------------------------------------------------------------------
        self.program = art_program(
            config, self.model.config, self.scorer.config, self.scorer.prompt, len(self.corpus), mesh
        )
        self.frozen = frozen_branches(config.encoder)
        self.optimizer = optim.build(config.optimizer, config.train.steps)
        self.train_step = make_step(self.program, self.optimizer, mesh)

        # ---- corpus --------------------------------------------------------------------------------------------------
        self.whole = WholeCorpus(self.model, self.corpus, self.program, mesh, stores, config.index.dtype)
        self.scorer_passages = corpus_tokens(
            TokenStore.build(
                stores,
                self.corpus,
                self.scorer.tokenizer,
                Template.SCORER_PASSAGE,
                self.scorer.passage_length,
            ),
            self.whole.rows,
            mesh,
        )
        self.scorer_params = sharding.put(self.scorer.params, mesh)

        # ---- questions -----------------------------------------------------------------------------------------------
        self.batches = QuestionBatches(len(self.questions), config.train.batch_size, config.train.seed)
        questions = [question.text for question in self.questions]
        self.read = StepQuestions(questions, config.typos, self.model, stores, config.train.seed)
        self.target_rows = TokenStore.build(
            stores,
            questions,
            self.scorer.tokenizer,
            Template.SCORER_TARGET,
            config.scorer.max_question_length,
        )
        self.made = MadeAhead(self._on_host)
        self.dev = DevSet(texts.dev, self.corpus, self.model, mesh, stores, config.typos)

    # ---- as train.py calls it ----------------------------------------------------------------------------------------

    def inputs(self) -> dict[str, str]:
        """Fingerprints of the data and of the models that the run begins with."""
        return {
            "corpus": self.whole.store.key,
            "questions": f"{self.read.store.key} {self.target_rows.key}",
            "encoder": fingerprint(self.model.params),
            "scorer": fingerprint(self.scorer.params),
        }

    def init(self) -> ArtState:
        """The pretrained weights and an index made with them."""
        train = initial_state(self.model, self.optimizer, self.mesh, self.frozen)
        return ArtState(train, self.whole.encode(train))

    def abstract_state(self) -> ArtState:
        """The shapes and shardings of the state."""
        return ArtState(
            abstract_train_state(self.model.params, self.optimizer, self.mesh, self.frozen), self.whole.abstract_index()
        )

    def step(self, state: ArtState, number: int, batch: QuestionBatch) -> tuple[ArtState, dict[str, jax.Array]]:
        """One ART step; every R steps the corpus is encoded anew first."""
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
        """Retrieval figures of the dev questions over the whole corpus, encoded with the current weights."""
        return self.dev.figures(state.train, self.whole, state.index)

    def save_model(self, state: ArtState, folder: Path) -> None:
        """Writes the dual encoder's folder."""
        save_encoder(self.model, state.train, folder)

    def batch(self, number: int) -> QuestionBatch:
        """The questions of step `number`, a function of (seed, number) alone."""
        arrays, forms = self.made[number]
        return QuestionBatch(*(put_batch(self.mesh, x) for x in arrays), forms=put_forms(self.mesh, forms))

    def _on_host(self, number: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, np.ndarray] | None]:
        """The arrays of a step: tokens, lengths, targets and their lengths; forms. The teacher reads no typos."""
        chosen = self.batches.indices(number)
        tokens, lengths, forms = self.read.of_step(chosen, number)
        return (tokens, lengths, *select(self.target_rows, chosen)), forms


def art_program(
    config: ArtConfig, encoder: DualEncoderConfig, t5: T5Config, prompt: Prompt, corpus_rows: int, mesh: Mesh
) -> ArtProgram:
    """The constants of a run's compiled programs.

    Args:
      config: of the run.
      encoder: of its dual encoder.
      t5: of its scorer.
      prompt: the scorer's instruction.
      corpus_rows: passages of the corpus.
      mesh: the devices.

    Raises:
      UsageError: settings that ART has no use for.
    """
    if config.typos.multi_positive or config.typos.passage_self_teaching_weight:
        raise UsageError(
            "typos.multi_positive and typos.passage_self_teaching_weight need judged passages, and ART has none; leave "
            "them out"
        )
    top_k = min(config.art.top_k, corpus_rows)
    if top_k < config.art.top_k:
        log.warning("art.top_k=%d, but the corpus has %d passages: using %d", config.art.top_k, top_k, top_k)
    return ArtProgram(
        encoder=encoder,
        encoder_dtype=config.encoder.dtype,
        corpus_rows=corpus_rows,
        index=config.index,
        chunk=config.art.chunk,
        activation_bytes=activation_bytes(config.encoder, mesh),
        seed=config.train.seed,
        t5=t5,
        prompt=prompt,
        scorer=config.scorer,
        art=config.art,
        top_k=top_k,
        temperature=config.art.temperature or float(encoder.embedding_size) ** 0.5,
        typos=config.typos,
    )
