"""Pretraining a small scorer as a passage-conditioned language model, and as a ranker of passages."""

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import PassageLmConfig
from jaxretr.data.readers import read_beir
from jaxretr.data.token_store import ids_dtype
from jaxretr.data.tokens import Template, scorer_target
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.models.backbones.layers import Params, define
from jaxretr.models.backbones.t5 import T5Config, T5Model
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.models.hub.model_shapes import scorer_shape
from jaxretr.models.hub.t5_params import export_t5
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.models.scorers.t5_scorer import Prompt
from jaxretr.models.starts import copying_start
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.hosts import fingerprint
from jaxretr.runtime.parallel.mesh import check_cpu_devices
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.corpus_tokens import abstract_rows
from jaxretr.training.runs.outline import T5_PROMPT, Outline
from jaxretr.training.runs.text_pretraining import LanguageModelRun, TextData, TokenPrograms
from jaxretr.training.state import TrainState
from jaxretr.training.steps.passage_lm import Example, ScorerBatch, scorer_loss, thinned_windows

log = logging.getLogger(__name__)

# Number of ids of "Question: " in T5's own vocabulary.
T5_TARGET_START = 3


class PassageLmRun(LanguageModelRun):
    """Combines text, targets, model and step to a run."""

    def __init__(self, config: PassageLmConfig, mesh: Mesh, workdir: Path):
        config.check()
        start = None if config.start is None else QuestionScorer.from_pretrained(config.start)
        tokenizer = None if start is None else start.tokenizer
        data = TextData(config.data, "t5", Template.SCORER_PASSAGE, workdir / "data", config.data.max_length, tokenizer)
        self.t5 = passage_lm_t5(config, len(data.tokenizer)) if start is None else start.config
        self.start = None if start is None else start.params
        check_cpu_devices(mesh, max(self.t5.d_model, self.t5.d_ff))
        programs = passage_lm_programs(config, self.t5, Prompt.of(data.tokenizer), mesh)
        self.examples = Examples(config, data)
        pairs = [self.examples.pairs, self.examples.questions, self.examples.question_lengths]
        read = {"encoder": fingerprint(self.start), "pairs": fingerprint(pairs)}
        super().__init__(programs, data, read)

    def make_batch(self, rows: np.ndarray, rng: np.random.Generator, training: bool) -> ScorerBatch:
        return self.examples.batch(rows, rng, training)

    def first_parameters(self, seed: int) -> Params:
        """Return the parameters that the run starts from, or those of a new T5 that can already copy."""
        return copying_start(self.t5, seed) if self.start is None else self.start

    @staticmethod
    def outline(config: PassageLmConfig, mesh: Mesh, size: CorpusSize) -> Outline:
        t5 = passage_lm_t5(config, config.data.vocab_size) if config.start is None else scorer_shape(config.start)
        ids = ids_dtype(t5.vocab_size)
        wide, target = config.data.max_length, target_width(config, T5_TARGET_START)

        def texts(width: int, *rows: int) -> tuple[Any, Any]:
            return abstract_rows(mesh, ids, *rows, width), abstract_rows(mesh, "int32", *rows)

        def batch(rows: int, training: bool) -> ScorerBatch:
            g, c = config.ranked_questions, config.ranked_passages
            ranked = Example(*texts(wide, g, c), *texts(target, g)) if g and training else None
            return ScorerBatch(Example(*texts(wide, rows), *texts(target, rows)), ranked)

        return passage_lm_programs(config, t5, T5_PROMPT, mesh).outline(config.data.held_out, batch)

    def save_model(self, state: TrainState, folder: Path) -> None:
        """Write a Hugging Face folder (T5ForConditionalGeneration)."""
        params: Any = jax.device_get(state.params)
        if jax.process_index() == 0:
            write_folder(folder, *export_t5(self.t5, params), self.data.tokenizer)


def passage_lm_t5(config: PassageLmConfig, vocabulary: int) -> T5Config:
    """Return the shape of a run's T5 with a vocabulary of so many entries."""
    shape = config.t5
    return T5Config(
        vocab_size=vocabulary,
        d_model=shape.d_model,
        d_kv=shape.d_kv,
        d_ff=shape.d_ff,
        num_heads=shape.heads,
        num_layers=shape.encoder_layers,
        num_decoder_layers=shape.decoder_layers,
        feed_forward_proj="relu",
        tie_word_embeddings=True,
    )


def passage_lm_programs(config: PassageLmConfig, shape: T5Config, prompt: Prompt, mesh: Mesh) -> TokenPrograms:
    """Return the compiled programs of a run whose T5 has this shape and reads this instruction."""
    loss = scorer_loss(
        shape,
        prompt,
        config.dtype,
        ranked_temperature=config.ranked_temperature,
        ranked_weight=config.ranked_weight,
    )
    return TokenPrograms(config, loss, lambda: define(lambda rngs: T5Model(shape, rngs=rngs))[1], mesh)


def target_width(config: PassageLmConfig, start: int) -> int:
    """Return the number of columns of a target: the `start` ids of "Question: ", the drawn tokens, and </s>."""
    return start + config.target_length + 1


