"""Initial BERT weights that already read a token's context.

A BERT that starts at random stays for thousands of steps at the loss of a unigram model before it looks at the context
at all. With few steps to spend, each layer's attention starts as the mean of the text's token vectors, and the
language-modelling head as an identity: at once a masked token is likelier when its like occur in the text, and
co-occurrence is learnt from the first step on.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.bert import BertConfig
from jaxretr.models.layers import Params, initialise
from jaxretr.models.mlm import BertMaskedLm

CONTEXT_GAIN = 0.5
POSITION_GAIN = 0.1


def context_start(config: BertConfig, seed: int) -> Params:
    """Draws the initial parameters of a `BertMaskedLm`, float32."""
    params = jax.tree.map(np.array, initialise(lambda rngs: BertMaskedLm(config, rngs=rngs), seed))
    size = config.hidden_size
    layers = params["bert"]["layers"]
    layers["value"]["kernel"] += np.eye(size, dtype=np.float32)
    layers["attention_out"]["kernel"] += CONTEXT_GAIN * np.eye(size, dtype=np.float32)
    params["head"]["dense"]["kernel"] += np.eye(size, dtype=np.float32)
    # A position's vector is the same in every text and says nothing about what it is about.
    params["bert"]["position_embedding"]["table"] *= POSITION_GAIN
    return jax.tree.map(jnp.asarray, params)
