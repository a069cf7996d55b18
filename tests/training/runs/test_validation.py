"""Validation loss and average rank: the same on any number of devices, and as numpy computes them from the texts."""

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import compiled_quickly, contrastive_config, few_padding_rows, write_models, write_supervised

from jaxretr.config import Validation
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.corpus_programs import RunState

GROUP = 4  # of 10 questions: the last group is smaller
TEMPERATURE = 0.5
POOLS = {"all": (30, 30), "one hard each": (1, 0), "positives": (0, 0)}


def run_on(devices: int, folder: Path, hard: int, other: int) -> ContrastiveRun:
    data = write_supervised(folder / "data")
    config = contrastive_config(
        folder,
        data={**data, "dev": data["train"], "dev_questions": None},
        contrastive={"temperature": TEMPERATURE},
        validation={"batch_size": GROUP, "hard_negatives": hard, "other_negatives": other},
    )
    with few_padding_rows():
        return ContrastiveRun(config, make_mesh(jax.devices()[:devices]), folder / "run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("validation")
    write_models(folder, noise=0.3)
    write_supervised(folder / "data")
    return folder


Figures = Callable[[str, int], dict[str, float]]


@pytest.fixture(scope="module")
def figures(folder: Path) -> Figures:
    """figures(pool, devices), each computed when a test first asks for it."""

    @cache
    def found(pool: str, devices: int) -> dict[str, float]:
        run = run_on(devices, folder, *POOLS[pool.removesuffix(", turned")])
        state = run.init()
        return run.evaluate(turned(state) if pool.endswith("turned") else state)

    return found


def turned(state: RunState) -> RunState:
    """With questions that point the other way: their last LayerNorm is negative."""
    params = jax.tree.map(jnp.asarray, state.train.params)
    norm = params["question"]["bert"]["layers"]["ffn_norm"]
    params["question"]["bert"]["layers"]["ffn_norm"] = {name: x.at[-1].multiply(-1) for name, x in norm.items()}
    return state._replace(train=dataclasses.replace(state.train, params=params))


class Brute:
    """The metrics from the training file itself."""

    def __init__(self, folder: Path) -> None:
        rows = json.loads((folder / "data/train.json").read_text())
        lists = ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
        self.lists = [[[(ctx["title"], ctx["text"]) for ctx in row[name]] for name in lists] for row in rows]
        encoder = run_on(1, folder, 0, 0).model
        texts = sorted({text for row in self.lists for candidates in row for text in candidates})
        embedded = encoder.encode_passages([{"title": title, "text": text} for title, text in texts], batch_size=32)
        self.passages = dict(zip(texts, embedded.astype(np.float64), strict=True))
        self.questions = encoder.encode_queries([row["question"] for row in rows], batch_size=16).astype(np.float64)

    def ranks(self, hard: int, other: int) -> np.ndarray:
        """How many passages of the pool stand above each question's own."""
        pool = {
            text for positives, hards, others in self.lists for text in [positives[0], *hards[:hard], *others[:other]]
        }
        ranks = []
        for q, (positives, *_) in zip(self.questions, self.lists, strict=True):
            its_own = q @ self.passages[positives[0]]
            ranks.append(sum(q @ self.passages[text] > its_own for text in pool))
        return np.array(ranks)

    def loss(self) -> float:
        """Each question's first positive, against all first positives and negatives of its group that are no positives."""
        losses = []
        for start in range(0, len(self.lists), GROUP):
            group = self.lists[start : start + GROUP]
            present = [text for positives, hard, other in group for text in [positives[0], *(hard or other)[:1]]]
            for q, (positives, *_) in zip(self.questions[start : start + GROUP], group, strict=True):
                scores = [q @ self.passages[text] / TEMPERATURE for text in present if text not in positives]
                its_own = q @ self.passages[positives[0]] / TEMPERATURE
                losses.append(np.log(np.exp([*scores, its_own]).sum()) - its_own)
        return float(np.mean(losses))


def test_figures_do_not_depend_on_the_devices(figures: Figures) -> None:
    one, many = figures("all", 1), figures("all", 8)
    assert one.keys() == many.keys() == {"loss", "average_rank", "mrr"}
    assert (one["average_rank"], one["mrr"]) == (many["average_rank"], many["mrr"])
    np.testing.assert_allclose(one["loss"], many["loss"], rtol=1e-5)


def test_figures_are_as_defined(figures: Figures, folder: Path) -> None:
    """The pools differ, so that what belongs to each shows in the rank; the loss knows nothing of them."""
    brute = Brute(folder)
    ranks = {pool: brute.ranks(*sizes) for pool, sizes in POOLS.items()}
    assert len({found.mean() for found in ranks.values()}) == len(POOLS) and min(map(np.max, ranks.values())) > 0
    for pool, found in ranks.items():
        assert figures(pool, 8)["average_rank"] == pytest.approx(found.mean(), abs=1e-9)
        assert figures(pool, 8)["mrr"] == pytest.approx((1 / (1 + found)).mean(), abs=1e-9)
        np.testing.assert_allclose(figures(pool, 8)["loss"], brute.loss(), rtol=1e-5)


def test_padding_is_no_part_of_the_pool(figures: Figures, folder: Path) -> None:
    """Rows of zeros would stand above every passage whose score is negative, as most are of questions turned around."""
    brute = Brute(folder)
    brute.questions *= -1
    scores = brute.questions @ np.stack([brute.passages[positives[0]] for positives, *_ in brute.lists]).T
    assert (np.diag(scores) < 0).any()
    assert figures("positives, turned", 8)["average_rank"] == pytest.approx(brute.ranks(0, 0).mean(), abs=1e-9)


def test_dpr_s_pool_is_the_default() -> None:
    assert (Validation().hard_negatives, Validation().other_negatives) == (30, 30)


@pytest.mark.parametrize(
    "settings",
    [
        {"contrastive": {"temperature": 0.7, "symmetric": True, "matryoshka": (8,)}},
        {"distillation": {"loss": "kl", "weight": 2.0, "contrastive_weight": 0.5, "teacher_temperature": 3.0}},
        {
            "distillation": {"loss": "margin_mse"},
            "index_aware": {"kind": "int8", "weight": 0.6, "commitment": 0.5},
            "negatives": {"mask_known_positives": False, "mask_duplicates": False},
        },
    ],
    ids=["symmetric", "distillation", "index-aware"],
)
def test_the_validation_loss_of_a_training_batch_is_its_training_loss(
    settings: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    """Whatever terms the objective has: with one positive and one negative a question, and without dropout."""
    rng, kept = np.random.default_rng(3), []
    for row in json.loads((folder / "data/train.json").read_text()):
        negatives = [*row["hard_negative_ctxs"], *row["negative_ctxs"]][:1]
        if negatives:
            ctxs = {"positive_ctxs": row["positive_ctxs"][:1], "hard_negative_ctxs": negatives, "negative_ctxs": []}
            for ctx in (*ctxs["positive_ctxs"], *negatives):
                ctx["score"] = float(rng.normal())
            kept.append({**row, **ctxs})
    path = tmp_path / "train.json"
    path.write_text(json.dumps(kept))
    data = {"train": str(path), "dev": str(path), "corpus": str(folder / "data/corpus.jsonl"), "dev_questions": None}
    config = contrastive_config(
        folder,
        **{
            **settings,
            "data": data,
            "negatives": {"static": 1, **settings.get("negatives", {})},
            "validation": {"batch_size": len(kept)},
            "train": {"batch_size": len(kept)},
        },
    )
    run = ContrastiveRun(config, make_mesh(jax.devices()[:1]), tmp_path / "run")
    state = run.init()
    found = run.evaluate(state)["loss"]
    run.programs.step = compiled_quickly(run.programs.step)
    _, metrics = run.step(state, 0, run.batch(0))
    np.testing.assert_allclose(found, metrics["loss"], rtol=1e-5)
