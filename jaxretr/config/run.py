"""Settings that all runs have in common: the course of a run, the optimizer, the devices, and the trackers."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from jaxretr.config.choices import TrackerName
from jaxretr.runtime.errors import UsageError, check_seed, did_you_mean, is_number
from jaxretr.runtime.own_parts import is_own

ELEMENTWISE = (
    *("adamw", "adabelief", "adagrad", "adamax", "ademamix", "amsgrad"),
    *("lion", "nadam", "radam", "rmsprop", "sgd", "yogi"),
)
"""Optimizers of optax that update each number of a matrix by itself, so that each device can update a part."""
WHOLE = ("adafactor", "muon")
"""Optimizers of optax that need whole matrices."""
SCHEDULES = ("linear", "cosine")

# Limits of numbers, by the last part of their names, in whatever section they are.
_LIMITS: dict[str, tuple[Callable[[float], bool], str]] = {
    r"(.*_)?learning_rate|weight_decay|final|(.*_)?weight|(hard|other)_negatives|held_out|lora_rank|bottleneck|"
    r"capacity|flops_.*|guide_margin|hardness|pre_drawn": (lambda number: number >= 0, "at least 0"),
    r"clip|eps|(.*_)?temperature": (lambda number: number > 0, "above 0"),
    r"b1|b2|dropout|ema": (lambda number: 0 <= number < 1, "from 0 to below 1"),
    r"warmup|mask_rate|window_held_out|decay|augmentation": (lambda number: 0 <= number <= 1, "from 0 to 1"),
    r"block_rows|encode_rows|chunk|batch_size|(log|save|eval|refresh)_every|steps|keep|max_positives|variants": (
        lambda number: number >= 1,
        "at least 1",
    ),
}


def check_limits(**numbers: float) -> None:
    """Raise UsageError for the first of the settings, by their names, whose number is infinite or that no run can have."""
    for name, number in numbers.items():
        if not is_number(number):
            raise UsageError(f"{name}={number}: must be a finite number; set --{name.replace('_', '-')}")
        for names, (is_possible, limits) in _LIMITS.items():
            if re.fullmatch(names, name.rpartition(".")[2]) and not is_possible(number):
                raise UsageError(f"{name}={number}: must be {limits}; set {name}")


def _numbers(section: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The settings that are numbers, by name."""
    for name, value in ((each.name, getattr(section, each.name)) for each in fields(section)):
        if is_dataclass(value):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for number, each in enumerate(value):
                yield from _numbers(each, f"{prefix}{name}[{number}].")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", value


@dataclass(frozen=True)
class Optimizer:
    """AdamW with decoupled weight decay, global-norm clipping, linear warm-up and linear decay; or others."""

    learning_rate: float = 2e-5
    """The peak learning rate, reached after the warm-up."""
    b1: float = 0.9
    """Decay rate of the gradient's running mean."""
    b2: float = 0.999
    """Decay rate of the squared gradient's running mean."""
    eps: float = 1e-8
    """Constant added to the denominator of the update."""
    weight_decay: float = 0.1
    """Weight decay, decoupled from the gradient; biases and LayerNorms have none."""
    clip: float = 1.0
    """Largest global norm of the gradient."""
    warmup: float = 0.01
    """Share of all steps that the learning rate rises for."""
    final: float = 0.02
    """The last step's learning rate, as a share of the peak, with a schedule that is linear or cosine."""
    name: str = "adamw"
    """adamw; another of optax's: adabelief, adagrad, adamax, ademamix, amsgrad, lion, nadam, radam, rmsprop, sgd, yogi, and
    adafactor and muon, whose moments every device holds whole; or your own, FILE.py:FUNCTION, which is called as optax's
    are. The schedule, decoupled weight decay and clipping are the same for all."""
    arguments: tuple[str, ...] = ()
    """Arguments of that optimizer, as `momentum=0.9 nesterov=true`."""
    schedule: str = "linear"
    """Way in which the learning rate falls after the warm-up: linear or cosine to `final`, or your own, FILE.py:FUNCTION, a
    function of (step from 1, steps) whose values multiply the peak."""
    decay: float | None = None
    """Share of all steps, at the end, in which the learning rate falls; before, it stays at its peak (0: to the end). None:
    it falls from the end of the warm-up."""
    rates: tuple[str, ...] = ()
    """Factors of the learning rate for some parameters, as `word_embedding=0.1 layers=2`: of those whose dotted name the
    regular expression is found in, the last one that fits; 0 leaves them as they are."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, such as 0.999, which is evaluated and becomes the model; 0: the
    weights themselves."""

    def check(self) -> None:
        """Raise UsageError for an optimizer, a schedule or numbers that no run can have."""
        names = (*ELEMENTWISE, *WHOLE)
        if not is_own(self.name) and self.name not in names:
            raise UsageError(
                f"optimizer.name={self.name}: no such optimizer{did_you_mean(self.name, names)}; there are "
                f"{', '.join(names)}, and your own as FILE.py:FUNCTION"
            )
        if not is_own(self.schedule) and self.schedule not in SCHEDULES:
            raise UsageError(
                f"optimizer.schedule={self.schedule}: no such schedule; there are {' and '.join(SCHEDULES)}, and your own "
                "as FILE.py:FUNCTION"
            )
        if self.name != "adamw":
            defaults = {each.name: each.default for each in fields(self)}
            for name in ("b1", "b2", "eps"):
                if (value := getattr(self, name)) != defaults[name]:
                    raise UsageError(
                        f"optimizer.{name}={value}: is AdamW's; give {self.name} its own as optimizer.arguments"
                    )
        if is_own(self.schedule) and self.decay is not None:
            raise UsageError(
                "optimizer.decay is of linear and cosine; leave it out with an optimizer.schedule of your own"
            )
        for word in self.arguments:
            if not re.fullmatch(r"[A-Za-z_]\w*=.+", word):
                raise UsageError(f"optimizer.arguments={word}: give NAME=VALUE")
        for word in self.rates:
            pattern, _, factor = word.rpartition("=")
            try:
                re.compile(pattern)
                good = bool(pattern) and float(factor) >= 0 and math.isfinite(float(factor))
            except (re.error, ValueError):
                good = False
            if not good:
                raise UsageError(
                    f"optimizer.rates={word}: give PATTERN=FACTOR, a regular expression and a number from 0 upwards"
                )


