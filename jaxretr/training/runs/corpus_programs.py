"""The compiled programs of a run that searches a corpus: those of a run with its data, and those of a plan."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxretr.config import ArtConfig, ContrastiveConfig
from jaxretr.data.token_store import TokenStore
from jaxretr.models.engine_choice import packed_row
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.matmul_flops import matmul_flops
from jaxretr.runtime.parallel.programs import is_cuda
from jaxretr.training.runs.corpus_tokens import EstimatedRows
from jaxretr.training.runs.encoder_start import Model, ModelShape, frozen_branches
from jaxretr.training.runs.index_upkeep import IndexCodes, serves_evaluation, steps_of_a_round
from jaxretr.training.runs.outline import (
    BATCH,
    CODES,
    FRESH_INDEX,
    FROZEN,
    INDEX,
    PARAMETERS,
    TOKENS,
    Outline,
    Planned,
    token_shapes,
    training_step,
)
from jaxretr.training.runs.programs import Programs, abstract_train_state
from jaxretr.training.runs.whole_corpus import WholeCorpus, activation_bytes, evaluation_batch, splits
from jaxretr.training.state import CorpusState, TrainState
from jaxretr.training.steps.live_index import IndexProgram
from jaxretr.training.steps.score_table import TableState

MANY_STEPS = 1000
"""From so many steps on, a step that moves a fifth less is worth some seconds more of compiling."""


class RunState(NamedTuple):
    """State that a run carries and saves; a resumed run searches the same index."""

    train: TrainState
    index: CorpusState | None
    """The live index; None unless the step searches."""
    table: TableState | None = None
    """The teacher's scores; None where no scores are kept, and in checkpoints of older versions."""
    refresh_every: jax.Array | None = None
    """R, int32 scalar, where it was counted when the run began (`index.refresh_share`)."""


class CorpusPrograms(Programs):
    """The programs of a run, and its passages on the devices; nothing is compiled yet.

    Attributes:
      whole: the passages, with the programs that encode and search them.
    """

    def __init__(
        self,
        config: ContrastiveConfig | ArtConfig,
        program: IndexProgram,
        make_step: Callable[..., Any],
        model: Model | ModelShape,
        store: TokenStore | EstimatedRows,
        mesh: Mesh,
    ):
        """Put the passages on the devices; in a plan, take their shapes.

        Args:
          make_step: function of (program, optimizer, mesh) that returns the training step.
          model: model that the run starts from; a plan's has the shapes of its parameters.
          store: the passages' tokens.
        """
        frozen = frozen_branches(config.encoder, config.joint, model.config)
        keeps_start = isinstance(config, ArtConfig) and config.art.prior == "start"
        super().__init__(config, mesh, frozen, split=program.shard_parameters, keeps_start=keeps_start)
        self.program, self.model = program, model
        self.step = make_step(program, self.optimizer, mesh)
        self.whole = WholeCorpus(store, program, mesh)
        self.codes = IndexCodes(program, mesh, program.corpus_rows or store.num_rows)

    def abstract_state(self, empty_table: Callable[[], TableState] | None = None) -> RunState:
        """Return the shapes and shardings of the first state, whose table of scores `empty_table` returns."""
        kept = {"split": self.split, "keeps_start": self.keeps_start}
        train = abstract_train_state(self.model.params, self.optimizer, self.mesh, self.frozen, **kept)
        train = self.codes.abstract(train, self.whole.passages)
        if not self.program.searches:
            return RunState(train, None)
        return RunState(train, self.whole.abstract_index(), empty_table and jax.eval_shape(empty_table))

    # ---- a plan ------------------------------------------------------------------------------------------------------

    def outline(self, arguments: tuple[Any, ...], resident: dict[str, Any], evaluates: bool) -> Outline:
        """Return all programs of the run.

        Args:
          arguments: shapes of the training step's arguments: first the state and the index, which is None where the step
            searches none, last the batch.
          resident: the arguments that stay on the devices, by what they are.
          evaluates: whether there are dev questions to search for.
        """
        state, index, batch, passages = arguments[0], arguments[1], arguments[-1], self.whole.passages
        programs = [training_step(self.step, arguments, resident)]
        if index is not None:
            programs += self._refreshes(programs[0], state, index)
        if self.codes.active:
            when, read = f"every {self.codes.every} steps", (passages, state.codes, state.step, state.numbers.seed)
            groups = {TOKENS: passages, CODES: state.codes}
            programs.append(_with_weights(state, "codes", when, self.codes.learn, read, groups))
        if evaluates:
            programs += self._evaluation(state, index, batch.tokens.dtype)
        return Outline(programs, resident)

    def _refreshes(self, step: Planned, state: TrainState, index: CorpusState) -> list[Planned]:
        """Return the refreshes of the live index: of all of it, and of a slice where it is rolling."""
        settings = self.config.index
        if not settings.rolling:
            return [self._encode("refresh", f"every {settings.refresh_every} steps", state, index, INDEX)]
        whole = self._encode("refresh", "at the beginning and before every evaluation", state, index, INDEX)
        every = settings.refresh_every
        if settings.refresh_share is not None:
            every = steps_of_a_round(settings.refresh_share, matmul_flops(step.trace()), matmul_flops(whole.trace()))
        when, program = f"every step, in rounds of {every} steps", self.whole.rolling_program(every)
        return [whole, whole._replace(name="rolling", when=when, program=program)]

    def _evaluation(self, state: TrainState, index: CorpusState | None, ids: Any) -> list[Planned]:
        """Return the programs of an evaluation on questions, whose token ids have the type `ids`.

        It searches the live index; where there is none, or it is not fresh at every evaluation, it searches one that is
        encoded in addition.
        """
        live = index is not None and serves_evaluation(self.config.index, self.config.train)
        name, searched = (INDEX if live else FRESH_INDEX), self.whole.abstract_index()
        questions = token_shapes(self.mesh, ids, self.model.config.max_question_length, evaluation_batch(self.mesh))
        search, passages = ("search", "for every 128 dev questions"), self.whole.passages
        if self.program.encoder.sparse and not live:
            rows = jax.ShapeDtypeStruct((self.whole.block_rows,), jnp.int32)
            when, program = f"for every {rows.size} passages of an evaluation", self.whole.embed_rows
            encode = _with_weights(state, "encode", when, program, (passages, rows), {TOKENS: passages})
            asked = questions.tokens, questions.lengths
            return [encode, _with_weights(state, *search, self.whole.embed_questions, asked, {BATCH: questions})]
        asked, groups = (searched, questions.tokens, questions.lengths, None), {name: searched, BATCH: questions}
        found = [_with_weights(state, *search, self.whole.search, asked, groups)]
        if live:
            return found
        return [self._encode("encode", "every evaluation that finds no fresh index", state, searched, name), *found]

    def _encode(self, name: str, when: str, state: TrainState, index: CorpusState, group: str) -> Planned:
        read, groups = (self.whole.passages, index, state.step), {TOKENS: self.whole.passages, group: index}
        return _with_weights(state, name, when, self.whole.refresh_program, read, groups)


