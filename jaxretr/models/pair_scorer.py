"""Scorers of pairs for users, with texts in and scores out: cross-encoders and causal language models."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from jaxretr.config import AutoDtype, Dtype
from jaxretr.data.tokens import (
    Template,
    bare_passage,
    bare_question,
    load_tokenizer,
    tokenizer_fingerprint,
    vocabulary_size,
)
from jaxretr.models.backbones.adapter_layers import count
from jaxretr.models.backbones.layers import Params
from jaxretr.models.encode import Engine, chosen_dtype
from jaxretr.models.engine_choice import compiled_engine
from jaxretr.models.given_texts import Passages, given_pairs, given_passages, given_texts
from jaxretr.models.hub import cross_encoder_folder
from jaxretr.models.hub.dual_encoder_folder import model_folder
from jaxretr.models.hub.hf_files import read_json, resolve
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.models.scorers import pair_texts
from jaxretr.models.scorers.causal_lm import CausalLmConfig
from jaxretr.models.scorers.cross_encoder_shape import CrossEncoderConfig
from jaxretr.models.scorers.pair_frame import unmarked
from jaxretr.models.scorers.pair_texts import PairTexts
from jaxretr.models.scorers.shared_passages import SharingEngine
from jaxretr.models.scorers.teachers import PairTeacher
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.programs import device_jit

_MAX_LENGTH = 512
_QUESTION_LENGTH = 128


class PairScorer:
    """Reads a question and a passage in one row, and gives the pair a score.

    Args:
      config: shape of the model.
      params: parameters of the model.
      tokenizer: tokenizer of the model.
      texts: texts and ids around question and passage in a row.
      max_question_length: largest number of tokens of a question, if it is cut separately.
      dtype: type of the matmuls' operands; "auto" is the faster one on this machine.

    Attributes:
      teacher: constants of the compiled programs.
      passage_length: largest number of ids of a passage in a row of its own.
      question_length: largest number of ids of a question in a row of its own.
      passage_form, question_form: texts around a passage and a question, in the form of `bare_passage`.
      source: path or name that it was loaded from; None if it was not loaded.
      truncated: number of pairs that the last call of `score` cut.
    """

    passage_template: ClassVar[Template] = Template.BARE_PASSAGE
    question_template: ClassVar[Template] = Template.BARE_QUESTION

    def __init__(
        self,
        config: CrossEncoderConfig | CausalLmConfig,
        params: Params,
        tokenizer: Any,
        texts: PairTexts,
        *,
        max_question_length: int = _QUESTION_LENGTH,
        dtype: AutoDtype = "float32",
    ):
        if (size := vocabulary_size(tokenizer)) > config.backbone.vocab_size:
            raise UserError(
                f"the tokenizer has {size} entries, the model {config.backbone.vocab_size}; use the model's own tokenizer"
            )
        if texts.frame.max_length > config.backbone.max_position_embeddings:
            raise UserError(
                f"max_length is {texts.frame.max_length}, but the model has {config.backbone.max_position_embeddings} "
                "positions; lower it"
            )
        if texts.frame.room < 2:
            raise UsageError(f"max_length={texts.frame.max_length}: leaves no room for question and passage; raise it")
        self.config, self.params, self.tokenizer, self.texts = config, params, tokenizer, texts
        self.teacher = PairTeacher(config, texts.frame)
        self.max_question_length = self.question_length = min(max_question_length, texts.frame.room)
        self.passage_length = texts.frame.room
        self.passage_form, self.question_form = texts.passage_form, texts.question_form
        self.dtype: Dtype = chosen_dtype(dtype)
        self.source: str | None = None
        self.truncated = 0
        self._engine: Engine | None = None

    def __repr__(self) -> str:
        source = "" if self.source is None else f"{self.source!r}, "
        shape = self.config.backbone
        return (
            f"{type(self).__name__}({source}{shape.num_hidden_layers} x {shape.hidden_size}, "
            f"{count(self.params):,} parameters, {self.dtype})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy: the parameters as numpy arrays; compiled programs are created again."""
        return {**self.__dict__, "params": jax.device_get(self.params), "_engine": None}

    def score(
        self,
        questions: Sequence[str],
        passages: Passages,
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> np.ndarray:
        """Score question i against passage i, on all local devices.

        Args:
          questions: n questions.
          passages: n passages, as for `TextEncoder.encode_passages`.
          batch_size: pairs at once; by default a number that suits the device and the texts' lengths.
          progress: a progress bar; by default on a terminal, when it takes more than two seconds.

        Returns:
          float32 [n]; higher is better.

        Raises:
          UsageError: the two have different lengths.
        """
        questions, given = given_pairs(questions, passages)
        scores, self.truncated = self.engine().encode(
            lambda start, stop: self.marked_rows(questions[start:stop], given[start:stop]),
            len(questions),
            1,
            max_length=self.texts.frame.max_length,
            batch_size=batch_size,
            progress=progress,
            what="pair",
        )
        return scores[:, 0]

    def engine(self) -> Engine:
        """Return the engine that computes the scores of marked rows, as embeddings of one dimension."""
        if self._engine is None:
            model = _score_marked(self.teacher, self.dtype), self.params, self.dtype
            # A language model's likelihood is read off padded rows.
            if isinstance(self.config, CausalLmConfig):
                self._engine = SharingEngine(self.config, *model)
            else:
                self._engine = compiled_engine(self.config.backbone, self.dtype)(*model)
        return self._engine

    def marked_rows(self, questions: Sequence[str], passages: Passages) -> tuple[list[list[int]], int]:
        """Return the rows that the engine scores, and the number of pairs that were cut.

        The engine knows nothing of second texts: rows are marked by `pair_frame.marked`.
        """
        size = self.config.backbone.vocab_size
        found, seconds, cut = self.rows(questions, passages)
        return [[*row[:at], *(id + size for id in row[at:])] for row, at in zip(found, seconds, strict=True)], cut

    def rows(self, questions: Sequence[str], passages: Passages) -> tuple[list[list[int]], list[int], int]:
        """Return the token ids of pairs, the start of the second text in each, and the number of cut pairs."""
        questions, given = given_texts(questions, "questions"), given_passages(passages)
        titles, bodies = [passage.title for passage in given], [passage.text for passage in given]
        frame = self.texts.frame
        limit = frame.max_length if frame.cut == "longest" else self.max_question_length
        asked = bare_question(self.tokenizer, questions, limit, self.texts.question_form)
        read = bare_passage(self.tokenizer, titles, bodies, frame.max_length, self.texts.passage_form)
        found, seconds, cut = frame.rows(asked.ids, read.ids)
        return found, seconds, max(cut, asked.truncated, read.truncated)

    def fingerprint(self) -> str:
        """Return a sha256 (hexadecimal) over all that decides scores: shape, weights, tokenizer, texts, dtype."""
        config = dataclasses.asdict(self.config)
        if config.get("head", {}).get("pad_token_id", 0) is None:
            del config["head"]["pad_token_id"]  # Left out as in earlier versions.
        facts = {
            "config": config,
            "texts": dataclasses.asdict(self.texts),
            "dtype": self.dtype,
        }
        return scorer_digest({**facts, "questions": self.max_question_length}, self.tokenizer, self.params)


class CrossEncoder(PairScorer):
    """A cross-encoder (re-ranker): scores are raw logits, without the sigmoid that some libraries put on them."""

    config: CrossEncoderConfig

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        *,
        max_length: int | None = None,
        max_question_length: int = _QUESTION_LENGTH,
        instruction: str | None = None,
        dtype: AutoDtype = "float32",
    ) -> "CrossEncoder":
        """Load a cross-encoder.

        Args:
          path_or_name: a run directory of a cross-encoder; a Hugging Face folder of an encoder with a classification
            head of one score (...ForSequenceClassification), as sentence-transformers' CrossEncoder has them; or of a
            decoder that answers with "yes" or "no" (Qwen3-Reranker), whose score is logit(yes) - logit(no).
          max_length: tokens of a row; by default as the tokenizer states, at most the model's positions, and 8192.
          max_question_length: tokens of a question, where only passages are cut by the row's length.
          instruction: the task of a decoder; None: the one that the model was trained with.
          dtype: "float32"; "bfloat16"; or "auto" for the faster of them on this machine.

        Raises:
          UserError: no such folder, an unsupported model, or a file that is missing or broken.
        """
        folder = model_folder(resolve(path_or_name))
        content = read_json(folder, "config.json")
        tokenizer = load_tokenizer(folder)
        if cross_encoder_folder.is_causal_lm(content, str(folder)):
            yes, no = answer_tokens(folder, tokenizer)
            config, params = cross_encoder_folder.read_answers(folder, yes, no)
            answers = True
        elif cross_encoder_folder.is_cross_encoder(content, str(folder)):
            config, params = cross_encoder_folder.read_cross_encoder(folder)
            answers = pair_texts.has_pair_template(tokenizer)
        else:
            raise UserError(
                f"{folder}: is no cross-encoder; give an encoder with a classification head "
                "(...ForSequenceClassification), or a decoder that answers with yes or no (...ForCausalLM)"
            )
        if config.head.pooling == "lasttoken":
            padding = tokenizer.pad_token_id if content.get("pad_token_id") is None else content["pad_token_id"]
            config = dataclasses.replace(config, head=dataclasses.replace(config.head, pad_token_id=padding))
        length = max_length or default_length(config, tokenizer)
        if answers:
            texts = pair_texts.of_answers(tokenizer, length, instruction)
        elif instruction is not None:
            raise UsageError(f"{folder}: takes no instruction; leave it out")
        else:
            texts = pair_texts.of_tokenizer(tokenizer, length)
        scorer = cls(config, params, tokenizer, texts, max_question_length=max_question_length, dtype=dtype)
        scorer.source = str(path_or_name)
        return scorer

    def save(self, folder: str | Path) -> None:
        """Write a Hugging Face folder that transformers, sentence-transformers' CrossEncoder and this class read."""
        content, tensors = cross_encoder_folder.export_cross_encoder(self.config, jax.device_get(self.params))
        self.tokenizer.model_max_length = self.texts.frame.max_length
        write_folder(Path(folder).expanduser(), content, tensors, self.tokenizer)


