"""The dual encoder: its configuration, its mathematics as pure functions, and `DualEncoder` for users."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxretr.config import AdapterShape, Dtype, EncodeDtype
from jaxretr.data.tokens import passage_joined, passage_pair, question_rows, vocabulary_size
from jaxretr.errors import UserError, did_you_mean
from jaxretr.json_dataclass import dataclass_from
from jaxretr.models.adapter_layers import (
    abstract_adapter,
    check_shape,
    count,
    dense_sizes,
    init_adapter,
    kinds_of,
    merge_lora,
)
from jaxretr.models.bert import BertConfig, BertEncoder
from jaxretr.models.encode import Engine, HostEngine, Job, fastest_dtype
from jaxretr.models.layers import Params, define, initialise
from jaxretr.models.partition import partition
from jaxretr.models.precision import matmuls_in
from jaxretr.parallel.machine import blas_beats_xla

if TYPE_CHECKING:  # adapter.py imports this file.
    from jaxretr.models.adapter import Adapter

Side = Literal["question", "passage"]


@dataclass(frozen=True)
class DualEncoderConfig:
    """What a dual encoder is, beside its weights and its tokenizer."""

    bert: BertConfig
    shared: bool = False
    """One tower for questions and passages, or two of the same shape."""
    pooling: Literal["cls", "mean"] = "cls"
    projection_size: int | None = None
    """D of a linear layer after the pooling; None: there is none, and D is the encoder's."""
    normalise: bool = False
    """Divide the embedding by its length."""
    passage_template: Literal["pair", "joined"] = "pair"
    """[CLS] title [SEP] text [SEP] (ART, DPR), or [CLS] title text [SEP] (sentence-transformers)."""
    max_question_length: int = 256
    max_passage_length: int = 256
    """Tokens, special ones included."""
    truncate_dim: int | None = None
    """Only the first so many dimensions (Matryoshka), cut before the embedding is divided by its length."""
    adapter: AdapterShape | None = None
    """Modules beside the encoder's layers, in parameters of their own."""
    lora_merged: bool = False
    """The encoder's kernels contain LoRA's products, which are not computed apart then."""

    @property
    def embedding_size(self) -> int:
        """D: of what comes out, after the projection and after `truncate_dim`."""
        return self.truncate_dim or self.full_size

    @property
    def full_size(self) -> int:
        """D before `truncate_dim`."""
        return self.projection_size or self.bert.hidden_size

    def __post_init__(self) -> None:
        """Raises UserError for a `truncate_dim` that the embedding does not have."""
        if self.truncate_dim is not None and not 1 <= self.truncate_dim <= self.full_size:
            raise UserError(
                f"truncate_dim is {self.truncate_dim}, but the embeddings have {self.full_size} dimensions; "
                f"give 1 to {self.full_size}"
            )

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> "DualEncoderConfig":
        """Reads what `dataclasses.asdict` gave.

        Args:
          values: the parsed JSON object.
          where: the file it comes from, for errors.

        Raises:
          UserError: a key is unknown (with a suggestion) or missing, a choice is none of those above, or the adapter is
            of nothing or beside a layer that BERT does not have.
        """
        config = dataclass_from(cls, dict(values), where)
        for name, choices in (("pooling", ("cls", "mean")), ("passage_template", ("pair", "joined"))):
            if (value := getattr(config, name)) not in choices:
                raise UserError(f"{where}: '{name}' is {value!r}; it must be one of {', '.join(choices)}")
        if config.adapter is not None:
            try:
                check_shape(config.adapter, dense_sizes(config.bert))
            except ValueError as error:
                raise UserError(f"{where}: {error}; copy the folder again") from None
        return config


# ---- pure functions --------------------------------------------------------------------------------------------------


@cache
def _graph(bert: BertConfig, adapter: AdapterShape | None, dtype: str, stacked: bool) -> Any:
    def make(rngs: nnx.Rngs) -> BertEncoder:
        return BertEncoder(bert, adapter=adapter, dtype=jnp.dtype(dtype), stacked=stacked, rngs=rngs)

    return define(make)[0]


