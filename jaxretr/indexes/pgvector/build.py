"""A corpus as tables of PostgreSQL with pgvector: copied, indexed, certified and exchanged for the old ones at once."""

import hashlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.corpus import rows_fingerprint
from jaxretr.embeddings import golden
from jaxretr.indexes import golden_hits, question_sets, recall
from jaxretr.indexes.golden_hits import Hits
from jaxretr.indexes.graph_width import (
    VERIFIED_QUESTIONS,
    GraphOptions,
    WidthSearch,
    measured_again,
    padded,
    tuned_and_certified,
)
from jaxretr.indexes.index import SearchOptions
from jaxretr.indexes.passage_fields import documents
from jaxretr.indexes.pgvector import table as tables
from jaxretr.indexes.pgvector import writing
from jaxretr.indexes.pgvector.address import Address
from jaxretr.indexes.pgvector.connections import Connection, Database, as_user_error
from jaxretr.indexes.pgvector.searching import MOST_WIDTH, search
from jaxretr.indexes.pgvector.table import MOST_COLUMN_DIM, Names, State, TableFacts, as_json, indexed_as
from jaxretr.indexes.recall import Certificate
from jaxretr.indexes.source import IndexSource, silent
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.errors import UserError, import_extra
from jaxretr.version import __version__

psycopg = import_extra("psycopg", "pgvector")
sql = import_extra("psycopg.sql", "pgvector")

# pgvector's own defaults are 16 and 64; with 128 a build takes twice as long, and the same recall needs fewer candidates.
M, EF_CONSTRUCTION = 16, 128

# Seconds that the exchange waits for readers of the old table, while other readers wait behind it.
_LOCK_SECONDS = 30


def export(
    source: IndexSource,
    encoder: TextEncoder,
    address: Address,
    *,
    corpus: str | Path,
    options: GraphOptions,
    advance: Callable[[int], None] = silent,
) -> tuple[str, Certificate | None]:
    """Write the tables, which take the place of the old ones when they are complete, certified and verified.

    Args:
      address: the table's address.
      source, encoder, corpus, options, advance: see `jaxretr.indexes.lance.build.export`, which returns the same.

    Raises:
      UserError: the database refuses, its table is not one of ours, or the corpus has other passages than the store.
    """
    meta = source.store.meta
    if meta.dim > MOST_COLUMN_DIM:
        raise UserError(f"{source.store.folder}: pgvector holds {MOST_COLUMN_DIM} dimensions, not {meta.dim}")
    connection = Database(address).connect(extension=True)
    try:
        with connection.transaction():
            _check_ours(connection, address)
            connection.execute("SELECT set_config('statement_timeout', '0', true)")
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{_LOCK_SECONDS}s",))
            loader = _Loader(connection, source, address, options)
            loader.copy(corpus, advance)
            certificate = loader.certify()
            loader.write_golden(golden_hits.questions(encoder))
            summary = _verified(connection, replace(address, table=loader.table))
            writing.exchange(connection, loader.names, address)
    except psycopg.Error as error:
        raise as_user_error(address, error, _LOCK_SECONDS) from None
    finally:
        connection.close()
    return summary, certificate


def verify(address: Address) -> str:
    """Compare the table with the facts that its export stated; return a summary of what agrees.

    Raises:
      UserError: something does not agree.
    """
    database = Database(address, size=1, timeout_s=3600)
    try:
        return database.run(lambda connection: _verified(connection, address))
    finally:
        database.close()


