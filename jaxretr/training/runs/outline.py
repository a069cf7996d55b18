"""Outlines of runs: the programs and device arrays of a run, without its weights and data.

A run's class outlines it (`ArtRun.outline` and the other classes'): it builds the run's own programs (`CorpusPrograms`,
`TokenPrograms`) with shapes in place of weights and passages. Facts that the run learns from its files are stated or
estimated instead: widths of token arrays from the maximum lengths (real rows may be shorter), the lengths that rows are
padded to, the number of passages, vocabularies. `jaxretr train --plan` compiles the programs of an outline.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax.sharding import Mesh

from jaxretr.models.scorers.t5_scorer import Prompt
from jaxretr.training.runs.corpus_tokens import abstract_rows, columns
from jaxretr.training.state import TokenRows, TrainState

PARAMETERS, FROZEN, START, OPTIMIZER = "parameters", "frozen parameters", "the start's parameters", "optimizer state"
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

    def trace(self) -> Any:
        """Return the program as jax.stages.Traced."""
        program: Any = self.program
        return program.trace(*self.arguments)


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
    further = {CODES: state.codes, START: state.start}
    return parts | {name: part for name, part in further.items() if part is not None}


def token_shapes(mesh: Mesh, dtype: Any, longest: int, *rows: int) -> TokenRows:
    """Return the shapes of rows of tokens, at most `longest` each, with their lengths."""
    return TokenRows(abstract_rows(mesh, dtype, *rows, columns(longest)), abstract_rows(mesh, "int32", *rows))
