"""The folder of a `ScannIndex`.

  manifest.json                what it is (`Facts`), and the sha256 of every file
  vectors.npy                  float32 [N, D]: candidates are scored with them, exactly
  ids.jsonl                    one JSON string a row
  hashed_dataset.npy           uint8 [N, C]: the codes; with a tree also datapoint_to_token.npy, the leaves int32 [N]
  scann_config.pb, ...         the engine's own files, with relative paths: the folder can be moved
  questions.npy, .jsonl        the questions of tuning and of the certificate, and their exact neighbours' ids
  certificate.json, .md        the recall certificate

There is no pickle in it, and none is read.
"""

import os
import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from jaxretr.config import EngineName
from jaxretr.indexes import question_sets, recall
from jaxretr.indexes.certified import worker
from jaxretr.indexes.certified.engine import Engine
from jaxretr.indexes.certified.engines import engine_of
from jaxretr.indexes.certified.rows import IDS, VECTORS, Rows
from jaxretr.indexes.certified.tuning import Setting
from jaxretr.indexes.question_sets import Questions
from jaxretr.indexes.recall import Certificate
from jaxretr.runtime.errors import UsageError, UserError, path_text
from jaxretr.runtime.json_dataclass import dataclass_from
from jaxretr.runtime.storage import manifest
from jaxretr.runtime.storage.files import atomic_folder, restore
from jaxretr.runtime.storage.sealed_folder import check_replaceable

KIND = "scann"
MANIFEST = manifest.MANIFEST


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The index as its manifest describes it.

    Attributes:
      rows, dim: N and D.
      kind: "tree" (leaves and codes), "flat" (codes alone) or "exact" (too few rows for either).
      engine: the engine that proposes the candidates, where kind is not "exact".
      leaves: leaves of the tree; 1 without a tree.
      train_rows: passages that the tree and the codes were learnt from; 0 for "exact".
      code_size: bytes of a row in hashed_dataset.npy; 0 for "exact".
      changed: rows added or deleted since the training.
      k, seed: the depth of the targets and the seed of the build.
      settings: one for each target.
      model, model_fingerprint: the model that made the embeddings, where it is known.
    """

    rows: int
    dim: int
    kind: Literal["tree", "flat", "exact"]
    leaves: int
    train_rows: int
    code_size: int
    changed: int
    k: int
    seed: int
    settings: tuple[Setting, ...]
    model: str | None = None
    model_fingerprint: str | None = None
    engine: EngineName = "scann"

    @property
    def tree(self) -> bool:
        """Whether the index has a tree."""
        return self.kind == "tree"

    def used_engine(self) -> Engine | None:
        """The engine; None where every row is scored."""
        return None if self.kind == "exact" else engine_of(self.engine)

    def require_engine(self) -> None:
        """Raise UserError where the engine is needed and does not work."""
        if engine := self.used_engine():
            engine.require()

    def model_files(self) -> list[str]:
        """The engine's files, without those that hold rows."""
        engine = self.used_engine()
        return [] if engine is None else engine.model_files(self.tree)

    def row_files(self) -> list[str]:
        """The files of rows, without their ids."""
        codes = {"tree": [worker.TOKENS, worker.CODES], "flat": [worker.CODES], "exact": []}
        return [VECTORS, *codes[self.kind]]


def check_target(directory: str | os.PathLike) -> Path:
    """Refuse a folder that contains anything but a ScaNN index, because it would be replaced.

    Raises:
      UserError: it does.
    """
    target = Path(directory).expanduser()
    restore(target)
    check_replaceable(target, "a ScaNN index", lambda names: MANIFEST in names and manifest.read(target).kind == KIND)
    return target


def write(
    directory: str | os.PathLike,
    facts: Facts,
    source: Path,
    rows: Rows,
    questions: Questions | None,
    certificate: Certificate | None,
) -> None:
    """Write the folder, which appears complete or not at all and replaces an older index.

    Args:
      source: the folder with the engine's files, and those of the rows if they have not changed.
    """
    with atomic_folder(check_target(directory)) as folder:
        linked = facts.model_files() + ([] if rows.changed else facts.row_files())
        for name in linked:
            _link(source / name, folder / name)
        rows.write(folder, [IDS, *(facts.row_files() if rows.changed else [])])
        if engine := facts.used_engine():
            engine.finish(folder, facts.tree)
        if questions is not None:
            question_sets.write(folder, questions)
        if certificate is not None:
            recall.write(folder, certificate)
        manifest.write(folder, KIND, asdict(facts))


def read_facts(folder: Path) -> tuple[Facts, Collection[str]]:
    """Read the facts and the names of the files that a folder's manifest states.

    Raises:
      UserError: it is missing, damaged or of another kind.
    """
    content = manifest.read(folder)
    if content.kind != KIND:
        raise UserError(f"{folder}: contains a {content.kind} export, not a ScaNN index; give another folder")
    try:
        facts: Facts = dataclass_from(Facts, content.facts, str(folder / manifest.MANIFEST))
    except UsageError as error:
        raise UserError(f"{error}; build the index again") from error
    return facts, content.files.keys()


def read(directory: str | os.PathLike) -> tuple[Facts, Rows, Questions | None, Certificate | None]:
    """Read a folder; vectors and codes stay on disk.

    Raises:
      UserError: it is missing, incomplete, damaged or of another kind.
    """
    folder = Path(path_text(directory)).expanduser()
    facts, there = read_facts(folder)
    for name in facts.model_files():
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: is missing; build the index again")
    rows = Rows.read(folder, facts.rows, facts.dim, facts.code_size or None, facts.tree)
    questions = question_sets.read(folder, facts.dim) if question_sets.VECTORS in there else None
    certificate = recall.read(folder) if recall.CERTIFICATE in there else None
    return facts, rows, questions, certificate


def _link(source: Path, target: Path) -> None:
    """A hard link, or a copy where there can be none; none of these files is ever written to again."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
