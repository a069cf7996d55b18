"""`ir_datasets:ID`: the collections that the package ir_datasets downloads, checks and reads."""

import inspect
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jaxretr.data.collection import CORPUS, QRELS, QUERIES, Collection, Row, Table, shortened
from jaxretr.runtime.errors import UserError, did_you_mean, import_extra

PREFIX = "ir_datasets:"
DOCPAIRS = "docpairs"

_SPLITS = ("train", "dev", "validation", "val", "test", "eval")
# The split of judgements for an id that names none: the one that a collection is measured on.
_UNNAMED_SPLIT = "test"


class Download(NamedTuple):
    """A file that ir_datasets fetches, or reads where it is."""

    url: str
    """The address that it is fetched from; empty: it is local."""
    path: str
    """The local path at which ir_datasets looks for it."""
    md5: str
    """The expected md5, hexadecimal; empty: not known."""


def open_collection(id: str, split: str | None = None) -> Collection:
    """Return the collection of an id of ir_datasets.

    Its judgements are those of the id and of the ids below it: beir/scifact has the splits train and test. An id with
    pairs of documents to train on stands for these.

    Args:
      id: for instance "beir/scifact/test".
      split: must be None, since ids contain their splits.

    Raises:
      UserError: the package is not installed, there is no such id, or a split is named.
    """
    name = f"{PREFIX}{id}"
    if split is not None:
        raise UserError(f"{name}[{split}]: ids of ir_datasets contain their split; write {name}/{split}")
    data_set = _load(id)
    parts: dict[str, Table] = {}
    if data_set.has_docs():
        handler = data_set.docs_handler()
        parts[CORPUS] = _table(id, handler, _documents(handler), _passage)
    if data_set.has_queries():
        parts[QUERIES] = _table(id, data_set.queries_handler(), data_set.queries_iter, _question)
    for label, judged in _judged(id, data_set).items():
        parts[f"{QRELS}/{label}"] = _table(judged, _load(judged).qrels_handler(), _load(judged).qrels_iter, _judgement)
    if data_set.has_docpairs():
        parts[DOCPAIRS] = _table(id, data_set.docpairs_handler(), data_set.docpairs_iter, _pair)
    if not parts:
        below = members(id)
        raise UserError(
            f"{name}: has no data of its own; name one below it, such as {PREFIX}{below[0] if below else '...'}"
        )
    main = DOCPAIRS if DOCPAIRS in parts else next(iter(parts)) if len(parts) == 1 else None
    return Collection(name, parts, main)


def members(id: str) -> list[str]:
    """Return the ids below an id that have documents, queries and judgements, sorted."""
    registry = import_extra("ir_datasets", "data").registry
    below = [each for each in registry if each.startswith(f"{id}/")]
    return sorted(each for each in below if all(_load(each).has(what) for what in ("docs", "queries", "qrels")))


def _load(id: str) -> Any:
    package = import_extra("ir_datasets", "data")
    try:
        return package.load(id)
    except KeyError:
        hint = did_you_mean(id, package.registry) or "; its ids are at https://ir-datasets.com"
        raise UserError(f"{PREFIX}{id}: ir_datasets has no such id{hint}") from None


def _judged(id: str, data_set: Any) -> dict[str, str]:
    """Return {split: the id with its judgements}, of ids whose questions are the collection's."""
    found = {}
    if data_set.has_queries():
        registry = import_extra("ir_datasets", "data").registry
        below = [each for each in registry if each.startswith(f"{id}/")]
        found = {each.removeprefix(f"{id}/"): each for each in below if _load(each).has_qrels()}
    if data_set.has_qrels():
        own = next((each for each in reversed(id.split("/")) if each in _SPLITS), _UNNAMED_SPLIT)
        found[own] = id
    return found


# ---- rows ------------------------------------------------------------------------------------------------------------


def _table(id: str, handler: Any, read: Callable[[], Iterator[Any]], row_of: Callable[[Any], Row]) -> Table:
    return Table(partial(_rows, id, handler, read, row_of), partial(_facts, handler))


