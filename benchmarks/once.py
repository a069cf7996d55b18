"""What takes long in a benchmark is done once and kept: training runs, and the values that a search gets."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from jaxretr.data.corpus import Corpus
from jaxretr.data.question_identity import own_ids
from jaxretr.data.readers import read_beir
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import Search, run_of
from jaxretr.evaluate.searches import encoder_search
from jaxretr.models.text_encoder import TextEncoder

T = TypeVar("T")
# {split: {metric: {question: value}}}
Values = dict[str, dict[str, dict[str, float]]]


def last_of(words: Sequence[object]) -> list[str]:
    """Settings of the command line, of which one that is given several times counts as it is given last."""
    given: dict[str, list[str]] = {}
    name = ""
    for word in map(str, words):
        if word.startswith("--"):
            name = word.partition("=")[0].replace("_", "-").replace(".no-", ".")
            given[name] = [word]
        else:
            given[name].append(word)
    return [word for of_one in given.values() for word in of_one]


def trained(config: Path, workdir: Path, words: Sequence[object]) -> Path:
    """Trains a config with further words of the command line to its end, unless that has been done.

    Args:
      config: the file.
      workdir: the run's folder; a file `done` in it says that the run has ended.
      words: settings, as `jaxretr train` takes them; see `last_of`.

    Returns:
      `workdir`.
    """
    if not (workdir / "done").exists():
        command = [sys.executable, "-m", "jaxretr", "train", str(config), "--workdir", str(workdir), *last_of(words)]
        print("$ jaxretr", *command[3:], file=sys.stderr, flush=True)
        subprocess.run(command, check=True)
        (workdir / "done").touch()
    return workdir


def kept(path: Path, make: Callable[[], T]) -> T:
    """What a JSON file holds; without the file, what `make` returns, which is then written to it."""
    if path.exists():
        return json.loads(path.read_text())
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made))
    return made


def encoded(load_model: Callable[[], TextEncoder]) -> Callable[[Corpus], Search]:
    """Searches with a model that is loaded when it is needed."""
    return lambda corpus: encoder_search(load_model(), corpus, None)


def values_of(
    search_in: Callable[[Corpus], Search], folder: Path, splits: Sequence[str], names: Sequence[str]
) -> Values:
    """The metrics of each question of each split, in the first 100 passages.

    Args:
      search_in: makes the search of a corpus, which all splits share.
      folder: a BEIR folder.
      splits: of its questions.
      names: of the metrics.
    """
    sets = {split: read_beir(folder, split) for split in splits}
    search = search_in(next(iter(sets.values())).corpus)
    return {
        split: metrics.evaluate(beir.qrels, run_of(search, beir.questions, 100, own), names, per_query=True)[1]
        for split, beir in sets.items()
        for own in [own_ids(beir.questions, beir.corpus, beir.qrels)]
    }
