"""Shared parts of every run that searches a corpus: its state, the corpus on the devices, its dev set."""

import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxretr.config import DevData, PairEncoder, Typos
from jaxretr.config import Encoder as EncoderConfig
from jaxretr.config import Mesh as MeshConfig
from jaxretr.data.corpus import Corpus
from jaxretr.data.prompts import Prompt
from jaxretr.data.question_identity import own_rows, without_own_rows
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_qrels, read_questions
from jaxretr.data.token_store import TokenStore
from jaxretr.data.tokens import Template
from jaxretr.data.typos import TypoGenerator
from jaxretr.embeddings.vector_files import SparseRows
from jaxretr.evaluate.retrieval import retrieval_metrics
from jaxretr.indexes.topk import NO_ROW
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.backbones.layers import Params
from jaxretr.models.embed import DualEncoderConfig, JointConfig
from jaxretr.models.encode import note_cut
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel import memory, sharding
from jaxretr.runtime.parallel.mesh import DATA, padded_rows, to_host
from jaxretr.training.runs.corpus_tokens import EstimatedRows, corpus_tokens, width_of
from jaxretr.training.runs.encoder_start import Model
from jaxretr.training.runs.programs import put_batch
from jaxretr.training.runs.run_inputs import judged_digest
from jaxretr.training.state import CorpusState, TokenRows, TrainState
from jaxretr.training.steps.index_refresh import make_embed_rows, make_refresh, make_rolling_refresh
from jaxretr.training.steps.live_index import IndexProgram, make_embed_questions, make_search
from jaxretr.training.steps.widths import passage_widths

if TYPE_CHECKING:  # It brings Numba along, which dense encoders do without.
    from jaxretr.indexes.exact.sparse import SparseIndexes

EVALUATED_DEPTH = 100
EVALUATION_BATCH = 128
# Passages that each device encodes at a time where they go to the host, with all dimensions.
SPARSE_ROWS = 64