@dataclass(frozen=True)
class Train:
    """The course of a run. The batch is the global one: what the loss sees, over all devices and hosts."""

    steps: int = 1000
    """Updates of the whole run; how far the learning rate has fallen depends on them."""
    batch_size: int = 64
    """Questions (or passages, for text objectives) of one update, over all devices and hosts."""
    seed: int = 0
    """Seed of the order of the data, of every draw and of new weights."""
    log_every: int = 10
    """Steps between two lines of metrics."""
    save_every: int = 500
    """Steps between two checkpoints."""
    eval_every: int = 500
    """Steps between two evaluations; one more before the first step, and one after the last."""
    keep: int = 2
    """Number of latest checkpoints that are kept, in addition to the best one."""
    best_metric: str = "recall@20"
    """The metric of the evaluation that picks the best checkpoint; higher is better, except for loss and
    average_rank."""
    suites: tuple[str, ...] = ()
    """Whole collections that each evaluation encodes and searches, for art and contrastive runs: names of data sets,
    BEIR folders or folders of those, and nano-beir for the 13 of ir_datasets. Metrics are nano-beir:ndcg@10 (the mean)
    and nano-beir/scifact:ndcg@10."""
    stop_factor: float | None = None
    """Stop if the loss exceeds this many times the median of the last 100 steps; a NaN or infinite loss always
    stops."""

    def is_evaluated(self, step: int) -> bool:
        """Whether the weights of so many steps are evaluated."""
        return step % self.eval_every == 0 or step == self.steps

    def check(self) -> None:
        """Raise UsageError for numbers that no run can have."""
        if self.stop_factor is not None and not self.stop_factor > 1:
            raise UsageError(f"train.stop_factor={self.stop_factor}: must be above 1; set train.stop_factor")
        check_seed(self.seed, "train.seed")


@dataclass(frozen=True)
class Mesh:
    """Arrangement of the devices: groups of `model` devices, each with a share of the batch and the corpus's rows."""

    model: int = 1
    """Devices that one copy of each large matrix is split over (for a scorer that does not fit on one)."""
    shard_parameters: bool = False
    """Split the encoder's large matrices, trained or frozen, and the optimizer's moments over the devices that share
    the batch, each of which brings a layer's together when it needs them (FSDP, ZeRO-3): memory, not mathematics. For
    art and contrastive runs; a scorer is not split."""


@dataclass(frozen=True)
class Tracking:
    """Services that a run reports to besides metrics.jsonl and TensorBoard; no part of what the run computes."""

    to: tuple[TrackerName, ...] = ()
    """Trackers that a run reports to: Weights & Biases (`pip install 'jaxretr[wandb]'`), MLflow (`jaxretr[mlflow]`). A
    resumed run continues the same tracked run. A service that fails is a warning."""
    project: str = "jaxretr"
    """The run's project in Weights & Biases, its experiment in MLflow."""
    name: str | None = None
    """Name of the tracked run; None: the config's name and the last part of the run's folder."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings that all runs have in common."""

    name: str
    """Name of the run in messages and the model card."""
    train: Train = field(default_factory=Train)
    optimizer: Optimizer = field(default_factory=Optimizer)
    mesh: Mesh = field(default_factory=Mesh)
    tracking: Tracking = field(default_factory=Tracking)

    def check_sections(self) -> None:
        """Refuse numbers beyond their limits, and settings that contradict others of their section (UsageError)."""
        check_limits(**dict(_numbers(self)))
        for section in vars(self).values():
            if hasattr(section, "check"):
                section.check()

    def check(self) -> None:
        """Refuse settings that contradict each other; raises UsageError, which names the setting."""
        self.check_sections()
        if self.optimizer.ema and getattr(getattr(self, "index_aware", None), "kind", None) == "product":
            raise UsageError(
                "optimizer.ema and index_aware.kind=product: the codes are of the weights that train; leave one of them out"
            )
        if self.mesh.shard_parameters and self.optimizer.name not in ELEMENTWISE:
            raise UsageError(
                f"mesh.shard_parameters: optimizer.name={self.optimizer.name} works on whole matrices; leave one of them out"
            )
