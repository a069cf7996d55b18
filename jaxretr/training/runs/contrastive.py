"""Wiring of a supervised run: the training set, the passages on the devices, the compiled step, the validation."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import ContrastiveConfig, ContrastiveData
from jaxretr.data.batches import MadeAhead, QuestionBatches
from jaxretr.data.corpus import Corpus, content_fingerprint
from jaxretr.data.token_store import document_frequencies
from jaxretr.data.tokens import vocabulary_size
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, JointConfig
from jaxretr.models.starts import lexical_start
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel.hosts import fingerprint
from jaxretr.runtime.parallel.mesh import check_cpu_devices, put_rows
from jaxretr.training.runs.corpus_programs import CorpusPrograms
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.corpus_tokens import abstract_rows
from jaxretr.training.runs.encoder_start import encoder_inputs, load_model, model_shape
from jaxretr.training.runs.index_upkeep import IndexUpkeep
from jaxretr.training.runs.outline import INDEX, TOKENS, Outline, of_state
from jaxretr.training.runs.run_examples import RunExamples, read_run_examples
from jaxretr.training.runs.run_inputs import Inputs, digest, file_digest, judged_digest
from jaxretr.training.runs.step_questions import StepQuestions, question_shapes
from jaxretr.training.runs.suites import Suites, evaluation_of
from jaxretr.training.runs.validation import ValidationSet
from jaxretr.training.runs.whole_corpus import (
    DevSet,
    Judged,
    activation_bytes,
    dev_questions,
    passage_store,
    put_batch,
    put_forms,
    save_model,
    splits,
    widths_of,
)
from jaxretr.training.state import CorpusState, TrainState
from jaxretr.training.steps import index_aware
from jaxretr.training.steps.batch_loss import ContrastiveBatch, ContrastiveProgram
from jaxretr.training.steps.contrastive import make_step

log = logging.getLogger(__name__)


class ContrastiveState(NamedTuple):
    """State that a supervised run carries and saves; the index is None unless the step searches."""

    train: TrainState
    index: CorpusState | None
    refresh_every: jax.Array | None = None
    """R, int32 scalar, where it was counted when the run began (`index.refresh_share`)."""


class ContrastiveRun:
    """A supervised run with the methods that train.py calls."""

    def __init__(self, config: ContrastiveConfig, mesh: Mesh, workdir: Path):
        check(config)
        self.config, self.mesh = config, mesh
        seed = config.train.seed
        self.model = load_model(config.encoder, config.joint, seed)
        check_cpu_devices(mesh, self.model.config.backbone.widest)
        stores = Path(config.data.token_cache) if config.data.token_cache else workdir / "tokens"

        # ---- examples ------------------------------------------------------------------------------------------------
        data = config.data
        self.examples = read_run_examples(config)
        passages, self.corpus_rows, self.contents = (
            self.examples.passages,
            self.examples.corpus_rows,
            self.examples.contents,
        )
        self.draws = self.examples.draws
        self.batches = QuestionBatches(len(self.examples.texts), config.train.batch_size, config.train.seed)
        self.questions = StepQuestions(self.examples.texts, config.typos, self.model, stores, seed)
        self.made = MadeAhead(self._on_host)

        # ---- programs and passages -----------------------------------------------------------------------------------
        self.store = passage_store(self.model, passages, stores)
        self.program = contrastive_program(
            config, self.model.config, self.corpus_rows, self.draws.positives, mesh, widths_of(self.store)
        )
        self.programs = CorpusPrograms(config, self.program, make_step, self.model, self.store, mesh)
        self.whole, self.codes = self.programs.whole, self.programs.codes
        self.device_contents = put_rows(mesh, self.contents, (self.whole.rows,), np.int32)
        if data.dev_questions is not None and not self.corpus_rows:
            raise UsageError("data.dev_questions is searched for in a corpus; name it with data.corpus=FILE")
        judged, searched = evaluated_on(data, self.examples)
        self.dev = DevSet(judged, searched, self.model, mesh, stores, config.typos)
        self.suites = Suites(config.train.suites, self.model, self.program, config.index, mesh, stores)
        self.upkeep = IndexUpkeep(config.index, config.train, bool(self.dev.questions), self.whole)
        self.validation = None
        if self.examples.dev is not None:
            self.validation = ValidationSet(
                config.validation, self.examples.dev, self.contents, self.model, self.program, self.whole, mesh, stores
            )
        note(
            log.info,
            "%d examples, %d passages (%d of them searched); each question meets %d negatives at most",
            len(self.examples.texts),
            len(passages),
            self.corpus_rows,
            self.most_negatives,
        )

    @staticmethod
    def outline(config: ContrastiveConfig, mesh: Mesh, size: CorpusSize) -> Outline:
        """Return the programs of a run and the shapes of their arguments, see `jaxretr.training.loop.outline`."""
        check(config)
        model = model_shape(config.encoder, config.joint)
        # The training file may have fewer negatives; the run reports this when it has read the file.
        positives = config.contrastive.max_positives if config.contrastive.positives == "all" else 1
        program = contrastive_program(config, model.config, size.searched, positives, mesh)
        rows = size.rows(model.config.max_passage_length, model.ids)
        programs = CorpusPrograms(config, program, make_step, model, rows, mesh)
        state, whole = programs.abstract_state(), programs.whole
        index = whole.abstract_index() if program.searches else None
        contents = abstract_rows(mesh, "int32", whole.rows)
        b, places = config.train.batch_size, positives + config.negatives.static + config.negatives.mined
        questions, forms = question_shapes(model, mesh, b, config.typos)
        batch = ContrastiveBatch(
            questions.tokens,
            questions.lengths,
            abstract_rows(mesh, "int32", b, places),
            abstract_rows(mesh, "int32", b, config.contrastive.max_positives * config.negatives.mask_known_positives),
            abstract_rows(mesh, "float32", b, places) if config.distillation.loss != "none" else None,
            forms,
        )
        resident = {**of_state(state), TOKENS: (whole.passages, contents), INDEX: index}
        evaluates = config.data.has_dev_questions and size.searched > 0
        return programs.outline((state, index, whole.passages, contents, batch), resident, evaluates)

    @property
    def most_negatives(self) -> int:
        """Number of negatives of a question in one step, before masking; the log's `negatives` are those after it."""
        places = self.draws.places + self.program.negatives.retrieved
        in_batch = self.config.train.batch_size * places - self.program.positives
        return in_batch + (self.corpus_rows if self.program.contrastive.corpus_softmax else 0)

    def _lexical_start(self) -> DualEncoder:
        """Return the model with weights that compare words, weighted by their rarity in the corpus."""
        assert isinstance(self.model, DualEncoder)
        config, tokenizer = self.model.config, self.model.tokenizer
        assert isinstance(config.backbone, BertConfig)  # as every new encoder is
        size = vocabulary_size(tokenizer)
        bert = lexical_start(
            config.backbone,
            tokenizer.convert_ids_to_tokens(list(range(size))),
            document_frequencies(self.store, size),
            self.store.num_rows,
            tokenizer.all_special_ids,
            tokenizer.cls_token_id,
            self.config.train.seed,
        )
        params = {name: {**tower, BACKBONE: bert} for name, tower in self.model.params.items()}
        return DualEncoder(config, params, tokenizer)

    # ---- as train.py calls it ----------------------------------------------------------------------------------------

    def inputs(self) -> Inputs:
        """Fingerprints of the data and of the model that the run begins with."""
        dev = judged_digest(self.dev.questions, self.dev.qrels)
        if (examples := self.examples.dev) is not None:
            lists = [fingerprint([each.offsets, each.values]) for each in examples.lists]
            dev = digest([dev, content_fingerprint(examples.texts), *lists])
        read = {
            "passages": self.store.content,
            "questions": self.questions.store.content,
            "examples": fingerprint(self.draws.content),
            "dev questions": dev,
            "suites": self.suites.digest(),
            **encoder_inputs(self.config.encoder, self.model),
            "misspellings": file_digest(self.config.typos.misspellings),
        }
        return Inputs(read, {"batch": fingerprint(self._on_host(0)), "weights": fingerprint(self.model.params)})

    def init(self) -> ContrastiveState:
        """Return the pretrained weights, and an index that is encoded with them if the step searches."""
        model = self._lexical_start() if self.config.encoder.fresh_start == "lexical" else self.model
        train = self.codes.first(self.programs.first_state(model), self.whole.passages)
        if not self.program.searches:
            return ContrastiveState(train, None)
        index = self.whole.encode(train)
        return ContrastiveState(train, index, self.upkeep.counted(train, index, lambda: self._trace_step(train, index)))

    def abstract_state(self) -> ContrastiveState:
        """Return the shapes and shardings of the state."""
        train = self.programs.abstract_state()
        if not self.program.searches:
            return ContrastiveState(train, None)
        return ContrastiveState(train, self.whole.abstract_index(), self.upkeep.abstract_every())

    def step(
        self, state: ContrastiveState, number: int, batch: ContrastiveBatch
    ) -> tuple[ContrastiveState, dict[str, jax.Array]]:
        """Run one step; a live index, or a slice of it, and product codes are renewed first if that is due."""
        train, index, every = self.refreshed(state, number)
        if index is not None:
            index = self.upkeep.rolled(train, index, number, every)
        train, index, values, _ = self.programs.step(train, index, self.whole.passages, self.device_contents, batch)
        return ContrastiveState(train, index, every), values

    def _trace_step(self, train: TrainState, index: CorpusState) -> Any:
        step: Any = self.programs.step
        return step.trace(train, index, self.whole.passages, self.device_contents, self.batch(0))

    def refreshed(self, state: ContrastiveState, number: int) -> ContrastiveState:
        """Return the state with a fresh index and fresh product codes, where these are due before step `number`."""
        index = state.index if state.index is None else self.upkeep.refreshed(state.train, state.index, number)
        return state._replace(train=self.codes.refitted(state.train, self.whole.passages, number), index=index)

    def evaluate(self, state: ContrastiveState) -> dict[str, float]:
        """Validation loss and average rank, and retrieval metrics of the dev questions and of the suites."""
        metrics = {} if self.validation is None else self.validation.metrics(state.train)
        metrics |= self.dev.metrics(state.train, self.whole, state.index)
        return {**metrics, **self.suites.metrics(state.train)}

    def evaluated(self) -> str:
        """Return a text for the log that names the validation's examples, the dev questions, corpus and suites."""
        examples = [] if self.validation is None else [f"{len(self.validation.examples)} examples of the validation"]
        return ", ".join([*examples, *filter(None, [evaluation_of(self.dev, self.whole, self.suites)])])

    def save_model(self, state: ContrastiveState, folder: Path) -> None:
        """Write the model's folder."""
        save_model(self.model, state.train, folder)

    def batch(self, number: int) -> ContrastiveBatch:
        """Return the examples of step `number`, a function of (seed, number) alone."""
        arrays, forms, teacher = self.made[number]
        put = [put_batch(self.mesh, x) for x in arrays]
        return ContrastiveBatch(
            *put,
            teacher=None if teacher is None else put_batch(self.mesh, teacher),
            forms=put_forms(self.mesh, forms),
        )

    def _on_host(self, number: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, np.ndarray] | None, Any]:
        """Return the arrays of a step: tokens, lengths, rows, known positives; misspelt forms; the teacher's scores."""
        chosen = self.batches.indices(number)
        rows, teacher = self.draws.rows(chosen, number)
        tokens, lengths, forms = self.questions.of_step(chosen, number)
        return (tokens, lengths, rows, self.draws.known(chosen)), forms, teacher


