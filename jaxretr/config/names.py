"""The names of settings, and the nearest one to a name that does not exist."""

from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from jaxretr.config.kinds import KINDS
from jaxretr.errors import did_you_mean

# What other libraries call some settings, by the last part of the name.
ALSO_CALLED = {
    "lr": "learning-rate",
    "wd": "weight-decay",
    "bs": "batch-size",
    "batch": "batch-size",
    "per-device-train-batch-size": "batch-size",
    "max-steps": "steps",
    "num-steps": "steps",
    "epochs": "steps",
    "num-train-epochs": "steps",
    "warmup-ratio": "warmup",
    "warmup-steps": "warmup",
    "max-grad-norm": "clip",
    "grad-clip": "clip",
    "eval-steps": "eval-every",
    "save-steps": "save-every",
    "logging-steps": "log-every",
    "max-seq-length": "max-passage-length",
    "max-query-length": "max-question-length",
    "model-name": "path",
    "temp": "temperature",
    "tau": "temperature",
    "num-negatives": "static",
    "normalize": "normalise",
    "qrels": "dev-qrels",
}

# Sections in the order in which a key without one is looked for.
_COMMON = ("train", "optimizer", "data", "encoder", "contrastive", "negatives", "art")


def nearest_setting(name: str, known: Collection[str], options: Collection[str] = ()) -> str:
    """Returns "; did you mean '--section.key'?" for a name that is not a setting, or an empty string.

    The same key in another section, or what another library calls a setting, comes before similar spelling.

    Args:
      name: as typed, without "--", with "-" for "_".
      known: the settings, written likewise.
      options: other words that may have been meant, with "--".
    """
    section, _, leaf = name.rpartition(".")
    for wanted in (leaf, ALSO_CALLED.get(leaf)):
        same = [other for other in known if other.rpartition(".")[2] == wanted]
        if same:
            # Among several, the one whose section is nearest to the typed one; without a section, the commonest section.
            same.sort(key=lambda other: (other.split(".")[0] != section, _place(other), other))
            return f"; did you mean '--{same[0]}'?"
    return did_you_mean(f"--{name}", [*options, *(f"--{other}" for other in known)])


def _place(name: str) -> int:
    section = name.split(".")[0]
    return _COMMON.index(section) if section in _COMMON else len(_COMMON)


def all_settings() -> set[str]:
    """Returns the names of the settings of all kinds of config, with "-" for "_"."""
    names: set[str] = set()
    for kind in KINDS.values():
        names |= set(_names_of(kind, ""))
    return names


def _names_of(cls: Any, prefix: str) -> Iterator[str]:
    types = get_type_hints(cls)
    for item in fields(cls):
        inner = types[item.name]
        if is_dataclass(inner):
            yield from _names_of(inner, f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}".replace("_", "-")


def flat_names(value: Any, prefix: str = "") -> list[str]:
    """Returns the names of a config's settings, with "_"; what `prefix` says stands before each."""
    names = []
    for item in fields(value):
        inner = getattr(value, item.name)
        if is_dataclass(inner):
            names += flat_names(inner, f"{prefix}{item.name}.")
        else:
            names.append(f"{prefix}{item.name}")
    return names
