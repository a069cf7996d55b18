"""The number and length of a run's passages, counted, given or known without reading them onto devices."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxretr.config import ArtConfig, Config, ContrastiveConfig
from jaxretr.data.corpus import iter_passages
from jaxretr.data.formats.kinds import is_training_file
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.readers import read_questions
from jaxretr.data.source import source_of
from jaxretr.data.training_set import read_passages
from jaxretr.runtime.errors import UserError
from jaxretr.training.runs.corpus_tokens import EstimatedRows
from jaxretr.training.runs.run_examples import read_run_examples

# Published number of passages of the collections with these names, and mean words of a passage with its title.
WELL_KNOWN = {
    "psgs_w100": (21_015_324, 103),  # DPR's Wikipedia (Karpukhin et al. 2020, section 4.1): 100 words, and the title
    "msmarco": (8_841_823, 56),  # MS MARCO passages, as a BEIR folder
    "collection": (8_841_823, 56),  # and as published
}

# English Wikipedia has 1.34 ids a word in BERT's vocabulary and 1.47 in T5's; special tokens and prompts are added.
_IDS_A_WORD, _IDS_A_ROW = 1.5, 8
# A text with fewer spaces is in a language that writes none: it counts as a word every 4.5 bytes, 3 bytes an id.
_BYTES_A_WORD, _BYTES_WITHOUT_SPACES = 12, 4.5


class CorpusSize(NamedTuple):
    """The passages of a run."""

    passages: int
    """Number of passages on the devices."""
    searched: int
    """Number of these that are the corpus; 0: there is none, and nothing is searched."""
    source: str
    """Source of the number, as a phrase for people."""
    words: float | None = None
    """Mean number of words of a passage with its title; None: not known."""

    def mean_ids(self, longest: int) -> float:
        """Estimate a passage's mean number of token ids; `longest` if nothing is known."""
        return longest if self.words is None else min(float(longest), _IDS_A_WORD * self.words + _IDS_A_ROW)

    def rows(self, longest: int, dtype: Any) -> EstimatedRows:
        """Return the passages as rows of token ids of an integer type, at most `longest` each."""
        return EstimatedRows(self.passages, longest, self.mean_ids(longest), dtype)


def corpus_size(config: Config, passages: int | None = None) -> CorpusSize:
    """Return the number of a run's passages.

    Args:
      passages: number that the user gives; None: counted where the files exist, or known by the corpus's name.

    Raises:
      UserError: neither a number, nor files, nor a known name; or a file that cannot be read.
    """
    if isinstance(config, ArtConfig):
        paths = [config.data.corpus]
    elif isinstance(config, ContrastiveConfig) and config.data.mixture:
        sizes = [corpus_size(member) for member in config.members.values()] if passages is None else []
        return _of_all(sizes) if sizes else CorpusSize(passages or 0, passages or 0, "as given")
    elif isinstance(config, ContrastiveConfig):
        paths = _contrastive_paths(config)
    else:
        return CorpusSize(0, 0, "none on the devices")
    if passages is not None:
        words = WELL_KNOWN.get(_name(paths[0]), (0, None))[1] if paths else None
        return CorpusSize(passages, passages if paths else 0, "as given", words)
    if not paths:
        assert isinstance(config, ContrastiveConfig)
        if not source_of(config.data.train).exists():
            raise _unknown(config.data.train)
        examples = read_run_examples(config)
        texts = zip(examples.passages.titles, examples.passages.texts, strict=True)
        total, words = _count(texts)
        return CorpusSize(total, examples.corpus_rows, f"counted in {config.data.train}", words)
    if all(source_of(path).exists() for path in paths):
        total, words = _count(text for path in paths for text in _texts(path))
        return CorpusSize(total, total, f"counted in {', '.join(paths)}", words)
    first, *others = paths
    name = _name(first)
    if others or name not in WELL_KNOWN:
        raise _unknown(next(path for path in paths if not source_of(path).exists()))
    total, words = WELL_KNOWN[name]
    return CorpusSize(total, total, f"{first} is not here; that is the published '{name}'", words)


def _of_all(sizes: list[CorpusSize]) -> CorpusSize:
    """Return the passages of several sets together."""
    total = sum(each.passages for each in sizes)
    known = [(each.passages, each.words) for each in sizes if each.words is not None]
    words = sum(count * mean for count, mean in known) / sum(count for count, _ in known) if known else None
    return CorpusSize(total, sum(each.searched for each in sizes), "; ".join(each.source for each in sizes), words)


def most_questions(config: ArtConfig) -> int:
    """Return the most training questions that an ART run can have: counted in its file, or those of all steps."""
    read = config.train.steps * config.train.batch_size
    path = config.data.questions
    if not source_of(path).exists():
        return read
    return sum(1 for _ in read_examples(path)) if is_training_file(path) else len(read_questions(path))


def _name(path: str) -> str:
    return Path(path).name.split(".")[0]


def _texts(path: str) -> Iterator[tuple[str, str]]:
    if is_training_file(path):
        passages = read_passages(path)
        return zip(passages.titles, passages.texts, strict=True)
    return ((passage.title, passage.text) for _, passage in iter_passages(path, skip_bad=True))


def _count(passages: Iterable[tuple[str, str]]) -> tuple[int, float | None]:
    """Return the number of passages (title, text) and their mean number of words, None without any passage."""
    count, words = 0, 0.0
    for title, text in passages:
        spaced, length = len(title.split()) + len(text.split()), len(title.encode()) + len(text.encode())
        count += 1
        words += spaced if length <= _BYTES_A_WORD * spaced else length / _BYTES_WITHOUT_SPACES
    return count, words / count if count else None


def _contrastive_paths(config: ContrastiveConfig) -> list[str]:
    """Return the files of the corpus; none where the training file brings its passages along."""
    data = config.data
    if data.corpus is not None and data.corpus != data.train:
        return [data.corpus, *data.more_corpora]
    train = source_of(data.train)
    # A BEIR folder is its own corpus; if it does not exist here yet, a name without a suffix is assumed to be one.
    folder = train.is_dir() or not (train.exists() or train.suffix)
    return [data.train] if folder else []


def _unknown(path: str) -> UserError:
    return UserError(f"{path}: no such file, so that its passages cannot be counted; say how many with passages=")
