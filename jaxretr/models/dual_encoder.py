"""`DualEncoder`: questions and passages as vectors; models/embed.py computes them."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, get_args

import jax
import numpy as np

from jaxretr.config import Dtype, EncodeDtype, Pooling
from jaxretr.data.sample_texts import PASSAGES, QUESTIONS
from jaxretr.data.tokens import passage_joined, passage_pair, question_rows, vocabulary_size
from jaxretr.models.adapter import Adapter
from jaxretr.models.backbones.adapter_layers import count, merge_lora
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import partition
from jaxretr.models.embed import DualEncoderConfig, Side, prompt_of
from jaxretr.models.encode import Engine, Job, chosen_dtype
from jaxretr.models.engine_choice import choose_engine
from jaxretr.models.given_texts import given_passages, given_texts
from jaxretr.models.hub import dual_encoder_folder
from jaxretr.models.text_encoder import Advance, TextEncoder
from jaxretr.runtime.errors import UserError, check_choice, did_you_mean
from jaxretr.runtime.notes import note

_log = logging.getLogger(__name__)


class DualEncoder(TextEncoder[DualEncoderConfig]):
    """Turns questions and passages into vectors whose dot product ranks passages.

    Args:
      config: configuration of the model.
      params: parameters laid out as by `init_params`, numpy or JAX arrays.
      tokenizer: tokenizer from `jaxretr.data.tokens.load_tokenizer`.
      dtype: type of the matmuls' operands when encoding, or "auto": see `fastest_dtype`; results are always float32. int8 is
        for CPUs: see onnx/int8.py.
      mlm_head: head of masked language modelling, as in `EncoderCheckpoint`, if the encoder has one: used only to
        continue masked language modelling (`jaxretr adapt`).

    Attributes:
      dtype: "float32", "bfloat16" or "int8", as given or chosen.
      truncated: number of texts that the last call cut at their maximum length.
      adapters: modules from `load_adapter`, by name.
      source: path or name that it was loaded from; None if it was not loaded, or was changed since.

    Raises:
      UserError: the tokenizer has ids that the model does not know, a maximum length exceeds its positions, or int8 is not
        for this model, device or installation.
    """

    def __init__(
        self,
        config: DualEncoderConfig,
        params: Params,
        tokenizer: Any,
        *,
        dtype: EncodeDtype = "float32",
        mlm_head: Params | None = None,
    ):
        if dtype not in get_args(EncodeDtype):
            raise UserError(f"dtype {dtype!r} is not supported; use 'auto', 'float32', 'bfloat16' or 'int8'")
        if dtype == "int8":
            from jaxretr.models.onnx.int8 import check

            check(config)
        if (size := vocabulary_size(tokenizer)) > config.backbone.vocab_size:
            raise UserError(
                f"the tokenizer has {size} entries, the model {config.backbone.vocab_size}; use the model's own tokenizer"
            )
        # Questions that no encoder reads have no positions.
        for name in ("max_question_length", "max_passage_length")[bool(config.query_weights) :]:
            if (length := getattr(config, name)) > config.backbone.max_position_embeddings:
                raise UserError(
                    f"{name} is {length}, but the model has {config.backbone.max_position_embeddings} positions; lower it"
                )
        self.config, self.params, self.tokenizer = config, params, tokenizer
        self.dtype: Dtype | Literal["int8"] = "int8" if dtype == "int8" else chosen_dtype(dtype)
        self.mlm_head = mlm_head
        self.adapters: dict[str, Adapter] = {}
        self.truncated = 0
        self.source: str | None = None
        self._engines: dict[str, Engine] = {}

    def __repr__(self) -> str:
        config, shape = self.config, self.config.backbone
        facts = [
            *([] if self.source is None else [repr(self.source)]),
            f"{config.embedding_size} dimensions",
            f"{config.pooling} pooling",
            f"{'one tower' if config.shared or config.query_weights else 'two towers'} of {shape.num_hidden_layers} x {shape.hidden_size}",
            *([] if config.adapter is None else ["adapters"]),
            *(["inference-free questions"] if config.query_weights else []),
            f"{count(self.params):,} parameters",
            self.dtype,
        ]
        return f"{type(self).__name__}({', '.join(facts)})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy: the parameters as numpy arrays; compiled programs are created again."""
        arrays = {name: jax.device_get(getattr(self, name)) for name in ("params", "mlm_head")}
        return {**self.__dict__, **arrays, "_engines": {}}

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        *,
        passage_path: str | Path | None = None,
        tokenizer: str | Path | None = None,
        dtype: EncodeDtype = "float32",
        shared: bool | None = None,
        pooling: Pooling | None = None,
        normalise: bool | None = None,
        passage_template: Literal["pair", "joined"] | None = None,
        query_prompt: str | None = None,
        passage_prompt: str | None = None,
        max_question_length: int | None = None,
        max_passage_length: int | None = None,
        truncate_dim: int | None = None,
    ) -> "DualEncoder":
        """Load a dual encoder.

        Args:
          path_or_name: a folder that `save` wrote, or a run directory that holds one; a sentence-transformers folder; a
            Hugging Face folder of one of the architectures in docs/encoders.md, or of a DPR question encoder; a .cp
            file of the original DPR; or the hub's name of such a folder.
          passage_path: the passage encoder, if it is a folder of its own (DPR's).
          tokenizer: a folder or hub name of the tokenizer; by default the model's. A .cp file has none.
          dtype: precision of the matmuls; auto: bfloat16 where this machine runs it faster. int8: on CPUs, by ONNX Runtime
            (the extra "export"), after its vectors of a few texts have been compared with float32's.
          shared: one tower for both sides or two; by default as the folder states, and one for a plain BERT. With False
            a single set of weights is copied into both towers.
          pooling: pooling for a folder that states none (default there: "cls", for decoders "lasttoken"; "mean" for the
            rest of a sentence-transformers folder without modules.json). Guesses are logged, once per folder.
          normalise: vectors of length 1; by default as the folder states, otherwise not.
          passage_template: [CLS] title [SEP] text ("pair"), or title and text joined by a space; by default "joined" for
            sentence-transformers and where the tokenizer has no [CLS] and [SEP], otherwise "pair".
          query_prompt: text put before every question, or the name of a prompt that the folder states; by default as the
            folder states, '' for none.
          passage_prompt: text put before every passage, or the name of a prompt that the folder states; by default as the
            folder states, '' for none.
          max_question_length: tokens; by default as the folder states, otherwise 256.
          max_passage_length: the same.
          truncate_dim: keep this many first dimensions of the embeddings, for models trained with Matryoshka losses; by
            default as the folder states, otherwise all.

        Raises:
          UserError: no such folder, an unsupported model, swapped towers, a file that is missing or broken, or more
            dimensions asked for than there are.
        """
        check_choice(("pair", "joined"), passage_template=passage_template)
        parts = dual_encoder_folder.load(
            path_or_name, passage_path=passage_path, tokenizer=tokenizer, shared=shared, pooling=pooling
        )
        stated = {
            "normalise": normalise,
            "query_prompt": prompt_of(parts.config, query_prompt),
            "passage_prompt": prompt_of(parts.config, passage_prompt),
            "passage_template": passage_template,
            "max_question_length": max_question_length,
            "max_passage_length": max_passage_length,
            "truncate_dim": truncate_dim,
        }
        given = {name: value for name, value in stated.items() if value is not None}
        config = dataclasses.replace(parts.config, **given)
        guessed = [name for name in parts.guessed if name not in given and not (name == "pooling" and pooling)]
        if {"pooling", "normalise"} & set(guessed):
            guesses = ", ".join(f"{name}={getattr(config, name)!r}" for name in guessed)
            note(_say_guesses, str(path_or_name), guesses)
        encoder = cls(config, parts.params, parts.tokenizer, dtype=dtype, mlm_head=parts.mlm_head)
        encoder.source = str(path_or_name)
        return encoder

    @classmethod
    def bare(cls, path_or_name: str | Path) -> "DualEncoder":
        """`from_pretrained` for callers that only use the encoder's layers: nothing is logged about guesses."""
        parts = dual_encoder_folder.load(path_or_name)
        return cls(parts.config, parts.params, parts.tokenizer, mlm_head=parts.mlm_head)

    def save(self, folder: str | Path) -> None:
        """Write jaxretr.json, model.safetensors (float32) and the tokenizer; all of it appears at once.

        Args:
          folder: a new or empty folder, or an older model of this kind, which is replaced.

        Raises:
          UserError: the folder holds something else, or cannot be written.
        """
        adapters = None if self.config.adapter is None else Adapter.of(self)
        parts = dual_encoder_folder.Loaded(self.config, self.params, self.tokenizer, self.mlm_head)
        dual_encoder_folder.save(Path(folder).expanduser(), parts, adapters)

    @property
    def adapter_size(self) -> int:
        """Number of parameters of the adapters; 0 without them."""
        return sum(count(tower["adapter"]) for tower in self.params.values() if "adapter" in tower)

    # ---- adapters ----------------------------------------------------------------------------------------------------

    def load_adapter(self, path: str | Path | Adapter, name: str) -> None:
        """Load a relevance module under a name, in addition to others; `set_adapter` makes it the active one.

        Args:
          path: a path or name, as for `Adapter.from_pretrained`, or an `Adapter`.
          name: name of the module, which replaces an earlier one of that name.

        Raises:
          UserError: there are no adapters, or they do not fit this encoder.
        """
        adapter = path if isinstance(path, Adapter) else Adapter.from_pretrained(path, backbone=self.config.backbone)
        adapter.put_into(self)  # raises for one that does not fit
        self.adapters[name] = adapter

    def set_adapter(self, name: str | None) -> None:
        """Make a loaded module the only active one; None: the encoder alone, with the settings that it has now.

        Raises:
          UserError: no module of that name is loaded.
        """
        if name is not None and name not in self.adapters:
            hint = did_you_mean(name, self.adapters) or f"; loaded are: {', '.join(self.adapters) or 'none'}"
            raise UserError(f"no adapter '{name}'{hint}")
        changed = self.without_adapters() if name is None else self.adapters[name].put_into(self)
        self.config, self.params, self.source = changed.config, changed.params, None
        self._engines.clear()

    def merge_lora(self) -> Self:
        """Return this model with LoRA's products in the kernels, where they cost nothing; itself if they are there."""
        return self._with_lora(merged=True)

    def unmerge_lora(self) -> Self:
        """Return this model without LoRA's products in its kernels, up to rounding: the reverse of `merge_lora`."""
        return self._with_lora(merged=False)

    def without_adapters(self) -> Self:
        """Return the encoder alone, without LoRA's products; the model itself if it has no adapters."""
        if self.config.adapter is None:
            return self
        bare = self.unmerge_lora()
        return self.replaced(dataclasses.replace(bare.config, adapter=None), partition(bare.params, ("adapter",))[0])

    def as_plain(self) -> Self:
        """Return a model of the same vectors without adapters: LoRA's products become part of the kernels for good.

        Raises:
          UserError: there is a parallel adapter, which cannot be merged.
        """
        if self.config.adapter is None:
            return self
        if self.config.adapter.bottleneck:
            raise UserError(
                "a parallel adapter has no place in other libraries' BERT and cannot be merged into it; export --to "
                "jaxretr, or train the module as LoRA alone (encoder.adapter.bottleneck 0)"
            )
        merged = self.merge_lora()
        config = dataclasses.replace(merged.config, adapter=None, lora_merged=False)
        return self.replaced(config, partition(merged.params, ("adapter",))[0])

    def _with_lora(self, merged: bool) -> Self:
        shape = self.config.adapter
        if shape is None or not shape.lora_rank or merged == self.config.lora_merged:
            return self
        params = {
            name: {
                **tower,
                BACKBONE: merge_lora(tower[BACKBONE], tower["adapter"], shape, sign=1.0 if merged else -1.0),
            }
            for name, tower in self.params.items()
        }
        return self.replaced(dataclasses.replace(self.config, lora_merged=merged), params)

    def replaced(self, config: DualEncoderConfig, params: Params) -> Self:
        """Return a model of another configuration and other parameters with this one's tokenizer, dtype and head."""
        return type(self)(config, params, self.tokenizer, dtype=self.dtype, mlm_head=self.mlm_head)

    # ---- encoding ----------------------------------------------------------------------------------------------------

    def _encode_pieces(
        self, side: Side, pieces: Iterable[Sequence[Any]], batch_size: int | None, total: int | None, advance: Advance
    ) -> Iterator[tuple[np.ndarray, int]]:
        jobs = (self._job(side, piece) for piece in pieces)
        return self.engine(side).encode_jobs(
            jobs,
            self.config.embedding_size,
            max_length=self._length(side),
            batch_size=batch_size,
            total=total,
            advance=advance,
        )

    def tokenise(self, side: Side, content: Sequence[Any], *, prompt: str | None = None) -> tuple[list[list[int]], int]:
        """Return the rows of token ids that the engine of that side embeds.

        Args:
          side: side of the texts.
          content: n questions or passages, as for `encode_queries` or `encode_passages`.
          prompt: text put before each text; None: the model's own for that side.

        Returns:
          n rows of ids, and the number of texts that were cut.

        Raises:
          UserError: as for `encode_passages`.
        """
        job = self._job(side, content, prompt)
        return job.rows(0, job.n) if job.n else ([], 0)

    def _job(self, side: Side, content: Any, prompt: str | None = None) -> Job:
        """Return the job of one side's texts, which are checked; they are tokenised when they are requested."""
        length = self._length(side)
        if prompt is None:
            prompt = self.config.query_prompt if side == "question" else self.config.passage_prompt
        if side == "question":
            texts = given_texts(content, "queries")
            return Job(lambda start, stop: question_rows(self.tokenizer, texts[start:stop], length, prompt), len(texts))
        pairs = given_passages(content)
        template = passage_pair if self.config.passage_template == "pair" else passage_joined

        def rows(start: int, stop: int) -> tuple[list[list[int]], int]:
            titles, texts = zip(*pairs[start:stop], strict=True)
            return template(self.tokenizer, titles, texts, length, prompt)

        return Job(rows, len(pairs))

    def _length(self, side: Side) -> int:
        check_choice(get_args(Side), side=side)
        return self.config.max_question_length if side == "question" else self.config.max_passage_length

    def engine(self, side: Side) -> Engine:
        """Return the engine that computes the embeddings of one side, or of both sides if there is one tower."""
        name = "shared" if self.config.shared else side
        if name not in self._engines:
            ready = self.merge_lora()
            self._engines[name] = choose_engine(
                ready.config,
                ready.params[name],
                self.dtype,
                lambda: self.tokenise(side, [*QUESTIONS, *(text for _, text in PASSAGES if text)])[0],
            )
        return self._engines[name]

    def _encode(self, side: Side, texts: Any, batch_size: int | None, progress: bool | None) -> np.ndarray:
        job = self._job(side, texts)
        embeddings, self.truncated = self.engine(side).encode(
            job.rows,
            job.n,
            self.config.embedding_size,
            max_length=self._length(side),
            batch_size=batch_size,
            progress=progress,
            what=side,
        )
        return embeddings


@cache
def _say_guesses(where: str, guesses: str) -> None:
    _log.warning(
        "%s: no file there says how this encoder is used; guessed: %s; if it was trained otherwise, give the right ones, and "
        "save the model to keep them",
        where,
        guesses,
    )
