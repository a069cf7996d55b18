"""Wiring of an ART run: the corpus and its tokens on the devices, the two models, the compiled programs."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import ArtConfig
from jaxretr.data.batches import MadeAhead, QuestionBatches
from jaxretr.data.question_identity import own_rows
from jaxretr.data.token_store import TokenStore, ids_dtype
from jaxretr.data.tokens import tokenizer_fingerprint
from jaxretr.embeddings.fingerprints import texts_fingerprint
from jaxretr.models.embed import DualEncoderConfig, JointConfig
from jaxretr.models.encode import note_cut
from jaxretr.models.scorers.teachers import PairTeacher, T5Teacher
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.hosts import fingerprint
from jaxretr.runtime.parallel.mesh import check_cpu_devices
from jaxretr.training.runs.art_texts import read_art_texts
from jaxretr.training.runs.corpus_programs import CorpusPrograms
from jaxretr.training.runs.corpus_sizes import CorpusSize, most_questions
from jaxretr.training.runs.corpus_tokens import abstract_rows, columns, corpus_tokens, width_of
from jaxretr.training.runs.encoder_start import encoder_inputs, load_model, model_shape
from jaxretr.training.runs.given_passages import GivenPassages, places
from jaxretr.training.runs.index_upkeep import IndexUpkeep
from jaxretr.training.runs.outline import INDEX, SCORER, TABLE, TOKENS, Outline, of_state, token_shapes
from jaxretr.training.runs.run_inputs import Inputs, digest, file_digest, judged_digest
from jaxretr.training.runs.step_questions import StepQuestions, question_shapes
from jaxretr.training.runs.suites import Suites, evaluation_of
from jaxretr.training.runs.teacher_start import OnDevices, load_teacher, stored, teacher_shape
from jaxretr.training.runs.teacher_table import check_made_of, made_of, read_table, table_maker
from jaxretr.training.runs.whole_corpus import (
    DevSet,
    activation_bytes,
    passage_store,
    put_batch,
    put_forms,
    save_model,
    select,
    splits,
    widths_of,
)
from jaxretr.training.state import CorpusState, TrainState
from jaxretr.training.steps import index_aware
from jaxretr.training.steps.art import ArtProgram, QuestionBatch, make_step
from jaxretr.training.steps.score_table import TableState
from jaxretr.training.steps.teacher_widths import TeacherWidths
from jaxretr.training.steps.teaching import Teaching

log = logging.getLogger(__name__)


class ArtState(NamedTuple):
    """State that an ART run carries and saves: without the index, a resumed run would search another one."""

    train: TrainState
    index: CorpusState
    table: TableState | None = None
    """The teacher's scores; None where no scores are kept, and in checkpoints of older versions."""
    refresh_every: jax.Array | None = None
    """R, int32 scalar, where it was counted when the run began (`index.refresh_share`)."""