def init_params(config: DualEncoderConfig, seed: int) -> Params:
    """Draws fresh parameters.

    Returns:
      {"shared": tower} or {"question": tower, "passage": tower}, where a tower is {"bert": parameters of BertEncoder}
      and, if there is a projection, {"projection": {"kernel": [D_bert, D], "bias": [D]}}; if there are adapters,
      {"adapter": as by `init_adapter`}; float32. Two towers start equal, as they do from one pretrained encoder: a
      text's embeddings on both sides are then near each other.
    """

    def draw() -> Params:
        params: Params = {"bert": initialise(lambda rngs: BertEncoder(config.bert, rngs=rngs), seed)}
        if config.projection_size:
            shape = (config.bert.hidden_size, config.projection_size)
            key = jax.random.fold_in(jax.random.key(seed), 1)
            kernel = config.bert.initializer_range * jax.random.normal(key, shape, jnp.float32)
            params["projection"] = {"kernel": kernel, "bias": jnp.zeros(shape[1:], jnp.float32)}
        if config.adapter is not None:
            params["adapter"] = init_adapter(config.adapter, config.bert, seed)
        return params

    return {name: draw() for name in _towers(config)}


def abstract_params(config: DualEncoderConfig) -> Params:
    """The shapes of the parameters (ShapeDtypeStructs), laid out as by `init_params`; allocates nothing."""
    tower: Params = {"bert": define(lambda rngs: BertEncoder(config.bert, rngs=rngs))[1]}
    if config.projection_size:
        shape = (config.bert.hidden_size, config.projection_size)
        tower["projection"] = {
            "kernel": jax.ShapeDtypeStruct(shape, jnp.float32),
            "bias": jax.ShapeDtypeStruct(shape[1:], jnp.float32),
        }
    if config.adapter is not None:
        tower["adapter"] = abstract_adapter(config.adapter, config.bert)
    return dict.fromkeys(_towers(config), tower)


def _towers(config: DualEncoderConfig) -> tuple[str, ...]:
    return ("shared",) if config.shared else ("question", "passage")


def tower(params: Params, side: Side) -> Params:
    """The parameters of the tower that reads questions or passages; also of a part of all parameters, see `partition`."""
    if "base" in params or "lexical" in params:  # of a JointConfig
        parts = {name: tower(params[name], side) for name in ("base", "lexical") if name in params}
        # The weight of the lexical score sits on the question's side alone.
        return {**parts, "weight": params["weight"]} if side == "question" and "weight" in params else parts
    return params["shared"] if "shared" in params else params.get(side, {})


def word_table(tower_params: Params) -> tuple[str, ...] | None:
    """The path of the table of word embeddings in a tower's parameters; None if it is not among them (not trained)."""
    for path in (("bert", "word_embedding", "table"), ("base", "bert", "word_embedding", "table")):
        found: Any = tower_params
        for name in path:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        if not isinstance(found, dict):
            return path
    return None


@singledispatch
def embed(
    config: DualEncoderConfig,
    tower_params: Params,
    tokens: jax.Array,
    lengths: jax.Array,
    *,
    dtype: Any,
    keys: jax.Array | None = None,
    keep_matmuls: bool = False,
    words: jax.Array | None = None,
) -> jax.Array:
    """Embeds rows of token ids; part of the compiled programs.

    Args:
      config: of the dual encoder, or another kind of encoder's that is registered here (`JointConfig`).
      tower_params: as `tower` gives them; for a program without a backward pass also with unstacked layers.
      tokens: token ids, any integer type [B, L], padded on the right.
      lengths: number of real tokens of each row, int32 [B]; a row of length 0 gives some finite vector.
      dtype: of the encoder's matmul operands, float32 or bfloat16.
      keys: one PRNG key a row [B] switches dropout on.
      keep_matmuls: as in `jaxretr.models.layers.scan_layers`.
      words: the tokens' rows of the table at `word_table`, float32 [B, L, D'], where the caller looked them up.

    Returns:
      float32 [B, D], D being `config.embedding_size`.
    """
    stacked = 0 not in tower_params["bert"].get("layers", {})
    shape, bert_params = config.adapter, tower_params["bert"]
    if shape is not None and config.lora_merged:
        shape = shape.without_lora() if shape.bottleneck else None
    if shape is not None:
        bert_params = {**bert_params, "adapter": kinds_of(shape, tower_params["adapter"])}
    encoder = nnx.merge(_graph(config.bert, shape, jnp.dtype(dtype).name, stacked), bert_params)
    with matmuls_in(dtype):
        states = encoder(tokens, lengths, keys, keep_matmuls=keep_matmuls, words=words)
        if config.pooling == "cls":
            pooled = states[:, 0]
        else:
            real = (jnp.arange(states.shape[1]) < lengths[:, None]).astype(states.dtype)
            # sentence-transformers' smallest divisor: what a row of length 0 is divided by.
            pooled = jnp.einsum("bld,bl->bd", states, real) / jnp.maximum(lengths, 1e-9)[:, None]
    if config.projection_size:
        projection = tower_params["projection"]
        # One small matmul: float32 costs nothing here, and accelerators would round its operands unasked.
        pooled = jnp.matmul(pooled, projection["kernel"], precision=jax.lax.Precision.HIGHEST) + projection["bias"]
    return truncated(pooled, config.embedding_size, normalise=config.normalise)


