"""A small encoder that learns a larger one's embeddings of passages, sentences and questions; no judgement is read."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import EmbeddingDistillationConfig, token_stores
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question, read_questions
from jaxretr.data.readers import qrels_path, read_qrels
from jaxretr.data.sentences import split_sentences
from jaxretr.data.source import source_of
from jaxretr.data.token_store import TokenStore, ids_dtype
from jaxretr.data.tokens import Template
from jaxretr.embeddings.encoding import encode
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, abstract_params
from jaxretr.models.hub.model_shapes import encoder_shape
from jaxretr.models.starts import static_start
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel.mesh import check_cpu_devices
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.corpus_tokens import abstract_rows
from jaxretr.training.runs.encoder_start import new_bert
from jaxretr.training.runs.outline import Outline
from jaxretr.training.runs.text_pretraining import LanguageModelRun, TextData, TokenPrograms
from jaxretr.training.state import TrainState
from jaxretr.training.steps.embedding_distillation import (
    DistillationBatch,
    TextsOfOneLength,
    embedding_loss,
    principal_directions,
)

log = logging.getLogger(__name__)

# Limits of a sentence's characters: a shorter one says little, and a longer one is cut by the student's length anyway.
_SHORTEST, _LONGEST = 20, 400
# Largest number of rows that the principal directions are computed from.
_SAMPLE = 100_000


class EmbeddingDistillationRun(LanguageModelRun):
    """Combines texts, the teacher's embeddings, model and step to a run."""

    def __init__(self, config: EmbeddingDistillationConfig, mesh: Mesh, workdir: Path):
        folder = workdir / "data"
        data = TextData(config.data, "bert", Template.PASSAGE_PAIR, folder, config.data.max_length)
        data.training = _evenly(data.training, config.teacher_passages)
        self.model = student(config, len(data.tokenizer))
        check_cpu_devices(mesh, self.model.backbone.widest)
        teacher = DualEncoder.from_pretrained(config.teacher, dtype="auto")
        if not teacher.config.shared:
            raise UserError(f"{config.teacher}: has a tower for each side; give a teacher with one tower")
        if (size := self.model.embedding_size) > teacher.config.embedding_size:
            raise UsageError(
                f"bert.hidden_size={size}: more than the teacher's {teacher.config.embedding_size} dimensions; lower it"
            )
        # ---- texts that the teacher embeds (passages, sentences, questions), and the vocabulary's pieces -------------
        sentences = _sentences(data.corpus, config.teacher_sentences)
        short = [*sentences, *_questions(config)]
        stores = token_stores(config.data, folder)
        self.short = TokenStore.build(stores, short, data.tokenizer, Template.QUESTION_ROWS, config.short_length)
        every = max(2, len(short) // max(1, config.data.held_out))
        self.short_held_out = np.arange(0, len(short), every)
        self.short_training = np.setdiff1d(np.arange(len(short)), self.short_held_out)
        # Places of the embedded passages among all, -1 for the others.
        rows = np.sort(np.concatenate([data.training, data.held_out]))
        self.place = np.full(len(data.corpus), -1)
        self.place[rows] = np.arange(len(rows))
        chosen = Corpus.from_passages(data.corpus[int(row)] for row in rows)
        log.info("the teacher embeds %d passages and %d sentences and questions", len(chosen), len(short))
        stores = folder / "teacher"
        passages = encode(teacher, corpus=chosen, out=stores / "passages", dtype="float16")
        texts = encode(teacher, queries=_as_questions(short), out=stores / "short", dtype="float16")
        pieces = data.tokenizer.convert_ids_to_tokens(range(len(data.tokenizer)))
        words = encode(
            teacher, queries=_as_questions([piece.removeprefix("##") for piece in pieces]), out=stores / "pieces"
        )
        # The teacher's embeddings of passages, short texts and word pieces; all are projected on the same directions.
        embeddings = [np.concatenate(list(store.blocks())) for store in (passages, texts, words)]
        directions = principal_directions(_evenly(np.concatenate(embeddings[:2]), _SAMPLE), size)
        self.of_passages, self.of_short, self.of_pieces = (_projected(part, directions) for part in embeddings)
        kept = np.square(_evenly(embeddings[0], _SAMPLE).astype(np.float32) @ directions).sum(axis=1).mean()
        note(log.info, "%d of the teacher's %d dimensions keep %.4f of the squared length", size, len(directions), kept)
        programs = distillation_programs(config, self.model, mesh)
        read = {"short texts": self.short.content, "teacher": passages.meta.model_fingerprint}
        super().__init__(programs, data, read)

    @staticmethod
    def outline(config: EmbeddingDistillationConfig, mesh: Mesh, size: CorpusSize) -> Outline:
        model = student(config, config.data.vocab_size)
        if model.embedding_size > (most := encoder_shape(config.teacher).embedding_size):
            raise UsageError(f"bert.hidden_size={model.embedding_size}: more than the teacher's {most}; lower it")

        def texts(rows: int, width: int) -> TextsOfOneLength:
            tokens = abstract_rows(mesh, ids_dtype(model.backbone.vocab_size), rows, width)
            targets = abstract_rows(mesh, "float32", rows, model.embedding_size)
            return TextsOfOneLength(tokens, abstract_rows(mesh, "int32", rows), targets)

        def batch(rows: int, training: bool) -> DistillationBatch:
            return DistillationBatch(
                texts(rows, config.data.max_length), texts(rows * config.short_texts, config.short_length)
            )

        return distillation_programs(config, model, mesh).outline(config.data.held_out, batch)

    def metrics(self, loss: float) -> dict[str, float]:
        """Return the mean held-out loss, and the cosine, which is 1 minus the loss."""
        return {"loss": loss, "cosine": 1.0 - loss}

    def save_model(self, state: TrainState, folder: Path) -> None:
        """Write the student as a dual encoder with one tower."""
        params: Any = jax.device_get(state.params)
        if jax.process_index() == 0:
            DualEncoder(self.model, {"shared": params}, self.data.tokenizer).save(folder)

    def first_parameters(self, seed: int) -> Params:
        """Return an encoder whose words begin near the teacher's embeddings of them."""
        assert isinstance(self.model.backbone, BertConfig)  # as every new encoder is
        return {BACKBONE: static_start(self.model.backbone, self.of_pieces, seed)}

    def make_batch(self, rows: np.ndarray, rng: np.random.Generator, training: bool) -> DistillationBatch:
        """Return the batch of some passages, with short texts drawn in addition."""
        among = self.short_training if training else self.short_held_out
        short = rng.choice(among, len(rows) * self.config.short_texts)
        return DistillationBatch(
            TextsOfOneLength(
                *self.data.store.select(rows, self.config.data.max_length), self.of_passages[self.place[rows]]
            ),
            TextsOfOneLength(*self.short.select(short, self.config.short_length), self.of_short[short]),
        )


def student(config: EmbeddingDistillationConfig, vocabulary: int) -> DualEncoderConfig:
    """Return the student's configuration: mean pooling, and vectors of length 1."""
    return DualEncoderConfig(
        new_bert(config.bert, vocabulary, max(512, config.data.max_length, config.short_length)),
        shared=True,
        pooling="mean",
        normalise=True,
        max_question_length=config.short_length,
        max_passage_length=config.data.max_length,
    )


def distillation_programs(config: EmbeddingDistillationConfig, model: DualEncoderConfig, mesh: Mesh) -> TokenPrograms:
    """Return the compiled programs of a run."""
    loss = embedding_loss(model, config.dtype)
    return TokenPrograms(config, loss, lambda: abstract_params(model)["shared"], mesh)


def _evenly(rows: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` of some rows, spread over all of them."""
    return rows if len(rows) <= count else rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]


def _sentences(corpus: Corpus, count: int) -> list[str]:
    """Return at most `count` sentences, from passages that are spread over the corpus."""
    found: list[str] = []
    # A passage has five sentences or so; three of each are taken, so that more passages are represented.
    for row in _evenly(np.arange(len(corpus)), max(1, count // 2)):
        sentences = [each for each in split_sentences(corpus[int(row)].text) if _SHORTEST <= len(each) <= _LONGEST]
        found += sentences[:: max(1, len(sentences) // 3)][:3]
    return found if len(found) <= count else [found[n] for n in _evenly(np.arange(len(found)), count)]


def _questions(config: EmbeddingDistillationConfig) -> list[str]:
    """Return the texts of the question files, without those that the config leaves out."""
    texts: list[str] = []
    for path in config.questions:
        questions = read_questions(path)
        if source_of(path).is_dir():
            judged = read_qrels(qrels_path(path, config.questions_split, "questions_split"))
            questions = [question for question in questions if question.id in judged]
        without = config.exclude_questions
        texts += [each.text for each in questions if not (without and each.id.startswith(without))]
    return texts


def _as_questions(texts: Sequence[str]) -> list[Question]:
    return [Question(str(number), text) for number, text in enumerate(texts)]


def _projected(embeddings: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Project embeddings [n, D] on the directions, and scale them to length 1; float32."""
    rows = embeddings.astype(np.float32) @ directions
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