class ArtRun:
    """An ART run with the methods that train.py calls."""

    def __init__(self, config: ArtConfig, mesh: Mesh, workdir: Path):
        self.config, self.mesh, self.workdir = config, mesh, workdir
        self.model = load_model(config.encoder, config.joint, config.train.seed)
        check_cpu_devices(mesh, self.model.config.backbone.widest)
        placed = OnDevices(mesh)
        self.scorer = load_teacher(config.scorer, placed)
        if not isinstance(self.scorer.teacher, T5Teacher):
            # The shipped configs' own is for the log-probabilities of a small T5.
            note(
                log.info,
                "art.teacher_temperature=%g divides the scores of %s, which is no T5; their spread decides what suits it: "
                "compare a few values on held-out questions",
                config.art.teacher_temperature,
                config.scorer.path,
            )
        self.scorer_params, self._scorer_print = self.scorer.params, placed.fingerprint
        stores = Path(config.data.token_cache) if config.data.token_cache else workdir / "tokens"
        texts = read_art_texts(config.data, stores)
        self.corpus, self.questions = texts.corpus, texts.questions
        if own := int((own_rows(self.questions, self.corpus) >= 0).sum()):
            note(
                log.warning,
                "%d of %d questions are passages of the corpus themselves: the teacher finds that each explains itself best, "
                "and the encoder learns that; leave these passages out of data.corpus",
                own,
                len(self.questions),
            )

        # ---- what the teacher reads ----------------------------------------------------------------------------------
        questions = [question.text for question in self.questions]
        passage_rows, self.target_rows = (
            TokenStore.build(stores, content, self.scorer.tokenizer, template, longest, prompt=form)
            for content, template, longest, form in (
                (self.corpus, self.scorer.passage_template, self.scorer.passage_length, self.scorer.passage_form),
                (questions, self.scorer.question_template, self.scorer.question_length, self.scorer.question_form),
            )
        )
        note_cut(passage_rows.truncated, len(self.corpus), "teacher's passage", self.scorer.passage_length)
        note_cut(self.target_rows.truncated, len(questions), "teacher's question", self.scorer.question_length)
        widths = teacher_widths(self.scorer.teacher, passage_rows, self.target_rows)

        # ---- programs and corpus -------------------------------------------------------------------------------------
        self.store = passage_store(self.model, self.corpus, stores)
        self.program = art_program(
            config, self.model.config, self.scorer.teacher, widths, len(self.corpus), mesh, widths_of(self.store)
        )
        self.programs = CorpusPrograms(config, self.program, make_step, self.model, self.store, mesh)
        self.whole, self.codes = self.programs.whole, self.programs.codes
        self.scorer_passages = corpus_tokens(passage_rows, self.whole.rows, mesh)
        self.empty_table = table_maker(config.table, len(self.questions), self.program.compared, mesh)

        # ---- questions -----------------------------------------------------------------------------------------------
        self.batches = QuestionBatches(len(self.questions), config.train.batch_size, config.train.seed)
        self.read = StepQuestions(questions, config.typos, self.model, stores, config.train.seed)
        self.given = GivenPassages(config, self.corpus, questions) if self.program.given else None
        self.made = MadeAhead(self._on_host)
        self.dev = DevSet(texts.dev, self.corpus, self.model, mesh, stores, config.typos)
        self.suites = Suites(config.train.suites, self.model, self.program, config.index, mesh, stores)
        self.upkeep = IndexUpkeep(config.index, config.train, bool(self.dev.questions), self.whole)

    @staticmethod
    def outline(config: ArtConfig, mesh: Mesh, size: CorpusSize) -> Outline:
        """Return the programs of a run and the shapes of their arguments, see `jaxretr.training.loop.outline`."""
        model, shape = model_shape(config.encoder, config.joint), teacher_shape(config.scorer)
        ids = ids_dtype(shape.vocabulary)
        read = size.rows(shape.passage_length, ids)
        longest = columns(shape.passage_length), columns(shape.question_length)
        widths = TeacherWidths.of_averages(shape.teacher, read.mean, *longest)
        program = art_program(config, model.config, shape.teacher, widths, size.searched, mesh)
        rows = size.rows(model.config.max_passage_length, model.ids)
        programs = CorpusPrograms(config, program, make_step, model, rows, mesh)
        state, index, passages = programs.abstract_state(), programs.whole.abstract_index(), programs.whole.passages
        scorer_passages = corpus_tokens(read, programs.whole.rows, mesh)
        params = shape.teacher.abstract_params()
        scorer = jax.eval_shape(lambda params: stored(shape.teacher, params, config.scorer.dtype), params)
        scorer = sharding.abstract(scorer, mesh)
        empty_table = table_maker(config.table, most_questions(config), program.compared, mesh)
        table = empty_table and jax.eval_shape(empty_table)
        b = config.train.batch_size
        questions, forms = question_shapes(model, mesh, b, config.typos)
        targets, numbers = token_shapes(mesh, ids, shape.question_length, b), abstract_rows(mesh, "int32", b)
        given = abstract_rows(mesh, "int32", b, program.given) if program.given else None
        texts = questions.tokens, questions.lengths, targets.tokens, targets.lengths
        batch = QuestionBatch(*texts, numbers, forms, given)
        resident = {**of_state(state), TOKENS: (passages, scorer_passages), INDEX: index, SCORER: scorer, TABLE: table}
        arguments = state, index, table, passages, scorer_passages, scorer, batch
        return programs.outline(arguments, resident, config.data.has_dev_questions)

    # ---- as train.py calls it ----------------------------------------------------------------------------------------

    def inputs(self) -> Inputs:
        """Fingerprints of the data and of the models that the run begins with."""
        tokenizer = tokenizer_fingerprint(self.scorer.tokenizer)
        read = {
            "corpus": self.store.content,
            "questions": texts_fingerprint(self.questions),
            "judged passages": fingerprint([] if self.given is None else self.given.content),
            "dev questions": judged_digest(self.dev.questions, self.dev.qrels),
            "suites": self.suites.digest(),
            **encoder_inputs(self.config.encoder, self.model),
            "scorer": f"{self.scorer.teacher} {tokenizer} {self._scorer_print}",
            "misspellings": file_digest(self.config.typos.misspellings),
        }
        return Inputs(read, {"batch": fingerprint(self._on_host(0)), "weights": fingerprint(self.model.params)})

    def init(self) -> ArtState:
        """Return the pretrained weights, and an index that is encoded with them."""
        train = self.programs.first_state(self.model)
        index, table = self.whole.encode(train), self.new_table()
        train = self.codes.first(train, self.whole.passages)
        every = self.upkeep.counted(train, index, lambda: self._trace_step(train, index, table))
        return ArtState(train, index, table, every)

    def abstract_state(self) -> ArtState:
        """Return the shapes and shardings of the state."""
        train, every = self.programs.abstract_state(), self.upkeep.abstract_every()
        return ArtState(train, self.whole.abstract_index(), self.abstract_table(), every)

    def abstract_table(self) -> TableState | None:
        """Return the shapes and shardings of the table of scores, if there is one."""
        return self.empty_table and jax.eval_shape(self.empty_table)

    def new_table(self) -> TableState | None:
        """Return the table of scores that a run begins with: empty, or read from a file."""
        path = self.config.table.path
        if self.empty_table is None or path is None:
            return self.empty_table and self.empty_table()
        digests = {name: digest(value) for name, value in self.inputs().read.items()}
        check_made_of(path, made_of(self.config.scorer, {**digests, "corpus": self.corpus.fingerprint()}))
        return read_table(path, jax.eval_shape(self.empty_table), self.corpus, self.questions, self.mesh)

    def step(self, state: ArtState, number: int, batch: QuestionBatch) -> tuple[ArtState, dict[str, jax.Array]]:
        """Run one ART step; the index, or a slice of it, and product codes are renewed first if that is due."""
        train, index, table, every = self.refreshed(state, number)
        if table is None:  # A checkpoint of an older version has none.
            table = self.new_table()
        index = self.upkeep.rolled(train, index, number, every)
        train, index, table, values, _ = self.programs.step(
            train, index, table, self.whole.passages, self.scorer_passages, self.scorer_params, batch
        )
        return ArtState(train, index, table, every), values

    def _trace_step(self, train: TrainState, index: CorpusState, table: TableState | None) -> Any:
        tokens = self.whole.passages, self.scorer_passages
        return self.programs.step.trace(train, index, table, *tokens, self.scorer_params, self.batch(0))

    def refreshed(self, state: ArtState, number: int) -> ArtState:
        """Return the state with a fresh index and fresh product codes, where they are due before step `number`."""
        index = self.upkeep.refreshed(state.train, state.index, number)
        return state._replace(train=self.codes.refitted(state.train, self.whole.passages, number), index=index)

    def evaluate(self, state: ArtState) -> dict[str, float]:
        """Retrieval metrics of the dev questions over the whole corpus, and of the suites, with the current weights."""
        return {**self.dev.metrics(state.train, self.whole, state.index), **self.suites.metrics(state.train)}

    def evaluated(self) -> str:
        """Return a text for the log that names the dev questions, the corpus, and the suites."""
        return evaluation_of(self.dev, self.whole, self.suites)

    def save_model(self, state: ArtState, folder: Path) -> None:
        """Write the model's folder."""
        save_model(self.model, state.train, folder)

    def batch(self, number: int) -> QuestionBatch:
        """Return the questions of step `number`, a function of (seed, number) alone."""
        arrays, forms, given = self.made[number]
        return QuestionBatch(
            *(put_batch(self.mesh, x) for x in arrays),
            forms=put_forms(self.mesh, forms),
            given=None if given is None else put_batch(self.mesh, given),
        )

    def _on_host(
        self, number: int
    ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, np.ndarray] | None, np.ndarray | None]:
        """Return the arrays of a step: tokens, lengths, targets and their lengths, numbers; misspelt forms; given rows.
        The teacher reads no typos."""
        chosen = self.batches.indices(number)
        tokens, lengths, forms = self.read.of_step(chosen, number)
        given = None if self.given is None else self.given.rows(chosen, number)
        return (tokens, lengths, *select(self.target_rows, chosen), chosen.astype(np.int32)), forms, given


