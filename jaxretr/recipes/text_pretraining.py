"""What the two pretraining recipes share: text to tokens, batches, the held-out loss."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxretr import optim
from jaxretr.config import Config, PretrainData
from jaxretr.data.batches import QuestionBatches
from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.token_store import TokenStore
from jaxretr.data.tokenizer_training import train_tokenizer
from jaxretr.data.tokens import Template, load_tokenizer
from jaxretr.errors import UserError
from jaxretr.models.layers import Params
from jaxretr.objectives.token_step import SumLoss, make_token_loss, make_token_step
from jaxretr.parallel import sharding
from jaxretr.parallel.mesh import DATA
from jaxretr.state import TrainState


class TextData:
    """Passages of some corpora as tokens, with a vocabulary learnt from them or given; made once and kept in `folder`."""

    def __init__(
        self,
        data: PretrainData,
        kind: Literal["bert", "t5"],
        template: Template,
        folder: Path,
        max_length: int,
        tokenizer: Any = None,
    ):
        corpora = [read_corpus(path) for path in data.corpora]
        self.corpus = Corpus.from_passages(passage for corpus in corpora for passage in corpus)
        if len(self.corpus) <= data.held_out:
            raise UserError(
                f"{', '.join(data.corpora)}: {len(self.corpus)} passages, of which {data.held_out} are held out; "
                "set --data.held-out lower"
            )
        if tokenizer is None:
            vocabulary = folder / "tokenizer"
            if not (vocabulary / "tokenizer_config.json").exists():
                train_tokenizer(kind, self._sample(data.vocabulary_every), data.vocab_size, vocabulary)
            tokenizer = load_tokenizer(vocabulary)
        self.tokenizer = tokenizer
        stores = Path(data.token_cache) if data.token_cache else folder / "tokens"
        self.store = TokenStore.build(stores, self.corpus, self.tokenizer, template, max_length)
        self.lengths = self.store.lengths
        # Every n-th passage is held out, so that all sources are in both parts.
        rows = np.arange(len(self.corpus))
        every = len(rows) // data.held_out if data.held_out else len(rows) + 1
        self.held_out = rows[::every][: data.held_out] if data.held_out else rows[:0]
        usable = np.setdiff1d(rows, self.held_out)
        self.training = usable[self.lengths[usable] >= 8]

    def _sample(self, every: int) -> Iterator[str]:
        return (f"{passage.title} {passage.text}" for passage in list(self.corpus)[::every])


class LanguageModelRun:
    """A pretraining run as train.py sees it: a state, a step, a held-out loss.

    Args:
      config: the run's settings.
      mesh: the devices.
      parameters: makes the initial parameters from a seed.
      loss: of a batch.
      batch: (rows of the corpus, generator) -> a batch; called for training and, with a fixed generator, held out.
      data: the passages.
      chunk: rows that a device takes at once.
      dropout: whether the loss is given keys in training.
    """

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        parameters: Callable[[int], Params],
        loss: SumLoss,
        batch: Callable[[np.ndarray, np.random.Generator, bool], Any],
        data: TextData,
        *,
        chunk: int | None = None,
        dropout: bool = False,
    ):
        self.config, self.mesh, self.data = config, mesh, data
        self.parameters, self.make_batch = parameters, batch
        self.optimizer = optim.build(config.optimizer, config.train.steps)
        self.loss, self.step_settings = loss, {"chunk": chunk, "dropout_seed": config.train.seed if dropout else None}
        self.train_step = make_token_step(loss, self.optimizer, mesh, **self.step_settings)
        self.token_loss = make_token_loss(loss, mesh)
        self.batches = QuestionBatches(len(data.training), config.train.batch_size, config.train.seed)

    def inputs(self) -> dict[str, str]:
        """A fingerprint of the text as the tokenizer reads it."""
        return {"text": self.data.store.key}

    def init(self) -> TrainState:
        """The state before the first step."""
        return sharding.put(TrainState.create(self.parameters(self.config.train.seed), self.optimizer), self.mesh)

    def abstract_state(self) -> TrainState:
        """The shapes and shardings of the state, for reading a checkpoint."""
        params = self.parameters(self.config.train.seed)
        state = jax.eval_shape(lambda params: TrainState.create(params, self.optimizer), params)
        return sharding.abstract(state, self.mesh)

    def step(self, state: TrainState, number: int) -> tuple[TrainState, dict[str, jax.Array]]:
        """Training step `number`; the batch is a function of (seed, number) alone."""
        return self.train_step(state, self.batch(number))

    def batch(self, number: int) -> Any:
        """The batch of step `number` on the devices."""
        rng = np.random.default_rng((self.config.train.seed, number))
        return self._put(self.make_batch(self.data.training[self.batches.indices(number)], rng, True))

    def evaluate(self, state: TrainState) -> dict[str, float]:
        """Mean negative log-probability of the held-out passages' tokens, and its exponential; none if none is held out."""
        size = min(
            self.config.train.batch_size, len(self.data.held_out) // self.mesh.shape[DATA] * self.mesh.shape[DATA]
        )
        if not size:
            return {}
        rows = self.data.held_out[: len(self.data.held_out) // size * size].reshape(-1, size)
        sums = [
            self.token_loss(state.weights, self._put(self.make_batch(part, np.random.default_rng((7, n)), False)))
            for n, part in enumerate(rows)
        ]
        total, count = np.sum([[float(x) for x in pair] for pair in sums], axis=0)
        return {"loss": total / count, "perplexity": float(np.exp(total / count))}

    def _put(self, batch: Any) -> Any:
        rows = NamedSharding(self.mesh, sharding.ROWS)
        return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, rows, lambda part: x[part]), batch)
