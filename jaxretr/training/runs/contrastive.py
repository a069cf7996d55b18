"""Wiring of a supervised run: the training set, the passages on the devices, the compiled step, the validation."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import ContrastiveConfig, Encoder, Joint
from jaxretr.data.batches import QuestionBatches
from jaxretr.data.corpus import content_fingerprint
from jaxretr.data.token_store import document_frequencies
from jaxretr.data.tokens import vocabulary_size
from jaxretr.losses.contrastive import contrastive_losses
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, JointConfig
from jaxretr.models.starts import lexical_start
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.notes import note
from jaxretr.runtime.own_parts import is_own, own_part
from jaxretr.runtime.parallel.hosts import fingerprint
from jaxretr.runtime.parallel.mesh import put_rows
from jaxretr.training.runs.corpus_programs import CorpusPrograms, RunState, index_settings
from jaxretr.training.runs.corpus_run import CorpusRun
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.corpus_tokens import abstract_rows
from jaxretr.training.runs.encoder_start import JointModel, encoder_inputs, model_shape
from jaxretr.training.runs.guide import read_guide
from jaxretr.training.runs.outline import INDEX, TOKENS, Outline, of_state
from jaxretr.training.runs.run_examples import read_run_examples
from jaxretr.training.runs.run_inputs import Inputs, digest, file_digest, judged_digest
from jaxretr.training.runs.step_questions import StepQuestions, question_shapes
from jaxretr.training.runs.validation import ValidationSet
from jaxretr.training.runs.whole_corpus import token_rows
from jaxretr.training.steps.batch_loss import ContrastiveBatch, ContrastiveProgram
from jaxretr.training.steps.contrastive import make_step

log = logging.getLogger(__name__)


class ContrastiveRun(CorpusRun):
    """A supervised run."""

    def __init__(self, config: ContrastiveConfig, mesh: Mesh, workdir: Path):
        super().__init__(config, mesh, workdir)

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
        self.questions = StepQuestions(self.examples.texts, config.typos, self.model, self.stores, config.train.seed)

        # ---- programs and passages -----------------------------------------------------------------------------------
        rows, positives = self.corpus_rows, self.draws.positives
        self.put_passages(
            passages,
            lambda lengths: contrastive_program(config, self.model.config, rows, positives, mesh, lengths),
            make_step,
        )
        self.device_contents = put_rows(mesh, self.contents, (self.whole.rows,), np.int32)
        self.guide, self.passages = None, self.whole.passages
        if config.negatives.guide is not None:
            self.guide = read_guide(config.negatives.guide, self.examples.texts, passages, mesh, self.whole.rows)
            self.passages = dataclasses.replace(self.whole.passages, guide=self.guide.passages)
        if data.dev_questions is not None and not self.corpus_rows:
            raise UsageError("data.dev_questions is searched for in a corpus; name it with data.corpus=FILE")
        self.evaluate_on(*self.examples.evaluated_on(data, self.corpus_rows))
        self.validation = None
        if self.examples.dev is not None:
            self.validation = ValidationSet(
                config.validation,
                self.examples.dev,
                self.contents,
                self.model,
                self.program,
                self.whole,
                mesh,
                self.stores,
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
        model = model_shape(config.encoder, config.joint)
        # The training file may have fewer negatives; the run reports this when it has read the file.
        positives = config.contrastive.max_positives if config.contrastive.positives == "all" else 1
        program = contrastive_program(config, model.config, size.searched, positives, mesh)
        rows = size.rows(model.config.max_passage_length, model.ids)
        programs = CorpusPrograms(config, program, make_step, model, rows, mesh)
        (state, index, *_), whole = programs.abstract_state(), programs.whole
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
        passages = whole.passages
        if config.negatives.guide is not None:
            width = model_shape(Encoder(path=config.negatives.guide), Joint()).config.embedding_size
            batch = dataclasses.replace(batch, guide=abstract_rows(mesh, "float32", b, width))
            passages = dataclasses.replace(passages, guide=abstract_rows(mesh, "float32", whole.rows, width))
        resident = {**of_state(state), TOKENS: (passages, contents), INDEX: index}
        evaluates = config.data.has_dev_questions and size.searched > 0
        return programs.outline((state, index, passages, contents, batch), resident, evaluates)

    @property
    def most_negatives(self) -> int:
        """Number of negatives of a question in one step, before masking; the log's `negatives` are those after it."""
        places = self.draws.places + self.program.negatives.retrieved
        in_batch = self.config.train.batch_size * places - self.program.positives
        return in_batch + (self.corpus_rows if self.program.contrastive.corpus_softmax else 0)

    def first_model(self) -> DualEncoder | JointModel:
        """Return the model; with `encoder.fresh_start` "lexical", its weights compare words by their rarity in the corpus."""
        if self.config.encoder.fresh_start != "lexical":
            return self.model
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
        if self.guide is not None:
            read["guide"] = self.guide.fingerprint
        return Inputs(read, {"batch": fingerprint(self._on_host(0)), "weights": fingerprint(self.model.params)})

    def arguments(self, state: RunState, batch: ContrastiveBatch) -> tuple[Any, ...]:
        """See `CorpusRun.arguments`."""
        return state.train, state.index, self.passages, self.device_contents, batch

    def evaluate(self, state: RunState) -> dict[str, float]:
        """Validation loss and average rank, and retrieval metrics of the dev questions and of the suites."""
        metrics = {} if self.validation is None else self.validation.metrics(state.train)
        return {**metrics, **super().evaluate(state)}

    def evaluated(self) -> str:
        """Return a text for the log that names the validation's examples, the dev questions, corpus and suites."""
        examples = "" if self.validation is None else f"{len(self.validation.examples)} examples of the validation"
        return ", ".join(filter(None, [examples, super().evaluated()]))

    def _on_host(self, number: int) -> Any:
        chosen = self.batches.indices(number)
        rows, teacher = self.draws.rows(chosen, number)
        tokens, lengths, forms = self.questions.of_step(chosen, number)
        guide = None if self.guide is None else self.guide.questions[chosen]
        arrays: Any = (tokens, lengths, rows, self.draws.known(chosen), teacher, token_rows(forms), guide)
        return ContrastiveBatch(*arrays)


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
        **index_settings(config, encoder, corpus_rows, mesh, passage_widths),
        positives=positives,
        sizes=sizes,
        contrastive=config.contrastive,
        negatives=config.negatives,
        distillation=config.distillation,
        typos=config.typos,
        loss=_loss(config.contrastive.loss),
    )
    if config.index_aware.kind == "product" and len(sizes) > 1:
        raise UsageError(
            "index_aware.kind=product and contrastive.matryoshka: product codes are of the whole embedding, and shorter "
            "ones have codes of their own; leave one of them out"
        )
    if program.searches and not corpus_rows:
        raise UsageError("retrieved negatives and the corpus-wide softmax need a corpus; set data.corpus=FILE")
    return program


def _loss(name: str) -> Callable[..., jax.Array]:
    """Return the loss that `contrastive.loss` names; the user's refuses to return anything but a value a question."""
    if not is_own(name):
        return contrastive_losses
    function = own_part(name, "contrastive.loss")

    def checked(scores: jax.Array, positive: jax.Array, negative: jax.Array) -> jax.Array:
        # Masks of questions and their forms may have an axis of length 1 that the scores have not.
        masks = (jnp.broadcast_to(mask, scores.shape) for mask in (positive, negative))
        losses = function(scores, *masks)
        shape, dtype = getattr(losses, "shape", None), getattr(losses, "dtype", type(losses).__name__)
        if shape != scores.shape[:-1] or not jnp.issubdtype(dtype, jnp.floating):
            raise UsageError(
                f"contrastive.loss={name}: returned {dtype} {list(shape or ())} for scores {list(scores.shape)}; return one "
                f"float a question, {list(scores.shape[:-1])}"
            )
        return losses.astype(jnp.float32)

    return checked