def evaluated_on(data: ContrastiveData, examples: RunExamples) -> tuple[Judged | None, Corpus]:
    """Return the dev questions of a run, None if it has none, and the corpus that is searched for them."""
    rows, passages = examples.corpus_rows, examples.passages
    searched = Corpus(*(column[:rows] for column in (passages.ids, passages.titles, passages.texts)))
    judged = dev_questions(data)
    if data.held_out and rows:
        assert examples.dev is not None
        judged = Judged(examples.dev.questions, examples.dev.qrels)
    return judged, searched


def contrastive_program(
    config: ContrastiveConfig,
    encoder: DualEncoderConfig | JointConfig,
    corpus_rows: int,
    positives: int,
    mesh: Mesh,
    passage_widths: tuple[int, ...] = (),
) -> ContrastiveProgram:
    """Return the constants of a run's compiled programs.

    Args:
      config: config of the run.
      encoder: config of its model.
      corpus_rows: number of passages that are searched.
      positives: number of positives among an example's passages.
      mesh: the devices.
      passage_widths: lengths that suit the passages, where they are known.

    Raises:
      UsageError: settings that contradict each other.
    """
    whole = encoder.embedding_size
    sizes = tuple(sorted({*config.contrastive.matryoshka, whole}))
    if sizes[0] < 1 or sizes[-1] > whole:
        raise UsageError(
            f"contrastive.matryoshka={config.contrastive.matryoshka}: sizes must be from 1 to the embedding's {whole}"
        )
    program = ContrastiveProgram(
        encoder=encoder,
        encoder_dtype=config.encoder.dtype,
        corpus_rows=corpus_rows,
        index=config.index,
        chunk=config.contrastive.chunk,
        activation_bytes=activation_bytes(config.encoder, mesh),
        seed=config.train.seed,
        shard_parameters=splits(config.mesh, encoder, mesh),
        index_aware=config.index_aware,
        passage_widths=passage_widths,
        positives=positives,
        sizes=sizes,
        contrastive=config.contrastive,
        negatives=config.negatives,
        distillation=config.distillation,
        typos=config.typos,
    )
    index_aware.check(config.index_aware)
    if config.index_aware.kind == "product" and len(sizes) > 1:
        raise UsageError(
            "index_aware.kind=product and contrastive.matryoshka: product codes are of the whole embedding, and shorter "
            "ones have codes of their own; leave one of them out"
        )
    if program.searches and not corpus_rows:
        raise UsageError("retrieved negatives and the corpus-wide softmax need a corpus; set data.corpus=FILE")
    return program


def check(config: ContrastiveConfig) -> None:
    """Refuse settings that contradict each other."""
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
        raise UsageError("distillation.contrastive_weight=0 leaves no loss; set distillation.loss, or another weight")
    if config.typos.multi_positive and not contrastive.symmetric:
        raise UsageError(
            "typos.multi_positive is about the passages' side of the loss; set contrastive.symmetric as well"
        )
