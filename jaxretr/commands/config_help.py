"""Every setting of a config with its meaning and value, as text: `jaxretr train CONFIG --help`."""

import ast
import dataclasses
import functools
import inspect
import textwrap
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxretr import config as configuration
from jaxretr.config import Config

_WIDTH = 110
_INDENT = " " * 6


def settings_text(config: Config) -> str:
    """Returns one entry for each setting, by sections: its option, type and value in `config`, and what it means."""
    own = [item.name for item in dataclasses.fields(config) if not dataclasses.is_dataclass(getattr(config, item.name))]
    parts = [_section(config, "", own)]
    parts += [
        _section(getattr(config, item.name), f"{item.name}.")
        for item in dataclasses.fields(config)
        if item.name not in own
    ]
    return "\n\n".join(part for part in parts if part)


def _section(section: Any, prefix: str, names: list[str] | None = None) -> str:
    """The entries of one dataclass, and of those in it."""
    types = get_type_hints(type(section))
    lines, inner = [], []
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        if names is not None and item.name not in names:
            continue
        if dataclasses.is_dataclass(value):
            inner.append(_section(value, f"{prefix}{item.name}."))
            continue
        option = f"{prefix}{item.name}".replace("_", "-")
        if types[item.name] is bool:
            *sections, leaf = option.split(".")
            lines.append(f"  --{option}, --{'.'.join([*sections, f'no-{leaf}'])}  ({'on' if value else 'off'})")
        else:
            lines.append(f"  --{option} {_type(types[item.name])}  ({_value(value)})")
        meaning = " ".join(_meaning(type(section), item.name).split())
        lines += textwrap.wrap(meaning, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    summary = (type(section).__doc__ or "").split("\n\n")[0]
    title = f"{prefix.rstrip('.') or 'the run'}: {' '.join(summary.split())}"
    return "\n\n".join(["\n".join([title, *lines]), *inner])


def _meaning(cls: type, name: str) -> str:
    documented = _parsed()
    return next(
        (documented[each.__name__][name] for each in cls.__mro__ if name in documented.get(each.__name__, ())), ""
    )


@functools.cache
def _parsed() -> dict[str, dict[str, str]]:
    """The strings that stand below the fields of config.py's classes."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(configuration)).body:
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
    """What is to be typed behind an option."""
    if get_origin(annotation) is Literal:
        return "{" + ",".join(map(str, get_args(annotation))) + "}"
    if get_origin(annotation) is tuple:
        return f"{_type(get_args(annotation)[0])} ..."
    if get_args(annotation):
        return "|".join(_type(each) for each in get_args(annotation))
    names: dict[Any, str] = {NoneType: "None", int: "INT", float: "FLOAT", str: "TEXT"}
    return names.get(annotation) or str(annotation.__name__)


def _value(value: Any) -> str:
    return "none" if value in (None, ()) else " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
