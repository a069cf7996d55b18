"""The common part of the runs that search a corpus, ART's and the supervised one, as the training program calls it."""

import itertools
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxretr.config import token_stores
from jaxretr.data.batches import MadeAhead
from jaxretr.data.corpus import Corpus
from jaxretr.data.prompts import Prompt
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.parallel.mesh import check_cpu_devices, to_host
from jaxretr.runtime.parallel.programs import compile_ahead
from jaxretr.training.runs.agreement import AgreementSet, Ask
from jaxretr.training.runs.corpus_programs import CorpusPrograms, RunState
from jaxretr.training.runs.encoder_start import JointModel, Model, load_model
from jaxretr.training.runs.index_upkeep import IndexUpkeep
from jaxretr.training.runs.programs import put_batch
from jaxretr.training.runs.suites import Suites
from jaxretr.training.runs.whole_corpus import CorpusPart, DevSet, Judged, token_store, widths_of
from jaxretr.training.steps.score_table import TableState

log = logging.getLogger(__name__)


class CorpusRun:
    """A run with a corpus on the devices. A subclass reads its data, then calls `put_passages` and `evaluate_on`.

    Attributes:
      model: the model that the run begins with.
      stores: folder of the token stores.
      programs: the compiled programs; `whole` and `codes` are theirs.
      empty_table: compiled function that returns an empty table of scores; None where no scores are kept.
    """

    program: Any
    empty_table: Callable[[], TableState] | None = None

    def __init__(self, config: Any, mesh: Mesh, workdir: Path):
        config.check()
        self.config, self.mesh, self.workdir = config, mesh, workdir
        self.model = load_model(config.encoder, config.joint, config.train.seed)
        check_cpu_devices(mesh, self.model.config.backbone.widest)
        self.stores = token_stores(config.data, workdir)
        self.made = MadeAhead(self._on_host)
        self._step_is_compiled: Callable[[], None] = lambda: None

    def put_passages(
        self,
        passages: Corpus,
        make_program: Callable[[tuple[int, ...]], Any],
        make_step: Callable[..., Any],
        prompt: Prompt | None = None,
    ) -> None:
        """Tokenise the passages and put them on the devices.

        Args:
          passages: the corpus, and passages that only the training data has.
          make_program: function of the lengths that suit the passages that returns the programs' constants.
          make_step: function of (program, optimizer, mesh) that returns the training step.
          prompt: the passages' prompt in place of the model's.
        """
        self.store = token_store(self.model, passages, self.stores, prompt, name="passage")
        self.program = make_program(widths_of(self.store))
        self.programs = CorpusPrograms(self.config, self.program, make_step, self.model, self.store, self.mesh)
        self.whole, self.codes = self.programs.whole, self.programs.codes

    def dev_set(
        self, judged: Judged | None, corpus: Corpus, part: CorpusPart | None = None, ask: Ask | None = None
    ) -> DevSet:
        """Tokenise dev questions, if there are any, as a `DevSet`; with `ask`, a teacher judges what is found."""
        make = DevSet if ask is None else partial(AgreementSet, ask)
        return make(judged, corpus, self.model, self.stores, self.config.typos, part)

    def evaluate_on(self, dev: DevSet) -> None:
        """Set the dev questions, and tokenise the suites."""
        config, self.dev = self.config, dev
        self.suites = Suites(config.train.suites, self.model, self.program, self.mesh, self.stores)
        self.upkeep = IndexUpkeep(config.index, config.train, bool(self.dev.questions), self.whole)

    # ---- of the subclass ---------------------------------------------------------------------------------------------

    def first_model(self) -> Model:
        """Return the model with the parameters that the training begins with."""
        return self.model

    def step_of(self, number: int) -> Any:
        """Return the compiled program of step `number`."""
        return self.programs.step

    def new_table(self) -> TableState | None:
        """Return the table of scores that a run begins with, if there is one."""
        return None

    def arguments(self, state: RunState, batch: Any) -> tuple[Any, ...]:
        """Return the arguments of the compiled step, whose first results are the first fields of the next state."""
        raise NotImplementedError

    def _on_host(self, number: int) -> Any:
        """Return the batch of step `number` as numpy arrays."""
        raise NotImplementedError

    # ---- as the training program calls it ----------------------------------------------------------------------------

    def init(self) -> RunState:
        """Return the first weights, an index that is encoded with them if the step searches, and the first table."""
        # Not `self.batch`, whose batches are made in a thread as well, in the order of the steps.
        self._step_is_compiled = compile_ahead(
            self.step_of(0), lambda: self.arguments(self.abstract_state(), put_batch(self.mesh, self._on_host(0)))
        )
        train = self.codes.first(self.programs.first_state(self.first_model().params), self.whole.passages)
        if not self.program.searches:
            return RunState(train, None)
        log.info("encoding the index: %d passages", self.whole.store.num_rows)
        index = self.whole.encode(train)
        state = RunState(train, index, self.new_table())
        return state._replace(refresh_every=self.upkeep.counted(train, index, partial(self._trace, state)))

    def _trace(self, state: RunState) -> Any:
        # A step that searches, whichever of a mixture's sets it is of.
        number = next(number for number in itertools.count() if self.step_of(number) is self.programs.step)
        return self.programs.step.trace(*self.arguments(state, self.batch(number)))

    def abstract_state(self) -> RunState:
        """Return the shapes and shardings of the state."""
        state = self.programs.abstract_state(self.empty_table)
        return state._replace(refresh_every=state.index and self.upkeep.abstract_every())

    def step(self, state: RunState, number: int, batch: Any) -> tuple[RunState, dict[str, jax.Array]]:
        """Run one step; a live index, or a slice of it, and product codes are renewed first if that is due."""
        state = self.refreshed(state, number)
        if state.index is not None:
            state = state._replace(index=self.upkeep.rolled(state.train, state.index, number, state.refresh_every))
        self._step_is_compiled()
        *fields, metrics, _ = self.step_of(number)(*self.arguments(state, batch))
        return RunState(*fields)._replace(refresh_every=state.refresh_every), metrics

    def refreshed(self, state: RunState, number: int) -> RunState:
        """Return the state with a fresh index and fresh product codes, where these are due before step `number`."""
        index = None if state.index is None else self.upkeep.refreshed(state.train, state.index, number)
        return state._replace(train=self.codes.refitted(state.train, self.whole.passages, number), index=index)

    def evaluate(self, state: RunState) -> dict[str, float]:
        """Retrieval metrics of the dev questions over the whole corpus, and of the suites, with the current weights."""
        return {**self.dev.metrics(state.train, self.whole, state.index), **self.suites.metrics(state.train)}

    def evaluated(self) -> str:
        """Return a text for the log that names the dev questions, the corpus, and the suites."""
        dev, passages = self.dev.questions, self.whole.store.num_rows
        return ", ".join(filter(None, [f"{len(dev)} questions, {passages} passages" if dev else "", self.suites.size]))

    def save_model(self, state: RunState, folder: Path) -> None:
        """Write the model's folder."""
        model, params = self.model, jax.tree.map(to_host, state.train.weights)
        if jax.process_index() != 0:
            return
        if isinstance(model, JointModel):
            model.combined(params).save(folder)
        else:
            # The head belongs to the encoder that it was trained with.
            head = model.mlm_head if state.train.frozen else None
            DualEncoder(model.config, params, model.tokenizer, mlm_head=head).save(folder)

    def batch(self, number: int) -> Any:
        """Return the batch of step `number` on the devices, a function of (seed, number) alone."""
        return put_batch(self.mesh, self.made[number])
