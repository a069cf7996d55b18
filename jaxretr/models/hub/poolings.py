"""The names of each pooling in other libraries and on the model card; `jaxretr.models.embed.pool` computes it."""

from typing import NamedTuple

from jaxretr.config import SPLADE, Pooling


class PoolingNames(NamedTuple):
    """A pooling outside of this package.

    Attributes:
      key: setting of sentence-transformers' Pooling module that chooses it; empty: it is a module of its own.
      what: what it is, in words.
      torch: code that makes `vectors` of `inputs` and `outputs` of transformers, padded on the right; the model card shows
        it, and `jaxretr verify --with transformers` runs it.
    """

    key: str
    what: str
    torch: str


_MASK = 'mask = inputs["attention_mask"].unsqueeze(-1)\n'

POOLINGS: dict[Pooling, PoolingNames] = {
    "cls": PoolingNames("pooling_mode_cls_token", "[CLS]", "vectors = outputs.last_hidden_state[:, 0]"),
    "max": PoolingNames(
        "pooling_mode_max_tokens",
        "largest value of the tokens",
        f"{_MASK}vectors = outputs.last_hidden_state.masked_fill(mask == 0, -1e9).max(1).values",
    ),
    "mean": PoolingNames(
        "pooling_mode_mean_tokens",
        "mean of the tokens",
        f"{_MASK}vectors = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1)",
    ),
    "mean_sqrt_len_tokens": PoolingNames(
        "pooling_mode_mean_sqrt_len_tokens",
        "sum of the tokens over the square root of their number",
        f"{_MASK}vectors = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1).sqrt()",
    ),
    "weightedmean": PoolingNames(
        "pooling_mode_weightedmean_tokens",
        "mean of the tokens, weighted by their positions",
        f"{_MASK}mask = mask * mask.cumsum(1)\nvectors = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1)",
    ),
    "lasttoken": PoolingNames(
        "pooling_mode_lasttoken",
        "last token",
        'last = inputs["attention_mask"].sum(1) - 1\n'
        "vectors = outputs.last_hidden_state[torch.arange(len(last)), last]",
    ),
    **{
        pooling: PoolingNames(
            "",
            f"{'sum' if strategy == 'sum' else 'largest'} of the tokens' scores of each vocabulary entry in masked language "
            f"modelling, {'log(1 + log(1 + relu))' if activation == 'log1p_relu' else 'log(1 + relu)'} (SPLADE)",
            f"{_MASK}scores = outputs.logits.masked_fill(mask == 0, 0).relu().log1p()"
            f"{'.log1p()' if activation == 'log1p_relu' else ''}\n"
            f"vectors = scores.{'sum(1)' if strategy == 'sum' else 'max(1).values'}",
        )
        for pooling, (strategy, activation) in SPLADE.items()
    },
    "unicoil": PoolingNames(
        "", "weight of each token of the text, relu of a linear layer, the largest of equal ones (UniCOIL)", ""
    ),
}
"""The poolings in sentence-transformers' order."""
