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

from jaxretr.config import ContrastiveConfig, Encoder, Joint, of_set
from jaxretr.data.corpus import content_fingerprint
from jaxretr.data.token_store import document_frequencies
from jaxretr.data.tokens import vocabulary_size
from jaxretr.losses.contrastive import contrastive_losses
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.term_weights import QUERY_WEIGHTS
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, JointConfig
from jaxretr.models.starts import idf, lexical_start
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.notes import note
from jaxretr.runtime.own_parts import is_own, own_part
from jaxretr.runtime.parallel.hosts import fingerprint
from jaxretr.runtime.parallel.mesh import put_rows
from jaxretr.training.runs.corpus_programs import CorpusPrograms, RunState, index_settings
from jaxretr.training.runs.corpus_run import CorpusRun
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.corpus_tokens import abstract_rows
from jaxretr.training.runs.encoder_start import Model, encoder_inputs, has_new_query_weights, model_shape
from jaxretr.training.runs.guide import read_guide
from jaxretr.training.runs.mixture import Member, Mixture
from jaxretr.training.runs.outline import INDEX, TOKENS, Outline, of_state
from jaxretr.training.runs.run_inputs import Inputs, digest, file_digest
from jaxretr.training.runs.step_questions import StepQuestions, question_shapes
from jaxretr.training.runs.validation import ValidationSet
from jaxretr.training.state import TokenRows
from jaxretr.training.steps.batch_loss import ContrastiveBatch, ContrastiveProgram
from jaxretr.training.steps.contrastive import make_step

log = logging.getLogger(__name__)


