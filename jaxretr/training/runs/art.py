"""Wiring of an ART run: the corpus and its tokens on the devices, the two models, the compiled programs."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import ArtConfig
from jaxretr.data.batches import QuestionBatches
from jaxretr.data.question_identity import own_rows
from jaxretr.data.token_store import TokenStore, ids_dtype
from jaxretr.data.tokens import tokenizer_fingerprint
from jaxretr.embeddings.fingerprints import texts_fingerprint
from jaxretr.models.embed import DualEncoderConfig, JointConfig
from jaxretr.models.scorers.causal_lm import CausalLmConfig
from jaxretr.models.scorers.teachers import T5Teacher, Teacher
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.hosts import fingerprint
from jaxretr.training.runs.agreement import METRIC, make_ask
from jaxretr.training.runs.art_texts import GivenPassages, read_art_texts
from jaxretr.training.runs.corpus_programs import CorpusPrograms, RunState, index_settings
from jaxretr.training.runs.corpus_run import CorpusRun
from jaxretr.training.runs.corpus_sizes import CorpusSize, most_questions
from jaxretr.training.runs.corpus_tokens import abstract_rows, columns, corpus_tokens, width_of
from jaxretr.training.runs.encoder_start import encoder_inputs, model_shape
from jaxretr.training.runs.outline import INDEX, SCORER, TABLE, TOKENS, Outline, of_state, token_shapes
from jaxretr.training.runs.run_inputs import Inputs, digest, file_digest
from jaxretr.training.runs.step_questions import StepQuestions, question_shapes
from jaxretr.training.runs.teacher_start import (
    OnDevices,
    load_teacher,
    scorer_rows,
    stored,
    teacher_shape,
)
from jaxretr.training.runs.teacher_table import check_made_of, made_of, read_table, table_maker
from jaxretr.training.state import TokenRows
from jaxretr.training.steps.art import ArtProgram, QuestionBatch, make_step
from jaxretr.training.steps.score_table import TableState
from jaxretr.training.steps.teaching import Teaching
from jaxretr.training.steps.widths import TeacherWidths

log = logging.getLogger(__name__)

LANGUAGE_MODEL = (0.2, 1.0)
"""The teacher's temperature and the prior's weight that suited a causal language model."""


def note_temperature(config: ArtConfig, teacher: Teacher) -> None:
    """Say what suits a teacher that is no T5; the shipped configs' own is for the log-probabilities of a small T5."""
    if isinstance(teacher, T5Teacher):
        return
    suits = "their spread decides what suits it: compare a few values on held-out questions"
    if isinstance(teacher.config, CausalLmConfig):
        temperature, prior = LANGUAGE_MODEL
        suits = (
            f"{temperature:g} and {prior:g} with art.prior=start suited SmolLM2-135M on SciFact; where a teacher ranks worse than "
            "the encoder, choose the temperature on a few judged questions (docs/guides/art.md)"
        )
    note(
        log.info,
        "art.teacher_temperature=%g, with art.prior_weight=%g, divides the scores of %s, which is no T5; %s",
        config.art.teacher_temperature,
        config.art.prior_weight,
        config.scorer.path,
        suits,
    )


