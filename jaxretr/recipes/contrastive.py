"""Wiring of a supervised run: the training set, the passages on the devices, the compiled step, the validation."""

import logging
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr import optim
from jaxretr.config import ContrastiveConfig
from jaxretr.data.batches import QuestionBatches
from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.training_set import Ragged, TrainingSet, first_copies, load_training_set
from jaxretr.errors import UsageError, UserError
from jaxretr.objectives.contrastive import NO_PASSAGE, ContrastiveBatch, ContrastiveProgram, make_step
from jaxretr.parallel.mesh import put_rows
from jaxretr.recipes.validation import ValidationSet
from jaxretr.recipes.whole_corpus import (
    DevSet,
    WholeCorpus,
    abstract_train_state,
    initial_state,
    load_encoder,
    put_batch,
    question_store,
    save_encoder,
    select,
)
from jaxretr.state import CorpusState, TrainState

log = logging.getLogger(__name__)


class ContrastiveState(NamedTuple):
    """What a supervised run carries and saves; the index is None unless the step searches."""

    train: TrainState
    index: CorpusState | None


class ContrastiveRun:
    """A supervised run as train.py sees it."""

    def __init__(self, config: ContrastiveConfig, mesh: Mesh, workdir: Path):
        check(config)
        self.config, self.mesh = config, mesh
        self.model = load_encoder(config.encoder)
        stores = Path(config.data.token_cache) if config.data.token_cache else workdir / "tokens"

        # ---- examples ------------------------------------------------------------------------------------------------
        data = config.data
        corpus = read_corpus(data.corpus) if data.corpus else None
        self.examples = load_training_set(
            data.train, corpus, format=data.train_format, split=data.split, skip_bad=data.skip_bad
        )
        # Further files may bring passages of their own: each set's rows begin with those of the one before.
        self.mined, passages = None, self.examples.passages
        if data.mined is not None:
            self.mined = load_training_set(data.mined, passages, skip_bad=data.skip_bad)
            passages = self.mined.passages
        self.validation = None
        if data.dev is not None:
            dev = load_training_set(data.dev, passages, split=data.dev_split, skip_bad=data.skip_bad)
            passages = dev.passages
        self.corpus_rows = self.examples.corpus_rows
        self.contents = first_copies(passages)
        self.draws = ExampleDraws(config, self.examples, self.mined, self.contents)
        self.batches = QuestionBatches(len(self.examples), config.train.batch_size, config.train.seed)
        self.question_rows = question_store(stores, self.examples.questions, self.model)

        # ---- programs ------------------------------------------------------------------------------------------------
        self.program = self._program()
        self.optimizer = optim.build(config.optimizer, config.train.steps)
        self.train_step = make_step(self.program, self.optimizer, mesh)

        # ---- passages ------------------------------------------------------------------------------------------------
        self.whole = WholeCorpus(self.model, passages, self.program, mesh, stores, config.index.dtype)
        self.device_contents = put_rows(mesh, self.contents, (self.whole.rows,), np.int32)
        searched = Corpus(*(column[: self.corpus_rows] for column in (passages.ids, passages.titles, passages.texts)))
        if data.dev_questions is not None and not self.corpus_rows:
            raise UsageError("data.dev_questions is searched for in a corpus; name it with --data.corpus FILE")
        self.dev = DevSet(data, searched, self.model, mesh, stores)
        if data.dev is not None:
            self.validation = ValidationSet(
                config.validation, dev, self.contents, self.model, self.program, self.whole, mesh, stores
            )
        log.info(
            "%d examples, %d passages (%d of them searched); each question meets %d negatives at most",
            len(self.examples),
            len(passages),
            self.corpus_rows,
            self.most_negatives,
        )

    @property
    def most_negatives(self) -> int:
        """Negatives of a question in one step, before masking; the log's `negatives` is their number after it."""
        places = self.draws.places + self.program.retrieved
        in_batch = self.config.train.batch_size * places - self.program.positives
        return in_batch + (self.corpus_rows if self.program.corpus_softmax else 0)

    def _program(self) -> ContrastiveProgram:
        config = self.config
        whole = self.model.config.embedding_size
        sizes = tuple(sorted({*config.contrastive.matryoshka, whole}))
        if sizes[0] < 1 or sizes[-1] > whole:
            raise UsageError(
                f"contrastive.matryoshka={config.contrastive.matryoshka}: sizes must be from 1 to the embedding's {whole}"
            )
        program = ContrastiveProgram(
            encoder=self.model.config,
            encoder_dtype=config.encoder.dtype,
            corpus_rows=self.corpus_rows,
            block_rows=config.index.block_rows,
            encode_rows=config.index.encode_rows,
            seed=config.train.seed,
            positives=self.draws.positives,
            retrieved=config.negatives.retrieved,
            first_rank=config.negatives.first_rank,
            last_rank=config.negatives.last_rank,
            draw=config.negatives.draw,
            margin=config.negatives.margin,
            mask_known_positives=config.negatives.mask_known_positives,
            mask_duplicates=config.negatives.mask_duplicates,
            temperature=config.contrastive.temperature,
            symmetric=config.contrastive.symmetric,
            corpus_softmax=config.contrastive.corpus_softmax,
            sizes=sizes,
            chunk=config.contrastive.chunk,
            write_back=config.index.write_back,
            distillation=config.distillation.loss,
            distillation_weight=config.distillation.weight,
            contrastive_weight=config.distillation.contrastive_weight,
            teacher_temperature=config.distillation.teacher_temperature,
        )
        if program.searches and not self.corpus_rows:
            raise UsageError("retrieved negatives and the corpus-wide softmax need a corpus; set --data.corpus FILE")
        return program

    # ---- as train.py calls it ----------------------------------------------------------------------------------------

    def init(self) -> ContrastiveState:
        """The pretrained weights, and an index made with them if the step searches."""
        train = initial_state(self.model, self.optimizer, self.mesh)
        return ContrastiveState(train, self.whole.encode(train) if self.program.searches else None)

    def abstract_state(self) -> ContrastiveState:
        """The shapes and shardings of the state."""
        train = abstract_train_state(self.model, self.optimizer, self.mesh)
        return ContrastiveState(train, self.whole.abstract_index() if self.program.searches else None)

    def step(self, state: ContrastiveState, number: int) -> tuple[ContrastiveState, dict[str, jax.Array]]:
        """One step; a live index is encoded anew first every R steps."""
        train, index = state
        if index is not None and number and number % self.config.index.refresh_every == 0:
            index = self.whole.refresh(train, index)
        train, index, values, _ = self.train_step(
            train, index, self.whole.passages, self.device_contents, self.batch(number)
        )
        return ContrastiveState(train, index), values

    def evaluate(self, state: ContrastiveState) -> dict[str, float]:
        """Validation loss and average rank, and retrieval figures of the dev questions over the whole corpus."""
        figures = {} if self.validation is None else self.validation.figures(state.train)
        return {**figures, **self.dev.figures(state.train, self.whole)}

    def save_model(self, state: ContrastiveState, folder: Path) -> None:
        """Writes the dual encoder's folder."""
        save_encoder(self.model, state.train.params, folder)

    def batch(self, number: int) -> ContrastiveBatch:
        """The examples of step `number`, a function of (seed, number) alone."""
        chosen = self.batches.indices(number)
        rows, teacher = self.draws.rows(chosen, number)
        arrays = (*select(self.question_rows, chosen), rows, self.draws.known(chosen))
        put = [put_batch(self.mesh, x) for x in arrays]
        return ContrastiveBatch(*put, teacher=None if teacher is None else put_batch(self.mesh, teacher))