def truncated(embeddings: jax.Array, size: int, *, normalise: bool) -> jax.Array:
    """The prefix of embeddings that a Matryoshka model was trained for (https://arxiv.org/abs/2205.13147).

    Args:
      embeddings: float [..., D].
      size: how many of the first dimensions to keep, at most D.
      normalise: divide what is left by its length, at least 1e-12.

    Returns:
      [..., size], of the same type.
    """
    embeddings = embeddings[..., :size]
    if not normalise:
        return embeddings
    # x / max(|x|, 1e-12) as torch has it, but with a gradient of 0 where x is 0, not NaN.
    return embeddings * jax.lax.rsqrt(jnp.maximum(jnp.square(embeddings).sum(axis=-1, keepdims=True), 1e-24))


# ---- for users -------------------------------------------------------------------------------------------------------


class DualEncoder:
    """Turns questions and passages into vectors whose dot product ranks passages.

    Args:
      config: what it is.
      params: parameters laid out as by `init_params`, numpy or JAX arrays.
      tokenizer: as `jaxretr.data.tokens.load_tokenizer` gives it.
      dtype: of the matmuls' operands when encoding, or "auto": see `fastest_dtype`; results are float32 always.
      mlm_head: the encoder's head of masked language modelling, as in `BertCheckpoint`, where it has one: not needed
        here, but for going on with masked language modelling (`jaxretr adapt`).

    Attributes:
      dtype: "float32" or "bfloat16", whichever was given or chosen.
      truncated: how many texts the last call cut at their maximum length.
      adapters: what `load_adapter` loaded, by name.
      source: the path or name that it was loaded from; None where it was not, or was changed since.

    Raises:
      UserError: the tokenizer has ids that the model does not know, or a maximum length exceeds its positions.
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
            raise UserError(f"dtype {dtype!r} is not supported; use 'auto', 'float32' or 'bfloat16'")
        if (size := vocabulary_size(tokenizer)) > config.bert.vocab_size:
            raise UserError(
                f"the tokenizer has {size} entries, the model {config.bert.vocab_size}; use the model's own tokenizer"
            )
        for name in ("max_question_length", "max_passage_length"):
            if (length := getattr(config, name)) > config.bert.max_position_embeddings:
                raise UserError(
                    f"{name} is {length}, but the model has {config.bert.max_position_embeddings} positions; lower it"
                )
        self.config, self.params, self.tokenizer = config, params, tokenizer
        self.dtype: Dtype = fastest_dtype() if dtype == "auto" else dtype
        self.mlm_head = mlm_head
        self.adapters: dict[str, Adapter] = {}
        self.truncated = 0
        self.source: str | None = None
        self._engines: dict[str, Engine] = {}

    def __repr__(self) -> str:
        config, bert = self.config, self.config.bert
        facts = [
            *([] if self.source is None else [repr(self.source)]),
            f"{config.embedding_size} dimensions",
            f"{config.pooling} pooling",
            f"{'one tower' if config.shared else 'two towers'} of {bert.num_hidden_layers} x {bert.hidden_size}",
            *([] if config.adapter is None else ["adapters"]),
            f"{count(self.params):,} parameters",
            self.dtype,
        ]
        return f"DualEncoder({', '.join(facts)})"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the parameters as numpy arrays; compiled programs are made anew."""
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
        pooling: Literal["cls", "mean"] | None = None,
        passage_template: Literal["pair", "joined"] | None = None,
        max_question_length: int | None = None,
        max_passage_length: int | None = None,
        truncate_dim: int | None = None,
    ) -> "DualEncoder":
        """Loads a dual encoder.

        Args:
          path_or_name: a folder that `save` wrote, or a run directory that holds one; a sentence-transformers folder;
            a Hugging Face folder of BERT, Megatron-BERT or a DPR question encoder; a .cp file of the original DPR; or
            the hub's name of such a folder.
          passage_path: the second tower's folder, where it comes apart (DPR's context encoder).
          tokenizer: a folder or hub name of the tokenizer; by default the model's. A .cp file has none.
          dtype: "float32"; "bfloat16"; or "auto" for the faster of them on this machine.
          shared: one tower for both sides or two; by default what the folder says, and one for a plain BERT. With
            False a single set of weights is copied into both towers.
          pooling: of a folder that does not state one (default there: "cls").
          passage_template: "pair" or "joined"; by default "joined" for sentence-transformers, else "pair".
          max_question_length: tokens; by default what the folder says, else 256.
          max_passage_length: the same.
          truncate_dim: keep only the first so many dimensions of the embeddings; by default what the folder says, else
            all.

        Raises:
          UserError: no such folder, an unsupported model, swapped towers, a file that is missing or broken, or more
            dimensions asked for than there are.
        """
        from jaxretr.models.formats import dual_encoder_folder

        config, params, loaded, head = dual_encoder_folder.load(
            path_or_name, passage_path=passage_path, tokenizer=tokenizer, shared=shared, pooling=pooling
        )
        stated = {
            "passage_template": passage_template,
            "max_question_length": max_question_length,
            "max_passage_length": max_passage_length,
            "truncate_dim": truncate_dim,
        }
        config = dataclasses.replace(config, **{name: value for name, value in stated.items() if value is not None})
        encoder = cls(config, params, loaded, dtype=dtype, mlm_head=head)
        encoder.source = str(path_or_name)
        return encoder

    def save(self, folder: str | Path) -> None:
        """Writes jaxretr.json, model.safetensors (float32) and the tokenizer; all of it appears at once.

        Args:
          folder: new, empty, or an older model of this kind, which is replaced.

        Raises:
          UserError: the folder holds something else, or cannot be written.
        """
        from jaxretr.models.formats import dual_encoder_folder

        dual_encoder_folder.save(Path(folder), self)

    # ---- adapters ----------------------------------------------------------------------------------------------------

    def load_adapter(self, path: "str | Path | Adapter", name: str) -> None:
        """Loads a relevance module under a name, beside others; `set_adapter` makes it the active one.

        Args:
          path: as for `Adapter.from_pretrained`, or an `Adapter`.
          name: another module of that name is forgotten.

        Raises:
          UserError: there are no adapters, or they do not fit this encoder.
        """
        from jaxretr.models.adapter import Adapter

        adapter = path if isinstance(path, Adapter) else Adapter.from_pretrained(path, bert=self.config.bert)
        adapter.put_into(self)  # raises for one that does not fit
        self.adapters[name] = adapter

    def set_adapter(self, name: str | None) -> None:
        """Makes a loaded module the only active one; None: the encoder alone, with the settings that it has now.

        Raises:
          UserError: no module of that name was loaded.
        """
        if name is not None and name not in self.adapters:
            hint = did_you_mean(name, self.adapters) or f"; loaded are: {', '.join(self.adapters) or 'none'}"
            raise UserError(f"no adapter '{name}'{hint}")
        changed = self.without_adapters() if name is None else self.adapters[name].put_into(self)
        self.config, self.params, self.source = changed.config, changed.params, None
        self._engines.clear()

    def merge_lora(self) -> "DualEncoder":
        """This model with LoRA's products in the kernels, where they cost nothing; it is itself if that is so already."""
        return self._with_lora(merged=True)

    def unmerge_lora(self) -> "DualEncoder":
        """The reverse of `merge_lora`, up to rounding: this model with kernels as they were before."""
        return self._with_lora(merged=False)

    def without_adapters(self) -> "DualEncoder":
        """The encoder alone, without LoRA's products; the model itself if it has no adapters."""
        if self.config.adapter is None:
            return self
        bare = self.unmerge_lora()
        return self._changed(dataclasses.replace(bare.config, adapter=None), partition(bare.params, ("adapter",))[0])

    def as_plain(self) -> "DualEncoder":
        """The same vectors without adapters: LoRA's products become part of the kernels for good.

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
        return self._changed(config, partition(merged.params, ("adapter",))[0])

    def _with_lora(self, merged: bool) -> "DualEncoder":
        shape = self.config.adapter
        if shape is None or not shape.lora_rank or merged == self.config.lora_merged:
            return self
        params = {
            name: {**tower, "bert": merge_lora(tower["bert"], tower["adapter"], shape, sign=1.0 if merged else -1.0)}
            for name, tower in self.params.items()
        }
        return self._changed(dataclasses.replace(self.config, lora_merged=merged), params)

    def _changed(self, config: DualEncoderConfig, params: Params) -> "DualEncoder":
        return DualEncoder(config, params, self.tokenizer, dtype=self.dtype, mlm_head=self.mlm_head)

    # ---- encoding ----------------------------------------------------------------------------------------------------

    def encode_queries(
        self, queries: Sequence[str], *, batch_size: int | None = None, progress: bool | None = None
    ) -> np.ndarray:
        """Embeds questions.

        Args:
          queries: n texts.
          batch_size: rows a batch; by default what suits the device and the texts' lengths.
          progress: a progress bar; by default on a terminal, when it takes more than two seconds.

        Returns:
          float32 [n, D], in the order of the texts.

        Raises:
          UserError: something that is no text; the message names its index.
        """
        return self._encode("question", self._job("question", queries), batch_size, progress)

    def encode_passages(
        self,
        passages: Sequence[Mapping[str, str] | str | Any],
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> np.ndarray:
        """Embeds passages.

        Args:
          passages: n of {"title": ..., "text": ...} (other keys are ignored, and a missing title is an empty one),
            objects with `.title` and `.text`, or plain texts.
          batch_size: as in `encode_queries`.
          progress: as in `encode_queries`.

        Returns:
          float32 [n, D], in the order of the passages.

        Raises:
          UserError: something that is no passage; the message names its index.
        """
        return self._encode("passage", self._job("passage", passages), batch_size, progress)

    def encode_pieces(
        self,
        side: Side,
        pieces: Iterable[Sequence[Any]],
        *,
        batch_size: int | None = None,
        total: int | None = None,
        advance: Callable[[int], object] = lambda rows: None,
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Embeds one piece of a corpus after another; the next one is tokenised while one is embedded.

        Args:
          side: whose tower.
          pieces: of passages or questions as `encode_passages` or `encode_queries` take them; one ahead is asked for.
          batch_size: as in `encode_queries`; no batch holds rows of two pieces.
          total: number of texts of all pieces, by which the batches' shapes are chosen; None: each piece by its own.
          advance: called with the number of texts that were embedded since the last call.

        Yields:
          Of each piece float32 [n, D], and how many of its texts were cut at their maximum length.

        Raises:
          UserError: as `encode_passages`.
        """
        jobs = (self._job(side, piece) for piece in pieces)
        return self._engine(side).encode_jobs(
            jobs,
            self.config.embedding_size,
            max_length=self._length(side),
            batch_size=batch_size,
            total=total,
            advance=advance,
        )

    def _job(self, side: Side, content: Any) -> Job:
        """Texts of one side, checked; they are tokenised when they are asked for."""
        length = self._length(side)
        if side == "question":
            texts = [_text(query, f"queries[{index}]") for index, query in enumerate(_list(content, "queries"))]
            return Job(lambda start, stop: question_rows(self.tokenizer, texts[start:stop], length), len(texts))
        pairs = [_passage(passage, index) for index, passage in enumerate(_list(content, "passages"))]
        template = passage_pair if self.config.passage_template == "pair" else passage_joined

        def rows(start: int, stop: int) -> tuple[list[list[int]], int]:
            titles, texts = zip(*pairs[start:stop], strict=True)
            return template(self.tokenizer, titles, texts, length)

        return Job(rows, len(pairs))

    def _length(self, side: Side) -> int:
        return self.config.max_question_length if side == "question" else self.config.max_passage_length

    def _engine(self, side: Side) -> Engine:
        name = "shared" if self.config.shared else side
        if name not in self._engines:
            ready = self.merge_lora()
            self._engines[name] = _engine(ready.config, ready.params[name], self.dtype)
        return self._engines[name]

    def _encode(self, side: Side, job: Job, batch_size: int | None, progress: bool | None) -> np.ndarray:
        embeddings, self.truncated = self._engine(side).encode(
            *(job.rows, job.n, self.config.embedding_size),
            max_length=self._length(side),
            batch_size=batch_size,
            progress=progress,
            what=side,
        )
        return embeddings


