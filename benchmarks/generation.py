"""Generation: ours against transformers, interleaved in one run.

    pip install torch
    python benchmarks/generation.py --model FOLDER                 # a causal language model or a T5
    python benchmarks/generation.py --model FOLDER --passages 64 --rounds 5

Both write the most likely question about each of the same passages of the quickstart, in float32, with batches of the same
passages and the same tokens at which a question ends. Prints the tokens a second of each, the ratio of each round (above 1:
ours is faster), and the share of questions that are equal, token for token.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from encode import CORPUS, spread
from machine import describe

from jaxretr.data.readers import read_corpus
from jaxretr.models.batches import Batch, Shapes
from jaxretr.models.generation.decoding import Sampling
from jaxretr.models.generation.prompts import prompts
from jaxretr.models.question_generator import QuestionGenerator


class Theirs:
    """transformers' generate with the batches and the ends of ours."""

    def __init__(self, folder: Path, ours: QuestionGenerator):
        import torch
        import transformers

        is_t5 = not hasattr(ours.config, "backbone")
        kind = transformers.AutoModelForSeq2SeqLM if is_t5 else transformers.AutoModelForCausalLM
        self.model = kind.from_pretrained(folder, dtype=torch.float32).eval()
        self.torch, self.is_t5 = torch, is_t5
        ends, never_first = (np.flatnonzero(role).tolist() for role in ours.roles)
        self.settings = {
            "do_sample": False,
            "eos_token_id": ends,
            "pad_token_id": 0,
            "begin_suppress_tokens": never_first,
        }

    def generate(self, batches: list[Batch], new_tokens: int) -> dict[int, list[int]]:
        found = {}
        for batch in batches:
            used = len(batch.positions)
            rows = [row[:length] for row, length in zip(batch.tokens[:used], batch.lengths, strict=False)]
            # Decoders are padded on the left, as transformers wants it.
            width = max(map(len, rows))
            tokens, mask = np.zeros((used, width), np.int64), np.zeros((used, width), np.int64)
            for number, row in enumerate(rows):
                place = slice(0, len(row)) if self.is_t5 else slice(width - len(row), width)
                tokens[number, place], mask[number, place] = row, 1
            arrays = map(self.torch.from_numpy, (tokens, mask))
            with self.torch.inference_mode():
                ids, attention = arrays
                out = self.model.generate(ids, attention_mask=attention, max_new_tokens=new_tokens, **self.settings)
            for position, row in zip(
                batch.positions.tolist(), out[:, 1 if self.is_t5 else width :].tolist(), strict=True
            ):
                end = next((n + 1 for n, id in enumerate(row) if id in self.settings["eos_token_id"]), len(row))
                found[position] = row[:end]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a causal language model or T5")
    parser.add_argument("--passages", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="passages of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-length", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--new-tokens", type=int, default=32)
    args = parser.parse_args()
    corpus = read_corpus(CORPUS)
    passages = [{"title": each.title, "text": each.text} for each in (corpus[row] for row in range(args.passages))]
    ours = QuestionGenerator.from_pretrained(args.model, template="upr", max_length=args.max_length)
    sampling = Sampling(temperature=0, max_new_tokens=args.new_tokens)
    rows, _ = prompts(
        ours.tokenizer, ours.texts, [each["title"] for each in passages], [each["text"] for each in passages]
    )
    batches = Shapes(args.max_length, 1, 1, args.batch, steps=2).batches(rows, 0)
    theirs = Theirs(args.model, ours)

    def ours_run() -> list[list[int]]:
        found = ours.generate_tokens(passages, sampling=sampling, batch_size=args.batch)
        return [row[:count].tolist() for row, count in zip(found.tokens, found.counts, strict=True)]

    print(describe())
    mine, peer = ours_run(), theirs.generate(batches, args.new_tokens)  # The first time compiles.
    tokens = sum(map(len, mine))
    equal = np.mean([mine[place] == peer[place] for place in range(len(mine))])
    ratios, seconds = [], {"jaxretr": [], "transformers": []}
    for number in range(args.rounds):
        order = list(seconds)[:: 1 if number % 2 else -1]
        for name in order:
            began = time.perf_counter()
            ours_run() if name == "jaxretr" else theirs.generate(batches, args.new_tokens)
            seconds[name].append(time.perf_counter() - began)
        ratios.append(seconds["transformers"][-1] / seconds["jaxretr"][-1])
    for name, each in seconds.items():
        print(
            f"{name:<14}{tokens / statistics.median(each):8.1f} tokens/s, prompts of {sum(map(len, rows))} tokens included"
        )
    print(f"transformers / jaxretr: {spread(ratios)}; {equal:.0%} of {len(mine)} questions are equal")


if __name__ == "__main__":
    main()