class ExampleDraws:
    """Which passages stand for an example in a step: positives, then static and mined negatives."""

    def __init__(
        self, config: ContrastiveConfig, examples: TrainingSet, mined: TrainingSet | None, contents: np.ndarray
    ):
        self.seed, self.examples = config.train.seed, examples
        self.static = config.negatives.static
        most = int(examples.positives.lengths.max())
        self.positives = 1 if config.contrastive.positives == "draw" else min(config.contrastive.max_positives, most)
        self._known = _known_positives(examples, contents)
        self._known_width = int(self._known.lengths.max())
        # DPR: a question without hard negatives falls back to its others.
        self._negatives = _first_not_empty(examples.negatives, examples.other_negatives)
        if self.static and not len(self._negatives.values):
            raise UsageError(
                f"{config.data.train}: holds no negatives; set --negatives.static 0, or mine some (jaxretr mine)"
            )
        self._scores = None
        if config.distillation.loss != "none":
            self._scores = self._teacher_scores(config)
        self.mined_places = config.negatives.mined
        self._mined = None
        if mined is not None:
            self._mined = _of_questions(mined, examples, config)

    @property
    def places(self) -> int:
        """Passages of an example."""
        return self.positives + self.static + self.mined_places

    def rows(self, chosen: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Draws the passages of some examples, a function of (seed, step) and the examples alone.

        Args:
          chosen: B examples.
          step: number of the step.

        Returns:
          rows int32 [B, places], NO_PASSAGE where an example has too few; and, for distillation, the teacher's scores
          of them, float32 [B, places], NaN where there is none.
        """
        rng = np.random.default_rng([self.seed, step])
        positives, of_positives = _draw(rng, self.examples.positives, chosen, self.positives)
        negatives, of_negatives = _draw(rng, self._negatives, chosen, self.static)
        parts = [positives, negatives]
        if self._mined is not None:
            parts.append(_draw(rng, self._mined, chosen, self.mined_places)[0])
        teacher = None
        if self._scores is not None:
            of_drawn = [
                np.where(places < 0, np.nan, scores[places])
                for scores, places in zip(self._scores, (of_positives, of_negatives), strict=True)
            ]
            unscored = np.full((len(chosen), self.mined_places), np.nan)
            teacher = np.concatenate([*of_drawn, unscored], axis=1).astype(np.float32)
        return np.concatenate(parts, axis=1), teacher

    def known(self, chosen: np.ndarray) -> np.ndarray:
        """Contents of all judged positives of some examples, int32 [B, Q], padded with NO_PASSAGE."""
        known = np.full((len(chosen), self._known_width), NO_PASSAGE, np.int32)
        lengths = self._known.lengths[chosen]
        known[np.arange(self._known_width) < lengths[:, None]] = np.concatenate([self._known[i] for i in chosen])
        return known

    def _teacher_scores(self, config: ContrastiveConfig) -> tuple[np.ndarray, np.ndarray]:
        """The teacher's scores, aligned with the values of the positives and of `_negatives`."""
        scores = self.examples.positive_scores, self.examples.negative_scores
        if scores[0] is None or scores[1] is None:
            raise UserError(
                f"{config.data.train}: its passages have no scores to learn from; add them, or set --distillation.loss none"
            )
        of_others = Ragged(
            self.examples.other_negatives.offsets, np.full(len(self.examples.other_negatives.values), np.nan)
        )
        return scores[0].values, _first_not_empty(scores[1], of_others).values


def _known_positives(examples: TrainingSet, contents: np.ndarray) -> Ragged:
    """The contents of each example's judged positives, those of other examples with the same question included."""
    same: dict[str, list[int]] = {}
    for number, question in enumerate(examples.questions):
        same.setdefault(question.text, []).append(number)
    of_example = Ragged(examples.positives.offsets, contents[examples.positives.values])
    if len(same) == len(examples):
        return of_example
    joined = {text: sorted({int(row) for i in numbers for row in of_example[i]}) for text, numbers in same.items()}
    return Ragged.from_rows([joined[question.text] for question in examples.questions], np.int32)


def _first_not_empty(first: Ragged, second: Ragged) -> Ragged:
    """Each row of `first`, or of `second` where that is empty."""
    empty = first.lengths == 0
    lengths = np.where(empty, second.lengths, first.lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts = np.where(empty, second.offsets[:-1] + len(first.values), first.offsets[:-1])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(starts, lengths)
    return Ragged(offsets, np.concatenate([first.values, second.values])[place])


def _of_questions(mined: TrainingSet, examples: TrainingSet, config: ContrastiveConfig) -> Ragged:
    """The mined negatives in the order of the examples; none for a question that was not mined."""
    place = {question.id: number for number, question in enumerate(mined.questions)}
    empty = np.empty(0, np.int32)
    rows = []
    for number, question in enumerate(examples.questions):
        found = mined.negatives[place[question.id]] if question.id in place else empty
        # What the training file judges positive is none, whatever the mined file says.
        rows.append(found[~np.isin(found, examples.positives[number])])
    lengths = np.array([len(row) for row in rows])
    if not lengths.sum():
        raise UserError(
            f"{config.data.mined}: holds no negatives of the questions of {config.data.train}; check that the ids agree"
        )
    if missing := int((lengths == 0).sum()):
        log.warning("%s: has no negatives for %d of %d questions", config.data.mined, missing, len(rows))
    return Ragged(np.concatenate([[0], np.cumsum(lengths)]), np.concatenate(rows))


def _draw(rng: np.random.Generator, lists: Ragged, chosen: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws up to `count` different entries from some rows of a Ragged.

    Returns:
      The entries, int32 [B, count], and their places in `lists.values`; NO_PASSAGE where a row has too few.
    """
    lengths = lists.lengths[chosen]
    owner = np.repeat(np.arange(len(chosen)), lengths)
    begins = np.cumsum(lengths) - lengths
    number = np.arange(len(owner)) - begins[owner]  # within its row
    place = lists.offsets[chosen][owner] + number
    # Every row shuffled, all rows at once; then the first `count` of each.
    order = np.lexsort((rng.random(len(owner)), owner))
    rank = number
    kept = rank < count
    drawn = np.full((len(chosen), count), NO_PASSAGE, np.int64)
    drawn[owner[kept], rank[kept]] = place[order][kept]
    entries = np.where(drawn < 0, NO_PASSAGE, lists.values[drawn] if len(lists.values) else NO_PASSAGE)
    return entries.astype(np.int32), drawn


def check(config: ContrastiveConfig) -> None:
    """Refuses settings that contradict each other."""
    negatives, contrastive = config.negatives, config.contrastive
    for name in ("static", "mined", "retrieved"):
        if getattr(negatives, name) < 0:
            raise UsageError(f"negatives.{name}={getattr(negatives, name)}: must be at least 0")
    if not 1 <= negatives.first_rank <= negatives.last_rank:
        raise UsageError(
            f"negatives.first_rank={negatives.first_rank} and last_rank={negatives.last_rank}: ranks count from 1 upwards"
        )
    if bool(negatives.mined) != (config.data.mined is not None):
        raise UsageError("negatives.mined and data.mined go together; set both, or neither")
    if contrastive.chunk < 1 or contrastive.max_positives < 1:
        raise UsageError("contrastive.chunk and contrastive.max_positives must be at least 1")
    if not contrastive.temperature > 0 or not config.distillation.teacher_temperature > 0:
        raise UsageError("contrastive.temperature and distillation.teacher_temperature must be above 0")
    if config.distillation.loss == "none" and config.distillation.contrastive_weight == 0:
        raise UsageError("distillation.contrastive_weight=0 leaves no loss; set --distillation.loss, or another weight")
