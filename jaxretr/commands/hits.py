"""Runs as the commands write them."""

import logging
from collections.abc import Sequence
from pathlib import Path

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.errors import UserError
from jaxretr.evaluate.runs import Hits, write_dpr_json, write_jsonl, write_trec
from jaxretr.storage.files import open_descriptor

log = logging.getLogger(__name__)


def check_output(path: str) -> None:
    """Refuses a run file that cannot be written, before the work of an hour is lost to it."""
    place = Path(path).expanduser()
    if place.is_dir():
        raise UserError(f"{path}: is a folder; name a file")
    parent = next(folder for folder in place.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise UserError(f"{path}: {parent} is a file, not a folder; choose another path")


def write_hits(path: str, form: str, hits: list[Hits], questions: Sequence[Question], corpus: Corpus | None) -> None:
    """Writes a run.

    Args:
      path: the file.
      form: "trec", "dpr" or "jsonl".
      hits: of each question, best first.
      questions: those of `hits`.
      corpus: needed for "dpr" and "jsonl".
    """
    place = Path(path).expanduser()
    if form == "trec":
        write_trec(place, hits)
    else:
        assert corpus is not None, form
        (write_dpr_json if form == "dpr" else write_jsonl)(place, questions, corpus, hits)
    say_written(path, f"{sum(len(found.ids) for found in hits)} hits of {len(hits)} questions")


def say_written(path: str, what: str) -> None:
    """Prints what a file holds; in the log where the file is stdout itself, for whoever reads that."""
    line = f"{path}: {what}"
    if open_descriptor(path) == 1:
        log.info("%s", line)
    else:
        print(line)
