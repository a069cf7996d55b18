"""What a part must compute and move at least, and what the makers of GPUs promise."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.t5 import T5Config


class Peak(NamedTuple):
    """What a device can do, as its maker states it (dense, without sparsity)."""

    tflops: float
    """bfloat16, 10^12 a second."""
    gbs: float
    """Memory, 10^9 bytes a second."""


# The first name that the device's own contains counts.
PEAKS = {
    "GH200": Peak(989, 4000),
    "H200": Peak(989, 4800),
    "H100 PCIe": Peak(756, 2000),
    "H100 NVL": Peak(835, 3900),
    "H100": Peak(989, 3350),
    "B200": Peak(2250, 8000),
    "A100-SXM4-40GB": Peak(312, 1555),
    "A100": Peak(312, 2039),
    "L40S": Peak(362, 864),
    "L4": Peak(121, 300),
}


def peak_of(device: str) -> Peak | None:
    """The peak of a device by its name; None for one that is not listed."""
    return next((peak for name, peak in PEAKS.items() if name.lower() in device.lower()), None)


# ---- lengths of real text --------------------------------------------------------------------------------------------

# Every twentieth of 9,750 Wikipedia passages of 100 words with their titles, and of 4,000 questions of Natural Questions:
# in BERT's word pieces with special tokens, in T5's pieces without the instruction, and as the scorer's targets. The
# longest passages are cut at the models' lengths.
PASSAGE_TOKENS = (
    30,
    119,
    122,
    124,
    126,
    127,
    129,
    130,
    131,
    132,
    134,
    135,
    137,
    139,
    141,
    143,
    145,
    148,
    154,
    163,
    256,
)
T5_PASSAGE_TOKENS = (
    *(30, 125, 129, 132, 135, 137, 139, 140, 142, 144, 146, 148, 150, 153, 155, 158, 162, 166, 173, 186, 360),
)
QUESTION_TOKENS = (9, 10, 10, 10, 10, 10, 10, 11, 11, 11, 11, 11, 12, 12, 12, 12, 13, 13, 14, 16, 25)
TARGET_TOKENS = (11, 11, 12, 12, 12, 13, 13, 13, 14, 14, 14, 15, 15, 15, 16, 16, 17, 18, 19, 20, 33)


def draw_lengths(quantiles: Sequence[int], count: int, longest: int, seed: int = 0) -> np.ndarray:
    """Lengths int32 [count] with these quantiles, at most `longest`."""
    places = np.random.default_rng(seed).random(count)
    drawn = np.interp(places, np.linspace(0, 1, len(quantiles)), quantiles)
    return np.minimum(drawn.round(), longest).astype(np.int32)


# ---- operations ------------------------------------------------------------------------------------------------------


def bert_flops(bert: BertConfig, lengths: np.ndarray) -> float:
    """Operations of one forward pass over rows of these lengths: matrix products of real tokens alone."""
    d, f = bert.hidden_size, bert.intermediate_size
    tokens, pairs = float(lengths.sum()), float(np.square(lengths, dtype=np.float64).sum())
    return bert.num_hidden_layers * (2 * tokens * (4 * d * d + 2 * d * f) + 4 * pairs * d)


def mlm_flops(bert: BertConfig, lengths: np.ndarray, predictions: int) -> float:
    """The same with the head of masked language modelling at so many places."""
    d = bert.hidden_size
    return bert_flops(bert, lengths) + 2.0 * predictions * (d * d + d * bert.vocab_size)


def t5_flops(t5: T5Config, lengths: np.ndarray, targets: np.ndarray) -> float:
    """Operations of scoring pairs: inputs of these lengths, instruction included, and targets of these."""
    d, inner = t5.d_model, t5.num_heads * t5.d_kv
    feed = (3 if t5.feed_forward_proj.startswith("gated-") else 2) * d * t5.d_ff
    read, written = lengths.astype(np.float64), targets.astype(np.float64)
    encoder = 2 * read * (4 * d * inner + feed) + 4 * np.square(read) * inner
    crossed = 4 * read * d * inner + 4 * read * written * inner
    decoder = 2 * written * (6 * d * inner + feed) + 4 * np.square(written) * inner + crossed
    layers = t5.num_layers * encoder + t5.num_decoder_layers * decoder
    return float((layers + 2 * written * d * t5.vocab_size).sum())


def search_bytes(rows: int, dim: int, itemsize: int) -> float:
    """Bytes that a search reads at least: every row once, however many questions."""
    return float(math.prod((rows, dim, itemsize)))
