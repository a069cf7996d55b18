"""The names of settings, and the nearest one to a name that does not exist."""

from collections.abc import Collection
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from jaxretr.config.kinds import KINDS
from jaxretr.runtime.errors import did_you_mean

# Other libraries' names of some settings, by the last part of the name.
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

# Sections in the order in which a key that is typed without one is looked for.
_COMMON = ("train", "optimizer", "data", "encoder", "contrastive", "negatives", "art")


def nearest_setting(name: str, known: Collection[str], options: Collection[str] = ()) -> str:
    """Return "; did you mean '--section.key'?" for a name that is not a setting, or an empty string.

    The same key in another section, or what another library calls a setting, comes before similar spelling.

    Args:
      name: as typed, without "--", with "-" for "_".
      known: the settings, written the same way.
      options: other words that may have been meant, with "--".
    """
    section, _, leaf = name.rpartition(".")
    for wanted in (leaf, ALSO_CALLED.get(leaf)):
        same = [other for other in known if other.rpartition(".")[2] == wanted]
        if same:
            # Among several, the one whose section is nearest to the typed one, or the commonest section if none was
            # typed.
            same.sort(key=lambda other: (other.split(".")[0] != section, _place(other), other))
            return f"; did you mean '--{same[0]}'?"
    return did_you_mean(f"--{name}", [*options, *(f"--{other}" for other in known)])


def _place(name: str) -> int:
    section = name.split(".")[0]
    return _COMMON.index(section) if section in _COMMON else len(_COMMON)


def all_settings() -> set[str]:
    """Return the names of the settings of all kinds of config, with "-" for "_"."""
    types = {name: hint for kind in KINDS.values() for name, hint in setting_types(kind).items()}
    return {name.replace("_", "-") for name, hint in types.items() if not is_dataclass(hint)}


def setting_types(cls: Any, prefix: str = "") -> dict[str, Any]:
    """Return the type of each setting and section of a class of configs, by name ("encoder.adapter.lora_rank").

    A section that can be left out is listed with the settings that it has otherwise.
    """
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(cls).items():
        found[f"{prefix}{name}"] = hint
        if (section := section_of(hint)) is not None:
            found |= setting_types(section, f"{prefix}{name}.")
    return found


def section_of(hint: Any) -> Any:
    """Return the dataclass of a section's type, which may be a union with None; None for a setting, a list of any included."""
    if get_origin(hint) is tuple:
        return None
    return next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), None)
