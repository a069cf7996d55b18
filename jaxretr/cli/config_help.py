"""Every setting of a config with its meaning and value, as text: `jaxretr train CONFIG --help`."""

import ast
import dataclasses
import functools
import inspect
import sys
import textwrap
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxretr.config import Config
from jaxretr.config.names import section_of

_WIDTH = 110
_INDENT = " " * 6


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting as help and the reference show it.

    Attributes:
      option: the option's name, such as "train.batch-size".
      type: the kind of value to type behind it; "" for switches.
      value: the value, as text; "required" without a default.
      meaning: the meaning, in one line.
    """

    option: str
    type: str
    value: str
    meaning: str


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of settings: its name ("the run" for settings without one), its subject, and its settings."""

    title: str
    summary: str
    settings: tuple[Setting, ...]


def settings_text(config: Config) -> str:
    """Return one entry for each setting, by sections: its option, type and value in `config`, and its meaning."""
    parts = []
    for section in sections(config):
        lines = [f"{section.title}: {section.summary}"]
        for one in section.settings:
            if one.type:
                lines.append(f"  --{one.option} {one.type}  ({one.value})")
            else:
                *names, leaf = one.option.split(".")
                lines.append(f"  --{one.option}, --{'.'.join([*names, f'no-{leaf}'])}  ({one.value})")
            lines += textwrap.wrap(one.meaning, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def sections(config: Any, prefix: str = "") -> list[Section]:
    """The sections of a config, or, with the defaults, of a class of configs; those without settings are left out."""
    cls = config if isinstance(config, type) else type(config)
    types = get_type_hints(cls)
    found, inner = [], []
    for item in dataclasses.fields(cls):
        value = getattr(config, item.name) if cls is not config else _default(item, types[item.name])
        option = f"{prefix}{item.name}".replace("_", "-")
        section = section_of(types[item.name])
        if section is not None:
            inner += sections(section if value is None else value, f"{prefix}{item.name}.")
        if section is types[item.name]:
            continue
        switch = types[item.name] is bool
        meaning = " ".join(_meaning(cls, item.name).split())
        shown = ("on" if value else "off") if switch else "as below" if section and value is not None else _value(value)
        found.append(Setting(option, "" if switch else _type(types[item.name]), shown, meaning))
    summary = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    own = [Section(prefix.rstrip(".") or "the run", summary, tuple(found))] if found else []
    return own + inner


def _default(item: dataclasses.Field[Any], annotation: Any) -> Any:
    if item.default is not dataclasses.MISSING:
        return item.default
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return annotation if dataclasses.is_dataclass(annotation) else "required"


def _meaning(cls: type, name: str) -> str:
    documented = (_documented(each.__module__).get(each.__name__, {}) for each in cls.__mro__ if each is not object)
    return next((fields[name] for fields in documented if name in fields), "")


@functools.cache
def _documented(module: str) -> dict[str, dict[str, str]]:
    """Collect the docstrings below the fields of a module's classes."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = found.setdefault(node.name, {})
        for field, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = ""
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    text = str(after.value.value)
                fields[field.target.id] = text
    return found


def _type(annotation: Any) -> str:
    """The kind of value to type behind an option."""
    if get_origin(annotation) is Literal:
        return "{" + ",".join(map(str, get_args(annotation))) + "}"
    if get_origin(annotation) is tuple:
        return f"{_type(get_args(annotation)[0])} ..."
    if get_args(annotation):
        return "|".join(_type(each) for each in get_args(annotation))
    names: dict[Any, str] = {NoneType: "None", int: "INT", float: "FLOAT", str: "TEXT"}
    return names.get(annotation, "JSON")


def _value(value: Any) -> str:
    return "none" if value in (None, ()) else " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