def _with_weights(
    state: TrainState, name: str, when: str, program: Any, others: tuple[Any, ...], groups: dict[str, Any]
) -> Planned:
    """Return a program whose first argument is the weights; the others, and what they are."""
    groups = {PARAMETERS: state.params, FROZEN: state.frozen, **groups}
    return Planned(name, when, program, (state.weights, *others), groups)


def index_settings(
    config: ArtConfig | ContrastiveConfig, encoder: Any, corpus_rows: int, mesh: Mesh, passage_widths: tuple[int, ...]
) -> dict[str, Any]:
    """Return the constants of an `IndexProgram`; the arguments are those of `art_program` and `contrastive_program`.

    Raises:
      UsageError: a residual stream in bfloat16 beside matmuls in float32.
    """
    if config.encoder.residual != "float32" and config.encoder.dtype == "float32":
        raise UsageError(f"encoder.residual={config.encoder.residual}: set --encoder.dtype bfloat16 as well")
    device = mesh.devices.flat[0]
    row, split = packed_row(encoder, config.encoder.dtype, device), splits(config.mesh, encoder, mesh)
    # A program for several lengths, or of parameters that are gathered layer by layer, stays small.
    apart = row > 0 and not split and is_cuda(device) and config.train.steps >= MANY_STEPS
    return {
        "encoder": encoder,
        "encoder_dtype": config.encoder.dtype,
        "residual": config.encoder.residual,
        "corpus_rows": corpus_rows,
        "index": config.index,
        "chunk": (config.art if isinstance(config, ArtConfig) else config.contrastive).chunk,
        "activation_bytes": activation_bytes(config.encoder, mesh),
        "shard_parameters": split,
        "index_aware": config.index_aware,
        "passage_widths": passage_widths,
        "packed_row": row,
        "layers_apart": apart,
    }
