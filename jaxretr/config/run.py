"""Settings that all runs have in common: the course of a run, the optimizer, the devices, and the trackers."""

from dataclasses import dataclass, field

from jaxretr.config.choices import TrackerName
from jaxretr.runtime.errors import UsageError


@dataclass(frozen=True)
class Optimizer:
    """AdamW with decoupled weight decay, global-norm clipping, linear warm-up and linear decay."""

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
    """The last step's learning rate, as a share of the peak."""


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

    def check(self) -> None:
        """Raise UsageError for numbers that no run can have."""
        for name in ("steps", "batch_size", "log_every", "save_every", "eval_every", "keep"):
            if (value := getattr(self, name)) < 1:
                raise UsageError(f"train.{name}={value}: must be at least 1; set train.{name}")
        if self.stop_factor is not None and not self.stop_factor > 1:
            raise UsageError(f"train.stop_factor={self.stop_factor}: must be above 1; set train.stop_factor")
        if self.seed < 0:
            raise UsageError(f"train.seed={self.seed}: must be at least 0; set train.seed")


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
        """Refuse settings that contradict others of their section; raises UsageError, which names the setting."""
        for section in vars(self).values():
            if hasattr(section, "check"):
                section.check()

    def check(self) -> None:
        """Refuse settings that contradict each other; raises UsageError, which names the setting."""
        self.check_sections()
