"""Names that settings, options and functions choose among."""

from typing import Literal

Dtype = Literal["float32", "bfloat16"]
AutoDtype = Literal["auto", Dtype]
# int8: encoders alone, on CPUs.
EncodeDtype = Literal[AutoDtype, "int8"]
# Search engines whose codes propose the candidates of a certified index.
EngineName = Literal["scann", "faiss"]
ENGINE_LABELS: dict[EngineName, str] = {"scann": "ScaNN", "faiss": "FAISS"}
ScorerKind = Literal["auto", "t5", "cross_encoder", "causal_lm"]
Replacement = Literal["unused", "oldest", "worst"]
TrackerName = Literal["wandb", "mlflow"]
# Functions of jaxretr/data/typos/profiles.py, in an order that is part of each typo's key.
TypoProfile = Literal["dictionary", "single_word", "spacing"]
# Layouts of jaxretr/data/typos/keyboards.py.
Keyboard = Literal["qwerty", "qwertz", "azerty"]
# Ways to pool token vectors, by sentence-transformers' names.
Pooling = Literal[
    "cls",
    "mean",
    "max",
    "lasttoken",
    "weightedmean",
    "mean_sqrt_len_tokens",
    "splade",
    "splade_sum",
    "splade_log1p",
    "splade_sum_log1p",
    "unicoil",
]
# Poolings of masked language modelling's scores: sentence-transformers' pooling_strategy and activation_function of each.
SPLADE: dict[Pooling, tuple[Literal["max", "sum"], Literal["relu", "log1p_relu"]]] = {
    "splade": ("max", "relu"),
    "splade_sum": ("sum", "relu"),
    "splade_log1p": ("max", "log1p_relu"),
    "splade_sum_log1p": ("sum", "log1p_relu"),
}
# Whether the query weights of an inference-free sparse encoder are trained.
QueryWeights = Literal["learnt", "frozen"]

# Metrics of evaluations for which lower is better; for all others higher is.
LOWER_IS_BETTER = ("loss", "average_rank")
