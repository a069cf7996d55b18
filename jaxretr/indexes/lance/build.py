"""A corpus as a folder with a LanceDB table: vectors, texts, metadata, an index and its certificate."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxretr.indexes import golden_hits, question_sets, recall
from jaxretr.indexes.golden_hits import Hits
from jaxretr.indexes.graph_width import (
    VERIFIED_QUESTIONS,
    GraphOptions,
    WidthSearch,
    measured_again,
    tuned_and_certified,
)
from jaxretr.indexes.lance.table import KIND, LanceTable, batch, write
from jaxretr.indexes.measuring import GroundTruth, machine_facts
from jaxretr.indexes.passage_fields import documents
from jaxretr.indexes.recall import Certificate
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
    options: GraphOptions,
    advance: Callable[[int], None] = silent,
) -> tuple[str, Certificate | None]:
    """Write the folder, which appears when it is complete, certified and verified; return a summary and the certificate.

    Args:
      source, encoder, out, advance: see `jaxretr.indexes.interchange.faiss_index.export`.
      corpus: the passages' texts and metadata.
      options: the index to make.

    Raises:
      UserError: LanceDB cannot write it, or the corpus has other passages than the store.
    """
    meta, graph = source.store.meta, options.graph(M, EF_CONSTRUCTION)
    fields = sorted({name for _, _, document in documents(corpus) for name in document.metadata})
    disk = meta.rows * (meta.dim * 5 + 1000)
    memory.announce(f"{meta.rows} passages for LanceDB", meta.rows * meta.dim * 2 + (256 << 20), disk=disk, folder=out)
    with atomic_folder(out) as partial:
        write(partial, _batches(source, corpus, fields, advance), meta.dim, fields, **graph)
        table = LanceTable(partial, fields, meta.dim)
        facts: dict[str, Any] = {**source.facts(), "fields": fields, **graph}
        facts |= {"settings": [], "lancedb": machine_facts("lancedb")["versions"]["lancedb"]}
        tuned = tuned_and_certified(
            _search(table),
            source,
            options,
            widest=_MOST_WIDTH,
            index="LanceDB's IVF_HNSW_SQ, m {m}, ef_construction {ef_construction}".format(**graph),
            packages=("lancedb",),
        )
        if tuned is not None:
            facts["settings"] = [asdict(setting) for setting in tuned.settings]
            question_sets.write(partial, tuned.questions)
            recall.write(partial, tuned.certificate)
        vectors = golden_hits.questions(encoder)
        golden_hits.write(partial, vectors, golden_hits.exact(source.pieces(), source.ids, vectors))
        summary = manifest.finish(partial, out, KIND, facts, _readme(out.absolute().name, facts), verify)
        return summary, None if tuned is None else tuned.certificate


def verify(folder: str | Path) -> str:
    """Check hashes, golden questions and the recall; return a summary of what agrees.

    Raises:
      UserError: something does not agree, or LanceDB is not installed.
    """
    folder = Path(folder).expanduser()
    record = manifest.read(folder)
    facts = record.facts
    manifest.refuse(folder, manifest.changed_files(folder, record))
    table = LanceTable(folder, facts["fields"], facts["dim"])
    problems = [] if len(table) == facts["rows"] else [f"the table holds {len(table)} rows, not {facts['rows']}"]
    vectors, expected = golden_hits.read(folder)
    results = table.search(vectors, golden_hits.TOP, None)
    hits = Hits([each.ids for each in results], [list(map(float, each.scores)) for each in results])
    problems += [difference] if (difference := golden_hits.difference(hits, expected)) else []
    summary = (
        f"{len(table)} rows in LanceDB, of {facts['model']}; {len(expected.ids)} golden questions find their passages"
    )
    if facts["settings"] and not problems:
        worse, agrees = measured_again(recall.read(folder), _search(table), _recorded_questions(folder, facts, table))
        problems += worse
        summary += f"; {agrees}"
    manifest.refuse(folder, problems)
    return summary


def _batches(
    source: IndexSource, corpus: str | Path, fields: Sequence[str], advance: Callable[[int], None]
) -> Iterator[Any]:
    rows = source.in_step(documents(corpus), corpus)
    first = 0
    for piece in source.pieces(advance):
        yield batch(first, [next(rows) for _ in range(len(piece))], piece, fields)
        first += len(piece)


def _search(table: LanceTable) -> WidthSearch:
    return lambda questions, k, width: [hits.rows for hits in table.search(questions, k, width)]


def _recorded_questions(folder: Path, facts: dict[str, Any], table: LanceTable) -> GroundTruth:
    """Read some certification questions, and the neighbours that were recorded for them."""
    questions = question_sets.read(folder, facts["dim"]).certifying(VERIFIED_QUESTIONS)
    names = {name for group in (questions.own_ids, *questions.neighbours) for name in group if name is not None}
    return questions.as_noted({name: row["row"] for name, row in table.rows(list(names), ["row"]).items()})


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
