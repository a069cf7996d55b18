"""How many passages a run will have, told without reading them onto devices: counted, given, or known by the name."""

from pathlib import Path
from typing import NamedTuple

from jaxretr.config import ArtConfig, Config, ContrastiveConfig
from jaxretr.data.corpus import iter_passages
from jaxretr.data.formats.kinds import is_training_file
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.named.names import data_path
from jaxretr.data.readers import read_questions
from jaxretr.data.training_set import read_passages
from jaxretr.errors import UserError
from jaxretr.recipes.run_examples import read_run_examples

# Published sizes of the collections that go by these names, without suffixes.
WELL_KNOWN = {
    "psgs_w100": 21_015_324,  # DPR's Wikipedia (Karpukhin et al. 2020, section 4.1)
    "msmarco": 8_841_823,  # MS MARCO passages, as a BEIR folder
    "collection": 8_841_823,  # and as published
}


class CorpusSize(NamedTuple):
    """The passages of a run."""

    passages: int
    """On the devices."""
    searched: int
    """Of them the corpus; 0: there is none, and nothing is searched."""
    source: str
    """Where the number comes from, for people."""


def corpus_size(config: Config, passages: int | None = None) -> CorpusSize:
    """The number of a run's passages.

    Args:
      config: of the run.
      passages: what the user says; None: counted where the files are, or known by the corpus's name.

    Raises:
      UserError: neither a number, nor files, nor a known name; or a file that cannot be read.
    """
    if isinstance(config, ArtConfig):
        paths = [config.data.corpus]
    elif isinstance(config, ContrastiveConfig):
        paths = _contrastive_paths(config)
    else:
        return CorpusSize(0, 0, "none on the devices")
    if passages is not None:
        return CorpusSize(passages, passages if paths else 0, "as given with --passages")
    if not paths:
        assert isinstance(config, ContrastiveConfig)
        if not data_path(config.data.train).exists():
            raise _unknown(config.data.train)
        examples = read_run_examples(config)
        return CorpusSize(len(examples.passages), examples.corpus_rows, f"counted in {config.data.train}")
    if all(data_path(path).exists() for path in paths):
        total = sum(_count(path) for path in paths)
        return CorpusSize(total, total, f"counted in {', '.join(paths)}")
    first, *others = paths
    name = Path(first).name.split(".")[0]
    if others or name not in WELL_KNOWN:
        raise _unknown(next(path for path in paths if not data_path(path).exists()))
    return CorpusSize(WELL_KNOWN[name], WELL_KNOWN[name], f"{first} is not here; that is the published '{name}'")


def most_questions(config: ArtConfig) -> int:
    """How many training questions an ART run has at most: counted in its file, or as many as its steps can read."""
    read = config.train.steps * config.train.batch_size
    path = config.data.questions
    if not data_path(path).exists():
        return read
    return sum(1 for _ in read_examples(path)) if is_training_file(path) else len(read_questions(path))


def _count(path: str) -> int:
    return len(read_passages(path)) if is_training_file(path) else sum(1 for _ in iter_passages(path, skip_bad=True))


def _contrastive_paths(config: ContrastiveConfig) -> list[str]:
    """The files of the corpus; none where the training file brings its passages along."""
    data = config.data
    if data.corpus is not None and data.corpus != data.train:
        return [data.corpus, *data.more_corpora]
    train = data_path(data.train)
    # A BEIR folder is its own corpus; where it is not here yet, a name without a suffix is taken for one.
    folder = train.is_dir() or not (train.exists() or train.suffix)
    return [data.train] if folder else []


def _unknown(path: str) -> UserError:
    return UserError(f"{path}: no such file, so that its passages cannot be counted; say how many with --passages N")
