"""The parameters of public functions and records, read from their source: nothing is imported, so that help appears at once."""

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jaxretr

REQUIRED = object()
"""The default of a parameter that has none."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function, or field of a record.

    Attributes:
      kind: "bool", "int", "float", "window" (a pair of ints), "path" or "str".
      choices: the values of a Literal, with "none" if None is a value and not the default; () for other types.
      is_sequence: several values are taken.
      default: the value without an argument; `REQUIRED` if it must be given, None if the source does not state it as a
        constant.
      text: the entry in the docstring's Args or Attributes, in one line.
    """

    kind: str
    choices: tuple[str, ...]
    is_sequence: bool
    default: Any
    text: str


@functools.cache
def parameters(function: str) -> dict[str, Parameter]:
    """Read the parameters of a function, or the fields of a dataclass.

    Args:
      function: module and name, such as "jaxretr.mining.mining:mine" or "jaxretr.models.dual_encoder:DualEncoder.save".

    Raises:
      KeyError: there is no such function.
    """
    module, _, name = function.partition(":")
    names = _defined(module)
    *classes, name = name.split(".")
    for each in classes:
        names = _named(names[each].body)
    defined = names[name]
    texts = _texts(ast.get_docstring(defined) or "")
    found = _fields(defined) if isinstance(defined, ast.ClassDef) else _arguments(defined)
    return {name: _parameter(module, annotation, default, texts.get(name, "")) for name, annotation, default in found}


def _fields(record: ast.ClassDef) -> Iterator[tuple[str, ast.expr, ast.expr | None]]:
    for field in record.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            yield field.target.id, field.annotation, field.value


def _arguments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr, ast.expr | None]]:
    every = function.args
    positional: list[ast.expr | None] = [None] * (len(every.args) - len(every.defaults))
    defaults = [*positional, *every.defaults, *every.kw_defaults]
    for argument, default in zip([*every.args, *every.kwonlyargs], defaults, strict=True):
        if argument.annotation is not None:
            yield argument.arg, argument.annotation, default


def _parameter(module: str, annotation: ast.expr, default: ast.expr | None, text: str) -> Parameter:
    types = list(_types(module, annotation))
    kinds = [kind for kind, _ in types]
    value = REQUIRED if default is None else _constant(module, default)
    choices = [value for kind, value in types if kind == "choice"]
    if choices and "none" in kinds and value is not None:
        choices.append("none")
    order = ("bool", "int", "float", "window", "path", "str")
    kind = next((each for each in order if each in kinds), "str")
    return Parameter(kind, tuple(choices), "sequence" in kinds, value, text)


def _types(module: str, node: ast.expr) -> Iterator[tuple[str, Any]]:
    """Yields each type of an annotation that a word on the command line can become, with the value of a choice."""
    match node:
        case ast.Constant(str(text)):  # A forward reference.
            yield from _types(module, ast.parse(text, mode="eval").body)
        case ast.Constant(None):
            yield "none", None
        case ast.BinOp(left=left, right=right):
            yield from (*_types(module, left), *_types(module, right))
        case ast.Name("bool" | "int" | "float" | "str" as name):
            yield name, None
        case (
            ast.Name("Path")
            | ast.Attribute(attr="Path" | "PathLike")
            | ast.Subscript(value=ast.Attribute(attr="PathLike"))
        ):
            yield "path", None
        case ast.Name(name):
            home, value = _resolved(module, name)
            if isinstance(value, ast.expr):
                yield from _types(home, value)
        case ast.Subscript(value=ast.Name("Literal"), slice=inside):
            for each in inside.elts if isinstance(inside, ast.Tuple) else [inside]:
                # Names among them are Literals themselves.
                yield from _types(module, each) if isinstance(each, ast.Name) else [("choice", ast.literal_eval(each))]
        case ast.Subscript(value=ast.Name("tuple"), slice=ast.Tuple([inside, ast.Constant(value=last)])) if last is ...:
            yield from (("sequence", None), *_types(module, inside))
        case ast.Subscript(value=ast.Name("tuple")):
            yield "window", None
        case ast.Subscript(value=ast.Name("Sequence" | "Iterable"), slice=inside):
            inner = list(_types(module, inside))
            yield from (("sequence", None), *inner) if inner else ()


def _constant(module: str, node: ast.expr) -> Any:
    """The value of a default, which may be a constant's name; None if it is computed."""
    if isinstance(node, ast.Name):
        module, node = _resolved(module, node.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


def _resolved(module: str, name: str) -> tuple[str, Any]:
    """The module that defines a name, and the expression that it stands for; None for a class or foreign name."""
    found = _defined(module).get(name)
    if isinstance(found, ast.ImportFrom):
        inside = found.module is not None and found.module.split(".")[0] == jaxretr.__name__
        return _resolved(str(found.module), name) if inside else (module, None)
    return module, found


@functools.cache
def _defined(module: str) -> dict[str, Any]:
    folder = Path(jaxretr.__path__[0], *module.split(".")[1:])
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return _named(ast.parse(path.read_text(encoding="utf-8")).body)


def _named(body: list[ast.stmt]) -> dict[str, Any]:
    """Functions and classes, the values of assignments, and the statements that import a name, by name."""
    found: dict[str, Any] = {}
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = statement
            case ast.Assign(targets=[ast.Name(name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(name), value=value):
                found[name] = value
            case ast.ImportFrom(names=names):
                found |= {alias.name: statement for alias in names}
            case ast.If(body=inner):  # TYPE_CHECKING
                found |= _named(inner)
    return found


def _texts(docstring: str) -> dict[str, str]:
    """The entries of a docstring's Args or Attributes, each in one line."""
    section = re.search(r"^(?:Args|Attributes):\n((?:  .*\n?)*)", docstring, re.MULTILINE)
    entries = re.findall(r"^  (\w[\w, ]*): (.*(?:\n   .*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(inspect.cleandoc(text).split()) for names, text in entries for name in names.split(", ")}
