"""Writes the pages that are made from the code: every setting, every command, every public name."""

import argparse
import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import jaxretr
from jaxretr import cli, config


def write(folder: Path) -> None:
    """Writes configuration.md, cli.md and api.md."""
    folder.mkdir(exist_ok=True)
    for name, lines in (("configuration", configuration()), ("cli", commands()), ("api", public_names())):
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---- configuration ---------------------------------------------------------------------------------------------------


def configuration() -> Iterator[str]:
    """Yields the page of all settings: the kinds of config, then each section once."""
    sections: list[type] = []
    for kind, cls in config.KINDS.items():
        yield from (f"## {cls.__name__}", "", f"{_text(cls.__doc__)} (kind `{kind}`)", "")
        yield from _table(cls, sections)
    done: list[type] = []
    while remaining := [cls for cls in sections if cls not in done]:
        for cls in remaining:
            yield from (f"## {cls.__name__}", "", _text(cls.__doc__), "")
            yield from _table(cls, sections)
            done.append(cls)


def _table(cls: Any, sections: list[type]) -> Iterator[str]:
    meanings, types = _meanings(cls), get_type_hints(cls)
    yield from ("| setting | type | default | meaning |", "|---|---|---|---|")
    for field in dataclasses.fields(cls):
        inner = next((each for each in _classes(types[field.name]) if dataclasses.is_dataclass(each)), None)
        if inner is not None and inner not in sections:
            sections.append(inner)
        kind = f"[{inner.__name__}](#{inner.__name__.lower()})" if inner else f"`{_type(types[field.name])}`"
        meaning = meanings.get(field.name, "" if inner is None else _first_sentence(inner.__doc__))
        yield f"| `{field.name}` | {_cell(kind)} | {_cell(_default(field))} | {_cell(meaning)} |"
    yield ""


def _meanings(cls: type) -> dict[str, str]:
    """The docstrings of a dataclass's fields and of those that it inherits, which Python does not keep."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        if not dataclasses.is_dataclass(each):
            continue
        body = ast.parse(inspect.getsource(each)).body[0].body  # pyright: ignore[reportAttributeAccessIssue]
        for line, following in itertools.pairwise(body):
            if isinstance(line, ast.AnnAssign) and isinstance(following, ast.Expr):
                found[line.target.id] = _text(ast.literal_eval(following.value))  # pyright: ignore[reportAttributeAccessIssue]
    return found


def _classes(kind: Any) -> Iterator[type]:
    yield from (each for each in (kind, *getattr(kind, "__args__", ())) if isinstance(each, type))


def _type(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return re.sub(r"\btyping\.", "", text)


def _default(field: Any) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    return "" if field.default_factory is not dataclasses.MISSING else "required"


def _text(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


def _first_sentence(docstring: str | None) -> str:
    return re.split(r"(?<!al)\. ", _text(docstring))[0].rstrip(".")


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("[CLS]", r"\[CLS\]").replace("<", r"\<")


# ---- commands --------------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """Yields the page of all commands: the help of each."""
    first, parsers = cli.build_parser()
    for name, parser in {"": first, **parsers}.items():
        yield from (f"{'###' if ' ' in name else '##'} jaxretr {name}".rstrip(), "")
        # As in a terminal of 100 columns, wherever this is built.
        parser.formatter_class = _Formatter
        yield from ("```text", parser.format_help().rstrip(), "```", "")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, **settings: Any):
        super().__init__(prog, **{**settings, "width": 100})


# ---- public names ----------------------------------------------------------------------------------------------------


def public_names() -> Iterator[str]:
    """Yields autodoc's directive for each public name, and for what the functions return."""
    homes = sorted(jaxretr._HOMES.items())
    functions = {name: _member(home, name) for name, home in homes if name.islower()}
    yield from ("## Functions", "")
    for name in functions:
        yield from _directive("autofunction", f"jaxretr.{name}", jaxretr._HOMES[name], name)
    yield from ("## Classes", "")
    for name, home in homes:
        if name not in functions:
            yield from _directive("autoclass", f"jaxretr.{name}", home, name)
    yield from ("## What the functions return", "")
    for result in dict.fromkeys(_returned(function) for function in functions.values()):
        if result is not None and result.__name__ not in jaxretr.__all__:
            yield from _directive("autoclass", result.__name__, result.__module__, result.__name__)


def _directive(kind: str, title: str, home: str, name: str) -> Iterator[str]:
    members = ["   :members:"] if kind == "autoclass" else []
    yield from (f"### {title}", "", "```{eval-rst}", f".. {kind}:: {home}.{name}", *members, "```", "")


def _member(home: str, name: str) -> Any:
    return getattr(importlib.import_module(home), name)


def _returned(function: Any) -> type | None:
    """The class of the library's own that a function is annotated to return."""
    found = inspect.signature(function).return_annotation
    if isinstance(found, str):  # A forward reference; only those of its own module are resolved.
        found = getattr(sys.modules[function.__module__], found, None)
    ours = isinstance(found, type) and found.__module__.startswith("jaxretr.")
    return found if ours and not found.__module__.startswith(f"{config.__name__}.") else None
