"""A base encoder that is trained beside a frozen lexical one: SPAR's joint training, in compiled programs.

The embedding is the concatenation [w Q_L(q); ...] on the question's side alone, so that the score is sim + w sim_L
(Chen et al. 2022, section 3.3), and the scalar w is a parameter like any other. Both encoders read the same rows of
token ids; an encoder of other tokens can be combined afterwards, see `jaxretr.models.combined_encoder`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxretr.models.bert import BertConfig
from jaxretr.models.dual_encoder import DualEncoderConfig, abstract_params, embed
from jaxretr.models.layers import Params


@dataclass(frozen=True)
class JointConfig:
    """Two dual encoders as one. The properties are those of `DualEncoderConfig` that compiled programs read."""

    base: DualEncoderConfig
    lexical: DualEncoderConfig
    """Frozen; without dropout."""

    @property
    def embedding_size(self) -> int:
        """Of the concatenation."""
        return self.base.embedding_size + self.lexical.embedding_size

    @property
    def normalise(self) -> bool:
        """Each part is normalised, or not, by itself."""
        return False

    @property
    def bert(self) -> BertConfig:
        """The trained one, whose dropout is drawn."""
        return self.base.bert

    @property
    def passage_template(self) -> str:
        """Of both."""
        return self.base.passage_template

    @property
    def max_question_length(self) -> int:
        """Of both."""
        return self.base.max_question_length

    @property
    def max_passage_length(self) -> int:
        """Of both."""
        return self.base.max_passage_length


def joint_params(base: Params, lexical: Params, weight: float) -> Params:
    """The parameters of both encoders and the weight of the lexical score, as `tower` and `embed` read them."""
    return {"base": base, "lexical": lexical, "weight": jnp.asarray(weight, jnp.float32)}


def abstract_joint_params(config: JointConfig) -> Params:
    """The shapes of `joint_params`; allocates nothing."""
    parts = {"base": abstract_params(config.base), "lexical": abstract_params(config.lexical)}
    return {**parts, "weight": jax.ShapeDtypeStruct((), jnp.float32)}


@embed.register
def _(
    config: JointConfig,
    tower_params: Params,
    tokens: jax.Array,
    lengths: jax.Array,
    *,
    dtype: Any,
    keys: jax.Array | None = None,
    keep_matmuls: bool = False,
    words: jax.Array | None = None,
) -> jax.Array:
    base = embed(
        config.base,
        tower_params["base"],
        tokens,
        lengths,
        dtype=dtype,
        keys=keys,
        keep_matmuls=keep_matmuls,
        words=words,
    )
    lexical = embed(config.lexical, tower_params["lexical"], tokens, lengths, dtype=dtype)
    if "weight" in tower_params:  # the question's side
        lexical = tower_params["weight"] * lexical
    return jnp.concatenate([base, lexical], axis=-1)