class Examples:
    """Draws examples: targets made from the passages, and question-passage pairs where a folder of them is given."""

    def __init__(self, config: PassageLmConfig, data: TextData):
        self.config, self.data = config, data
        tokenizer = data.tokenizer
        start = tokenizer("Question: ", add_special_tokens=False)["input_ids"]
        self.start, self.end = np.array(start), tokenizer.eos_token_id
        self.width = target_width(config, len(start))
        self.pairs = np.zeros((0, 2), np.int64)
        self.questions, self.question_lengths = np.zeros((0, self.width), data.store.dtype), np.zeros(0, np.int32)
        if config.data.pairs:
            texts = self._read_pairs(config.data.pairs, config.data.exclude_pairs, tokenizer)
            if config.ranked_questions:
                self._rank(texts)

    def _read_pairs(self, folder: str, exclude: str | None, tokenizer: Any) -> list[str]:
        """Tokenise the questions and find their passages' rows; return the questions' texts."""
        beir = read_beir(folder, "train")
        row = {id: number for number, id in enumerate(self.data.corpus.ids)}
        questions = [q for q in beir.questions if exclude is None or not q.id.startswith(exclude)]
        rows = scorer_target(tokenizer, [q.text for q in questions], self.width).ids
        self.question_lengths = np.array([len(ids) for ids in rows], np.int32)
        self.questions = np.zeros((len(rows), self.width), self.data.store.dtype)
        self.questions[np.arange(self.width) < self.question_lengths[:, None]] = np.concatenate(rows)
        self.pairs = np.array(
            [
                (number, row[id])
                for number, question in enumerate(questions)
                for id, grade in beir.qrels[question.id].items()
                if grade > 0 and id in row
            ]
        )
        return [question.text for question in questions]

    def _rank(self, questions: list[str]) -> None:
        """Rank BM25's first passages for each question, without those that are judged to answer it."""
        depth = self.config.ranked_depth
        log.info("BM25 ranks %d passages for %d questions", len(self.data.corpus), len(questions))
        _, found = Bm25Index.build(self.data.corpus).search(questions, depth + 1)
        answers: list[set[int]] = [set() for _ in questions]
        for number, row in self.pairs:
            answers[number].add(int(row))
        self.others = [
            np.array([row for row in rows if row >= 0 and int(row) not in known][:depth], np.int64)
            for rows, known in zip(found, answers, strict=True)
        ]
        enough = np.array([len(rows) >= self.config.ranked_passages - 1 for rows in self.others], bool)
        self.rankable = self.pairs[enough[self.pairs[:, 0]]]
        if not len(self.rankable):
            raise UserError(
                f"{self.config.data.pairs}: BM25 finds fewer than {self.config.ranked_passages - 1} other passages for "
                "each question; give a lower ranked_passages="
            )

    def batch(self, rows: np.ndarray, rng: np.random.Generator, training: bool) -> ScorerBatch:
        """Return the examples of some passages, and in training the ranked questions."""
        examples = self._examples(rows, rng, training)
        if not training or not self.config.ranked_questions:
            return ScorerBatch(examples, None)
        chosen = self.rankable[rng.integers(0, len(self.rankable), self.config.ranked_questions)]
        others = [
            rng.choice(self.others[number], self.config.ranked_passages - 1, replace=False) for number, _ in chosen
        ]
        passages = np.concatenate([chosen[:, 1:], np.stack(others)], axis=1)
        tokens, lengths = self.data.store.select(passages.reshape(-1), self.config.data.max_length)
        questions = chosen[:, 0]
        ranked = Example(
            tokens.reshape(*passages.shape, -1),
            lengths.reshape(passages.shape),
            self.questions[questions],
            self.question_lengths[questions],
        )
        return ScorerBatch(examples, ranked)

    def _examples(self, rows: np.ndarray, rng: np.random.Generator, training: bool) -> Example:
        """Return the examples of some passages; in training question-passage pairs replace a share of them."""
        config, data = self.config, self.data
        passages, lengths, drawn, drawn_lengths = thinned_windows(
            rng,
            *data.store.select(rows, config.data.max_length),
            window=config.window,
            target_length=config.target_length,
            held_out=config.window_held_out,
        )
        targets = np.zeros((len(rows), self.width), data.store.dtype)
        targets[:, : len(self.start)] = self.start
        targets[:, len(self.start) : -1] = drawn
        targets[np.arange(len(rows)), len(self.start) + drawn_lengths] = self.end
        target_lengths = (len(self.start) + drawn_lengths + 1).astype(np.int32)
        share = int(len(rows) * config.data.pair_share) if training and len(self.pairs) else 0
        if share:
            question, row = self.pairs[rng.integers(0, len(self.pairs), share)].T
            passages[:share], lengths[:share] = data.store.select(row, config.data.max_length)
            targets[:share], target_lengths[:share] = self.questions[question], self.question_lengths[question]
        return Example(passages, lengths, targets, target_lengths)
