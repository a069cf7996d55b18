"""The peer of as_user.py: sentence-transformers' modules in a loop of plain PyTorch, as a user would write it.

    python benchmarks/on_gpu/user_peer.py train|evaluate|encode MODEL BEIR --steps 300 --batch 128 --length 256

Training tokenises in its loop, and evaluates before the first step and after the last. Prints the marks that as_user.py
reads; exits with 4 where PyTorch or sentence-transformers is not installed, or does not see the card.
"""

import argparse
import gzip
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEMPERATURE = 0.05
NOT_HERE = 4


def lines_of(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file, compressed or not."""
    path = folder / f"{name}.jsonl"
    with path.open() if path.exists() else gzip.open(f"{path}.gz", "rt") as file:
        yield from map(json.loads, file)


def judged(folder: Path, split: str) -> list[tuple[str, str]]:
    """(question's id, passage's id) of each line of the judgements."""
    rows = (line.split("\t") for line in (folder / f"qrels/{split}.tsv").read_text().splitlines()[1:])
    return [(question, passage) for question, passage, _ in rows]


def evaluate(model: Any, corpus: dict[str, str], questions: dict[str, str], pairs: list[tuple[str, str]]) -> float:
    """MRR@10 by exact search over the whole corpus."""
    import torch

    passages = model.encode(list(corpus.values()), batch_size=128, convert_to_tensor=True, normalize_embeddings=True)
    wanted: dict[str, set[str]] = {}
    for question, passage in pairs:
        wanted.setdefault(question, set()).add(passage)
    texts = [questions[question] for question in wanted]
    asked = model.encode(texts, batch_size=128, convert_to_tensor=True, normalize_embeddings=True)
    ids, total = list(corpus), 0.0
    rows = torch.cat([(part @ passages.T).topk(min(10, len(ids))).indices for part in asked.split(512)]).tolist()
    for relevant, found in zip(wanted.values(), rows, strict=True):
        total += next((1 / rank for rank, row in enumerate(found, 1) if ids[row] in relevant), 0.0)
    return total / len(wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("train", "evaluate", "encode"))
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    args = parser.parse_args()
    began = time.monotonic()
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except Exception as error:  # A build for another system fails in ways of its own.
        print(f"{type(error).__name__}: {error}")
        sys.exit(NOT_HERE)
    if Path("/dev/nvidia0").exists() and not torch.cuda.is_available():
        print("PyTorch does not see the GPU")
        sys.exit(NOT_HERE)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = SentenceTransformer(args.model, device=device).float()  # whatever it is stored as
    model.max_seq_length = args.length
    corpus = {row["_id"]: f"{row.get('title') or ''} {row['text']}".strip() for row in lines_of(args.data, "corpus")}
    questions = {row["_id"]: row["text"] for row in lines_of(args.data, "queries")}
    spent = dict.fromkeys(("evaluation", "first step", "steps"), 0.0)

    def note(what: str, since: float) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        spent[what] += time.monotonic() - since

    def embedded(texts: list[str]) -> Any:
        # Beside tensors some releases return words about them.
        given = {name: x.to(device) if torch.is_tensor(x) else x for name, x in model.tokenize(texts).items()}
        return torch.nn.functional.normalize(model(given)["sentence_embedding"].float())

    with torch.autocast(device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
        if args.job == "encode":
            model.encode(list(corpus.values()), batch_size=128)
        elif args.job == "evaluate":
            print(f"MRR@10 {evaluate(model, corpus, questions, judged(args.data, 'test')):.4f}")
        else:
            pairs, dev = judged(args.data, "train"), judged(args.data, "dev")
            optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer,
                lambda step: min((step + 1) / max(1, 0.1 * args.steps), (args.steps - step) / (0.9 * args.steps)),
            )
            since = time.monotonic()
            print(f"MRR@10 {evaluate(model, corpus, questions, dev):.4f}")
            note("evaluation", since)
            rng = random.Random(0)
            for step in range(args.steps):
                since = time.monotonic()
                batch = rng.sample(pairs, args.batch)
                texts = [questions[question] for question, _ in batch], [corpus[passage] for _, passage in batch]
                model.train()
                one, other = (embedded(side) for side in texts)
                target = torch.arange(args.batch, device=device)
                loss = torch.nn.functional.cross_entropy(one @ other.T / TEMPERATURE, target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                note("steps" if step else "first step", since)
                if not step:
                    print("no programs: before and in the first step", flush=True)
            since = time.monotonic()
            print(f"MRR@10 {evaluate(model, corpus, questions, dev):.4f}")
            note("evaluation", since)
            whole = time.monotonic() - began
            parts = ", ".join(f"{name} {seconds:.1f} s ({seconds / whole:.0%})" for name, seconds in spent.items())
            print(f"{whole:.1f} s: {parts}, else {whole - sum(spent.values()):.1f} s")


if __name__ == "__main__":
    main()
