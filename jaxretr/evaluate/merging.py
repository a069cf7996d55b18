"""`jaxretr.merge`: several models of one start as one, by a weighted mean of their parameters or along an arc (SLERP)."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from jaxretr.config import EncodeDtype
from jaxretr.data.readers import read_beir
from jaxretr.data.tokens import tokenizer_fingerprint
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import TestSet, depth
from jaxretr.evaluate.searches import encoder_search
from jaxretr.evaluate.weight_curve import Curve, check_grid, check_metric, trace
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.hub.dual_encoder_folder import check_finished, check_new_model
from jaxretr.runtime.errors import UsageError, UserError, check_list

Path_ = str | Path

GRID = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Weights of the second model that are tried: a sixth, a third, a half, two thirds and five sixths of the whole."""

# Below this sine of their angle two vectors are parallel, and their arc is a straight line.
_PARALLEL = 1e-9


@dataclass(frozen=True)
class Merged:
    """A merged model.

    Attributes:
      encoder: the model.
      weights: the models' weights.
      curve: the metric for each weight of the second model, with a cross-fitted test; None where the weights were given.
    """

    encoder: DualEncoder
    weights: tuple[float, ...]
    curve: Curve | None

    def table(self) -> str:
        """The weights, and the curve of the metric, as a table for people."""
        return self.curve.as_table() if self.curve else "weights: " + ", ".join(f"{each:g}" for each in self.weights)


def merge(
    models: Sequence[Path_],
    *,
    weights: Sequence[float] | None = None,
    how: Literal["linear", "slerp"] = "linear",
    beir: Path_ | None = None,
    split: str = "dev",
    metric: str = "ndcg@10",
    grid: str | Sequence[float] = GRID,
    out: Path_ | None = None,
    dtype: EncodeDtype = "auto",
    batch_size: int | None = None,
) -> Merged:
    """Merge models of the same shape and tokenizer, usually several trainings of one (model soups, arXiv 2203.05482).

    Args:
      models: run directories, folders or hub names of models; LoRA is merged into the kernels before.
      weights: one for each model, of which only the relation counts; by default equal ones.
      how: linear: the weighted mean of the parameters; slerp: each of two models' tensors along the arc between them,
        which keeps their length.
      beir: a BEIR folder with dev questions that choose the weight of the second of two models; the first has weight 1.
        Each weight encodes the corpus once.
      split: split of the BEIR folder's qrels.
      metric: metric to maximise.
      grid: weights to try, separated by commas; log: search for the maximum; paper: .1, .2, ... 1 and their reciprocals.
      out: a new or empty folder, or an older model, to save the model to.
      dtype: precision of the matmuls that encode; auto: bfloat16 where this machine runs it faster.
      batch_size: texts per batch; by default chosen for the device.

    Raises:
      UserError: a model cannot be read, or the models differ in shape, tokenizer, pooling or prompts.
      UsageError: a number of models or weights that does not fit, both `weights` and `beir`, or what chooses a weight
        without `beir`.
    """
    check_list("models", models)
    if how not in ("linear", "slerp"):
        raise UsageError(f"how={how}: no such way to merge; there are linear and slerp")
    check_grid(grid)
    check_metric(metric)
    if len(models) < 2:
        raise UsageError(f"{len(models)} models cannot be merged; give at least two")
    if len(models) > 2 and (how == "slerp" or beir is not None):
        raise UsageError(
            f"{'slerp' if how == 'slerp' else 'beir='} is for two models, not {len(models)}; merge step by step"
        )
    if weights is not None:
        if beir is not None:
            raise UsageError("beir= chooses the weights; leave weights= or beir= out")
        if len(weights) != len(models) or not all(0 <= each < float("inf") for each in weights) or not sum(weights) > 0:
            raise UsageError(
                f"weights={','.join(f'{each:g}' for each in weights)}: give one of at least 0 for each of the "
                f"{len(models)} models, not all 0"
            )
    given = {"split": (split, "dev"), "metric": (metric, "ndcg@10"), "grid": (grid, GRID)}
    idle = next((name for name, (value, default) in given.items() if list(value) != list(default)), None)
    if beir is None and idle:
        raise UsageError(f"{idle}=: is of dev questions; give beir= as well, or leave it out")
    if out is not None:
        check_new_model(out, *models)
    data = None
    if beir is not None:
        data = read_beir(beir, split)
        metrics.evaluate(data.qrels, {}, [metric])  # Refuse an unknown metric now, not after an hour.
    for each in models:
        check_finished(each)
    loaded = [_without_lora(DualEncoder.from_pretrained(each, dtype=dtype)) for each in models]
    config = _common([str(each) for each in models], loaded)

    def merged(shares: Sequence[float]) -> DualEncoder:
        def one(path: tuple[Any, ...], *leaves: Any) -> np.ndarray:
            # A stack of layers has a tensor for each.
            if how == "slerp" and {"layers", "adapter"} & {key.key for key in path}:
                return np.stack([_merged(layer, shares, how) for layer in zip(*leaves, strict=True)])
            return _merged(leaves, shares, how)

        params = jax.tree_util.tree_map_with_path(one, *(each.params for each in loaded))
        # Without a head of masked language modelling, which belongs to one of them.
        return DualEncoder(config, params, loaded[0].tokenizer, dtype=loaded[0].dtype)

    curve = None
    if data is not None:
        corpus, on = data.corpus, TestSet(data.questions, data.corpus, data.qrels)

        def evaluate(tried: Sequence[float]) -> dict[float, dict[str, float]]:
            found = {}
            for weight in tried:
                search = encoder_search(merged(_with_second(weight)), corpus, batch_size)
                found[weight] = on(on.search(search, depth((metric,))), (metric,))[metric]
            return found

        names = str(models[0]), str(models[1])
        curve = trace(evaluate, grid, lambda: 1.0, metric=metric, systems=names)
        weights = (1.0, curve.choice.weight)
    weights = tuple(map(float, weights or [1.0] * len(models)))
    model = merged(weights)
    if out is not None:
        model.save(out)
        if curve is not None:
            curve.write(Path(out).expanduser() / "curve.json")
            curve.draw(Path(out).expanduser() / "curve.png")
    return Merged(model, weights, curve)


