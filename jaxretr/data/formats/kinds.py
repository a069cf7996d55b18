"""The kinds of data files, the formats of training data among them; and how a file's kind is detected."""

from jaxretr.data.formats.columns import Columns
from jaxretr.data.formats.format import Format
from jaxretr.data.formats.head import Head
from jaxretr.data.formats.judgements import Beir, Qrels
from jaxretr.data.formats.other_kinds import CORPUS, QUESTIONS, RunFile, TextFile
from jaxretr.data.formats.passage_lists import Dpr, DprScale, Tevatron, Tevatron2
from jaxretr.data.formats.scored_lists import Distillation, Flag
from jaxretr.data.formats.triples import Triples, TriplesIds
from jaxretr.data.source import Input, source_of
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean

# In the order in which they are asked: the first that recognises a file is its kind.
_KINDS: tuple[Format | TextFile | RunFile, ...] = (
    Dpr(),
    DprScale(),
    RunFile(),
    Tevatron(),
    Tevatron2(),
    Columns(),
    Distillation(),
    Flag(),
    Qrels(),
    CORPUS,
    Triples(),
    TriplesIds(),
    QUESTIONS,
    Beir(),
)

KINDS = {kind.name: kind for kind in _KINDS}
"""All kinds of data files by name."""

FORMATS = {kind.name: kind for kind in _KINDS if isinstance(kind, Format)}
"""The formats of training data by name."""

SCORED_FORMATS = tuple(name for name, format in FORMATS.items() if format.has_scores)
"""Names of the formats with a score for every passage."""

# The kinds of the parts of named collections.
_KIND_OF_ROLE = {"corpus": "corpus", "queries": "questions", "qrels": "qrels"}


def file_kind(path: Input) -> str:
    """Return the kind of a file or folder, a key of KINDS.

    Raises:
      UserError: it is not recognised.
    """
    source = source_of(path)
    if source.is_beir():
        return "beir"
    if source.is_dir():
        raise UserError(
            f"{path}: is not a BEIR folder (corpus.jsonl, queries.jsonl, qrels/); give a file or such a folder"
        )
    source = source.file()
    if source.role is not None:
        return _KIND_OF_ROLE[source.role]
    head = Head(source)
    kind = next((kind.name for kind in _KINDS if kind.detect(head)), None)
    if kind is None:
        raise UserError(f"{source}: not recognised; state its format, one of {', '.join(KINDS)}")
    return kind


def training_format(path: Input, format: str | None = None) -> Format:
    """Return a training set's format.

    Args:
      format: the name of the format that the user states; None: detected from the content.

    Raises:
      UserError: it is something else, or not recognised.
      UsageError: there is no such format.
    """
    source = source_of(path)
    if format is not None and format not in FORMATS:
        raise UsageError(f"no format '{format}'{did_you_mean(format, FORMATS) or ''}; there are {', '.join(FORMATS)}")
    if format is None:
        kind = KINDS[file_kind(source)]
        if not isinstance(kind, Format):
            raise UserError(f"{source}: looks like {kind.title}, not a training set; {kind.remedy}")
        return kind
    if format != "beir":
        source.file()
    elif not source.is_dir():
        raise UserError(f"{source}: is not a folder; give a BEIR folder (corpus.jsonl, queries.jsonl, qrels/)")
    return FORMATS[format]


def is_training_file(path: Input) -> bool:
    """Whether a file (not a folder) is a training set with passages, which can stand for a corpus."""
    source = source_of(path)
    if source.is_dir():
        return False
    try:
        kind = KINDS[file_kind(source)]
    except UserError:  # Not a known format: the reader's own error is more helpful.
        return False
    return isinstance(kind, Format) and kind.has_passages


def named_split(split: str | None, *formats: str) -> str:
    """Return the name of a BEIR folder's judgements, "train" by default.

    Raises:
      UsageError: a split is named, and none of `formats` is a BEIR folder.
    """
    if split is not None and "beir" not in formats:
        raise UsageError(f"split={split}: is for BEIR folders, not for {' and '.join(formats)}; leave it out")
    return split or "train"
