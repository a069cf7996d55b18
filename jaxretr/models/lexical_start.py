"""Initial weights of an encoder that already compares words, for a lexical retriever with few steps to spend.

A BERT that starts at random first has to find out that equal words matter, and that rare ones matter more. Here a word
piece starts as a random vector whose squared length is its inverse document frequency, the same one for all pieces with
the same stem: the mean over a text's tokens is then a random projection of its weighted bag of words, and the cosine of
two such means an estimate of theirs. LayerNorm gives every token the same length; so part of the dimensions is filled
up with what the last LayerNorm's scale, 0 there at first, takes away again. Everything is trained on from there.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.bert import BertConfig, BertEncoder
from jaxretr.models.layers import Params, initialise

# Dimensions that take up what is left of a token's length, as a share of all.
_FILLER_SHARE = 1 / 12
# Of the embedding's entries: Adam's steps have the size of the learning rate, whatever the gradient's.
_STD = 0.05
# Residual branches of the layers start small: a state is at first little more than its token.
_RESIDUAL_GAIN = 0.1
# The filler is never empty, nor anything else: LayerNorm needs no zeros.
_MOST = 0.998


def lexical_start(
    config: BertConfig,
    pieces: Sequence[str],
    frequencies: np.ndarray,
    num_passages: int,
    special: Sequence[int],
    seed: int,
) -> Params:
    """Draws initial parameters.

    Args:
      config: a post-LayerNorm BERT with any number of layers, also none.
      pieces: the vocabulary's V entries as text, "##" before those that go on with a word.
      frequencies: in how many passages each piece stands, integers [V].
      num_passages: N.
      special: ids of tokens that are no words ([CLS], [SEP]); they weigh nothing.
      seed: of the random vectors.

    Returns:
      The parameters of a `BertEncoder`, float32.
    """
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    stems: dict[str, int] = {}
    group = np.array(
        [stems.setdefault(piece if piece.startswith("##") else stemmer.stemWord(piece), len(stems)) for piece in pieces]
    )
    # Passages with several pieces of one stem count several times: an upper bound, and close where it matters.
    of_stem = np.minimum(np.bincount(group, np.asarray(frequencies)), num_passages)[group]
    weight = np.log(1 + (num_passages - of_stem + 0.5) / (of_stem + 0.5))
    weight[list(special)] = 0.0
    weight = _MOST * np.maximum(weight / weight.max(), 1e-3)  # the share of a token's squared length that is not filler

    size = config.hidden_size
    filler = max(2, round(_FILLER_SHARE * size) // 2 * 2)
    words = size - filler
    sketch = np.random.default_rng(seed).normal(size=(len(stems), words))
    sketch -= sketch.mean(axis=1, keepdims=True)
    sketch /= np.sqrt(np.square(sketch).mean(axis=1, keepdims=True))
    table = np.empty((config.vocab_size, size), np.float32)
    table[: len(pieces), :words] = sketch[group] * np.sqrt(weight * size / words)[:, None]
    signs = np.where(np.arange(filler) % 2, 1.0, -1.0)  # their mean is 0, as LayerNorm makes it
    table[: len(pieces), words:] = np.sqrt((1 - weight) * size / filler)[:, None] * signs
    table[len(pieces) :] = 0

    params = jax.tree.map(np.array, initialise(lambda rngs: BertEncoder(config, rngs=rngs), seed))
    params["word_embedding"]["table"] = _STD * table
    for name in ("position_embedding", "type_embedding"):  # the order of words says nothing at first
        params[name]["table"][:] = 0
    last = params["norm"]["scale"]
    if config.num_hidden_layers:
        layers = params["layers"]
        layers["attention_out"]["kernel"] *= _RESIDUAL_GAIN
        layers["ffn_out"]["kernel"] *= _RESIDUAL_GAIN
        last = layers["ffn_norm"]["scale"][-1]
    last[words:] = 0
    return jax.tree.map(jnp.asarray, params)
