"""Verifying an exported model: hashes, settings and vectors, compared one by one, so that messages name the cause."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from jaxretr.embeddings import golden
from jaxretr.embeddings.golden import Golden, Vectors
from jaxretr.exports import peers
from jaxretr.models.combined_encoder import CombinedEncoder, load_encoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UserError, reason
from jaxretr.runtime.storage.sealed_folder import changes

# Tolerance as a share of the vectors' length: some hundred roundings of float32, as by another order of sums.
TOLERANCE = 1e-5

Library = Literal["sentence-transformers", "transformers"]


@dataclass(frozen=True)
class Report:
    """The result of a verification in which everything agrees.

    Attributes:
      files: the number of files that have the hash in golden.json.
      texts: the number of texts that have their golden vector.
      difference: the largest difference of a coordinate, as a share of its vector's length.
      readers: the libraries that computed vectors from the folder.
    """

    files: int
    texts: int
    difference: float
    readers: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.texts} golden vectors agree to {self.difference:.1g} of their length (allowed: {TOLERANCE:.0e}), "
            f"read by {' and '.join(self.readers)}; {self.files} files unchanged"
        )


def verify(folder: str | Path, library: Library | None = None) -> Report:
    """Recompute an export's golden vectors from the files in its folder; return a report of what agrees.

    Args:
      folder: a folder that `jaxretr export` wrote.
      library: a library that is to compute them too.

    Raises:
      UserError: something differs (one line that names all of it), the folder is not an export, or the library is not
        installed or does not read this layout.
    """
    folder = Path(folder).expanduser()
    expected, vectors = golden.read(folder)
    problems = [] if golden.is_as_written(folder) else [f"{golden.GOLDEN} was changed"]
    problems += changes(folder, expected.files)
    differences, readers = [], ["jaxretr"]
    try:
        encoder = load_encoder(folder)
        found = golden.compute(encoder, expected.questions, expected.passages)
    except UserError as error:
        problems.append(str(error))
    except Exception as error:
        if not problems:
            raise
        problems.append(f"its vectors cannot be computed ({reason(error)})")
    else:
        problems += changed_settings(encoder, expected)
        problem, difference = compare(found, vectors)
        if problem and _are_exchanged(encoder, expected, vectors):
            problem = "the question tower and the passage tower are exchanged"
        problems += [problem] if problem else []
        differences.append(difference)
    if library is not None:
        try:
            problem, difference = compare(peers.vectors(folder, library, expected), vectors)
        except UserError:
            raise
        except Exception as error:  # Whatever the library raises for a folder that is broken.
            problems.append(f"{library} cannot read it ({reason(error)})")
        else:
            problems += [f"read by {library}, {problem}"] if problem else []
            differences.append(difference)
            readers.append(library)
    if problems:
        raise UserError(f"{folder}: not what was exported: {'; '.join(problems)}; export the model again")
    return Report(len(expected.files), len(vectors.questions) + len(vectors.passages), max(differences), tuple(readers))


def changed_settings(encoder: DualEncoder | CombinedEncoder, expected: Golden) -> list[str]:
    """One line for each setting that is not what it was."""
    found = golden.settings_of(encoder.config)
    return [
        f"{name} is {found.get(name)} instead of {expected.settings.get(name)}"
        for name in found | expected.settings
        if found.get(name) != expected.settings.get(name)
    ]


def compare(found: Vectors, expected: Vectors) -> tuple[str, float]:
    """Compare vectors with the golden ones; a side may have none.

    Returns:
      A description of the fault, "" if there is none, and the largest difference of a coordinate as a share of its
      vector's length.
    """
    problems, largest = [], 0.0
    for side in ("questions", "passages"):
        one, other = getattr(found, side), getattr(expected, side)
        if not len(other):
            continue
        if one.shape != other.shape:
            return f"the vectors of {side} have {one.shape[1]} dimensions instead of {other.shape[1]}", np.inf
        lengths = np.maximum(np.linalg.norm(other, axis=1, keepdims=True), 1e-12)
        # A NaN is a difference as well: so not `> TOLERANCE`.
        shares = np.nan_to_num(np.abs(one - other) / lengths, nan=np.inf).max(axis=1)
        largest = max(largest, float(shares.max()))
        if wrong := int((shares > TOLERANCE).sum()):
            problems.append(f"the vectors of {wrong} of {len(shares)} {side} differ by up to {shares.max():.1g}")
    return ", ".join(problems), largest


def _are_exchanged(encoder: DualEncoder | CombinedEncoder, expected: Golden, vectors: Vectors) -> bool:
    """Whether the question and the passage tower are exchanged: then each gives the other's golden vectors."""
    if isinstance(encoder, CombinedEncoder) or encoder.config.shared or encoder.config.query_weights:
        return False
    lengths = {name: expected.settings[name] for name in ("max_question_length", "max_passage_length")}
    params = {"question": encoder.params["passage"], "passage": encoder.params["question"]}
    exchanged = DualEncoder(dataclasses.replace(encoder.config, **lengths), params, encoder.tokenizer)
    return not compare(golden.compute(exchanged, expected.questions, expected.passages), vectors)[0]