class WholeCorpus:
    """The passages on the devices, and the compiled programs that encode and search them.

    Attributes:
      rows: N, the number of rows on the devices; those after the store's are empty.
      passages: their tokens; in a plan, the shapes of these.
    """

    def __init__(self, store: TokenStore | EstimatedRows, program: IndexProgram, mesh: Mesh):
        """Put the passages on the devices.

        Args:
          store: the passages' tokens, from `token_store`: at least `program.corpus_rows`; the rows after these are
            fetched by row but never found by a search.
          program: constants of the compiled programs, with the store's `widths_of`.
        """
        self.mesh, self.store, self.program = mesh, store, program
        self.rows = rows = padded_rows(store.num_rows, mesh)
        self.passages = corpus_tokens(store, rows, mesh)
        size = program.encoder.embedding_size
        self._new_index = jax.jit(
            lambda: CorpusState(jnp.zeros((rows, size), program.index.dtype), jnp.zeros(rows, jnp.int32)),
            out_shardings=NamedSharding(mesh, sharding.ROWS),
        )
        self.refresh_program = make_refresh(program, mesh)
        self.search, self.search_deeper = (
            make_search(program, mesh, min(depth, program.corpus_rows))
            for depth in (EVALUATED_DEPTH, EVALUATED_DEPTH + 1)
        )
        self.embed_rows, self.embed_questions = make_embed_rows(program, mesh), make_embed_questions(program, mesh)
        self.rolling_program = functools.cache(functools.partial(make_rolling_refresh, program, mesh))
        self._is_fresh = jax.jit(
            lambda encoded_at, step: (encoded_at == step).all(),
            out_shardings=NamedSharding(mesh, PartitionSpec()),
        )

    def refresh(self, train: TrainState, index: CorpusState) -> CorpusState:
        """Encode all passages with the current weights; `index` is used up. A fresh index is returned as it is."""
        if self.is_fresh(train, index):
            return index
        return self.refresh_program(train.weights, self.passages, index, train.step)

    def roll(self, train: TrainState, index: CorpusState, every: int) -> CorpusState:
        """Encode the passages r with r mod `every` = step mod `every` with the current weights; `index` is used up."""
        return self.rolling_program(every)(train.weights, self.passages, index, train.step)

    def is_fresh(self, train: TrainState, index: CorpusState) -> bool:
        """Whether every row was encoded with the current weights. Waits for the devices."""
        return bool(self._is_fresh(index.encoded_at, train.step))

    def encode(self, train: TrainState) -> CorpusState:
        """Return a new index of all passages, encoded with the current weights."""
        return self.refresh_program(train.weights, self.passages, self._new_index(), train.step)

    def searchable(
        self, train: TrainState, live: "CorpusState | SparseIndexes | None"
    ) -> "CorpusState | SparseIndexes":
        """Return the live index if it is fresh, otherwise a new one: of a sparse encoder an inverted index of the passages that
        are searched, in host memory, with all dimensions of a block's vectors alone."""
        if live is not None and (not isinstance(live, CorpusState) or self.is_fresh(train, live)):
            return live
        if not self.program.encoder.sparse:
            return self.encode(train)
        from jaxretr.indexes.exact.sparse import SparseIndexes

        blocks = self.embedded(train.weights, np.arange(self.program.corpus_rows))
        return SparseIndexes(map(SparseRows.of, blocks), self.program.encoder.embedding_size)

    @property
    def block_rows(self) -> int:
        """Number of passages that `embedded` encodes at a time."""
        return SPARSE_ROWS * self.mesh.shape[DATA]

    def embedded(self, params: Params, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the embeddings of passages, block by block, float32 [block, D]; `rows` are theirs, integers [n]."""
        size = self.block_rows
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            filled = np.pad(block, (0, size - len(block)), constant_values=NO_PASSAGE).astype(np.int32)
            yield np.asarray(self.embed_rows(params, self.passages, filled))[: len(block)]

    def find(
        self,
        train: TrainState,
        index: "CorpusState | SparseIndexes",
        questions: TokenRows,
        allowed: jax.Array | None,
        *,
        deeper: bool,
    ) -> tuple[jax.Array | np.ndarray, jax.Array | np.ndarray]:
        """Search for a batch of questions.

        Args:
          index: as `searchable` returns it.
          questions: tokens [B, L] and lengths [B] on the devices.
          allowed: the rows that may be found, bool [N]; None: all.
          deeper: whether to return one hit more than `EVALUATED_DEPTH`.

        Returns:
          Scores, float32 [B, k], and rows, int32 [B, k]; NO_ROW where no passage is left.
        """
        if isinstance(index, CorpusState):
            search = self.search_deeper if deeper else self.search
            return search(train.weights, index, questions.tokens, questions.lengths, allowed)
        vectors = np.asarray(self.embed_questions(train.weights, questions.tokens, questions.lengths))
        mask = None if allowed is None else to_host(allowed)[: len(index)]
        scores, rows = index.search_rows(vectors, EVALUATED_DEPTH + deeper, mask)
        return scores, np.where(rows < 0, NO_ROW, rows)

    def abstract_index(self) -> CorpusState:
        """Return the index's shapes and shardings."""
        return jax.eval_shape(self._new_index)


def token_store(
    model: Model, texts: Corpus | Sequence[str], stores: Path, prompt: Prompt | None = None, *, name: str | None = None
) -> TokenStore:
    """Tokenise passages or questions for an encoder, or open the store where that has been done.

    Args:
      model: model with the tokenizer, template and lengths.
      texts: the passages, as a corpus, or the questions.
      prompt: prompt in place of the model's.
      name: name of a text in the warning of those that are cut; None: no warning.
    """
    config = model.config
    if isinstance(texts, Corpus):
        template, longest = Template(f"passage_{config.passage_template}"), config.max_passage_length
        own = config.passage_prompt
    else:
        template, longest, own = Template.QUESTION_ROWS, config.max_question_length, config.query_prompt
    prompt = own if prompt is None else prompt
    store = TokenStore.build(stores, texts, model.tokenizer, template, longest, prompt=prompt)
    if name is not None:
        note_cut(store.truncated, store.num_rows, name, longest)
    return store


def widths_of(store: TokenStore) -> tuple[int, ...]:
    """Return the padded lengths that suit a store's rows."""
    return passage_widths(store.lengths, width_of(store))


def evaluation_batch(mesh: Mesh) -> int:
    """Return the number of dev questions that are searched for at once."""
    devices = mesh.shape[DATA]
    return -(-EVALUATION_BATCH // devices) * devices


class Judged(NamedTuple):
    """Questions with the known facts about their passages."""

    questions: list[Question]
    qrels: dict[str, dict[str, int]] | None
    """Question id -> passage id -> grade; None: their answers are matched."""
    source: str = "the held-out questions"
    """Source of the judgements, for errors."""


class CorpusPart(NamedTuple):
    """The part of the passages that some questions are searched for in."""

    first: int
    """Row of the first passage."""
    allowed: jax.Array
    """The rows that may be found, bool [N] on the devices."""
    prompt: str
    """Text put before the questions."""


class DevSet:
    """Questions that a run is evaluated on: with judgements (recall, MRR, nDCG), answers (Acc@k), or both."""

    def __init__(
        self,
        judged: Judged | None,
        corpus: Corpus,
        model: Model,
        stores: Path,
        typos: Typos,
        part: CorpusPart | None = None,
    ):
        """Tokenise the questions, if there are any, which are searched for in `corpus`: a part of the passages, or all.

        A run that trains for typos is also evaluated on the dev questions with typos: the same ones at every step and
        for every seed.

        Raises:
          UserError: judgements of another corpus.
        """
        self.questions, self.qrels, self.corpus, self.part = [], None, corpus, part
        if judged is None:
            return
        self.questions, self.qrels = judged.questions, judged.qrels
        check_corpus(judged, corpus)
        self._own = own_rows(self.questions, corpus, self.qrels)
        texts = [question.text for question in self.questions]
        prompt = None if part is None else part.prompt
        self._rows = {"": token_store(model, texts, stores, prompt)}
        if typos.active:
            misspelt = typo_generator(typos).texts(texts, 0, range(len(texts)))
            self._rows["typo_"] = token_store(model, misspelt, stores, prompt)

    def metrics(
        self, train: TrainState, whole: WholeCorpus, live: "CorpusState | SparseIndexes | None" = None
    ) -> dict[str, float]:
        """Return retrieval metrics over the whole corpus, encoded with the current weights; none without questions.

        Metrics of the misspelt questions have names that begin with "typo_".

        Args:
          live: the live index, if there is one, or the result of `searchable`. It is searched if it is fresh; if parts of it
            are old, the corpus is encoded once more, since the metrics must not depend on its age.
        """
        if not self.questions:
            return {}
        fresh = whole.searchable(train, live)
        return {
            prefix + name: value
            for prefix, rows in self._rows.items()
            for name, value in self._of_rows(rows, train, whole, fresh).items()
        }

    def digest(self) -> str:
        """Return a digest of the questions with their answers and judgements."""
        return judged_digest(self.questions, self.qrels)

    def _of_rows(
        self, store: TokenStore, train: TrainState, whole: WholeCorpus, index: "CorpusState | SparseIndexes"
    ) -> dict[str, float]:
        batch = evaluation_batch(whole.mesh)
        # One more hit, to replace a question that is itself a passage.
        deeper, found = bool((self._own >= 0).any()), []
        for start in range(0, len(self.questions), batch):
            rows = store.padded(start, start + batch, width_of(store))
            allowed = None if self.part is None else self.part.allowed
            asked = TokenRows(*put_batch(whole.mesh, rows))
            found.append(whole.find(train, index, asked, allowed, deeper=deeper))
        scores, rows = (np.concatenate([np.asarray(pair[part]) for pair in found]) for part in (0, 1))
        rows = np.where(rows == NO_ROW, -1, rows - (0 if self.part is None else self.part.first))
        count = len(self.questions)
        return self.measured(*without_own_rows(scores[:count], rows[:count], self._own, EVALUATED_DEPTH))

    def measured(self, scores: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Return the metrics of what was found for all questions: scores float32 [n, k], rows int32 [n, k]."""
        return retrieval_metrics(self.corpus, self.questions, self.qrels, scores, rows)


def dev_questions(data: DevData) -> Judged | None:
    """Read the dev questions that `data` names; None if it names none.

    Raises:
      UserError: neither judgements nor answers, or judgements of other questions.
    """
    if data.dev_questions is None:
        return None
    questions = read_questions(data.dev_questions)
    if data.dev_qrels is None:
        if not any(question.answers for question in questions):
            raise UserError(f"{data.dev_questions}: has no answers; name the judgements with data.dev_qrels=FILE")
        return Judged(questions, None)
    qrels = read_qrels(data.dev_qrels)
    judged = [question for question in questions if question.id in qrels]
    if not judged:
        raise UserError(
            f"{data.dev_qrels}: judges none of the questions in {data.dev_questions}; set data.dev_questions and "
            "data.dev_qrels to files that belong together"
        )
    return Judged(judged, qrels, data.dev_qrels)


def check_corpus(judged: Judged, corpus: Corpus) -> None:
    """Refuse judgements of another corpus, which would make every metric 0; questions may have none."""
    if judged.qrels is None:
        return
    passages = {passage for question in judged.questions for passage in judged.qrels[question.id]}
    if passages.isdisjoint(corpus.ids):  # Stops at the first that is known.
        raise UserError(
            f"{judged.source}: none of the {len(passages)} passages that it judges is in the corpus; set "
            "data.dev_questions and data.dev_qrels to those of the corpus, or all data at once with data=PATH"
        )


def activation_bytes(encoder: EncoderConfig | PairEncoder, mesh: Mesh) -> int:
    """Return the bytes of activations that a device may keep in a step for questions, and for passages; 0: none."""
    if encoder.activations == "recompute":
        return 0
    if encoder.activations == "keep":
        return sys.maxsize
    # On accelerators the second forward pass leaves memory for larger batches; on an H100 keeping saved a tenth of a
    # step. Several hosts may have different memory, and must compile the same program.
    if mesh.devices.flat[0].platform != "cpu" or jax.process_count() > 1:
        return 0
    # Equal on every start of a run, hence by the installed and not the free memory: the two ways differ by rounding.
    # Questions and passages take a half each.
    return memory.installed() // 4 // 2 // len(mesh.local_devices)


def splits(config: MeshConfig, encoder: DualEncoderConfig | JointConfig, mesh: Mesh) -> bool:
    """Whether a run splits its parameters over the "data" axis; one device has nothing to split.

    Raises:
      UsageError: the devices do not divide the encoder's width.
    """
    width, devices = encoder.backbone.hidden_size, mesh.shape[DATA]
    if config.shard_parameters and width % devices:
        raise UsageError(
            f"mesh.shard_parameters: {devices} devices do not divide the encoder's width of {width}; use a divisor of it, "
            "with mesh.model for the others"
        )
    return config.shard_parameters and devices > 1


def typo_generator(typos: Typos, seed: int = 0) -> TypoGenerator:
    """Return the generator that a config describes."""
    return TypoGenerator(typos.profile, keyboard=typos.keyboard, misspellings=typos.misspellings, seed=seed)