class ContrastiveRun(CorpusRun):
    """A supervised run."""

    def __init__(self, config: ContrastiveConfig, mesh: Mesh, workdir: Path):
        super().__init__(config, mesh, workdir)

        # ---- examples ------------------------------------------------------------------------------------------------
        self.mixture = Mixture(config)
        examples = self.examples = self.mixture.examples
        passages, self.corpus_rows, self.contents = examples.passages, examples.corpus_rows, examples.contents
        self.draws = self.examples.draws
        self.batches = self.mixture.batches
        query_prompt, passage_prompt = self.mixture.prompts(self.model)
        seed = config.train.seed
        self.questions = StepQuestions(self.examples.texts, config.typos, self.model, self.stores, seed, query_prompt)

        # ---- programs and passages -----------------------------------------------------------------------------------
        self._losses = dict[str, Callable[..., jax.Array]]()
        members = self.mixture.members
        # All sets share the programs around the index: those of a set that searches it, if there is one.
        first = next((each for each in members if each.config.negatives.retrieved), members[0])
        self.put_passages(passages, lambda lengths: self._program(first, lengths), make_step, passage_prompt)
        self.steps = self._steps()
        self.device_contents = put_rows(mesh, self.contents, (self.whole.rows,), np.int32)
        self.guide, self.passages = None, self.whole.passages
        if guide := next((name for each in members if (name := each.config.negatives.guide) is not None), None):
            self.guide = read_guide(guide, self.examples.texts, passages, mesh, self.whole.rows)
            self.passages = dataclasses.replace(self.passages, guide=self.guide.passages)
        if self.mixture.mixes:
            row_sets = self.mixture.row_sets(mesh, self.whole.rows)
            self.passages = dataclasses.replace(self.passages, sets=row_sets)
            self.evaluate_on(self.mixture.dev_sets(self.dev_set, row_sets, self.model))
            if twice := self.suites.names & {each.name for each in members}:
                raise UsageError(f"train.suites: '{min(twice)}' is also a set of data.mixture; rename one of them")
        else:
            self.evaluate_on(self.dev_set(*self.examples.evaluated_on(config.data, self.corpus_rows)))
        self._since = dict[str, list[jax.Array]]()
        self.validation = None
        if self.examples.dev is not None:
            self.validation = ValidationSet(
                config.validation,
                self.examples.dev,
                self.contents,
                self.model,
                self.program,
                self.whole,
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

    def _program(self, member: Member, lengths: tuple[int, ...]) -> ContrastiveProgram:
        """Return the constants of a set's programs, in mixed batches those of all sets."""
        mixed = self.config.data.mixed_batches
        positives = self.draws.positives if mixed else member.examples.draws.positives
        # Its own corpus decides whether there is something to search; the index has the rows of all.
        rows = self.corpus_rows if member.examples.corpus_rows else 0
        sets = tuple(each.name for each in self.mixture.members) if mixed else ()
        with of_set(member.name):
            program = contrastive_program(member.config, self.model.config, rows, positives, self.mesh, lengths)
        # One function for a name: sets with the same constants share a program.
        loss = self._losses.setdefault(member.config.contrastive.loss, program.loss)
        return dataclasses.replace(program, corpus_rows=self.corpus_rows, sets=sets, loss=loss)

    def _steps(self) -> list[Any]:
        """Return the compiled step of each set, None where it is that of the run; the same constants make the same step."""
        steps, made = list[Any](), list[tuple[ContrastiveProgram, Any]]([(self.program, None)])
        for each in self.mixture.members:
            program = self._program(each, self.program.passage_widths)
            if all(known != program for known, _ in made):
                made.append((program, make_step(program, self.programs.optimizer, self.mesh)))
            steps.append(next(step for known, step in made if known == program))
        return steps

    @staticmethod
    def outline(config: ContrastiveConfig, mesh: Mesh, size: CorpusSize) -> Outline:
        """Outline a mixture's run with the step of the set that needs most; see `jaxretr.training.loop.outline`."""
        mixes, evaluates = bool(config.data.mixture), any(m.data.has_dev_questions for m in config.members.values())
        guide = next((each.negatives.guide for each in config.members.values() if each.negatives.guide), None)
        config = max(config.members.values(), key=lambda each: (each.negatives.retrieved > 0, sum(_places(each))))
        model = model_shape(config.encoder, config.joint)
        # The training file may have fewer negatives; the run reports this when it has read the file.
        positives, negatives = _places(config)
        program = contrastive_program(config, model.config, size.searched, positives, mesh)
        rows = size.rows(model.config.max_passage_length, model.ids)
        programs = CorpusPrograms(config, program, make_step, model, rows, mesh)
        (state, index, *_), whole = programs.abstract_state(), programs.whole
        contents = abstract_rows(mesh, "int32", whole.rows)
        b, places = config.train.batch_size, positives + negatives - config.negatives.retrieved
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
        if guide is not None:  # Of a mixture's, which are on the devices in all steps, if any set has one.
            width = model_shape(Encoder(path=guide), Joint()).config.embedding_size
            if config.negatives.guide is not None:
                batch = dataclasses.replace(batch, guide=abstract_rows(mesh, "float32", b, width))
            passages = dataclasses.replace(passages, guide=abstract_rows(mesh, "float32", whole.rows, width))
        if mixes:
            batch = dataclasses.replace(batch, sets=abstract_rows(mesh, "int32", b))
            passages = dataclasses.replace(passages, sets=abstract_rows(mesh, "int32", whole.rows))
        resident = {**of_state(state), TOKENS: (passages, contents), INDEX: index}
        return programs.outline((state, index, passages, contents, batch), resident, evaluates and size.searched > 0)

    @property
    def most_negatives(self) -> int:
        """Number of negatives of a question in one step, before masking; the log's `negatives` are those after it."""
        retrieved = max(each.config.negatives.retrieved for each in self.mixture.members)
        in_batch = self.config.train.batch_size * (self.draws.places + retrieved) - self.program.positives
        return in_batch + (self.corpus_rows if self.program.contrastive.corpus_softmax else 0)

    def first_model(self) -> Model:
        """Return the model; with `encoder.fresh_start` "lexical", its weights compare words by their rarity in the corpus, as
        new query weights do."""
        encoder = self.config.encoder
        is_lexical, weighs = encoder.fresh_start == "lexical", has_new_query_weights(encoder)
        if not (is_lexical or weighs):
            return self.model
        assert isinstance(self.model, DualEncoder)
        model = self.model
        if weighs:
            holders = document_frequencies(self.store, model.config.backbone.vocab_size)
            weights = {QUERY_WEIGHTS: idf(holders, self.store.num_rows).astype(np.float32)}
            model = model.replaced(model.config, {**model.params, "question": weights})
        return self._lexical(model) if is_lexical else model

    def _lexical(self, model: DualEncoder) -> DualEncoder:
        config, tokenizer = model.config, model.tokenizer
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
        params = {
            name: {**tower, BACKBONE: bert} if BACKBONE in tower else tower for name, tower in model.params.items()
        }
        return DualEncoder(config, params, tokenizer)

    # ---- as train.py calls it ----------------------------------------------------------------------------------------

    def inputs(self) -> Inputs:
        """Fingerprints of the data and of the model that the run begins with."""
        dev = self.dev.digest()
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

    def step_of(self, number: int) -> Any:
        return (self.mixture.mixes and self.steps[self._sets(number)[0]]) or self.programs.step

    def step(self, state: RunState, number: int, batch: ContrastiveBatch) -> tuple[RunState, dict[str, jax.Array]]:
        """See `CorpusRun.step`; of a mixture, lines of the log have each set's mean loss since the last line."""
        state, metrics = super().step(state, number, batch)
        if not self.mixture.mixes:
            return state, metrics
        if number % self.config.train.log_every == 0:
            self._since = {}
        for place in np.unique(self._sets(number)).tolist():
            name = f"{self.mixture.members[place].name}:loss"
            self._since.setdefault(name, []).append(metrics.get(name, metrics["loss"]))
        shared = {name: value for name, value in metrics.items() if not name.endswith(":loss")}
        if (number + 1) % self.config.train.log_every and number + 1 < self.config.train.steps:
            return state, shared
        means = {name: jnp.float32(np.mean([*map(float, losses)])) for name, losses in self._since.items()}
        return state, {**shared, **means}

    def _sets(self, number: int) -> np.ndarray:
        return self.mixture.sets_of(self.batches.indices(number))

    def arguments(self, state: RunState, batch: ContrastiveBatch) -> tuple[Any, ...]:
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
        sets = self.mixture.sets_of(chosen)
        guided = self.mixture.members[sets[0]].config.negatives.guide is not None
        guide = self.guide.questions[chosen] if self.guide is not None and guided else None
        arrays: Any = (tokens, lengths, rows, self.draws.known(chosen), teacher, forms and TokenRows(*forms), guide)
        of_sets: Any = sets if self.mixture.mixes else None
        return ContrastiveBatch(*arrays, sets=of_sets)


def _places(config: ContrastiveConfig) -> tuple[int, int]:
    """Return the most positives of a question in a step, and the number of its own negatives."""
    positives = config.contrastive.max_positives if config.contrastive.positives == "all" else 1
    return positives, config.negatives.static + config.negatives.mined + config.negatives.retrieved


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
      corpus_rows: number of passages that are searched.
      positives: number of positives among an example's passages.
      passage_widths: lengths that suit the passages, where they are known.

    Raises:
      UsageError: settings that contradict each other.
    """
    whole = encoder.embedding_size
    if not encoder.sparse and (config.contrastive.flops_questions or config.contrastive.flops_passages):
        raise UsageError(
            "contrastive.flops_questions and flops_passages are for sparse encoders; set encoder.pooling=splade, or leave "
            "them out"
        )
    if config.contrastive.flops_questions and isinstance(encoder, DualEncoderConfig) and encoder.query_weights:
        raise UsageError(
            "contrastive.flops_questions: query weights add no words to a question, whose entries are as many as its words; "
            "leave it out, and keep flops_passages"
        )
    if encoder.sparse and (config.contrastive.matryoshka or config.index_aware.kind != "none"):
        raise UsageError(
            "contrastive.matryoshka and index_aware are for dense encoders; leave them out with encoder.pooling=splade"
        )
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
