"""A run without its weights and data: its compiled programs, and the shapes of all arrays that it will hold.

The programs are made by the same functions that the runs call, from the same config; what a run learns from its files is
stated or estimated here instead: widths of token arrays from the maximum lengths (real rows may be shorter), the number
of passages, vocabularies. `jaxretr train --plan` compiles what this gives.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxretr.config import ArtConfig, Config, ContrastiveConfig, Encoder, MlmConfig, PassageLmConfig, Typos
from jaxretr.data.token_store import ids_dtype
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.bert import BertConfig
from jaxretr.models.embed import DualEncoderConfig, JointConfig, abstract_joint_params, abstract_params
from jaxretr.models.formats.model_shapes import encoder_shape, scorer_shape, vocabulary_of
from jaxretr.models.layers import Params, define
from jaxretr.models.mlm import BertMaskedLm
from jaxretr.models.question_scorer import passage_length
from jaxretr.models.scorer import Prompt
from jaxretr.models.t5 import T5Config, T5Model
from jaxretr.objectives import art, contrastive
from jaxretr.objectives.contrastive import ContrastiveBatch
from jaxretr.objectives.live_index import IndexProgram
from jaxretr.objectives.mlm import MaskedBatch, prediction_places
from jaxretr.objectives.passage_lm import Example
from jaxretr.optim import build as build_optimizer
from jaxretr.parallel import sharding
from jaxretr.parallel.mesh import padded_rows
from jaxretr.plan.corpus_sizes import CorpusSize
from jaxretr.recipes.art import art_program
from jaxretr.recipes.contrastive import check, contrastive_program, untrained
from jaxretr.recipes.encoder_start import encoder_config
from jaxretr.recipes.joint import joint_config
from jaxretr.recipes.mlm import mlm_bert, mlm_programs
from jaxretr.recipes.passage_lm import passage_lm_programs, passage_lm_t5, target_width
from jaxretr.recipes.step_questions import check as check_typos
from jaxretr.recipes.text_pretraining import TokenPrograms, evaluation_rows
from jaxretr.recipes.whole_corpus import (
    abstract_index,
    abstract_rows,
    abstract_train_state,
    columns,
    evaluation_batch,
    frozen_branches,
    index_programs,
    serves_evaluation,
)
from jaxretr.state import CorpusState, CorpusTokens, TrainState

PARAMETERS, FROZEN, OPTIMIZER = "parameters", "frozen parameters", "optimizer state"
TOKENS, INDEX, FRESH_INDEX = "corpus tokens", "index embeddings", "evaluation's index"
SCORER, BATCH = "scorer", "batch"

# The ids of ART's instruction and of "Question: " in T5's own vocabulary; only how many there are matters here.
T5_PROMPT = Prompt(prefix=(3, 4, 5, 6), suffix=(*range(3, 15), 1))
T5_TARGET_START = 3


class Planned(NamedTuple):
    """One compiled program of a run."""

    name: str
    when: str
    program: Callable[..., Any]
    """Jitted; nothing is compiled yet."""
    arguments: tuple[Any, ...]
    """ShapeDtypeStructs with shardings."""
    groups: dict[str, Any]
    """The arguments, or parts of them, by what they are."""


class Outline(NamedTuple):
    """All programs of a run, and what it holds on the devices from its first to its last step."""

    programs: list[Planned]
    resident: dict[str, Any]
    """ShapeDtypeStructs by what they are; while a program runs, those that are not among its arguments are there too."""


def outline(config: Config, mesh: Mesh, size: CorpusSize) -> Outline:
    """Builds a run's programs and states the shapes of their arguments; reads no weights and allocates nothing.

    Args:
      config: of the run.
      mesh: the devices, which need not be here.
      size: of the corpus.

    Raises:
      UserError: a model whose shape is not known, or settings that contradict each other.
    """
    if isinstance(config, ArtConfig):
        return _art(config, mesh, size)
    if isinstance(config, ContrastiveConfig):
        return _contrastive(config, mesh, size)
    if isinstance(config, MlmConfig):
        return _mlm(config, mesh)
    assert isinstance(config, PassageLmConfig)
    return _passage_lm(config, mesh)


def _of_state(state: TrainState) -> dict[str, Any]:
    return {PARAMETERS: state.params, FROZEN: state.frozen, OPTIMIZER: (state.opt_state, state.step)}


# ---- runs that search a corpus ---------------------------------------------------------------------------------------


def _art(config: ArtConfig, mesh: Mesh, size: CorpusSize) -> Outline:
    encoder, t5 = encoder_config(config.encoder), scorer_shape(config.scorer.path)
    local = Path(config.scorer.path).expanduser().is_dir()
    prompt = Prompt.of(load_tokenizer(config.scorer.path)) if local else T5_PROMPT
    program = art_program(config, encoder, t5, prompt, size.searched, mesh)
    optimizer = build_optimizer(config.optimizer, config.train.steps)
    state = abstract_train_state(abstract_params(encoder), optimizer, mesh, frozen_branches(config.encoder))
    corpus = _Corpus(config.encoder, encoder, mesh, size)
    index = abstract_index(corpus.rows, encoder.embedding_size, config.index.dtype, mesh)
    ids = ids_dtype(vocabulary_of(config.scorer.path) if local else t5.vocab_size)
    scorer_tokens = _tokens(mesh, ids, corpus.rows, passage_length(prompt, config.scorer.max_length))
    scorer = sharding.abstract(_cast(define(lambda rngs: T5Model(t5, rngs=rngs))[1], config.scorer.dtype), mesh)
    b = config.train.batch_size
    questions = corpus.questions(b, config.typos)
    targets = _tokens(mesh, ids, b, config.scorer.max_question_length)
    batch = art.QuestionBatch(
        questions.tokens, questions.lengths, targets.tokens, targets.lengths, corpus.forms(b, config.typos)
    )
    resident = {**_of_state(state), TOKENS: (corpus.tokens, scorer_tokens), INDEX: index, SCORER: scorer}
    step = Planned(
        "step",
        "every step",
        art.make_step(program, optimizer, mesh),
        (state, index, corpus.tokens, scorer_tokens, scorer, batch),
        {**resident, BATCH: batch},
    )
    programs = [step, corpus.refresh(program, state, index, config.index.refresh_every)]
    if config.data.has_dev_questions:
        live = serves_evaluation(config.index.refresh_every, config.train)
        programs += corpus.evaluation(program, state, index, live)
    return Outline(programs, resident)


def _contrastive(config: ContrastiveConfig, mesh: Mesh, size: CorpusSize) -> Outline:
    check(config)
    check_typos(config.typos)
    joint = config.joint.lexical is not None
    encoder = joint_config(config.encoder, config.joint) if joint else encoder_config(config.encoder)
    params = abstract_joint_params(encoder) if isinstance(encoder, JointConfig) else abstract_params(encoder)
    every = config.contrastive.positives == "all"
    # What the training file has fewer of is less; at the first reading of it the run says so.
    positives = config.contrastive.max_positives if every else 1
    program = contrastive_program(config, encoder, size.searched, positives, mesh)
    optimizer = build_optimizer(config.optimizer, config.train.steps)
    state = abstract_train_state(params, optimizer, mesh, untrained(config))
    corpus = _Corpus(config.encoder, encoder, mesh, size)
    contents = abstract_rows(mesh, "int32", corpus.rows)
    index = None
    if program.searches:
        index = abstract_index(corpus.rows, encoder.embedding_size, config.index.dtype, mesh)
    b, places = config.train.batch_size, positives + config.negatives.static + config.negatives.mined
    questions = corpus.questions(b, config.typos)
    batch = ContrastiveBatch(
        questions.tokens,
        questions.lengths,
        abstract_rows(mesh, "int32", b, places),
        abstract_rows(mesh, "int32", b, config.contrastive.max_positives),
        abstract_rows(mesh, "float32", b, places) if config.distillation.loss != "none" else None,
        corpus.forms(b, config.typos),
    )
    resident = {**_of_state(state), TOKENS: (corpus.tokens, contents)}
    if index is not None:
        resident[INDEX] = index
    step = Planned(
        "step",
        "every step",
        contrastive.make_step(program, optimizer, mesh),
        (state, index, corpus.tokens, contents, batch),
        {**resident, BATCH: batch},
    )
    programs = [step]
    if index is not None:
        programs.append(corpus.refresh(program, state, index, config.index.refresh_every))
    if config.data.has_dev_questions and size.searched:
        fresh = abstract_index(corpus.rows, encoder.embedding_size, config.index.dtype, mesh)
        live = index is not None and serves_evaluation(config.index.refresh_every, config.train)
        programs += corpus.evaluation(program, state, fresh, live)
    return Outline(programs, resident)


class _Corpus:
    """A corpus's arrays on the devices, and the programs around its index."""

    def __init__(self, config: Encoder, encoder: DualEncoderConfig | JointConfig, mesh: Mesh, size: CorpusSize):
        self.mesh, self.encoder = mesh, encoder
        self.rows = padded_rows(size.passages, mesh)
        local = Path(config.path).expanduser().is_dir()
        self.ids = ids_dtype(vocabulary_of(config.path) if local else encoder.bert.vocab_size)
        self.tokens = _tokens(mesh, self.ids, self.rows, encoder.max_passage_length)

    def questions(self, b: int, typos: Typos) -> CorpusTokens:
        check_typos(typos)
        return _tokens(self.mesh, self.ids, b, self.encoder.max_question_length)

    def forms(self, b: int, typos: Typos) -> CorpusTokens | None:
        return _tokens(self.mesh, self.ids, b, self.encoder.max_question_length, typos.forms) if typos.forms else None

    def refresh(self, program: IndexProgram, state: TrainState, index: CorpusState, every: int) -> Planned:
        return self._refresh("refresh", f"every {every} steps", program, state, index, INDEX)

    def evaluation(self, program: IndexProgram, state: TrainState, index: CorpusState, live: bool) -> list[Planned]:
        """Searches the live index; where it is not fresh at every evaluation, one that is made beside it."""
        searched = INDEX if live else FRESH_INDEX
        questions = _tokens(self.mesh, self.ids, evaluation_batch(self.mesh), self.encoder.max_question_length)
        search = Planned(
            "search",
            "for every 128 dev questions",
            index_programs(program, self.mesh)[1],
            (state.weights, index, questions.tokens, questions.lengths),
            {PARAMETERS: state.params, FROZEN: state.frozen, searched: index, BATCH: questions},
        )
        if live:
            return [search]
        encode = self._refresh(
            "encode", "every evaluation that finds no fresh index", program, state, index, FRESH_INDEX
        )
        return [encode, search]

    def _refresh(
        self, name: str, when: str, program: IndexProgram, state: TrainState, index: CorpusState, group: str
    ) -> Planned:
        return Planned(
            name,
            when,
            index_programs(program, self.mesh)[0],
            (state.weights, self.tokens, index, state.step),
            {PARAMETERS: state.params, FROZEN: state.frozen, TOKENS: self.tokens, group: index},
        )


