"""The configuration of a dual encoder, and its embeddings as pure functions of parameters and token ids."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from jaxretr.config import SPLADE, AdapterShape, Pooling, QueryWeights
from jaxretr.models.backbones.adapter_layers import check_shape, init_adapter, kinds_of
from jaxretr.models.backbones.backbone import fresh_params, token_states
from jaxretr.models.backbones.backbone_config import BACKBONE, OWN, Backbone, kind_of, shape_class
from jaxretr.models.backbones.layers import Params, linear, matmuls_in, residual_in
from jaxretr.models.backbones.masked_lm import fresh_head, masked_lm_shape, word_weights
from jaxretr.models.backbones.packed_rows import are_packed, own_tokens
from jaxretr.models.backbones.term_weights import (
    QUERY_WEIGHTS,
    TERM_HEAD,
    new_term_head,
    question_weights,
    unicoil_weights,
)
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.json_dataclass import dataclass_from

Side = Literal["question", "passage"]

WORDS_HEAD = "words_head"
"""Branch of a tower's parameters that holds a sparse encoder's head of masked language modelling."""

DenseActivation = Literal["identity", "tanh"]


@dataclass(frozen=True)
class DenseShape:
    """A linear layer, and the activation after it."""

    size: int
    """Number of outputs."""
    activation: DenseActivation = "identity"


@dataclass(frozen=True)
class DualEncoderConfig:
    """Configuration of a dual encoder, without its weights and its tokenizer."""

    backbone: Backbone
    """Shape of the encoder."""
    shared: bool = False
    """Whether one tower reads questions and passages; otherwise there are two of the same shape."""
    pooling: Pooling = "cls"
    projection_size: int | None = None
    """D, the size of a linear layer after the pooling; None: there is none, and D is the encoder's."""
    normalise: bool = False
    """Whether to divide the embedding by its length."""
    passage_template: Literal["pair", "joined"] = "pair"
    """Form of a passage: [CLS] title [SEP] text [SEP] (ART, DPR), or [CLS] title text [SEP] (sentence-transformers)."""
    max_question_length: int = 256
    max_passage_length: int = 256
    """Largest number of tokens of a passage, special ones included."""
    truncate_dim: int | None = None
    """Number of first dimensions to keep (Matryoshka), before the embedding is divided by its length; None: all."""
    adapter: AdapterShape | None = None
    """Shape of the modules next to the encoder's layers, which have their own parameters; None: none."""
    lora_merged: bool = False
    """Whether the encoder's kernels contain LoRA's products, which are then not computed separately."""
    query_prompt: str = ""
    """Text put before every question, for instance "query: "."""
    passage_prompt: str = ""
    """Text put before every passage and its title, tokenised with them as one text."""
    projection_activation: DenseActivation = "identity"
    """Activation after the projection."""
    inner_dense: tuple[DenseShape, ...] = ()
    """Linear layers between the pooling and the projection, as in EmbeddingGemma."""
    prompts: tuple[tuple[str, str], ...] = ()
    """Name and text of further prompts, for other tasks; `from_pretrained` takes each by its name."""
    query_weights: QueryWeights | None = None
    """Whether a sparse encoder's questions are read by no encoder, each of their words having a weight of its own, which
    further training learns or keeps; None: an encoder reads them."""
    ignored_tokens: tuple[int, ...] = ()
    """Ids of the tokens that pooling "unicoil" gives no weight: the tokenizer's special ones."""

    @property
    def dense(self) -> tuple[tuple[str, DenseShape, int], ...]:
        """All linear layers after the pooling: the path of each one's parameters in a tower, its shape, its inputs."""
        names = [f"inner_dense/{number}" for number in range(len(self.inner_dense))]
        shapes = list(self.inner_dense)
        if self.projection_size:
            names.append("projection")
            shapes.append(DenseShape(self.projection_size, self.projection_activation))
        inputs = [self.backbone.hidden_size, *(shape.size for shape in shapes)]
        return tuple(zip(names, shapes, inputs, strict=False))

    @property
    def embedding_size(self) -> int:
        """D, the size of an embedding, after the projection and after `truncate_dim`."""
        return self.truncate_dim or self.full_size

    @property
    def full_size(self) -> int:
        """Size of an embedding before `truncate_dim`."""
        return self.backbone.vocab_size if self.sparse else self.projection_size or self.backbone.hidden_size

    @property
    def sparse(self) -> bool:
        """Whether embeddings are weights of the vocabulary's entries, most of them 0 (SPLADE, UniCOIL)."""
        return self.pooling in SPLADE or self.pooling == "unicoil"

    def __post_init__(self) -> None:
        """Raise UserError for an impossible `truncate_dim`, layers that lead nowhere, and pooling of nothing."""
        if self.sparse:
            if self.pooling in SPLADE:
                masked_lm_shape(self.backbone)
            if self.projection_size or self.inner_dense or self.truncate_dim or self.normalise:
                raise UserError(
                    f"pooling '{self.pooling}' gives a weight to each entry of the vocabulary: leave projections, truncate_dim and "
                    "normalise out"
                )
        if self.query_weights and (self.pooling not in SPLADE or self.shared or self.adapter is not None):
            raise UserError(
                "query_weights take the place of a sparse encoder's question tower: give pooling 'splade', two towers "
                "(shared False), and no adapter"
            )
        if self.pooling == "cls" and self.backbone.causal:
            raise UserError(
                "pooling 'cls' reads the first token, which sees no other in this encoder; give pooling 'lasttoken' or 'mean'"
            )
        if self.inner_dense and not self.projection_size:
            raise UserError("inner_dense needs a projection behind it; give projection_size")
        if self.truncate_dim is not None and not 1 <= self.truncate_dim <= self.full_size:
            raise UserError(
                f"truncate_dim is {self.truncate_dim}, but the embeddings have {self.full_size} dimensions; "
                f"give 1 to {self.full_size}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return all settings as JSON values; the name of the encoder's shape tells its class."""
        values = dataclasses.asdict(self)
        return {kind_of(self.backbone): values.pop("backbone"), **values}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> "DualEncoderConfig":
        """Read the values that `to_json` returned.

        Args:
          where: the file that the values come from, for errors.

        Raises:
          UserError: a key is unknown (with a suggestion) or missing, a value is not among the choices, or the adapter
            is empty or for a layer that the encoder lacks.
        """
        values = dict(values)
        known = {field.name for field in dataclasses.fields(cls)}
        for kind in values.keys() - known:
            if (shape_of_kind := shape_class(kind)) is None:
                continue
            if not isinstance(shape := values.pop(kind), dict):
                raise UserError(f"{where}: '{kind}' is {shape!r}; it must be an object")
            values["backbone"] = dataclass_from(shape_of_kind, shape, f"{where}.{kind}")
        for name in (kind.removeprefix(OWN) for kind in values if kind.startswith(OWN)):
            raise UserError(
                f"{where}: the encoder {name!r} is not known here; call jaxretr.register_encoder({name!r}, ...) first, or "
                "install the package that has it"
            )
        config = dataclass_from(cls, values, where)
        for name, choices in (
            ("pooling", get_args(Pooling)),
            ("passage_template", ("pair", "joined")),
            ("projection_activation", get_args(DenseActivation)),
            ("query_weights", (None, *get_args(QueryWeights))),
        ):
            if (value := getattr(config, name)) not in choices:
                raise UserError(f"{where}: '{name}' is {value!r}; it must be one of {', '.join(map(str, choices))}")
        if config.adapter is not None:
            try:
                check_shape(config.adapter, config.backbone.dense_sizes())
            except ValueError as error:
                raise UserError(f"{where}: {error}; copy the folder again") from None
        return config


def as_sparse(config: DualEncoderConfig, pooling: Pooling, ignored: tuple[int, ...] = ()) -> DualEncoderConfig:
    """Return the configuration of an encoder with a sparse pooling in place of its own and of the layers after that."""
    none: Any = {"projection_size": None, "projection_activation": "identity", "inner_dense": (), "truncate_dim": None}
    return dataclasses.replace(config, **none, pooling=pooling, normalise=False, ignored_tokens=ignored)


def prompt_of(config: DualEncoderConfig, given: str | None) -> str | None:
    """Return the text of a prompt that is given as a text or by a name that the model states; None stays None."""
    named = {**dict(config.prompts), "query": config.query_prompt, "document": config.passage_prompt}
    return None if given is None else named.get(given) or given


@dataclass(frozen=True)
class JointConfig:
    """A base encoder trained jointly with a frozen lexical one (SPAR: Chen et al. 2022, section 3.3).

    The query embedding is the concatenation [Q(q); w Q_L(q)], so that the score is sim + w sim_L; the scalar w is a
    parameter like any other. Both encoders read the same token ids; encoders with different tokenizers can be combined
    afterwards, see `jaxretr.models.combined_encoder`. The properties are those of `DualEncoderConfig` that compiled
    programs read.
    """

    base: DualEncoderConfig
    lexical: DualEncoderConfig
    """The lexical encoder, frozen and without dropout."""

    @property
    def embedding_size(self) -> int:
        """Size of the concatenated embedding."""
        return self.base.embedding_size + self.lexical.embedding_size

    @property
    def normalise(self) -> bool:
        """Whether the base encoder normalises its embeddings; each part does so separately."""
        return False

    @property
    def sparse(self) -> bool:
        """Whether embeddings are weights of the vocabulary's entries: sparse encoders are not trained jointly."""
        return False

    @property
    def backbone(self) -> Backbone:
        """Shape of the trained encoder, whose dropout is drawn."""
        return self.base.backbone

    @property
    def passage_template(self) -> str:
        """Template of passages, the same for both encoders."""
        return self.base.passage_template

    @property
    def query_prompt(self) -> str:
        """Prompt of questions, the same for both encoders."""
        return self.base.query_prompt

    @property
    def passage_prompt(self) -> str:
        """Prompt of passages, the same for both encoders."""
        return self.base.passage_prompt

    @property
    def max_question_length(self) -> int:
        """Largest number of tokens of a question, the same for both encoders."""
        return self.base.max_question_length

    @property
    def max_passage_length(self) -> int:
        """Largest number of tokens of a passage, the same for both encoders."""
        return self.base.max_passage_length


# ---- parameters -----------------------------------------------------------------------------------------------------


def init_params(config: DualEncoderConfig, seed: int) -> Params:
    """Draw fresh parameters.

    Returns:
      {"shared": tower} or {"question": tower, "passage": tower}, float32. A tower is {"bert": the encoder's parameters}
      and, if there is a projection, {"projection": {"kernel": [D_bert, D], "bias": [D]}}; with inner layers
      {"inner_dense": {"0": ...}} in the same form; of a sparse encoder {"words_head": as of `MlmHead`}, or of UniCOIL
      {"term_head": {"kernel": [D_bert, 1], "bias": [1]}}; with adapters
      {"adapter": as by `init_adapter`}. Two towers start equal, as they do from one pretrained encoder: a text's embeddings
      on both sides are then near each other. With `query_weights` the question tower is {"query_weights": [V]}, ones.
    """

    return {name: _init_tower(config, seed, name) for name in _towers(config)}


def _init_tower(config: DualEncoderConfig, seed: int, name: str) -> Params:
    if name == "question" and config.query_weights:
        return {QUERY_WEIGHTS: jnp.ones(config.backbone.vocab_size, jnp.float32)}
    params: Params = {BACKBONE: fresh_params(config.backbone, seed)}
    dense = {}
    for number, (name, shape, inputs) in enumerate(reversed(config.dense), start=1):
        key = jax.random.fold_in(jax.random.key(seed), number)
        kernel = config.backbone.initializer_range * jax.random.normal(key, (inputs, shape.size), jnp.float32)
        dense[name] = {"kernel": kernel, "bias": jnp.zeros(shape.size, jnp.float32)}
    params |= unflatten_dict(dense, sep="/")
    if config.pooling == "unicoil":
        params[TERM_HEAD] = new_term_head(config.backbone.hidden_size)
    elif config.sparse:
        params[WORDS_HEAD] = fresh_head(masked_lm_shape(config.backbone), seed)
    if config.adapter is not None:
        params["adapter"] = init_adapter(config.adapter, config.backbone, seed)
    return params


def abstract_params(config: DualEncoderConfig | JointConfig) -> Params:
    """Return the shapes of `init_params`, or of `joint_params`, as ShapeDtypeStructs; allocates nothing."""
    if isinstance(config, JointConfig):
        parts = abstract_params(config.base), abstract_params(config.lexical)
        return jax.eval_shape(lambda base, lexical: joint_params(base, lexical, 0.0), *parts)
    found = jax.eval_shape(lambda: init_params(config, 0))
    return {name: found[name] for name in _towers(config)}


def _towers(config: DualEncoderConfig) -> tuple[str, ...]:
    return ("shared",) if config.shared else ("question", "passage")


def joint_params(base: Params, lexical: Params, weight: float) -> Params:
    """Return the parameters of both encoders and the weight of the lexical score, as `tower` and `embed` read them."""
    return {"base": base, "lexical": lexical, "weight": jnp.asarray(weight, jnp.float32)}


def tower(params: Params, side: Side) -> Params:
    """Return the parameters of the tower that reads questions or passages; also from a part of all, see `partition`."""
    if "base" in params or "lexical" in params:  # of a JointConfig
        parts = {name: tower(params[name], side) for name in ("base", "lexical") if name in params}
        # Only the question's side has the weight of the lexical score.
        return {**parts, "weight": params["weight"]} if side == "question" and "weight" in params else parts
    return params["shared"] if "shared" in params else params.get(side, {})


def word_table(tower_params: Params) -> tuple[str, ...] | None:
    """Return the path of the word embeddings' table in a tower's parameters, whose gradient is that of looked-up rows; None
    if the table is not there (not trained), or is a sparse encoder's, which scores the vocabulary with it as well."""
    if WORDS_HEAD in tower_params:
        return None
    for path in ((BACKBONE, "word_embedding", "table"), ("base", BACKBONE, "word_embedding", "table")):
        found: Any = tower_params
        for name in path:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        if not isinstance(found, dict):
            return path
    return None


# ---- embeddings -----------------------------------------------------------------------------------------------------


def embed(
    config: DualEncoderConfig | JointConfig,
    tower_params: Params,
    tokens: jax.Array,
    lengths: jax.Array,
    *,
    dtype: Any,
    residual: str = "float32",
    keys: jax.Array | None = None,
    keep_matmuls: bool = False,
    words: jax.Array | None = None,
) -> jax.Array:
    """Embed rows of token ids; part of the compiled programs.

    Args:
      config: configuration of the dual encoder, or of the two that are trained jointly.
      tower_params: parameters from `tower`; for a program without a backward pass the layers may be unstacked.
      tokens: token ids, any integer type [B, L], padded on the right or packed, see packed_rows.py.
      lengths: number of real tokens of each row, int32 [B], or of each text of packed rows, int32 [B, M]; a length of 0
        gives some finite vector.
      dtype: type of the encoder's matmul operands, float32 or bfloat16.
      residual: type of the states between layers, see `residual_in`.
      keys: one PRNG key per text, of the lengths' shape, which switches dropout on.
      keep_matmuls: as in `jaxretr.models.backbones.layer_stacks.scan_layers`.
      words: the tokens' rows of the table at `word_table`, float32 [B, L, D'], where the caller looked them up.

    Returns:
      float32 [B, D], of packed rows [B * M, D], D being `config.embedding_size`.
    """
    if isinstance(config, JointConfig):
        numbers, settings = {"dtype": dtype, "residual": residual}, {"keys": keys, "keep_matmuls": keep_matmuls}
        base = embed(config.base, tower_params["base"], tokens, lengths, words=words, **numbers, **settings)
        lexical = embed(config.lexical, tower_params["lexical"], tokens, lengths, **numbers)
        if "weight" in tower_params:  # the query side
            lexical = tower_params["weight"] * lexical
        return jnp.concatenate([base, lexical], axis=-1)
    if QUERY_WEIGHTS in tower_params:
        return question_weights(tower_params[QUERY_WEIGHTS], tokens, lengths)
    shape, backbone_params = config.adapter, tower_params[BACKBONE]
    if shape is not None and config.lora_merged:
        shape = shape.without_lora() if shape.bottleneck else None
    if shape is not None:
        backbone_params = {**backbone_params, "adapter": kinds_of(shape, tower_params["adapter"])}
    settings = {"adapter": shape, "keys": keys, "keep_matmuls": keep_matmuls, "words": words}
    with matmuls_in(dtype), residual_in(residual):
        states = token_states(config.backbone, backbone_params, tokens, lengths, dtype=dtype, **settings)
        if config.pooling == "unicoil":
            size, head = config.backbone.vocab_size, tower_params[TERM_HEAD]
            return unicoil_weights(head, states, tokens, lengths, config.ignored_tokens, size)
        if config.sparse:
            head, table = tower_params[WORDS_HEAD], backbone_params["word_embedding"]["table"]
            strategy, activation = SPLADE[config.pooling]
            shape = masked_lm_shape(config.backbone)
            return word_weights(
                shape, head, table, states, lengths, strategy=strategy, activation=activation, dtype=dtype
            )
        pooled = pool(states, lengths, config.pooling)
    for layer, shape in dense_params(config, tower_params):
        pooled = linear(layer, pooled)
        pooled = jnp.tanh(pooled) if shape.activation == "tanh" else pooled
    return truncated(pooled, config.embedding_size, normalise=config.normalise)


def dense_params(config: DualEncoderConfig, tower_params: Params) -> list[tuple[Params, DenseShape]]:
    """Return the parameters and shapes of a tower's linear layers after the pooling, in their order."""
    inner = tower_params.get("inner_dense", {})
    return [
        (inner[name.split("/")[1]] if "/" in name else tower_params[name], shape) for name, shape, _ in config.dense
    ]


def pool(states: jax.Array, lengths: jax.Array, pooling: Pooling, *, ends: jax.Array | None = None) -> jax.Array:
    """Return one vector for each text.

    Args:
      states: states of the last layer, float32 [B, L, D].
      lengths: number of real tokens of each row, int32 [B], or of each text of packed rows, int32 [B, M].
      pooling: "cls" for the first token's state, "lasttoken" for the last real one's; "max" for the largest value of
        each dimension; "mean" for the mean of the real tokens' states, "weightedmean" with the weights 1, 2, 3, ...,
        "mean_sqrt_len_tokens" for their sum over the square root of their number.
      ends: lengths up to the token that "lasttoken" reads; None: the texts' lengths.

    Returns:
      float32 [B, D], of packed rows [B * M, D].
    """
    packed, width = are_packed(lengths), states.shape[1]
    if pooling == "cls" and not packed:
        return states[:, 0]
    own, place = own_tokens(lengths, width)
    if pooling == "max":
        largest = jnp.where(own[..., None], states[:, None] if packed else states, -1e9).max(axis=-2)
        return largest.reshape(-1, states.shape[-1])
    # sentence-transformers' smallest divisor, for rows of length 0.
    least = 1e-9
    weights, divisor = own.astype(states.dtype), jnp.ones(lengths.shape)
    if pooling == "cls":
        weights = weights * (place == 0)
    elif pooling == "mean":
        divisor = jnp.maximum(lengths, least)
    elif pooling == "mean_sqrt_len_tokens":
        divisor = jnp.sqrt(jnp.maximum(lengths, least))
    elif pooling == "weightedmean":
        weights = weights * (place + 1)
        divisor = jnp.maximum(weights.sum(axis=-1), least)
    elif pooling == "lasttoken":
        weights = weights * (place == (lengths if ends is None else ends)[..., None] - 1)
    else:
        raise AssertionError(f"pooling {pooling} is of scores, not of states: see word_weights")
    if not packed:
        return jnp.einsum("bld,bl->bd", states, weights) / divisor[:, None]
    # A product with as many texts as a row holds: no scatter, whose sums would be in any order.
    sums = jnp.einsum("bld,bml->bmd", states, weights, precision=jax.lax.Precision.HIGHEST)
    return (sums / divisor[..., None]).reshape(-1, states.shape[-1])


def truncated(embeddings: jax.Array, size: int, *, normalise: bool) -> jax.Array:
    """Return the prefix of embeddings that a Matryoshka model was trained for (https://arxiv.org/abs/2205.13147).

    Args:
      embeddings: float [..., D].
      size: number of the first dimensions to keep, at most D.
      normalise: whether to divide the prefix by its length, at least 1e-12.

    Returns:
      [..., size], of the same type.
    """
    embeddings = embeddings[..., :size]
    if not normalise:
        return embeddings
    # x / max(|x|, 1e-12) as in torch, but with a gradient of 0, not NaN, where x is 0.
    return embeddings * jax.lax.rsqrt(jnp.maximum(jnp.square(embeddings).sum(axis=-1, keepdims=True), 1e-24))
