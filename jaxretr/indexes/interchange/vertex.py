"""Vertex AI Vector Search: a folder to upload, whole, or with only the rows that changed since an earlier one.

The folder to upload is DIR/data, since Vertex refuses a folder that holds anything else. Next to it are rows/ (for the
next export that writes only what changed), golden hits, manifest.json and README.md.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import repeat
from pathlib import Path
from typing import IO, Any

import numpy as np

from jaxretr.indexes import golden_hits, passage_fields
from jaxretr.indexes.interchange import row_digests
from jaxretr.indexes.interchange.vertex_schema import DELETE, MOST_FILES, Checker
from jaxretr.indexes.passage_fields import VertexFields
from jaxretr.indexes.source import IndexSource, as_json, expected_bytes, masked, silent
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.storage import manifest
from jaxretr.runtime.storage.files import atomic_folder, atomic_write

KIND = "vertex"
DATA = "data"
DELETED = f"{DATA}/{DELETE}/ids.txt"

# The most bytes of a file of rows: 5,000 such files hold 100 million vectors of 1,024 dimensions.
FILE_BYTES = 256 << 20


def export(
    source: IndexSource,
    encoder: TextEncoder,
    out: str | Path,
    *,
    corpus: str | Path | None = None,
    fields: VertexFields | None = None,
    since: str | Path | None = None,
    advance: Callable[[int], None] = silent,
) -> str:
    """Write the folder, which appears when it is complete and verified; return a summary of what was written.

    Args:
      source, encoder, out, advance: see `faiss_index.export`.
      corpus: the JSON lines that were encoded, where `fields` are wanted.
      fields: the fields to filter and crowd by.
      since: an earlier export: only rows that are new or changed are written, with a list of the ids that are gone.

    Raises:
      UserError: an id or a field that Vertex does not take, vectors that are not finite, another corpus than the
        store's, an earlier export of another kind, or a folder that cannot be written.
    """
    out, meta = Path(out).expanduser(), source.store.meta
    source.check_ids_of_lines("Vertex's list of ids to delete")
    disk = expected_bytes(meta.rows, meta.dim)
    if disk > MOST_FILES * FILE_BYTES:
        raise UserError(
            f"{source.store.folder}: {memory.size(disk)} of rows do not fit into {MOST_FILES} files of "
            f"{memory.size(FILE_BYTES)}; export parts of the corpus into indexes of their own"
        )
    known = None
    if since is not None:
        since = Path(since).expanduser()
        known = row_digests.read_previous(since, KIND, meta.dim)
    # Ids and digests of all rows, in tables when they are verified; beside them pieces of vectors.
    needed = 400 * meta.rows + (128 << 20)
    memory.announce(f"{meta.rows} passages for Vertex", needed, disk=disk, folder=out)
    with atomic_folder(out) as partial:
        digests = np.empty(meta.rows, np.uint64)
        written = np.empty(meta.rows, bool)
        with closing(_Files(partial / DATA)) as files:
            for row, (vector, extras) in enumerate(_rows(source, corpus, fields, advance)):
                name = source.ids[row]
                digests[row] = digest = row_digests.digest(vector, extras)
                written[row] = known is None or known.pop(name, None) != digest
                if written[row]:
                    files.write(_line(name, vector, extras))
        deleted_ids = [] if known is None else list(known)
        if deleted_ids:
            with atomic_write(partial / DELETED) as file:
                file.writelines(f"{name}\n" for name in deleted_ids)
        row_digests.write(partial, source.ids, digests)
        vectors = golden_hits.questions(encoder)
        written_ids = [source.ids[row] for row in np.flatnonzero(written)]
        golden_hits.write(partial, vectors, golden_hits.exact(masked(source.pieces(), written), written_ids, vectors))
        facts = {
            **source.facts(),
            "written": int(written.sum()),
            "deleted": len(deleted_ids),
            "files": files.count,
            "since": None if since is None else str(since),
            "restricts": list(fields.restricts) if fields else [],
            "crowding": fields.crowding if fields else None,
        }
        return manifest.finish(partial, out, KIND, facts, _readme(out.absolute().name, facts), verify)


def verify(folder: Path) -> str:
    """Check hashes, Vertex's schema and golden questions over the files' rows; return a summary of what agrees.

    Raises:
      UserError: something differs; the message names it file by file.
    """
    record = manifest.read(folder)
    problems = manifest.changed_files(folder, record)
    facts = record.facts
    try:
        vectors, expected = golden_hits.read(folder)
        ids, digests = row_digests.read(folder)
    except UserError as error:
        problems.append(str(error))
        vectors, expected, ids, digests = None, None, [], np.empty(0, np.uint64)
    checker = Checker(folder / DATA, int(facts.get("dim", 0)))
    names: list[str] = []
    others = 0

    def pieces() -> Iterator[np.ndarray]:
        nonlocal others
        known = dict(zip(ids, digests.tolist(), strict=True))
        for name, vector, extras in checker.rows():
            others += known.get(name) != row_digests.digest(vector, extras)
            names.append(name)
            yield vector[None]

    if vectors is None or expected is None:
        for _ in pieces():
            pass
    elif difference := golden_hits.difference(golden_hits.exact(pieces(), names, vectors), expected):
        problems.append(difference)
    problems += checker.problems
    if others:
        problems.append(f"{others} rows are not those of {row_digests.DIGESTS}")
    for what, count in (("written", len(names)), ("deleted", len(checker.deleted))):
        if facts.get(what) != count:
            problems.append(f"{count} rows are {what}, but {manifest.MANIFEST} says {facts.get(what)}")
    manifest.refuse(folder, problems)
    return (
        f"{len(names)} rows and {len(checker.deleted)} ids to delete as Vertex takes them, in {facts['files']} files; "
        f"{len(expected.ids) if expected else 0} golden questions find their passages"
    )


def _rows(
    source: IndexSource, corpus: str | Path | None, fields: VertexFields | None, advance: Callable[[int], None]
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    vectors = (vector for piece in source.pieces(advance) for vector in piece)
    if corpus is None or fields is None:
        yield from zip(vectors, repeat({}))
        return
    field_rows = ((where, name, fields.of(where, row)) for where, name, row in passage_fields.rows(corpus))
    yield from zip(vectors, source.in_step(field_rows, corpus), strict=True)
    fields.check_found(corpus)


def _line(name: str, vector: np.ndarray, extras: Mapping[str, Any]) -> str:
    rest = json.dumps(extras, ensure_ascii=False)[1:-1]
    return f'{{"id": {json.dumps(name, ensure_ascii=False)}, "embedding": {as_json(vector)}{", " if rest else ""}{rest}}}\n'


class _Files:
    """The files part-00000.json and so on, each of at most FILE_BYTES."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.folder, self.count, self.bytes = folder, 0, 0
        self.file: IO[bytes] | None = None

    def write(self, line: str) -> None:
        encoded = line.encode()
        if self.file is None or self.bytes + len(encoded) > FILE_BYTES:
            self.close()
            if self.count == MOST_FILES:
                raise UserError(f"the rows need more than {MOST_FILES} files; export parts of the corpus one by one")
            # Nobody else sees the folder yet, so the file needs no renaming of its own.
            self.file = open(self.folder / f"part-{self.count:05d}.json", "wb")  # noqa: SIM115
            self.count, self.bytes = self.count + 1, 0
        self.file.write(encoded)
        self.bytes += len(encoded)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


