"""Wiring of an ART run: the corpus and its tokens on the devices, the two models, the compiled programs."""

import dataclasses
import logging
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxretr import optim
from jaxretr.config import ArtConfig
from jaxretr.config import Encoder as EncoderConfig
from jaxretr.data.batches import QuestionBatches
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_beir, read_corpus, read_qrels, read_questions
from jaxretr.data.token_store import TokenStore
from jaxretr.data.tokens import Template, vocabulary_size
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate.retrieval import retrieval_figures
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.objectives.art import ArtProgram, QuestionBatch, make_refresh, make_search, make_step
from jaxretr.parallel import sharding
from jaxretr.parallel.mesh import DATA, padded_rows, put_rows
from jaxretr.state import CorpusState, CorpusTokens, TrainState

log = logging.getLogger(__name__)

EVALUATED_DEPTH = 100
EVALUATION_BATCH = 128


class ArtState(NamedTuple):
    """What an ART run carries and saves: without the index, a resumed run would search another one."""

    train: TrainState
    index: CorpusState


class ArtRun:
    """An ART run as train.py sees it."""

    def __init__(self, config: ArtConfig, mesh: Mesh, workdir: Path):
        self.config, self.mesh = config, mesh
        self.model = load_encoder(config.encoder)
        self.scorer = QuestionScorer.from_pretrained(
            config.scorer.path,
            max_length=config.scorer.max_length,
            max_question_length=config.scorer.max_question_length,
            dtype=config.scorer.dtype,
        )
        stores = Path(config.data.token_cache) if config.data.token_cache else workdir / "tokens"

        # ---- corpus --------------------------------------------------------------------------------------------------
        self.corpus = read_corpus(config.data.corpus)
        self.rows = padded_rows(len(self.corpus), mesh)
        self.passages = self._corpus_tokens(
            TokenStore.build(
                stores,
                self.corpus,
                self.model.tokenizer,
                Template(f"passage_{self.model.config.passage_template}"),
                config.encoder.max_passage_length,
            )
        )
        self.scorer_passages = self._corpus_tokens(
            TokenStore.build(
                stores,
                self.corpus,
                self.scorer.tokenizer,
                Template.SCORER_PASSAGE,
                config.scorer.max_length - self.scorer.prompt.size,
            )
        )
        self.scorer_params = sharding.put(self.scorer.params, mesh)

        # ---- questions -----------------------------------------------------------------------------------------------
        self.questions = training_questions(config)
        self.batches = QuestionBatches(len(self.questions), config.train.batch_size, config.train.seed)
        texts = [question.text for question in self.questions]
        self.question_rows = self._question_store(stores, texts)
        self.target_rows = TokenStore.build(
            stores, texts, self.scorer.tokenizer, Template.SCORER_TARGET, config.scorer.max_question_length
        )
        self.dev = DevSet.read(config, self.corpus)
        if self.dev.questions:
            self.dev_rows = self._question_store(stores, [question.text for question in self.dev.questions])

        # ---- programs ------------------------------------------------------------------------------------------------
        top_k = min(config.art.top_k, len(self.corpus))
        if top_k < config.art.top_k:
            log.warning("art.top_k=%d, but the corpus has %d passages: using %d", config.art.top_k, top_k, top_k)
        self.program = ArtProgram(
            encoder=self.model.config,
            t5=self.scorer.config,
            prompt=self.scorer.prompt,
            corpus_rows=len(self.corpus),
            top_k=top_k,
            temperature=config.art.temperature or float(self.model.config.embedding_size) ** 0.5,
            teacher_temperature=config.art.teacher_temperature,
            write_back=config.art.write_back,
            shuffle_teacher=config.art.shuffle_teacher,
            teacher_chunk=config.scorer.chunk,
            block_rows=config.art.block_rows,
            encode_rows=config.art.encode_rows,
            encoder_dtype=config.encoder.dtype,
            scorer_dtype=config.scorer.dtype,
            seed=config.train.seed,
        )
        self.optimizer = optim.build(config.optimizer, config.train.steps)
        self.train_step = make_step(self.program, self.optimizer, mesh)
        self.refresh = make_refresh(self.program, mesh)
        self.search = make_search(self.program, mesh, min(EVALUATED_DEPTH, len(self.corpus)))

    # ---- as train.py calls it ----------------------------------------------------------------------------------------

    def init(self) -> ArtState:
        """The pretrained weights and an index made with them."""
        # A copy: the first step donates these buffers, and the model keeps its own.
        params = sharding.put(jax.tree.map(np.array, self.model.params), self.mesh)
        train = TrainState.create(params, self.optimizer)
        train = jax.device_put(train, sharding.shardings(train, self.mesh))
        return ArtState(train, self.refresh(train.params, self.passages, self._empty_index(), train.step))

    def abstract_state(self) -> ArtState:
        """The shapes and shardings of the state."""
        train = jax.eval_shape(lambda: TrainState.create(self.model.params, self.optimizer))
        index = jax.eval_shape(self._empty_index)
        rows = NamedSharding(self.mesh, sharding.ROWS)
        return ArtState(sharding.abstract(train, self.mesh), sharding.abstract(index, self.mesh, rows))

    def step(self, state: ArtState, number: int) -> tuple[ArtState, dict[str, jax.Array]]:
        """One ART step; every R steps the corpus is encoded anew first."""
        train, index = state
        if number and number % self.config.art.refresh_every == 0:
            index = self.refresh(train.params, self.passages, index, train.step)
        train, index, values, _ = self.train_step(
            train, index, self.passages, self.scorer_passages, self.scorer_params, self.batch(number)
        )
        return ArtState(train, index), values

    def evaluate(self, state: ArtState) -> dict[str, float]:
        """Retrieval figures of the dev questions over the whole corpus, encoded with the current weights."""
        if not self.dev.questions:
            return {}
        # Not the live index: parts of it are old, and the figures must not depend on how old.
        fresh = self.refresh(state.train.params, self.passages, self._empty_index(), state.train.step)
        found = []
        for start in range(0, len(self.dev.questions), self._evaluation_batch):
            tokens, lengths = self.dev_rows.padded(start, start + self._evaluation_batch, self._width(self.dev_rows))
            found.append(self.search(state.train.params, fresh, self._put(tokens), self._put(lengths)))
        scores, rows = (np.concatenate([np.asarray(pair[part]) for pair in found]) for part in (0, 1))
        return self.dev.figures(scores[: len(self.dev.questions)], rows[: len(self.dev.questions)], self.corpus)

    def save_model(self, state: ArtState, folder: Path) -> None:
        """Writes the dual encoder's folder."""
        params = jax.device_get(state.train.params)
        if jax.process_index() == 0:
            DualEncoder(self.model.config, params, self.model.tokenizer).save(folder)

    # ---- arrays ------------------------------------------------------------------------------------------------------

    def batch(self, number: int) -> QuestionBatch:
        """The questions of step `number`, a function of (seed, number) alone."""
        chosen = self.batches.indices(number)
        tokens, lengths = select(self.question_rows, chosen, self._width(self.question_rows))
        targets, target_lengths = select(self.target_rows, chosen, self._width(self.target_rows))
        return QuestionBatch(*(self._put(x) for x in (tokens, lengths, targets, target_lengths)))

    def _put(self, array: np.ndarray) -> jax.Array:
        return put_rows(self.mesh, array, array.shape, array.dtype)

    def _question_store(self, stores: Path, texts: list[str]) -> TokenStore:
        length = self.config.encoder.max_question_length
        return TokenStore.build(stores, texts, self.model.tokenizer, Template.QUESTION_ROWS, length)

    def _corpus_tokens(self, store: TokenStore) -> CorpusTokens:
        """The corpus's tokens on the devices; each host reads only its own rows."""
        width = self._width(store)
        tokens = put_rows(self.mesh, lambda a, b: store.padded(a, b, width)[0], (self.rows, width), store.dtype)
        return CorpusTokens(tokens, put_rows(self.mesh, store.lengths, (self.rows,), np.int32))

    def _width(self, store: TokenStore) -> int:
        """The longest row, rounded up so that few widths are ever compiled."""
        return -(-max(1, store.max_row_length) // 8) * 8

    def _empty_index(self) -> CorpusState:
        size = self.model.config.embedding_size
        rows = NamedSharding(self.mesh, sharding.ROWS)
        make = jax.jit(
            lambda: CorpusState(
                jnp.zeros((self.rows, size), self.config.art.index_dtype), jnp.zeros((self.rows,), jnp.int32)
            ),
            out_shardings=rows,
        )
        return make()

    @property
    def _evaluation_batch(self) -> int:
        devices = self.mesh.shape[DATA]
        return -(-EVALUATION_BATCH // devices) * devices


def load_encoder(config: EncoderConfig) -> DualEncoder:
    """The dual encoder that a run starts from, with the config's pooling, lengths and dropout."""
    model = DualEncoder.from_pretrained(
        config.path, passage_path=config.passage_path, shared=config.shared, pooling=config.pooling
    )
    bert = dataclasses.replace(
        model.config.bert, hidden_dropout_prob=config.dropout, attention_probs_dropout_prob=config.dropout
    )
    longest = max(config.max_question_length, config.max_passage_length)
    if longest > bert.max_position_embeddings:
        raise UsageError(
            f"{config.path}: has {bert.max_position_embeddings} positions, the config asks for {longest}; "
            "lower encoder.max_passage_length or encoder.max_question_length"
        )
    settings = dataclasses.replace(
        model.config,
        bert=bert,
        normalise=config.normalise,
        max_question_length=config.max_question_length,
        max_passage_length=config.max_passage_length,
    )
    if vocabulary_size(model.tokenizer) > bert.vocab_size:
        raise UserError(f"{config.path}: the tokenizer has more entries than the model; use the model's own tokenizer")
    return DualEncoder(settings, model.params, model.tokenizer)


def training_questions(config: ArtConfig) -> list[Question]:
    """The questions to learn from, in the order of their file."""
    questions = read_questions(config.data.questions)
    if config.data.questions_split is None:
        return questions
    chosen = read_beir(config.data.questions, config.data.questions_split).questions
    if not chosen:
        raise UserError(f"{config.data.questions}: no questions in split {config.data.questions_split}")
    return chosen


def select(store: TokenStore, rows: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Some rows of a store as a rectangle: tokens [n, width], lengths int32 [n]."""
    tokens = np.zeros((len(rows), width), store.dtype)
    lengths = store.lengths[rows]
    tokens[np.arange(width) < lengths[:, None]] = np.concatenate([store.row(row) for row in rows])
    return tokens, lengths


@dataclasses.dataclass(frozen=True)
class DevSet:
    """Questions that a run is evaluated on: with judgements (recall, MRR, nDCG), answers (Acc@k), or both."""

    questions: list[Question]
    qrels: dict[str, dict[str, int]] | None

    @staticmethod
    def read(config: ArtConfig, corpus: Corpus) -> "DevSet":
        data = config.data
        if data.dev_questions is None:
            return DevSet([], None)
        questions = read_questions(data.dev_questions)
        if data.dev_qrels is None:
            if not any(question.answers for question in questions):
                raise UserError(f"{data.dev_questions}: has no answers; name the judgements with --data.dev-qrels FILE")
            return DevSet(questions, None)
        qrels = read_qrels(data.dev_qrels)
        judged = [question for question in questions if question.id in qrels]
        if not judged:
            raise UserError(f"{data.dev_qrels}: judges none of the questions in {data.dev_questions}; check the ids")
        return DevSet(judged, qrels)

    def figures(self, scores: np.ndarray, rows: np.ndarray, corpus: Corpus) -> dict[str, float]:
        """Metrics of retrieved rows, scores float32 [n, k] and rows int32 [n, k], best first."""
        return retrieval_figures(corpus, self.questions, self.qrels, scores, rows)
