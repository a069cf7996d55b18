"""A corpus as a folder with a LanceDB table: vectors, texts, metadata, an index and its certificate."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.indexes import certificate as certificates
from jaxretr.indexes import engine_certificate, golden_hits, question_sets
from jaxretr.indexes.engine_certificate import Asked, Certificate
from jaxretr.indexes.engine_questions import VERIFIED_QUESTIONS, asked_of, widths
from jaxretr.indexes.golden_hits import Hits
from jaxretr.indexes.lance.table import KIND, LanceTable, batch, write
from jaxretr.indexes.passage_fields import documents
from jaxretr.indexes.source import IndexSource, silent
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.storage import manifest
from jaxretr.runtime.storage.files import atomic_folder

# LanceDB's own defaults are 20 and 300; with 150 a build takes half the time.
M, EF_CONSTRUCTION = 20, 150

_MOST_WIDTH = 1000


def export(
    source: IndexSource,
    encoder: TextEncoder,
    out: Path,
    *,
    corpus: str | Path,
    questions: np.ndarray | None = None,
    k: int = 10,
    seed: int = 0,
    targets: Sequence[float] = (0.95,),
    m: int = M,
    ef_construction: int = EF_CONSTRUCTION,
    advance: Callable[[int], None] = silent,
) -> tuple[str, Certificate | None]:
    """Write the folder, which appears when it is complete, certified and verified.

    Args:
      source: the passages.
      encoder: the model that encoded them, for the golden questions.
      out: a new or empty folder.
      corpus: the passages' texts and metadata.
      questions: vectors float32 [B, D] to tune and to certify with; passages of the store by default.
      k: the depth of recall@k.
      seed: the seed of the samples.
      targets: recalls to tune the search for.
      m, ef_construction: parameters of the HNSW graphs.
      advance: called with the number of rows that were written since the last call.

    Returns:
      A summary of what was written, for people, and the certificate.

    Raises:
      UserError: LanceDB cannot write it, or the corpus is not the store's.
    """
    meta = source.store.meta
    stream = source.same_texts(corpus)
    fields = sorted({name for _, _, (_, metadata) in documents(stream) for name in metadata})
    disk = meta.rows * (meta.dim * 5 + 1000)
    memory.announce(f"{meta.rows} passages for LanceDB", meta.rows * meta.dim * 2 + (256 << 20), disk=disk, folder=out)
    with atomic_folder(out) as partial:
        batches = _batches(source, stream, fields, advance)
        write(partial, batches, meta.dim, fields, m=m, ef_construction=ef_construction)
        table = LanceTable(partial, fields, meta.dim)
        facts: dict[str, Any] = {**source.facts(), "fields": fields, "m": m, "ef_construction": ef_construction}
        facts |= {"settings": [], "lancedb": certificates.machine_facts("lancedb")["versions"]["lancedb"]}
        asked, certificate, k = asked_of(source, questions, seed), None, min(k, meta.rows)
        if asked is not None:
            settings = engine_certificate.tune(_search(table), asked, targets, k, widths(k, _MOST_WIDTH))
            certificate = engine_certificate.certify(
                _search(table),
                asked,
                settings,
                k,
                ("lancedb",),
                rows=meta.rows,
                dim=meta.dim,
                seed=seed,
                model=meta.model,
                index=f"LanceDB's IVF_HNSW_SQ, m {m}, ef_construction {ef_construction}",
            )
            facts["settings"] = [asdict(setting) for setting in settings]
            exact = asked.exact[asked.questions.certify]
            question_sets.write(partial, question_sets.with_neighbours(asked.questions, exact, source.ids))
            certificates.write(partial, certificate)
        vectors = golden_hits.questions(encoder)
        golden_hits.write(partial, vectors, golden_hits.exact(source.pieces(), source.ids, vectors))
        return manifest.finish(partial, out, KIND, facts, _readme(out.absolute().name, facts), verify), certificate


def verify(folder: Path) -> str:
    """Check hashes, let the golden questions search the table, and measure the recall again.

    Returns:
      A summary of what agrees, for people.

    Raises:
      UserError: something does not agree, or LanceDB is not installed.
    """
    stated = manifest.read(folder)
    facts = stated.facts
    manifest.refuse(folder, manifest.changed_files(folder, stated))
    table = LanceTable(folder, facts["fields"], facts["dim"])
    problems = [] if len(table) == facts["rows"] else [f"the table holds {len(table)} rows, not {facts['rows']}"]
    vectors, expected = golden_hits.read(folder)
    found = table.search(vectors, golden_hits.TOP, None)
    hits = Hits([one.ids for one in found], [list(map(float, one.scores)) for one in found])
    problems += [difference] if (difference := golden_hits.difference(hits, expected)) else []
    said = (
        f"{len(table)} rows in LanceDB, of {facts['model']}; {len(expected.ids)} golden questions find their passages"
    )
    if facts["settings"] and not problems:
        certificate = certificates.read(folder, Certificate)
        problems += engine_certificate.check_again(certificate, _search(table), _again(folder, facts, table))
        stated_recall = certificate.lines[0].recalls[0]
        said += f"; recall@{stated_recall.k} {stated_recall.recall:.3f} when it was exported, and no less now"
    manifest.refuse(folder, problems)
    return said


def _batches(
    source: IndexSource, stream: CorpusStream, fields: Sequence[str], advance: Callable[[int], None]
) -> Iterator[Any]:
    rows = source.in_step(documents(stream), stream.name)
    first = 0
    for piece in source.pieces(advance):
        some = [next(rows) for _ in range(len(piece))]
        passages = [(passage.id, passage.title, passage.text, metadata) for passage, metadata in some]
        yield batch(first, passages, piece, fields)
        first += len(piece)


def _search(table: LanceTable) -> engine_certificate.WidthSearch:
    def search(questions: np.ndarray, k: int, width: int) -> np.ndarray:
        rows = np.full((len(questions), k), -1, np.int64)
        for number, found in enumerate(table.search(questions, k, width)):
            rows[number, : len(found.rows)] = found.rows
        return rows

    return search


def _again(folder: Path, facts: dict[str, Any], table: LanceTable) -> Asked:
    """Read some certification questions, and the neighbours that were recorded for them."""
    questions = question_sets.read(folder, facts["dim"])
    part = slice(questions.tuning, questions.tuning + VERIFIED_QUESTIONS)
    neighbours = questions.neighbours[:VERIFIED_QUESTIONS]
    own = questions.own[part]
    names = {name for found in neighbours for name in found} | {name for name in own if name is not None}
    row_of = {name: row["row"] for name, row in table.rows(list(names), ["row"]).items()}
    exact = np.array([[row_of.get(name, -2) for name in found] for found in neighbours], np.int64)
    kept = replace(questions, vectors=questions.vectors[part], tuning=0, own=own, neighbours=())
    return Asked(kept, exact, kept.own_rows(row_of, slice(None)))


def _readme(name: str, facts: dict[str, Any]) -> str:
    return (
        f"# {name}: a LanceDB table\n\n"
        f"{facts['rows']} passages, {facts['dim']} dimensions, encoded by `{facts['model']}`, with their texts; an "
        f"IVF_HNSW_SQ index, whose recall is in certificate.md.\n\n"
        f'```python\nimport lancedb\n\ntable = lancedb.connect("{name}").open_table("passages")\n'
        "# question: float32 [D] of the same model; _distance is 1 minus the inner product\n"
        'hits = table.search(question, vector_column_name="embedding").distance_type("dot").limit(10).to_list()\n```\n\n'
        f"`jaxretr serve MODEL --index lance:{name}` searches it over HTTP. `jaxretr verify {name}` checks every file here "
        "against its hash, that golden questions find their passages, and the recall.\n"
    )