class ArtRun(CorpusRun):
    """An ART run."""

    def __init__(self, config: ArtConfig, mesh: Mesh, workdir: Path):
        super().__init__(config, mesh, workdir)
        placed = OnDevices(mesh)
        self.scorer = load_teacher(config.scorer, placed)
        note_temperature(config, self.scorer.teacher)
        self.scorer_params, self._scorer_print = self.scorer.params, placed.fingerprint
        texts = read_art_texts(config.data, self.stores)
        self.corpus, self.questions = texts.corpus, texts.questions
        metric = config.train.best_metric
        by_teacher = metric.removeprefix("typo_") == METRIC
        if by_teacher and texts.dev is None:
            raise UsageError(
                f"train.best_metric={metric}: there are no questions to ask the teacher about; keep some out of training with "
                "data.held_out=64"
            )
        if texts.unjudged and ":" not in metric and not by_teacher:
            raise UsageError(
                f"train.best_metric={metric}: the held-out questions have no judgements, and are measured by {METRIC} alone; "
                f"set train.best_metric={METRIC}, or give a dev set with data.dev_questions and data.dev_qrels"
            )
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
        passage_rows = scorer_rows(self.scorer, self.corpus, self.stores, "teacher's passage")
        self.target_rows = scorer_rows(self.scorer, questions, self.stores, "teacher's question")
        asked = [self.target_rows]
        by_teacher |= texts.unjudged
        if texts.dev is not None and by_teacher:
            evaluated = [question.text for question in texts.dev.questions]
            asked.append(scorer_rows(self.scorer, evaluated, self.stores, "teacher's question"))
        widths = teacher_widths(self.scorer.teacher, passage_rows, asked)

        # ---- programs and corpus -------------------------------------------------------------------------------------
        size, teacher = len(self.corpus), self.scorer.teacher
        self.put_passages(
            self.corpus,
            lambda lengths: art_program(config, self.model.config, teacher, widths, size, mesh, lengths),
            make_step,
        )
        self.scorer_passages = corpus_tokens(passage_rows, self.whole.rows, mesh)
        self.empty_table = table_maker(config.table, len(self.questions), self.program.compared, mesh)

        # ---- questions -----------------------------------------------------------------------------------------------
        self.batches = QuestionBatches(len(self.questions), config.train.batch_size, config.train.seed)
        self.read = StepQuestions(questions, config.typos, self.model, self.stores, config.train.seed)
        self.given = GivenPassages(config, self.corpus, questions) if self.program.given else None
        ask = None
        if by_teacher:
            ask = make_ask(self.program.teaching, self.scorer_params, self.scorer_passages, asked[-1], mesh)
        self.evaluate_on(self.dev_set(texts.dev, self.corpus, ask=ask))

    @staticmethod
    def outline(config: ArtConfig, mesh: Mesh, size: CorpusSize) -> Outline:
        model, shape = model_shape(config.encoder, config.joint), teacher_shape(config.scorer)
        ids = ids_dtype(shape.vocabulary)
        read = size.rows(shape.passage_length, ids)
        longest = columns(shape.passage_length), columns(shape.question_length)
        widths = TeacherWidths.of_averages(shape.teacher, read.mean, *longest)
        program = art_program(config, model.config, shape.teacher, widths, size.searched, mesh)
        rows = size.rows(model.config.max_passage_length, model.ids)
        programs = CorpusPrograms(config, program, make_step, model, rows, mesh)
        passages = programs.whole.passages
        scorer_passages = corpus_tokens(read, programs.whole.rows, mesh)
        params = shape.teacher.abstract_params()
        scorer = jax.eval_shape(lambda params: stored(shape.teacher, params, config.scorer.dtype), params)
        scorer = sharding.abstract(scorer, mesh)
        empty_table = table_maker(config.table, most_questions(config), program.compared, mesh)
        state, index, table, _ = programs.abstract_state(empty_table)
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
            "dev questions": self.dev.digest(),
            "suites": self.suites.digest(),
            **encoder_inputs(self.config.encoder, self.model),
            "scorer": f"{self.scorer.teacher} {tokenizer} {self._scorer_print}",
            "misspellings": file_digest(self.config.typos.misspellings),
        }
        return Inputs(read, {"batch": fingerprint(self._on_host(0)), "weights": fingerprint(self.model.params)})

    def new_table(self) -> TableState | None:
        """Return the table of scores that a run begins with: empty, or read from a file."""
        path = self.config.table.path
        if self.empty_table is None or path is None:
            return self.empty_table and self.empty_table()
        digests = {name: digest(value) for name, value in self.inputs().read.items()}
        check_made_of(path, made_of(self.config.scorer, {**digests, "corpus": self.corpus.fingerprint()}))
        return read_table(path, jax.eval_shape(self.empty_table), self.corpus, self.questions, self.mesh)

    def arguments(self, state: RunState, batch: QuestionBatch) -> tuple[Any, ...]:
        table = self.new_table() if state.table is None else state.table  # A checkpoint of an older version has none.
        return state.train, state.index, table, self.whole.passages, self.scorer_passages, self.scorer_params, batch

    def _on_host(self, number: int) -> Any:
        """See `CorpusRun._on_host`; the teacher reads no typos."""
        chosen = self.batches.indices(number)
        tokens, lengths, forms = self.read.of_step(chosen, number)
        given = None if self.given is None else self.given.rows(chosen, number)
        targets: Any = self.target_rows.select(chosen, width_of(self.target_rows))
        arrays: Any = (tokens, lengths, *targets, chosen.astype(np.int32), forms and TokenRows(*forms), given)
        return QuestionBatch(*arrays)


def art_program(
    config: ArtConfig,
    encoder: DualEncoderConfig | JointConfig,
    teacher: Teacher,
    widths: TeacherWidths,
    corpus_rows: int,
    mesh: Mesh,
    passage_widths: tuple[int, ...] = (),
) -> ArtProgram:
    """Return the constants of a run's compiled programs.

    Args:
      widths: lengths that the teacher's rows are padded to.
      passage_widths: lengths that suit the passages as the encoder reads them, where they are known.

    Raises:
      UsageError: settings that do not apply to ART.
    """
    top_k = min(config.art.top_k, corpus_rows)
    if top_k < config.art.top_k:
        note(log.warning, "art.top_k=%d, but the corpus has %d passages: using %d", config.art.top_k, top_k, top_k)
    if encoder.sparse:
        raise UsageError(
            "encoder.pooling=splade: ART trains dense encoders; train a sparse one with pairs or mined passages"
        )
    program = ArtProgram(
        **index_settings(config, encoder, corpus_rows, mesh, passage_widths),
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
        given=config.art.given,
        temperature=config.art.temperature or float(encoder.embedding_size) ** 0.5,
        typos=config.typos,
    )
    if program.compared > corpus_rows:
        raise UsageError(
            f"art.top_k, .positives, .hard_negatives and .uniform are {program.compared} passages a question, and the "
            f"corpus has {corpus_rows}; lower them"
        )
    return program


def teacher_widths(teacher: Teacher, passages: TokenStore, questions: Sequence[TokenStore]) -> TeacherWidths:
    """Return the padded lengths that suit a run's texts."""
    lengths = np.concatenate([store.lengths for store in questions])
    return TeacherWidths.of_lengths(
        teacher, passages.lengths, lengths, width_of(passages), max(map(width_of, questions))
    )