def art_program(
    config: ArtConfig,
    encoder: DualEncoderConfig | JointConfig,
    teacher: T5Teacher | PairTeacher,
    widths: TeacherWidths,
    corpus_rows: int,
    mesh: Mesh,
    passage_widths: tuple[int, ...] = (),
) -> ArtProgram:
    """Return the constants of a run's compiled programs.

    Args:
      config: config of the run.
      encoder: config of its dual encoder, or of the two that are trained jointly.
      teacher: constants of its scorer.
      widths: lengths that the teacher's rows are padded to.
      corpus_rows: number of passages in the corpus.
      mesh: the devices.
      passage_widths: lengths that suit the passages as the encoder reads them, where they are known.

    Raises:
      UsageError: settings that do not apply to ART.
    """
    if config.typos.multi_positive or config.typos.passage_self_teaching_weight:
        raise UsageError(
            "typos.multi_positive and typos.passage_self_teaching_weight need judged passages, and ART has none; "
            "leave them out"
        )
    index_aware.check(config.index_aware)
    given = places(config)
    top_k = min(config.art.top_k, corpus_rows)
    if top_k < config.art.top_k:
        note(log.warning, "art.top_k=%d, but the corpus has %d passages: using %d", config.art.top_k, top_k, top_k)
    program = ArtProgram(
        encoder=encoder,
        encoder_dtype=config.encoder.dtype,
        corpus_rows=corpus_rows,
        index=config.index,
        chunk=config.art.chunk,
        activation_bytes=activation_bytes(config.encoder, mesh),
        seed=config.train.seed,
        shard_parameters=splits(config.mesh, encoder, mesh),
        index_aware=config.index_aware,
        passage_widths=passage_widths,
        teaching=Teaching(
            teacher=teacher,
            widths=widths,
            dtype=config.scorer.dtype,
            chunk=config.scorer.chunk,
            replacement=config.table.replacement,
            on_cpus=mesh.devices.flat[0].platform == "cpu",
        ),
        art=config.art,
        top_k=top_k,
        given=given,
        temperature=config.art.temperature or float(encoder.embedding_size) ** 0.5,
        typos=config.typos,
    )
    if program.compared > corpus_rows:
        raise UsageError(
            f"art.top_k, .positives, .hard_negatives and .uniform are {program.compared} passages a question, and the "
            f"corpus has {corpus_rows}; lower them"
        )
    return program


def teacher_widths(teacher: T5Teacher | PairTeacher, passages: TokenStore, questions: TokenStore) -> TeacherWidths:
    """Return the padded lengths that suit a run's texts."""
    columns = width_of(passages), width_of(questions)
    return TeacherWidths.of_lengths(teacher, passages.lengths, questions.lengths, *columns)