def _readme(name: str, facts: dict[str, Any]) -> str:
    is_complete = facts["since"] is None
    parts = [
        f"# {name}: vectors for Vertex AI Vector Search",
        f"{facts['written']} of {facts['rows']} passages, {facts['dim']} dimensions, encoded by `{facts['model']}`."
        + (
            ""
            if is_complete
            else f" Only what changed since `{facts['since']}`; {facts['deleted']} ids are to be deleted."
        ),
        "Upload **the folder data/ alone**: Vertex takes no folder that holds anything else.",
        f"```bash\ngcloud storage cp --recursive {name}/data gs://BUCKET/{name}\n```",
        "Create the index from it (`contentsDeltaUri` is `gs://BUCKET/...`)"
        if is_complete
        else "Update the index with it: `contentsDeltaUri` is `gs://BUCKET/...` and `isCompleteOverwrite` false",
        f"with `dimensions` {facts['dim']} and `distanceMeasureType` `DOT_PRODUCT_DISTANCE`: the dot product is what "
        "the model was trained to rank by. Encode questions with the same model.",
    ]
    if facts["restricts"] or facts["crowding"]:
        named = [f"restricts: {', '.join(facts['restricts'])}"] if facts["restricts"] else []
        named += [f"crowding tag: {facts['crowding']}"] if facts["crowding"] else []
        parts.append(f"Stored with the vectors: {'; '.join(named)}.")
    parts += [
        f"`jaxretr export ... --to vertex --since {name}` writes only what changes after this; rows/ is kept for that.",
        f"`jaxretr verify {name}` checks every file here against its hash, the data against Vertex's schema, and that "
        "golden questions find their passages.",
    ]
    return "\n\n".join(parts) + "\n"
