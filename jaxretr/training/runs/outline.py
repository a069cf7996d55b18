"""Outlines of runs: the programs and device arrays of a run, without its weights and data.

A run's class outlines it (`ArtRun.outline` and the other classes') with the functions that also build the run. Facts
that the run learns from its files are stated or estimated instead: widths of token arrays from the maximum lengths
(real rows may be shorter), the lengths that rows are padded to, the number of passages, vocabularies. `jaxretr train
--plan` compiles the programs of an outline.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jax.sharding import Mesh

from jaxretr.config import Encoder, LiveIndex, Train, Typos
from jaxretr.data.token_store import ids_dtype
from jaxretr.models.embed import DualEncoderConfig, JointConfig
from jaxretr.models.hub.model_shapes import vocabulary_of
from jaxretr.models.scorers.t5_scorer import Prompt
from jaxretr.runtime.parallel.matmul_flops import matmul_flops
from jaxretr.runtime.parallel.mesh import padded_rows
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.corpus_tokens import abstract_corpus_tokens, columns
from jaxretr.training.runs.index_upkeep import serves_evaluation, steps_of_a_round
from jaxretr.training.runs.step_questions import check as check_typos
from jaxretr.training.runs.whole_corpus import abstract_index, abstract_rows, evaluation_batch, index_programs
from jaxretr.training.state import CorpusState, CorpusTokens, TokenRows, TrainState
from jaxretr.training.steps.index_refresh import make_rolling_refresh
from jaxretr.training.steps.live_index import IndexProgram

PARAMETERS, FROZEN, OPTIMIZER = "parameters", "frozen parameters", "optimizer state"
TOKENS, INDEX, FRESH_INDEX = "corpus tokens", "index embeddings", "evaluation's index"
SCORER, TABLE, BATCH, CODES = "scorer", "table of scores", "batch", "product codes"

# The ids of ART's instruction in T5's own vocabulary; an outline depends only on their number.
T5_PROMPT = Prompt(prefix=(3, 4, 5, 6), suffix=(*range(3, 15), 1))


class Planned(NamedTuple):
    """One compiled program of a run."""

    name: str
    when: str
    program: Callable[..., Any]
    """The jitted program, which is not compiled yet."""
    arguments: tuple[Any, ...]
    """ShapeDtypeStructs of the arguments, with shardings."""
    groups: dict[str, Any]
    """The arguments, or parts of them, by what they are ("parameters", "corpus", ...)."""


class Outline(NamedTuple):
    """All programs of a run, and what it holds on the devices from its first to its last step."""

    programs: list[Planned]
    resident: dict[str, Any]
    """ShapeDtypeStructs of all arrays that stay on the devices, by what they are; a program may read only some."""


def training_step(program: Callable[..., Any], arguments: tuple[Any, ...], resident: dict[str, Any]) -> Planned:
    """Return the training step, whose last argument is the batch; it reads everything that is resident."""
    return Planned("step", "every step", program, arguments, {**resident, BATCH: arguments[-1]})


def of_state(state: TrainState) -> dict[str, Any]:
    """Return the parts of a state, by what they are."""
    parts = {PARAMETERS: state.params, FROZEN: state.frozen, OPTIMIZER: (state.opt_state, state.step)}
    return parts if state.codes is None else {**parts, CODES: state.codes}


def abstract_tokens(mesh: Mesh, dtype: Any, rows: int, longest: int, *forms: int) -> TokenRows:
    """Return the shapes of rows of tokens, at most `longest` each, with their lengths."""
    shape = (rows, *forms)
    return TokenRows(abstract_rows(mesh, dtype, *shape, columns(longest)), abstract_rows(mesh, "int32", *shape))


def _traced(planned: Planned) -> Any:
    program: Any = planned.program
    return program.trace(*planned.arguments)


class AbstractCorpus:
    """The shapes of a corpus's arrays on the devices, and the programs around its index."""

    def __init__(self, config: Encoder, encoder: DualEncoderConfig | JointConfig, mesh: Mesh, size: CorpusSize):
        self.mesh, self.encoder = mesh, encoder
        self.rows = padded_rows(size.passages, mesh)
        local = Path(config.path).expanduser().is_dir()
        self.ids = ids_dtype(vocabulary_of(config.path) if local else encoder.backbone.vocab_size)
        self.size = size
        self.tokens = self.passages(self.ids, encoder.max_passage_length)

    def passages(self, dtype: Any, longest: int) -> CorpusTokens:
        """Return the shapes of the passages' tokens from some tokenizer; their number is estimated."""
        mean = self.size.mean_ids(longest)
        # Rows that are not passages have no tokens; the devices' shares of the others are assumed to be equal.
        return abstract_corpus_tokens(self.mesh, dtype, self.rows, longest, mean * self.size.passages / self.rows)

    def index(self, config: LiveIndex) -> CorpusState:
        """Return the shapes of an index of the passages."""
        return abstract_index(self.rows, self.encoder.embedding_size, config.dtype, self.mesh)

    def questions(self, b: int, typos: Typos) -> tuple[TokenRows, TokenRows | None]:
        """Return the shapes of a batch's questions, and of their misspelt forms if a term reads any."""
        check_typos(typos)
        longest = self.encoder.max_question_length
        forms = abstract_tokens(self.mesh, self.ids, b, longest, typos.forms) if typos.forms else None
        return abstract_tokens(self.mesh, self.ids, b, longest), forms

    def refreshes(self, program: IndexProgram, state: TrainState, index: CorpusState, step: Planned) -> list[Planned]:
        """Return the refreshes of the live index: of all of it, and of a slice where it is rolling."""
        settings = program.index
        if not settings.rolling:
            return [self._refresh("refresh", f"every {settings.refresh_every} steps", program, state, index, INDEX)]
        whole = self._refresh("refresh", "at the beginning and before every evaluation", program, state, index, INDEX)
        every = settings.refresh_every
        if settings.refresh_share is not None:
            flops = (matmul_flops(_traced(planned)) for planned in (step, whole))
            every = steps_of_a_round(settings.refresh_share, *flops)
        rolling = whole._replace(
            name="rolling",
            when=f"every step, in rounds of {every} steps",
            program=make_rolling_refresh(program, self.mesh, every),
        )
        return [whole, rolling]

    def evaluation(
        self, program: IndexProgram, state: TrainState, index: CorpusState, train: Train, searches: bool
    ) -> list[Planned]:
        """Return the programs of an evaluation on questions.

        It searches the live index; where there is none (`searches`), or it is not fresh at every evaluation, it
        searches one that is encoded in addition.
        """
        live = searches and serves_evaluation(program.index, train)
        searched = INDEX if live else FRESH_INDEX
        longest = self.encoder.max_question_length
        questions = abstract_tokens(self.mesh, self.ids, evaluation_batch(self.mesh), longest)
        search = Planned(
            "search",
            "for every 128 dev questions",
            index_programs(program, self.mesh)[1],
            (state.weights, index, questions.tokens, questions.lengths),
            {PARAMETERS: state.params, FROZEN: state.frozen, searched: index, BATCH: questions},
        )
        if live:
            return [search]
        when = "every evaluation that finds no fresh index"
        return [self._refresh("encode", when, program, state, index, FRESH_INDEX), search]

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