class _Loader:
    """An export under way, in one transaction.

    Attributes:
      table: the name of the new table.
      names: the names of the new tables.
      state: the known state of the new tables.
    """

    def __init__(self, connection: Connection, source: IndexSource, address: Address, options: GraphOptions):
        self.connection, self.source, self.options = connection, source, options
        self.address = address
        self.generation = secrets.token_hex(8)
        self.suffix = f"{address.table[-1]}_{self.generation[:8]}"
        self.table = (*address.table[:-1], self.suffix)
        self.names = Names.of(self.table)
        self.state: State

    def copy(self, corpus: str | Path, advance: Callable[[int], None]) -> None:
        """Fill the table, and index it."""
        source, meta = self.source, self.source.store.meta
        digest = hashlib.sha256()

        def pieces() -> Iterator[np.ndarray]:
            for piece in source.pieces(advance):
                digest.update(np.ascontiguousarray(piece, "<f4").data)
                yield piece

        rows = source.in_step(documents(corpus), corpus)
        writing.create(self.connection, self.names, meta.dim)
        fields = writing.copy_in(self.connection, self.names, rows, pieces())
        indexed = indexed_as(meta.dim)
        sizes = {"rows": meta.rows, "dim": meta.dim, **self.options.graph(M, EF_CONSTRUCTION)}
        writing.build_indexes(self.connection, self.names, self.suffix, indexed, **sizes)
        server, extension = _versions(self.connection)
        facts = TableFacts(
            format=tables.FORMAT,
            model=meta.model,
            model_fingerprint=meta.model_fingerprint,
            texts_fingerprint=meta.texts_fingerprint,
            compute=meta.compute,
            vectors_sha256=digest.hexdigest(),
            indexed=indexed,
            settings=(),
            certificate=None,
            seed=self.options.seed,
            jaxretr=__version__,
            postgresql=server,
            pgvector=extension,
            **sizes,
        )
        self.state = State(self.generation, 0, meta.rows, 0, tuple(sorted(fields)), facts)
        self.connection.execute(
            sql.SQL(
                "INSERT INTO {} (generation, sequence, next_row, rows, changed, fields, facts) "
                "VALUES (%s, 0, %s, %s, 0, %s, %s::jsonb)"
            ).format(self.names.facts),
            (self.generation, meta.rows, meta.rows, list(self.state.fields), as_json(recall.as_dict(facts))),
        )

    def certify(self) -> Certificate | None:
        """Tune the search, measure the certificate, and record both."""
        facts = self.state.facts
        index = (
            "searched exactly in PostgreSQL"
            if facts.indexed == "none"
            else f"pgvector's HNSW over {'rounded vectors' if facts.indexed == 'halfvec' else 'the vectors'}, m {facts.m}, "
            f"ef_construction {facts.ef_construction}"
        )
        tuned = tuned_and_certified(
            _search(self.connection, self.names, self.state),
            self.source,
            self.options,
            widest=None if facts.indexed == "none" else MOST_WIDTH,
            index=f"{index} (PostgreSQL {facts.postgresql}, pgvector {facts.pgvector})",
            packages=("psycopg", "pgvector"),
        )
        if tuned is None:
            return None
        facts = replace(facts, settings=tuned.settings, certificate=tuned.certificate)
        self.state = replace(self.state, facts=facts)
        certifying = tuned.questions.certifying()
        self.connection.execute(
            sql.SQL("UPDATE {} SET facts = %s::jsonb, questions = %s::jsonb, question_vectors = %s").format(
                self.names.facts
            ),
            (
                as_json(recall.as_dict(facts)),
                as_json(certifying.own_ids),
                np.ascontiguousarray(certifying.vectors, "<f4").tobytes(),
            ),
        )
        return tuned.certificate

    def write_golden(self, vectors: np.ndarray) -> None:
        """Record the hits that the golden questions must find, according to our own exact search."""
        hits = golden_hits.exact(self.source.pieces(), self.source.ids, vectors)
        content = {"questions": golden.QUESTIONS, "ids": hits.ids, "scores": hits.scores}
        self.connection.execute(
            sql.SQL("UPDATE {} SET golden = %s::jsonb, golden_vectors = %s").format(self.names.facts),
            (as_json(content), np.ascontiguousarray(vectors, "<f4").tobytes()),
        )


def _search(connection: Connection, names: Names, state: State) -> WidthSearch:
    """The search of the table; a width of 0 scores every row."""
    return lambda questions, k, width: [
        hits.rows for hits in search(connection, names, state, questions, k, width or None, SearchOptions())
    ]


def _check_ours(connection: Connection, address: Address) -> None:
    """Refuse to take the place of a table that no export made."""
    passages, facts = (name.as_string(connection) for name in vars(Names.of(address.table)).values())
    existing = connection.execute("SELECT to_regclass(%s)::text, to_regclass(%s)::text", (passages, facts)).fetchone()
    if existing is None or existing == (None, None):
        return
    ours = None not in existing and connection.execute(
        "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname IN ('generation', 'next_row')",
        (facts,),
    ).fetchone() == (2,)
    if not ours:
        raise UserError(f"{address.shown}: there is a table of this name that no export made; give another table=")