class CausalScorer(PairScorer):
    """A causal language model that scores the likelihood of a question after a passage, as QuestionScorer does."""

    config: CausalLmConfig

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        *,
        max_length: int | None = None,
        max_question_length: int = _QUESTION_LENGTH,
        dtype: AutoDtype = "float32",
    ) -> "CausalScorer":
        """Load a decoder with its output layer (...ForCausalLM).

        Args:
          path_or_name: a Hugging Face folder, or its hub name.
          max_length: tokens of passage, instruction and question; only the passage is cut. By default 512, or the model's
            positions if there are fewer.
          max_question_length: tokens of the question that are scored.
          dtype: "float32"; "bfloat16"; or "auto" for the faster of them on this machine.

        Raises:
          UserError: no such folder, no decoder, or a file that is missing or broken.
        """
        folder = model_folder(resolve(path_or_name))
        config, params = cross_encoder_folder.read_causal_lm(folder, max_question_length)
        tokenizer = load_tokenizer(folder)
        texts = pair_texts.of_likelihood(
            tokenizer, max_length or min(_MAX_LENGTH, config.backbone.max_position_embeddings)
        )
        scorer = cls(config, params, tokenizer, texts, max_question_length=max_question_length, dtype=dtype)
        scorer.source = str(path_or_name)
        return scorer


