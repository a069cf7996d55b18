"""Shared parts of the runs that learn from texts alone: text to tokens, batches, the held-out loss."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import Config, PretrainData, token_stores
from jaxretr.data.batches import MadeAhead, QuestionBatches
from jaxretr.data.corpus import Corpus
from jaxretr.data.token_store import TokenStore
from jaxretr.data.tokenizer_training import train_tokenizer
from jaxretr.data.tokens import Template, load_tokenizer, tokenizer_fingerprint
from jaxretr.data.training_set import read_passages
from jaxretr.models.backbones.layers import Params
from jaxretr.models.encode import note_cut
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.runtime.streams import HostStream, host_generator
from jaxretr.training.runs.outline import BATCH, PARAMETERS, Outline, Planned, of_state, training_step
from jaxretr.training.runs.programs import Programs, abstract_train_state, put_batch
from jaxretr.training.runs.run_inputs import Inputs
from jaxretr.training.state import TrainState
from jaxretr.training.steps.token_step import SumLoss, make_token_loss, make_token_step


class TextData:
    """Passages of some corpora as tokens, with a learnt or given vocabulary; created once and kept in `folder`."""

    def __init__(
        self,
        data: PretrainData,
        kind: Literal["bert", "t5"],
        template: Template,
        folder: Path,
        max_length: int,
        tokenizer: Any = None,
    ):
        corpora = [read_passages(path) for path in data.corpora]
        self.corpus = Corpus.from_passages(passage for corpus in corpora for passage in corpus)
        if len(self.corpus) <= data.held_out:
            raise UserError(
                f"{', '.join(data.corpora)}: {len(self.corpus)} passages, of which {data.held_out} are held out; "
                "set data.held_out lower"
            )
        if tokenizer is None:
            vocabulary = folder / "tokenizer"
            if not (vocabulary / "tokenizer_config.json").exists():
                train_tokenizer(kind, self._sample(data.vocabulary_every), data.vocab_size, vocabulary)
            tokenizer = load_tokenizer(vocabulary)
        self.tokenizer = tokenizer
        self.store = TokenStore.build(token_stores(data, folder), self.corpus, self.tokenizer, template, max_length)
        note_cut(self.store.truncated, len(self.corpus), "passage", max_length)
        self.lengths = self.store.lengths
        # Every n-th passage is held out, so that all sources are in both parts.
        rows = np.arange(len(self.corpus))
        every = len(rows) // data.held_out if data.held_out else len(rows) + 1
        self.held_out = rows[::every][: data.held_out] if data.held_out else rows[:0]
        usable = np.setdiff1d(rows, self.held_out)
        self.training = usable[self.lengths[usable] >= 8]

    def _sample(self, every: int) -> Iterator[str]:
        return (f"{passage.title} {passage.text}" for passage in list(self.corpus)[::every])


class TokenPrograms(Programs):
    """The compiled programs of a run without a corpus on the devices: of a language model, or of a cross-encoder.

    Attributes:
      loss: sum of the losses of a batch.
      step: the training step, from `make_token_step`.
      evaluation: the held-out loss, from `make_token_loss`.
    """

    def __init__(
        self,
        config: Config,
        loss: SumLoss,
        params: Callable[[], Params],
        mesh: Mesh,
        *,
        chunk: int | None = None,
        dropout: bool = False,
        frozen: tuple[str, ...] = (),
    ):
        """Build the programs.

        Args:
          params: function that returns the shapes of the parameters.
          chunk: number of rows that a device takes at once.
          dropout: whether the loss is given keys in training.
          frozen: names of branches of the parameters that are not trained.
        """
        super().__init__(config, mesh, frozen)
        self.loss, self._params = loss, params
        self.step = make_token_step(loss, self.optimizer, mesh, chunk=chunk, dropout=dropout)
        self.evaluation = make_token_loss(loss, mesh)

    def abstract_state(self) -> TrainState:
        """Return the shapes and shardings of the state."""
        return abstract_train_state(self._params(), self.optimizer, self.mesh, self.frozen)

    def evaluation_rows(self, held_out: int) -> int:
        """Return how many of so many held-out passages the evaluation takes at once; 0 if there is none."""
        return min(self.config.train.batch_size, held_out // self.mesh.shape[DATA] * self.mesh.shape[DATA])

    def outline(self, held_out: int, batch: Callable[[int, bool], Any]) -> Outline:
        """Return all programs of the run, and the shapes of their arguments.

        Args:
          held_out: number of passages that it is evaluated on; 0: none.
          batch: (rows, whether for training) -> the shapes of a batch of so many.
        """
        state = self.abstract_state()
        planned = [training_step(self.step, (state, batch(self.config.train.batch_size, True)), of_state(state))]
        if size := self.evaluation_rows(held_out):
            rows = batch(size, False)
            groups = {PARAMETERS: state.params, BATCH: rows}
            what = f"for every {size} held-out passages"
            planned.append(Planned("evaluation", what, self.evaluation, (state.weights, rows), groups))
        return Outline(planned, of_state(state))


class TokenRun:
    """A run without a corpus on the devices, as the training program calls it: a state, a step, batches."""

    def __init__(self, programs: TokenPrograms):
        self.config: Any = programs.config
        self.mesh, self.programs = programs.mesh, programs
        self.made = MadeAhead(self._on_host)

    def first_parameters(self, seed: int) -> Params:
        """Return the initial parameters for a seed."""
        raise NotImplementedError

    def _on_host(self, number: int) -> Any:
        """Return the batch of step `number` as numpy arrays."""
        raise NotImplementedError

    def init(self) -> TrainState:
        """Return the state before the first step."""
        return self.programs.first_state(self.first_parameters(self.config.train.seed))

    def abstract_state(self) -> TrainState:
        """Return the shapes and shardings of the state, for reading a checkpoint."""
        return self.programs.abstract_state()

    def step(self, state: TrainState, number: int, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        """Training step `number` with its batch."""
        return self.programs.step(state, batch)

    def refreshed(self, state: TrainState, number: int) -> TrainState:
        """Return the state itself, as there is no index."""
        return state

    def batch(self, number: int) -> Any:
        """Return the batch of step `number` on the devices, a function of (seed, number) alone."""
        return put_batch(self.mesh, self.made[number])


class LanguageModelRun(TokenRun):
    """A run on texts alone, with a held-out loss.

    Args:
      further_inputs: fingerprints of everything else that the run reads, by the names in run_inputs.py.
    """

    def __init__(self, programs: TokenPrograms, data: TextData, further_inputs: dict[str, str]):
        super().__init__(programs)
        self.data, self.further_inputs, train = data, further_inputs, programs.config.train
        self.batches = QuestionBatches(len(data.training), train.batch_size, train.seed)

    def make_batch(self, rows: np.ndarray, rng: np.random.Generator, training: bool) -> Any:
        """Return a batch of some rows of the corpus as numpy arrays: for training or, with a fixed `rng`, held out."""
        raise NotImplementedError

    def inputs(self) -> Inputs:
        """Return fingerprints of the text, of the tokenizer, and of everything else that the run reads."""
        tokenizer = tokenizer_fingerprint(self.data.tokenizer)
        return Inputs({"text": self.data.store.content, "tokenizer": tokenizer, **self.further_inputs}, {})

    def _on_host(self, number: int) -> Any:
        rng = host_generator(self.config.train.seed, HostStream.TEXT, number)
        return self.make_batch(self.data.training[self.batches.indices(number)], rng, True)

    def evaluate(self, state: TrainState) -> dict[str, float]:
        """Return the held-out tokens' mean negative log-probability, in nats, and its exponential; {} without any."""
        size = self.programs.evaluation_rows(len(self.data.held_out))
        if not size:
            return {}
        rows = self.data.held_out[: len(self.data.held_out) // size * size].reshape(-1, size)
        sums = [
            self.programs.evaluation(
                state.weights,
                put_batch(self.mesh, self.make_batch(part, host_generator(0, HostStream.HELD_OUT_TEXT, n), False)),
            )
            for n, part in enumerate(rows)
        ]
        total, count = np.sum([[float(x) for x in pair] for pair in sums], axis=0)
        return self.metrics(float(total / count))

    def evaluated(self) -> str:
        """Return a text for the log that names the held-out passages."""
        return f"{held_out} held-out passages" if (held_out := len(self.data.held_out)) else ""

    def metrics(self, loss: float) -> dict[str, float]:
        """Return the metrics of an evaluation for the mean held-out loss, in nats: the loss and its exponential."""
        return {"loss": loss, "perplexity": float(np.exp(loss))}
