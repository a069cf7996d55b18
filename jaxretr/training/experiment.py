"""An experiment as a user names it: a config file or the name of a shipped config, their own data, other settings."""

import ast
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxretr import config as configuration
from jaxretr.config import Config, MixtureSet
from jaxretr.runtime.errors import UsageError, did_you_mean

_PACKAGE = Path(__file__).parents[1]


def shipped_folder() -> Path:
    """Return the folder of the configs that come with the library: in the package, or next to it in a checkout."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def configs() -> dict[str, str]:
    """List the configs that come with the library: name -> the first sentence of its docstring."""
    found = {}
    for path in sorted(shipped_folder().glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem] = re.split(r"(?<!al)\. ", " ".join(text.split("\n\n")[0].split()))[0].rstrip(".")
    return found


Data = str | Path | Sequence[str | Path | MixtureSet]
"""A path of a user's data, or the sets of a mixture: their paths, or what else there is to say of them."""


def find(config: str | Path) -> Path:
    """Return the path of a config: a file, or the name of a shipped one (with or without configs/ and .py).

    Raises:
      UsageError: there is neither.
    """
    if not isinstance(config, str | os.PathLike):
        raise UsageError(f"config: a path or name is expected, not a {type(config).__name__}; see: jaxretr configs")
    path = Path(config).expanduser()
    if path.exists():
        return path
    names = {each.stem: each for each in shipped_folder().glob("*.py")}
    if path.stem in names and str(path.parent) in (".", "configs"):
        return names[path.stem]
    near = [str(each) for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    hint = did_you_mean(str(path), near) or did_you_mean(path.stem, names) or "; see: jaxretr configs"
    raise UsageError(f"{config}: no such config file, nor a config of that name{hint}")


def load(
    config: str | Path,
    overrides: Sequence[str] = (),
    data: Data | None = None,
    data_folder: str | Path | None = None,
) -> Config:
    """Load a config, point it at the user's data and apply command-line overrides, which win over both.

    Args:
      config: a file or name, as for `find`.
      overrides: words like "--optimizer.learning-rate" "3e-5".
      data: a BEIR folder, training file, lexical set or corpus, or several; see `jaxretr.data.own_data`.
      data_folder: where the data sets are that the config names, see `jaxretr.config.load`.

    Raises:
      UserError: the config, the data or an override is wrong.
    """
    loaded = configuration.load(find(config), data_folder=data_folder)
    return _settled(loaded, data, configuration.settings_of(loaded, overrides))


def _settled(config: Config, data: Data | None, settings: Mapping[str, Any]) -> Config:
    """Return the config with the user's data, and then with their settings."""
    stated: Any = configuration.with_settings(config, settings)
    configuration.check_numbers(stated)
    if data is None:
        return stated
    sets: list[Any] = list(data) if isinstance(data, list | tuple) else [data]
    if not sets or not all(isinstance(each, str | os.PathLike | MixtureSet) for each in sets):
        raise UsageError(
            f"data: a path is expected, or a list of them, not {data!r:.80}; settings of the section are data.train and so on"
        )
    from jaxretr.data.own_data import with_data, with_sets  # It imports numpy, which help does not wait for.

    names = {name.removeprefix("data.") for name in settings if name.startswith("data.")}
    if "mixture" in names:
        raise UsageError("data.mixture: the sets are given as data as well; leave one of them out")
    values = {name: getattr(stated.data, name) for name in names}
    if len(sets) == 1 and not isinstance(path := sets[0], MixtureSet):
        found = with_data(config, path, values)
    else:
        found = with_sets(stated, sets, values)
    return configuration.with_settings(found, settings)


def load_config(
    config: str | Path,
    *,
    data: Data | None = None,
    beir: str | Path | None = None,
    data_folder: str | Path | None = None,
    **settings: Any,
) -> Config:
    """Load a config for Python: `load_config("dpr_small", data="scifact", **{"train.steps": 100})`.

    Args:
      config: a config file, or the name of a shipped config.
      data: the user's own data, as for `jaxretr train --data`; a list of paths and of `jaxretr.config.MixtureSet` is a mixture.
      beir: the same, by the name that evaluation uses for a BEIR folder.
      data_folder: where the data sets are that a shipped config names (psgs_w100.tsv.gz, msmarco, ...); None: data.
      settings: "section.key" -> value, or "section" -> a dict of some of its settings or an object of its class; they
        win over the config and over what the data sets. {"encoder.adapter": {"lora_rank": 4}}, for instance, is
        {"encoder.adapter.lora_rank": 4}.

    Raises:
      UserError: the config or the data is wrong.
      UsageError: both `data` and `beir`, a setting with a wrong name or value (with a suggestion), or one given twice.
    """
    if data is not None and beir is not None:
        raise UsageError("data and beir are the same; give one of them")
    data = beir if data is None else data
    return _settled(configuration.load(find(config), data_folder=data_folder), data, settings)