def _rows(id: str, handler: Any, read: Callable[[], Iterator[Any]], row_of: Callable[[Any], Row]) -> Iterator[Row]:
    try:
        records = iter(read())
        while True:
            try:
                record = next(records)
            except StopIteration:
                return
            yield row_of(record)
    except (GeneratorExit, UserError):
        raise
    # Each of its many readers has exceptions of its own, and all of them concern the user's data.
    except Exception as error:
        raise UserError(f"{PREFIX}{id}: {_reason(handler, error)}") from error


def _documents(handler: Any) -> Callable[[], Iterator[Any]]:
    """The function that reads the documents, directly from the download where a collection can, as BEIR's do.

    Its own reader goes through a compressed store that it makes first, for access by id; that takes twice the time. (The
    name is private, of the version that requirements-data.txt pins; without it, the collection's own reader is used.)
    """
    read = getattr(handler, "_docs_iter", None)
    return read if read is not None and not inspect.signature(read).parameters else handler.docs_iter


def _passage(document: Any) -> Row:
    text = getattr(document, "text", None)
    # Documents with other fields (abstract, body, ...): ir_datasets says which of these to search.
    text = document.default_text() if text is None else text
    return {"_id": document.doc_id, "title": getattr(document, "title", None), "text": text}


def _question(query: Any) -> Row:
    text = getattr(query, "text", None)
    row = {"_id": query.query_id, "text": query.default_text() if text is None else text}
    answers = getattr(query, "answers", None)
    return row if answers is None else {**row, "answers": list(answers)}


def _judgement(judgement: Any) -> Row:
    return {"query-id": judgement.query_id, "corpus-id": judgement.doc_id, "score": judgement.relevance}


def _pair(pair: Any) -> Row:
    return {"query-id": pair.query_id, "positive-id": pair.doc_id_a, "negative-id": pair.doc_id_b}


# ---- files -----------------------------------------------------------------------------------------------------------


def downloads(handler: Any, depth: int = 6) -> list[Download]:
    """Return the files behind a handler of ir_datasets, which wraps them in several layers of its own objects."""
    if hasattr(handler, "mirrors"):
        mirrors = handler.mirrors
        url = next((mirror.url for mirror in mirrors if getattr(mirror, "url", None)), "")
        local = next((mirror._path for mirror in mirrors if hasattr(mirror, "_path")), None)
        return [Download(url, os.fspath(local or handler._cache_path or ""), handler.expected_md5 or "")]
    if type(handler).__name__ == "LocalDownload":
        return [Download("", os.fspath(handler._path), "")]
    found: list[Download] = []
    for value in vars(handler).values() if depth and hasattr(handler, "__dict__") else ():
        for each in value if isinstance(value, list | tuple) else (value,):
            if hasattr(each, "mirrors") or type(each).__module__.startswith("ir_datasets"):
                found += [one for one in downloads(each, depth - 1) if one not in found]
    return found


def _facts(handler: Any) -> list[Any]:
    version = import_extra("ir_datasets", "data").__version__
    return [version, *(_file_facts(each) for each in downloads(handler))]


def _file_facts(file: Download) -> list[Any]:
    if file.md5 or not os.path.exists(file.path):
        return [file.url, file.md5]
    facts = os.stat(file.path)
    return [file.path, facts.st_size, facts.st_mtime_ns]


def _reason(handler: Any, error: Exception) -> str:
    """The message for an error of reading or fetching, with the way to get the data by hand."""
    files = downloads(handler)
    file = next((each for each in files if each.url), None)
    # If it tried several places: RuntimeError(message, [(place, error), ...]).
    tried = error.args[1] if len(error.args) == 2 and isinstance(error.args[1], list) else [("", error)]
    problem = shortened(tried[-1][1])
    by_hand = "" if file is None else f", or download {file.url} by hand and save it as {file.path}"
    if any(type(each).__name__ == "HashVerificationError" for _, each in tried):
        what = files[0].url or files[0].path if files else "the file"
        return f"{what} does not have its checksum ({problem}); fetch it again{by_hand}"
    if file is not None and Path(file.path).exists() and file.md5:
        return f"{file.path} cannot be read, or does not have the md5 {file.md5}, and {file.url} cannot be fetched ({problem}); replace it"
    if file is not None:
        return f"cannot be fetched ({problem}); check the network{by_hand}"
    return f"cannot be read ({type(error).__name__}: {problem}); check its files"