def _tokens(mesh: Mesh, dtype: Any, rows: int, longest: int, *forms: int) -> CorpusTokens:
    shape = (rows, *forms)
    return CorpusTokens(abstract_rows(mesh, dtype, *shape, columns(longest)), abstract_rows(mesh, "int32", *shape))


# ---- language models -------------------------------------------------------------------------------------------------


def _mlm(config: MlmConfig, mesh: Mesh) -> Outline:
    start: BertConfig | None = None if config.start is None else encoder_shape(config.start).bert
    bert = mlm_bert(config, start, config.data.vocab_size)
    programs = mlm_programs(config, bert, mesh)
    params = define(lambda rngs: BertMaskedLm(bert, dtype=config.dtype, rngs=rngs))[1]
    width = config.data.max_length
    places = prediction_places(width, config.mask_rate)
    ids = ids_dtype(bert.vocab_size)

    def batch(rows: int) -> Any:
        of_places = [abstract_rows(mesh, dtype, rows, places) for dtype in ("int32", "int32", "float32")]
        return MaskedBatch(abstract_rows(mesh, ids, rows, width), abstract_rows(mesh, "int32", rows), *of_places)

    return _language_model(config, config.data.held_out, mesh, programs, params, batch)


def _passage_lm(config: PassageLmConfig, mesh: Mesh) -> Outline:
    t5: T5Config = passage_lm_t5(config, config.data.vocab_size)
    programs = passage_lm_programs(config, t5, T5_PROMPT, mesh)
    params = define(lambda rngs: T5Model(t5, rngs=rngs))[1]
    ids = ids_dtype(t5.vocab_size)

    def batch(rows: int) -> Any:
        parts = [(config.data.max_length,), (), (target_width(config, T5_TARGET_START),), ()]
        return Example(*(abstract_rows(mesh, ids if part else "int32", rows, *part) for part in parts))

    return _language_model(config, config.data.held_out, mesh, programs, params, batch)


def _language_model(
    config: Config, held_out: int, mesh: Mesh, programs: TokenPrograms, params: Params, batch: Callable[[int], Any]
) -> Outline:
    state = abstract_train_state(params, programs.optimizer, mesh)
    resident = _of_state(state)
    rows = batch(config.train.batch_size)
    planned = [Planned("step", "every step", programs.step, (state, rows), {**resident, BATCH: rows})]
    if size := evaluation_rows(config, held_out, mesh):
        rows = batch(size)
        groups = {PARAMETERS: state.params, BATCH: rows}
        what = f"for every {size} held-out passages"
        planned.append(Planned("evaluation", what, programs.evaluation, (state.weights, rows), groups))
    return Outline(planned, resident)


def _cast(tree: Params, dtype: str) -> Params:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype)), tree)
