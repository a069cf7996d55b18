"""What the tests of cross-encoders' training share: runs on the test passages, and the same steps by PyTorch."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tiny
from peers import torch, transformers

from jaxretr.config import Optimizer, PairEncoder, PairNegatives, RerankerConfig, RerankerData, Train
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.hub.cross_encoder_folder import export_cross_encoder
from jaxretr.training.runs.cross_encoder import CrossEncoderRun

LENGTH, STEPS, BATCH = 48, 5, 8
RATE, WARMUP, DECAY, CLIP = 1e-3, 0.4, 0.1, 1.0
# Some parameters have a gradient of rounding errors alone (the keys' biases): Adam would make full steps of it.
EPS = 1e-4


class Steps(NamedTuple):
    """What some training steps report, and the parameters after them by Hugging Face's names."""

    losses: list[float]
    norms: list[float]
    params: dict[str, np.ndarray]


def config(path: Path | str, **changes: dict[str, Any]) -> RerankerConfig:
    """A small run from `path` on the test passages; `changes` replace fields of sections."""
    plain = RerankerConfig(
        name="tiny",
        data=RerankerData(
            train=str(tiny.DATA), dev_questions=str(tiny.DATA), dev_qrels=str(tiny.DATA / "qrels/train.tsv")
        ),
        encoder=PairEncoder(path=str(path), max_length=LENGTH, max_question_length=40, dropout=0.0),
        negatives=PairNegatives(bm25=1, random=2),
        optimizer=Optimizer(learning_rate=RATE, warmup=WARMUP, final=0.0, eps=EPS, weight_decay=DECAY, clip=CLIP),
        train=Train(steps=STEPS, batch_size=BATCH, best_metric="ndcg@10"),
    )
    sections = {name: dataclasses.replace(getattr(plain, name), **values) for name, values in changes.items()}
    return dataclasses.replace(plain, **sections)


def ours(run: CrossEncoderRun, steps: int = STEPS) -> Steps:
    """The first steps of a run."""
    step = tiny.compiled_quickly(run.programs.step)
    state, values = run.init(), []
    for number in range(steps):
        state, metrics = step(state, run.batch(number))
        values.append({name: float(value) for name, value in metrics.items()})
    _, tensors = export_cross_encoder(run.model.config, jax.device_get(state.params))
    return Steps(
        [each["loss"] for each in values],
        [each["gradient_norm"] for each in values],
        {name: np.asarray(value) for name, value in tensors.items()},
    )


def by_pytorch(folder: Path, run: CrossEncoderRun) -> tuple[Steps, dict[str, np.ndarray]]:
    """The same steps with transformers' model, its tokenizer's pairs, and torch's losses and AdamW.

    Returns:
      The steps, and the parameters before them.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    start = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    named = list(model.named_parameters())
    plain = [value for name, value in named if name.endswith("bias") or "norm" in name.lower()]
    decayed = [value for name, value in named if not (name.endswith("bias") or "norm" in name.lower())]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, eps=EPS)
    passages, result = run.examples.passages, Steps([], [], {})
    for number in range(STEPS):
        chosen = run.batches.indices(number)
        rows, _ = run.draws.rows(chosen, number)
        loss = _loss(model, tokenizer, run, [run.examples.texts[int(i)] for i in chosen], rows, passages)
        optimizer.zero_grad()
        loss.backward()
        result.norms.append(float(torch.nn.utils.clip_grad_norm_(decayed + plain, CLIP)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * float(np.interp(number + 1, [0, WARMUP * STEPS, STEPS], [0, 1, 0]))
        optimizer.step()
        result.losses.append(loss.item())
    result.params.update({name: value.numpy() for name, value in model.state_dict().items()})
    return result, start


def _loss(
    model: Any, tokenizer: Any, run: CrossEncoderRun, questions: list[str], rows: np.ndarray, passages: Any
) -> Any:
    pairs, places = [], []
    for number, of_question in enumerate(rows):
        for place, row in enumerate(of_question.tolist()):
            if row != NO_PASSAGE:
                text = f"{passages.titles[row]} {passages.texts[row]}" if passages.titles[row] else passages.texts[row]
                pairs.append((questions[number], text))
                places.append((number, place))
    longest = run.config.encoder.max_length
    batch = tokenizer(
        *zip(*pairs, strict=True), truncation="longest_first", max_length=longest, padding=True, return_tensors="pt"
    )
    scores = model(**batch).logits[:, 0]
    ranking = run.config.ranking
    positive = torch.tensor([float(place == 0) for _, place in places])
    if ranking.loss == "binary":
        weight = torch.tensor(ranking.positive_weight)
        return torch.nn.functional.binary_cross_entropy_with_logits(scores, positive, pos_weight=weight)
    table = torch.full(rows.shape, -torch.inf)
    table[[n for n, _ in places], [place for _, place in places]] = scores
    return torch.nn.functional.cross_entropy(table, torch.zeros(len(rows), dtype=torch.long))
