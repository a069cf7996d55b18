"""The files that runs read: questions to evaluate on, judged examples, bare text."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DevData:
    """Questions that a run is evaluated on over its whole corpus."""

    dev_questions: str | None = None
    """A file of questions or a BEIR folder; None: no retrieval metrics."""
    dev_qrels: str | None = None
    """Judgements of the dev questions; without them the dev questions' answers are matched."""
    held_out: int = 0
    """Number of training questions (at most a tenth) that are kept out of training where there is no dev set: those
    whose texts have the lowest hashes. The run is evaluated on them with their own judgements; an ART run whose questions
    have none, or whose best metric it is, by its teacher's mean score of the first five passages found (teacher@5)."""
    token_cache: str | None = None
    """Folder of the token store; the run's own by default, a common one where several runs share a corpus."""

    @property
    def has_dev_questions(self) -> bool:
        """Whether the run is evaluated on questions."""
        return self.dev_questions is not None or self.held_out > 0


@dataclass(frozen=True, kw_only=True)
class ExampleData(DevData):
    """Judged examples: questions with their positives, and perhaps negatives."""

    train: str
    """A training file in any format that `jaxretr data convert` reads, a BEIR folder, or a lexical set (a folder that
    `jaxretr mine lexical` wrote)."""
    train_format: str | None = None
    """The training file's format, where its content does not tell."""
    split: str = "train"
    """Split of a BEIR folder's judgements that is trained on."""
    corpus: str | None = None
    """File of the passages that ids refer to and that are searched; a BEIR folder's own by default. Give the training
    file itself to make its passages the corpus. Needed for retrieved negatives, the corpus-wide softmax and retrieval
    metrics."""
    more_corpora: tuple[str, ...] = ()
    """Further files of passages, whose rows follow the corpus's."""
    mined: str | None = None
    """A second training file: `negatives.mined` are drawn from its negatives, by the question's id."""
    skip_bad: bool = False
    """Leave out and count what cannot be read or resolved, instead of stopping."""


@dataclass(frozen=True)
class PretrainData:
    """Text that a small model learns from."""

    corpora: tuple[str, ...]
    """Corpora, BEIR folders or training files, whose passages are read."""
    pairs: str | None = None
    """A BEIR folder whose train judgements give question-passage pairs (scorer only)."""
    exclude_pairs: str | None = None
    """Leave out the questions whose id begins with this."""
    pair_share: float = 0.0
    """Share of each batch that consists of such pairs."""
    vocab_size: int = 8192
    """Number of entries of a vocabulary that is learnt."""
    vocabulary_every: int = 5
    """The vocabulary is learnt from every n-th passage."""
    max_length: int = 128
    """Tokens of a passage. The encoder reads a window of a longer one, drawn at each access; the scorer reads its
    start."""
    held_out: int = 1000
    """Passages kept out of training, for the held-out loss."""
    token_cache: str | None = None
    """Folder of the token store; the run's own by default, a common one where several runs share a corpus."""


def token_stores(data: DevData | PretrainData, folder: Path) -> Path:
    """Return the folder of the token stores of a run that has this folder."""
    return Path(data.token_cache) if data.token_cache else folder / "tokens"
