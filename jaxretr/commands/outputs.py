"""Runs as the commands write them."""

import logging
from collections.abc import Sequence
from pathlib import Path

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.evaluate.runs import Hits, write_dpr_json, write_jsonl, write_trec
from jaxretr.storage.files import open_descriptor

log = logging.getLogger(__name__)


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
