"""The peer of ART's step on the card: benchmarks/torch_art.py in a process without JAX's memory, at the sizes of `art_step`."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch_art import ArtStep, Batch, FirstToken, Settings, Tokens

from jaxretr.models.backbones.t5 import T5Config
from on_gpu import torch_peers
from on_gpu.art_sizes import ArtSizes
from on_gpu.measuring import Part, repeat, summary

# Of the towers' activations, those of so many questions' passages are in memory together.
QUESTIONS_AT_ONCE = 8
PASSAGE_CHUNK = 64


def device_bytes() -> float:
    """The card's memory; without a card, no limit."""
    return 0.92 * torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else math.inf


def random_t5(t5: T5Config, dtype: torch.dtype) -> torch.nn.Module:
    """Hugging Face's T5 in this shape with random weights, made on the card in its dtype."""
    import transformers

    config = transformers.T5Config(**asdict(t5))
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(torch_peers.device()):
            return transformers.T5ForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(before)


def random_tokens(lengths: np.ndarray, width: int, vocabulary: int) -> Tokens:
    """Rows of token ids of these lengths on the card, in 16 bits, never held in a wider type."""
    device = torch_peers.device()
    ids = torch.empty((len(lengths), width), dtype=torch.int16, device=device).random_(5, vocabulary)
    return Tokens(ids, torch.from_numpy(lengths).to(device))


def make_step(sizes: ArtSizes, teacher_chunk: int) -> Any:
    """A call that takes one step, and waits for its end.

    Args:
      sizes: models, questions, passages and their lengths.
      teacher_chunk: pairs that go through the T5 at once.
    """
    torch.manual_seed(0)
    device, bert = torch_peers.device(), sizes.encoder.backbone
    towers = FirstToken(torch_peers.Bert(bert)).to(device), FirstToken(torch_peers.Bert(bert)).to(device)
    shape = sizes.rows, sizes.encoder.embedding_size
    index = torch.randn(shape, dtype=torch.bfloat16, device=device) * shape[1] ** -0.5
    art = ArtStep(
        towers,
        random_t5(sizes.t5, torch.bfloat16),
        random_tokens(sizes.passage_lengths, sizes.width, bert.vocab_size),
        random_tokens(sizes.scorer_lengths, sizes.scorer_width, sizes.t5.vocab_size),
        index,
        Settings(
            top_k=sizes.k,
            temperature=math.sqrt(shape[1]),
            prefix=sizes.prompt.prefix,
            suffix=sizes.prompt.suffix,
            learning_rate=lambda step: 1e-6,
            questions_at_once=QUESTIONS_AT_ONCE,
            passage_chunk=PASSAGE_CHUNK,
            teacher_chunk=teacher_chunk,
        ),
    )
    batch = Batch(
        random_tokens(sizes.question_lengths, 32, bert.vocab_size),
        random_tokens(sizes.target_lengths, 40, sizes.t5.vocab_size),
    )

    def step() -> None:
        loss, _ = art(batch)
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss}")

    return step


def measure(part: Part, sizes: ArtSizes, teacher_chunk: int) -> None:
    """Times the step and reports it under the name of ours."""
    part.say(f"{sizes.n:,} passages; teacher's chunk {teacher_chunk}")
    step = make_step(sizes, teacher_chunk)
    step()
    step()
    taken = repeat(step, 0.8 * part.left)
    part.report(sizes.case, torch=summary(taken))
    part.say(f"{sizes.case}: PyTorch {summary(taken)['median']:.4g} s")
