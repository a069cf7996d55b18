"""The question generator for users: passages in, questions out. generation/decoding.py has the compiled program."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxretr.config import AutoDtype, Dtype
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.any_scorer import scorer_kind
from jaxretr.models.backbones.adapter_layers import count
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.t5 import T5Config
from jaxretr.models.batches import Shapes
from jaxretr.models.encode import chosen_dtype
from jaxretr.models.generation import decoding
from jaxretr.models.generation.decoders import decoder_of
from jaxretr.models.generation.decoding import Generated, Sampling
from jaxretr.models.generation.prompts import prompt_texts, prompts, suited_template
from jaxretr.models.given_texts import Passages, given_passages
from jaxretr.models.hub import t5_params
from jaxretr.models.hub.cross_encoder_folder import read_causal_lm
from jaxretr.models.hub.dual_encoder_folder import model_folder
from jaxretr.models.hub.hf_files import read_json, resolve
from jaxretr.models.pair_scorer import scorer_digest
from jaxretr.models.scorers.causal_lm import CausalLmConfig
from jaxretr.runtime.errors import UserError, at_least, check_seed, require_at_least
from jaxretr.runtime.parallel.compilation_cache import keep_programs
from jaxretr.runtime.parallel.mesh import DATA, make_mesh, replicate

_MAX_LENGTH = 512

# Rows of a batch on each device: as many as a CPU's products need, and as an accelerator's memory holds the keys of.
_ROWS_ON_CPU, _ROWS = 32, 128

# What a model writes before the question, and around it.
_LEAD = re.compile(r"^\W*(?:(?:question|query|q)\s*\d*\s*[:.]|\d+[.)])\s+", re.IGNORECASE)
_QUOTES = "\"'`*\u201c\u201d "


class Draw(NamedTuple):
    """One generated question.

    Attributes:
      text: the question, on one line; may be empty.
      log_prob: mean log p(token | passage, tokens before it), in nats.
      ended: whether the model ended it, instead of being stopped after the largest number of tokens.
    """

    text: str
    log_prob: float
    ended: bool


class QuestionGenerator:
    """Writes questions about passages, with a causal language model or a T5.

    A question ends at the model's end of text, at a line break, or behind a question mark.

    Args:
      config: shape of the model.
      params: parameters of the model.
      tokenizer: tokenizer of the model.
      ends: ids of the tokens that end a text.
      template: prompt around a passage: upr, inpars, doc2query or chat (see `generation.prompts.TEMPLATES`); a text file
        with {passage} in it; or auto: upr for a T5, chat if the tokenizer has a chat template, inpars for other models.
      max_length: largest number of tokens of a prompt; only the passage is cut.
      dtype: type of the matmuls' operands; "auto" is the faster one on this machine.

    Attributes:
      source: path or name that it was loaded from; None if it was not loaded.
      truncated: number of passages that the last call of `generate` cut.
    """

    def __init__(
        self,
        config: CausalLmConfig | T5Config,
        params: Params,
        tokenizer: Any,
        *,
        ends: Collection[int],
        template: str = "auto",
        max_length: int = _MAX_LENGTH,
        dtype: AutoDtype = "float32",
    ):
        is_t5 = isinstance(config, T5Config)
        template = suited_template(tokenizer, encoder=is_t5) if template == "auto" else template
        self.texts = prompt_texts(tokenizer, template, max_length, encoder=is_t5)
        self.config, self.params, self.tokenizer, self.template = config, params, tokenizer, template
        self.ends, self.max_length = tuple(sorted(ends)), max_length
        self.dtype: Dtype = chosen_dtype(dtype)
        self.decoder = decoder_of(config)
        self.source: str | None = None
        self.truncated = 0

    def __repr__(self) -> str:
        source = "" if self.source is None else f"{self.source!r}, "
        return f"QuestionGenerator({source}{count(self.params):,} parameters, {self.dtype}, template {self.template})"

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        *,
        template: str = "auto",
        max_length: int | None = None,
        dtype: AutoDtype = "float32",
    ) -> "QuestionGenerator":
        """Load a Hugging Face folder of a decoder with its output layer (...ForCausalLM) or of a T5.

        Args:
          path_or_name: the folder, or its hub name.
          template: as for `QuestionGenerator`.
          max_length: as for `QuestionGenerator`; None: 512, or the model's positions if there are fewer.
          dtype: "float32"; "bfloat16"; or "auto" for the faster of them on this machine.

        Raises:
          UserError: no such folder, another kind of model, or a file that is missing or broken.
          UsageError: no such template, or one that does not suit the model.
        """
        folder, kind = model_folder(resolve(path_or_name)), scorer_kind(path_or_name)
        tokenizer = load_tokenizer(folder)
        if kind == "t5":
            config, params = t5_params.read(folder)
        elif kind == "causal_lm":
            config, params = read_causal_lm(folder, 1)
            if max_length is None:
                max_length = min(_MAX_LENGTH, config.backbone.max_position_embeddings)
            if max_length > config.backbone.max_position_embeddings:
                raise UserError(
                    f"max_length is {max_length}, but the model has {config.backbone.max_position_embeddings} positions; "
                    "lower it"
                )
        else:
            raise UserError(
                f"{folder}: writes no text; give a causal language model (...ForCausalLM) or a T5 "
                "(T5ForConditionalGeneration)"
            )
        ends = _ends(folder, tokenizer)
        found = cls(
            config, params, tokenizer, ends=ends, template=template, max_length=max_length or _MAX_LENGTH, dtype=dtype
        )
        found.source = str(path_or_name)
        return found

    def fingerprint(self) -> str:
        """Return a sha256 (hexadecimal) over all that decides questions: shape, weights, tokenizer, prompt, dtype."""
        facts = {
            "config": dataclasses.asdict(self.config),
            "texts": dataclasses.asdict(self.texts),
            "ends": self.ends,
            "dtype": self.dtype,
        }
        return scorer_digest(facts, self.tokenizer, self.params)

    def generate(
        self,
        passages: Passages,
        *,
        per_passage: int = 1,
        **settings: Any,
    ) -> list[list[Draw]]:
        """Write questions about passages, on all local devices.

        Args:
          passages: n passages, as for `TextEncoder.encode_passages`.
          per_passage: questions about each passage; with temperature 0 they are equal.
          settings: further arguments of `generate_tokens`.

        Returns:
          For each passage its questions. They depend on the passages around it only as far as rounding does.
        """
        found = self.generate_tokens(passages, per_passage=per_passage, **settings)
        return list(self.draws(*found, per_passage))

    def generate_tokens(
        self,
        passages: Passages,
        *,
        per_passage: int = 1,
        sampling: Sampling | None = None,
        seed: int = 0,
        numbers: Sequence[int] | np.ndarray | None = None,
        batch_size: int | None = None,
    ) -> Generated:
        """Write questions as `generate` does, as token ids; `draws` reads them.

        Args:
          passages: n passages, as for `TextEncoder.encode_passages`.
          per_passage: questions about each passage.
          sampling: the way in which tokens are chosen; None: `Sampling()`.
          seed: seed of the draws.
          numbers: a number for each passage, which decides its draws with the seed; None: 0, 1, ...
          batch_size: passages at once; None: a number that suits the device.

        Returns:
          Numpy arrays of n x per_passage rows, those of a passage one behind the other.
        """
        require_at_least(1, per_passage=per_passage)
        at_least(1, batch_size=batch_size)
        check_seed(seed)
        sampling = sampling or Sampling()
        given = given_passages(passages)
        titles, bodies = [passage.title for passage in given], [passage.text for passage in given]
        rows, self.truncated = prompts(self.tokenizer, self.texts, titles, bodies)
        count, length = len(rows) * per_passage, sampling.max_new_tokens
        result = Generated(
            np.zeros((count, length), np.int32),
            np.zeros(count, np.int32),
            np.zeros(count, np.float32),
            np.zeros(count, bool),
        )
        mesh, params, on_cpu = self._placed
        by_row, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((DATA,), ()))
        full = batch_size or max(1, (_ROWS_ON_CPU if on_cpu else _ROWS) * mesh.size // per_passage)
        shapes = Shapes(self.max_length, mesh.size, 1, full, steps=2)
        row_numbers = np.arange(len(rows)) if numbers is None else np.asarray(numbers)
        for batch in shapes.batches(rows, 0):
            draws = np.zeros((len(batch.tokens), per_passage), np.uint32)
            draws[batch.slots] = row_numbers[batch.positions, None] * per_passage + np.arange(per_passage)
            placed = jax.device_put((batch.tokens, batch.lengths, draws.reshape(-1)), by_row)
            constants = jax.device_put((*self.roles, np.uint32(seed)), everywhere)
            found = decoding.generate(
                self.decoder,
                params,
                *placed,
                *constants,
                per_prompt=per_passage,
                sampling=sampling,
                dtype=self.dtype,
            )
            places, slots = (
                (of[:, None] * per_passage + np.arange(per_passage)).reshape(-1)
                for of in (batch.positions, batch.slots)
            )
            for whole, part in zip(result, found, strict=True):
                whole[places] = np.asarray(part)[slots]
        return result

    def draws(self, tokens: Any, counts: Any, log_probs: Any, ended: Any, per_passage: int) -> Iterator[list[Draw]]:
        """Yield each passage's questions, from the arrays of `generate_tokens`."""
        rows = [row[:size].tolist() for row, size in zip(np.asarray(tokens), counts, strict=True)]
        texts: list[str] = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        found = map(Draw, map(as_question, texts), np.asarray(log_probs).tolist(), np.asarray(ended).tolist())
        for _ in range(0, len(rows), per_passage):
            yield [next(found) for _ in range(per_passage)]

    @cached_property
    def _placed(self) -> tuple[Any, Params, bool]:
        """The mesh of all local devices, the parameters on it, and whether it is of CPUs."""
        keep_programs()
        mesh = make_mesh(jax.local_devices())
        params = self.decoder.prepared(jax.device_get(self.params), self.dtype)
        return mesh, replicate(mesh, params), mesh.devices.flat[0].platform == "cpu"

    @cached_property
    def roles(self) -> tuple[np.ndarray, np.ndarray]:
        """Whether each token ends a question, and whether it cannot be its first one, bool [V]."""
        is_end, is_break = np.zeros((2, self.decoder.vocabulary), bool)
        ids = range(min(len(self.tokenizer), len(is_end)))
        for id, text in zip(ids, self.tokenizer.batch_decode([[id] for id in ids]), strict=True):
            is_end[id] = "\n" in text or text.rstrip().endswith(("?", "\uff1f", "\u061f"))
            is_break[id] = "\n" in text and not text.strip()
        is_end[[id for id in self.ends if id < len(is_end)]] = True
        return is_end, is_break


def as_question(text: str) -> str:
    """Return the question in a generated text: its first line, without a word that announces it, quotes and repeated spaces."""
    line = text.strip().partition("\n")[0]
    return " ".join(_LEAD.sub("", line).strip(_QUOTES).split())


def _ends(folder: Path, tokenizer: Any) -> set[int]:
    """Return the ids of the tokens that end a text, as the folder and its tokenizer state them."""
    found = {tokenizer.eos_token_id} - {None}
    for name in ("config.json", "generation_config.json"):
        stated = read_json(folder, name).get("eos_token_id") if (folder / name).is_file() else None
        found |= set(stated) if isinstance(stated, list) else {stated} - {None}
    if not found or not all(isinstance(id, int) and id >= 0 for id in found):
        raise UserError(f"{folder}: states no token that ends a text (eos_token_id); add it to config.json")
    return found