def _engine(config: DualEncoderConfig, tower_params: Params, dtype: str) -> Engine:
    """The faster of the two engines on this machine: the one place that chooses."""
    if dtype == "float32" and jax.default_backend() == "cpu" and blas_beats_xla():
        from jaxretr.models import host_bert  # Numba, which takes half a second to import.

        bare = config.adapter is None or (config.lora_merged and not config.adapter.bottleneck)
        if bare and host_bert.suits(config.bert):
            return HostEngine(_embed_on_host(config, jax.device_get(tower_params)))
    return Engine(_embed_rows(config, dtype), tower_params, dtype)


def _embed_on_host(config: DualEncoderConfig, tower_params: Params) -> Any:
    """`embed` by numpy, of (tokens, lengths); the parameters are numpy's as well."""
    from jaxretr.models.host_bert import HostBert

    encoder, projection = HostBert(config.bert, tower_params["bert"]), tower_params.get("projection")

    def embed_rows(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        states, starts = encoder(tokens, lengths), np.cumsum(lengths) - lengths
        pooled = states[starts] if config.pooling == "cls" else np.add.reduceat(states, starts) / lengths[:, None]
        if projection:
            pooled = pooled @ projection["kernel"] + projection["bias"]
        pooled = pooled[:, : config.embedding_size].astype(np.float32, copy=False)
        if not config.normalise:
            return pooled
        return pooled / np.sqrt(np.maximum(np.square(pooled).sum(axis=1, keepdims=True), 1e-24))

    return embed_rows


@cache
def _embed_rows(config: DualEncoderConfig, dtype: str) -> Any:
    """The compiled `embed`; one for all encoders of the same shape, so that none is compiled twice."""
    return jax.jit(lambda tower_params, tokens, lengths: embed(config, tower_params, tokens, lengths, dtype=dtype))


def _list(values: Any, name: str) -> Sequence[Any]:
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise UserError(f"{name}: a list is expected, not {type(values).__name__}; put a single one into a list")
    return list(values)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: a text is expected, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # The tokenizer would stop at it, without saying where.
        raise UserError(f"{where}: half of a surrogate pair at character {error.start}; remove it") from error
    return value


def _passage(value: Any, index: int) -> tuple[str, str]:
    where = f"passages[{index}]"
    if isinstance(value, str):
        return "", _text(value, where)
    if isinstance(value, Mapping):
        if "text" not in value:
            hint = did_you_mean("text", map(str, value)) or "; give {'title': ..., 'text': ...}"
            raise UserError(f"{where}: has no 'text'{hint}")
        title, text = value.get("title", ""), value["text"]
    elif hasattr(value, "title") and hasattr(value, "text"):
        title, text = value.title, value.text
    else:
        raise UserError(f"{where}: a passage is expected, not {type(value).__name__}; give {{'title', 'text'}}")
    return _text(title, f"{where}.title"), _text(text, f"{where}.text")
