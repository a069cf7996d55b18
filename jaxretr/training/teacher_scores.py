"""The scores that an ART run's teacher gave, as training data for distillation."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxretr.config import ArtConfig, from_json, token_stores
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.kinds import SCORED_FORMATS
from jaxretr.data.formats.writing import write_examples
from jaxretr.data.made_of import write_record
from jaxretr.embeddings.fingerprints import texts_fingerprint
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean
from jaxretr.runtime.storage.files import check_output
from jaxretr.runtime.storage.paths import as_path
from jaxretr.runtime.storage.run_folder import RunFolder
from jaxretr.runtime.storage.sealed_folder import read_object
from jaxretr.training.checkpoint import Checkpoints
from jaxretr.training.runs.art_texts import ArtTexts, read_art_texts
from jaxretr.training.runs.run_inputs import Inputs, check_inputs, digest, read_inputs
from jaxretr.training.runs.teacher_table import made_of


@dataclass(frozen=True)
class MinedScores:
    """A written file of a teacher's scores.

    Attributes:
      path: the file.
      step: step of the checkpoint that the scores are from.
      questions: number of questions with at least one score.
      pairs: number of pairs of question and passage.
    """

    path: Path
    step: int
    questions: int
    pairs: int


def mine_scores(
    run: str | os.PathLike[str], out: str | os.PathLike[str], *, format: str = "distillation", step: int | None = None
) -> MinedScores:
    """Write the scores that the teacher of an ART run gave to the passages that the run retrieved.

    `OUT.made_of.json` next to them records the teacher, its lengths and precision, and the texts: `table.path` compares
    them. The scores are raw, as `jaxretr.score` writes them. Each question's passage with the best score comes first,
    and is the positive in formats that have one.

    Args:
      run: the folder of an ART run. It is only read.
      out: the file to write.
      format: distillation (ids and scores), or with the texts dpr, dpr-scale, tevatron, tevatron2, sentence-transformers
        or flag.
      step: step of the checkpoint to read; by default the newest.

    Raises:
      UsageError: a format without scores.
      UserError: not an ART run, no checkpoint, a run that keeps no scores, or texts that differ from those it began
        with.
    """
    if format not in SCORED_FORMATS:
        raise UsageError(
            f"format {format}{did_you_mean(format, SCORED_FORMATS)}; formats with scores are {', '.join(SCORED_FORMATS)}"
        )
    path = Path(out).expanduser()
    check_output(path)
    with RunFolder(as_path(run), writes=False) as folder:
        config = _config(folder.local)
        with Checkpoints(folder.checkpoints, config) as checkpoints:
            chosen = checkpoints.latest if step is None else step
            if chosen not in checkpoints.steps:
                known = ", ".join(map(str, checkpoints.steps)) or "none"
                raise UserError(f"{run}: has no checkpoint of step {chosen}; those of it are: {known}")
            table = checkpoints.field("table", chosen)
        if table is None:
            raise UserError(f"{run}: keeps no scores of its teacher; train with table.capacity above 0")
        texts = read_art_texts(config.data, token_stores(config.data, folder.local))
        now = {"corpus": texts.corpus.fingerprint(), "questions": texts_fingerprint(texts.questions)}
        check_inputs(folder.local, Inputs(now, {}), config)
        inputs = {**read_inputs(folder.local), "corpus": now["corpus"], "questions": digest(now["questions"])}
    rows, scores = np.asarray(table["rows"]), np.asarray(table["scores"])
    if rows[len(texts.questions) :].max(initial=-1) >= 0 or rows.max(initial=-1) >= len(texts.corpus):
        raise UserError(
            f"{run}: its scores are of other texts than {config.data.questions} and {config.data.corpus} have now; restore "
            "these files"
        )
    known = rows[: len(texts.questions)] >= 0
    examples = _examples(texts, rows, scores, answers=format != "distillation")
    write_examples(path, examples, format, texts.corpus, source=str(run))
    write_record(path, made_of(config.scorer, inputs))
    return MinedScores(path, chosen, int(known.any(axis=1).sum()), int(known.sum()))


def _config(folder: Path) -> ArtConfig:
    path = folder / "config.json"
    config = from_json(read_object(path, "give the folder of a training run"), str(path))
    if not isinstance(config, ArtConfig):
        raise UserError(f"{folder}: not an ART run, which alone has a teacher whose scores are kept; give one's folder")
    return config


def _examples(texts: ArtTexts, rows: np.ndarray, scores: np.ndarray, *, answers: bool = True) -> Iterator[Example]:
    """Yield one example for each question with scores, the best passage first; without `answers`, none has any."""
    for number, question in enumerate(texts.questions):
        known = np.flatnonzero(rows[number] >= 0)
        order = known[np.argsort(-scores[number, known], kind="stable")]
        found = tuple(
            # The shortest decimals that restore the float32.
            Candidate(texts.corpus.ids[row], "", None, float(str(score)))
            for row, score in zip(rows[number, order].tolist(), scores[number, order], strict=True)
        )
        if found:
            yield Example(question.id, question.text, question.answers if answers else (), found[:1], found[1:])