def _versions(connection: Connection) -> tuple[str, str]:
    versions = connection.execute(
        "SELECT current_setting('server_version'), extversion FROM pg_extension WHERE extname = 'vector'"
    ).fetchone()
    assert versions is not None
    return versions[0].split()[0], versions[1]


def _verified(connection: Connection, address: Address) -> str:
    names = Names.of(address.table)
    state = tables.read_state(connection, address)
    facts, problems = state.facts, []
    count = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(names.passages)).fetchone()
    if count != (state.rows,):
        problems.append(f"it holds {count and count[0]} rows, not {state.rows}")
    summary = [f"{state.rows} rows in PostgreSQL, of {facts.model}"]
    if state.sequence == 0:
        problems += _content_problems(connection, names, state)
        golden_problem, questions = _golden_problem(connection, names, state)
        problems += [golden_problem] if golden_problem else []
        summary.append(f"all texts and vectors; {questions} golden questions find their passages")
    else:
        summary.append(f"{state.changed} passages changed since the export, so the golden questions are not asked")
    if not problems and facts.certificate is not None:
        worse, agrees = _measured_again(connection, names, state, facts.certificate)
        problems += worse
        summary.append(agrees)
    if problems:
        raise UserError(f"{address.shown}: not what was exported: {'; '.join(problems)}; export again")
    return "; ".join(summary)


def _content_problems(connection: Connection, names: Names, state: State) -> list[str]:
    """Read all rows, and compare them with the hashes."""
    digest = hashlib.sha256()

    def texts(cursor: Any) -> Iterator[list[str]]:
        for *row, vector in cursor:
            digest.update(np.ascontiguousarray(vector.to_numpy(), "<f4").data)
            yield row

    with connection.cursor(name="verified", binary=True) as cursor:
        cursor.itersize = 1000
        cursor.execute(sql.SQL("SELECT id, title, text, embedding FROM {} ORDER BY row").format(names.passages))
        fingerprint = rows_fingerprint(texts(cursor), state.rows)
    problems = []
    if fingerprint != state.facts.texts_fingerprint:
        problems.append("ids, titles or texts were changed")
    if digest.hexdigest() != state.facts.vectors_sha256:
        problems.append("vectors were changed")
    return problems


def _golden_problem(connection: Connection, names: Names, state: State) -> tuple[str, int]:
    content, raw = _evidence(connection, names, "golden", "golden_vectors")
    vectors = np.frombuffer(raw, "<f4").reshape(-1, state.facts.dim)
    results = search(connection, names, state, vectors, golden_hits.TOP, None, SearchOptions())
    hits = Hits([each.ids for each in results], [list(each.scores) for each in results])
    return golden_hits.difference(hits, Hits(content["ids"], content["scores"])), len(content["ids"])


def _measured_again(
    connection: Connection, names: Names, state: State, certificate: Certificate
) -> tuple[list[str], str]:
    """Ask certification questions again; an exact search finds their current neighbours."""
    own_ids, raw = _evidence(connection, names, "questions", "question_vectors")
    own_ids = own_ids[:VERIFIED_QUESTIONS]
    vectors = np.frombuffer(raw, "<f4").reshape(-1, state.facts.dim)[: len(own_ids)]
    row_of = dict(
        connection.execute(
            sql.SQL("SELECT id, row FROM {} WHERE id = ANY(%s)").format(names.passages),
            ([name for name in own_ids if name is not None],),
        ).fetchall()
    )
    own_rows = np.array([-1 if name is None else row_of.get(name, -1) for name in own_ids], np.int64)
    k = certificate.lines[0].tuned_k
    by_width, depth = _search(connection, names, state), k + int((own_rows >= 0).any())
    truth = question_sets.without_own(vectors, padded(by_width(vectors, depth, 0), depth), own_rows)
    return measured_again(certificate, by_width, truth)


def _evidence(connection: Connection, names: Names, content: str, vectors: str) -> tuple[Any, bytes]:
    row = connection.execute(
        sql.SQL("SELECT {}, {} FROM {}").format(sql.Identifier(content), sql.Identifier(vectors), names.facts)
    ).fetchone()
    if row is None or None in row:
        raise UserError("the table of facts lacks its questions; export again")
    return row[0], row[1]