def _without_lora(model: DualEncoder) -> DualEncoder:
    """Return a model with LoRA's products in its kernels; parallel adapters alone stay."""
    shape = model.config.adapter
    return model if shape is None or not shape.lora_rank else model.as_plain()


def _with_second(weight: float) -> tuple[float, float]:
    return (0.0, 1.0) if weight == float("inf") else (1.0, weight)


def _merged(leaves: Sequence[Any], weights: Sequence[float], how: str) -> np.ndarray:
    """Return one tensor of the merged model, in the first one's dtype."""
    arrays = [np.asarray(leaf, np.float64) for leaf in leaves]
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    if how == "slerp":
        shares = _arc(arrays[0], arrays[1], float(shares[1]))
    return np.tensordot(shares, np.stack(arrays), axes=1).astype(np.asarray(leaves[0]).dtype)


def _arc(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    """Return the factors of two tensors at a share of the arc between them: sin((1 - t) w) / sin w and sin(t w) / sin w."""
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    cosine = float(np.clip((first * second).sum() / lengths, -1.0, 1.0)) if lengths else 1.0
    angle = np.arccos(cosine)
    if np.sin(angle) < _PARALLEL:
        return np.array([1 - share, share])
    return np.sin(np.array([1 - share, share]) * angle) / np.sin(angle)


def _common(names: Sequence[str], models: Sequence[DualEncoder]) -> DualEncoderConfig:
    """Return the configuration of the merged model: the first one's, with the longest texts that any of them reads.

    Raises:
      UserError: the models differ otherwise.
    """
    first = models[0]
    lengths = ("max_question_length", "max_passage_length")
    longest = {name: max(getattr(each.config, name) for each in models) for name in lengths}

    def comparable(config: DualEncoderConfig) -> dict[str, Any]:
        backbone = dataclasses.replace(config.backbone, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        return {**vars(dataclasses.replace(config, **longest)), "backbone": backbone}

    wanted = comparable(first.config)
    for name, model in zip(names[1:], models[1:], strict=True):
        found = comparable(model.config)
        different = [field for field in wanted if found[field] != wanted[field]]
        if tokenizer_fingerprint(model.tokenizer) != tokenizer_fingerprint(first.tokenizer):
            different.append("tokenizer")
        if different:
            raise UserError(
                f"{name}: differs from {names[0]} in {', '.join(different)}; merge trainings of one model, with the same "
                "pooling and prompts"
            )
    return dataclasses.replace(first.config, **longest)
