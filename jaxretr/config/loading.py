"""Experiment files, and the settings that replace theirs: from the command line, or by name."""

import contextlib
import inspect
import json
import os
import runpy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from jaxretr.config.contrastive import OF_ALL_SETS
from jaxretr.config.kinds import from_json, to_json
from jaxretr.config.names import nearest_setting, section_of, setting_types
from jaxretr.config.run import Config
from jaxretr.runtime.errors import UsageError, did_you_mean
from jaxretr.runtime.json_dataclass import described
from jaxretr.runtime.own_parts import of_user


def load(path: str | Path, overrides: Sequence[str] = (), data_folder: str | Path | None = None) -> Config:
    """Run an experiment file's `config()` and apply command-line overrides.

    Not in several threads at once: the file is run as a program.

    Args:
      path: a Python file that defines `config() -> Config`, or `config(data_folder: str = "data") -> Config`.
      overrides: words like "--optimizer.learning-rate" "3e-5".
      data_folder: where the data sets are that the config names; None: where it says itself.

    Raises:
      UsageError: the file is missing or broken, an override's name or value is wrong, or the config names no data sets
        in a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give the config file itself")
    if not path.is_file():
        near = [str(other) for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UsageError(f"{path}: no such config file{did_you_mean(str(path), near) or '; check the path'}")
    with of_user(path, "fix the config file"):
        names = runpy.run_path(str(path))
        if not callable(names.get("config")):
            raise UsageError(f"{path}: defines no function config(); add `def config() -> Config`")
        if data_folder is None:
            config = names["config"]()
        elif "data_folder" in inspect.signature(names["config"]).parameters:
            config = names["config"](data_folder=os.fspath(data_folder))
        else:
            raise UsageError(f"{path}: config() takes no data_folder; leave it out, or give your own data as data=PATH")
    if not isinstance(config, Config):
        raise UsageError(f"{path}: config() returned a {type(config).__name__}; return a jaxretr.config.Config")
    return override(config, overrides)


def override(config: Config, words: Sequence[str]) -> Config:
    """Apply overrides like "--train.steps" "10"; raises UsageError for a wrong name or value."""
    return with_settings(config, settings_of(config, words)) if words else config


def settings_of(config: Config, words: Sequence[str]) -> dict[str, Any]:
    """Read overrides.

    Args:
      config: a config of the kind that the settings are for.
      words: "--section.key" and the words after it: one value, several of a list, none of a switch; or in one word
        "--section.key=VALUE". "--section.no-key" turns a switch off. A list and a section can be JSON; None (or null,
        except for texts) is no value.

    Returns:
      The settings as `with_settings` takes them.

    Raises:
      UsageError: there is no such setting (with a suggestion), its value is of another type, or it is given twice.
    """
    given: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            given.append((option, [value] if equals else []))
        elif given:
            given[-1][1].append(word)
        else:
            raise UsageError(f"{word}: not expected here; a setting is --section.key VALUE")
    types, settings = setting_types(type(config)), dict[str, Any]()
    for option, values in given:
        name = option.removeprefix("--").replace("-", "_")
        section, _, key = name.rpartition(".")
        switch = ".".join(filter(None, (section, key.removeprefix("no_"))))
        put_out = name not in types and types.get(switch) is bool
        name = switch if put_out else name
        if name not in types:
            known = {each.replace("_", "-") for each, hint in types.items() if not is_dataclass(hint)}
            raise UsageError(f"{option}: no such setting{nearest_setting(name.replace('_', '-'), known)}")
        if name in settings:
            raise UsageError(f"{option}: given twice; give it once")
        settings[name] = _value_of(types[name], values, option, put_out)
    return settings


def _value_of(hint: Any, texts: list[str], option: str, put_out: bool) -> Any:
    """Return the value that was typed after an option, as JSON would have it."""
    if put_out or (hint is bool and not texts):
        if texts:
            raise UsageError(f"{option}: takes no value, but has '{texts[0]}'; leave it out")
        return not put_out
    if get_origin(hint) is tuple:
        if len(texts) == 1 and isinstance(values := _json(texts[0]), list):
            return values
        return [_value_of(get_args(hint)[0], [text], option, False) for text in texts]
    if not texts:
        raise UsageError(f"{option}: needs a value, {described(hint)}")
    if len(texts) > 1:
        raise UsageError(f"{option} {texts[0]}: '{texts[1]}' is not expected here; give one value")
    parts = get_args(hint) if NoneType in get_args(hint) else (hint,)
    if NoneType in parts and texts[0] in (("None",) if str in parts else ("None", "null")):
        return None
    for part in parts:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return _scalar(part, texts[0])
    once = ", with each key once" if section_of(hint) else ""
    raise UsageError(f"{option}: '{texts[0]}' must be {described(hint)}{once}")


def _scalar(hint: Any, text: str) -> Any:
    """Read a text as a value of a type; raises KeyError, TypeError or ValueError if that is impossible."""
    if hint is bool:
        return {"true": True, "false": False}[text.lower()]
    if get_origin(hint) is Literal:
        return {str(choice): choice for choice in get_args(hint)}[text]
    if is_dataclass(hint):
        if not isinstance(values := _json(text), dict):
            raise ValueError(text)
        return values
    return hint(text)


def _json(text: str) -> Any:
    """Return the JSON value of a text, or None if it is not JSON; raises ValueError if an object names a key twice."""
    try:
        pairs: list[list[tuple[str, Any]]] = []
        value = json.loads(text, object_pairs_hook=lambda each: pairs.append(each) or dict(each))
    except ValueError:
        return None
    if any(len(dict(each)) < len(each) for each in pairs):
        raise ValueError(text)
    return value


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return the config with other values.

    Args:
      settings: "section.key" -> value. A section's value is an object of its class, which replaces it, or a dict of
        some of its settings, which leaves its others as they are; None, where it can be left out. With a `data.mixture`
        nothing is left of the data that the config names.

    Raises:
      UsageError: a name or value is wrong, or a setting is given twice.
    """
    values, types = to_json(config), setting_types(type(config))
    stated = list(_flat(types, settings))
    if any(name == "data.mixture" and value for name, value, _ in stated):
        # The sets take the place of the data that the config names.
        values["data"] = {name: values["data"][name] for name in OF_ALL_SETS}
    given: dict[str, str] = {}
    for name, value, source in stated:
        for other in given:
            if f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}."):
                raise UsageError(f"settings: {name} is given twice, as {given[other]} and as {source}; give it once")
        given[name] = source
        *sections, key = name.split(".")
        place = values
        for section in sections:
            if not isinstance(place.get(section), dict):  # `from_json` reports it if it can have no settings.
                place[section] = {}
            place = place[section]
        place[key] = value if value != {} else place.get(key) or {}
    return from_json(values, "settings")


def _flat(types: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield each setting's name, its value as JSON has it, and the name in `settings` that it comes from."""
    for name, value in settings.items():
        section = section_of(types.get(name))
        if section is not None and isinstance(value, Mapping) and value:
            inner = {f"{name}.{key}": each for key, each in value.items()}
            yield from ((each, plain, name) for each, plain, _ in _flat(types, inner))
        elif is_dataclass(value) and not (isinstance(section, type) and isinstance(value, section)):
            wanted = f"; give {section.__name__}(...) or a dict" if section else ""
            raise UsageError(f"settings: {name} is a {type(value).__name__}{wanted}")
        else:
            yield name, _plain(value), name


def _plain(value: Any) -> Any:
    """Convert a value to plain JSON values."""
    if is_dataclass(value):
        return {name: _plain(each) for name, each in vars(value).items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):  # a number of NumPy's or JAX's
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value