def answer_tokens(folder: Path, tokenizer: Any) -> tuple[int, int | None]:
    """Return the ids of "yes" and "no", from sentence-transformers' module LogitScore or the vocabulary."""
    for place in sorted(folder.glob("*_LogitScore")):
        stated = read_json(place, "config.json")
        yes, no = stated.get("true_token_id"), stated.get("false_token_id")
        if not isinstance(yes, int) or not isinstance(no, int | None):
            raise UserError(f"{place / 'config.json'}: 'true_token_id' is {yes!r}, 'false_token_id' {no!r}; give ids")
        return yes, no
    vocabulary = tokenizer.get_vocab()
    if missing := [word for word in ("yes", "no") if word not in vocabulary]:
        raise UserError(f"{folder}: its vocabulary has no token '{missing[0]}'; give a reranker that answers yes or no")
    return vocabulary["yes"], vocabulary["no"]


def default_length(config: CrossEncoderConfig, tokenizer: Any) -> int:
    """Return the tokens of a row: as the tokenizer states, but at most the model's positions, and at most 8192."""
    return int(min(tokenizer.model_max_length, config.backbone.max_position_embeddings, 8192))


def scorer_digest(facts: Mapping[str, Any], tokenizer: Any, params: Params) -> str:
    """Return a sha256 (hexadecimal) over settings, a tokenizer and weights."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    digest.update(tokenizer_fingerprint(tokenizer).encode())
    leaves: dict[str, Any] = flatten_dict(params, sep=".")  # pyright: ignore[reportAssignmentType]
    for name in sorted(leaves):
        array = np.ascontiguousarray(leaves[name])
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@cache
def _score_marked(teacher: PairTeacher, dtype: str) -> Callable[..., jax.Array]:
    """Return the compiled scores float32 [n, 1] of marked rows."""
    size = teacher.config.backbone.vocab_size

    @device_jit
    def score(params: Params, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        tokens, seconds = unmarked(tokens, lengths, size)
        return teacher.score_rows(params, tokens, lengths, seconds, dtype=jnp.dtype(dtype))[:, None]

    return score
