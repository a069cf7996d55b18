"""The two tables of an index: its passages, and facts about them.

  passages        row bigint, id text, title text, text text, metadata jsonb, embedding vector(D)
  passages_facts  one row: generation, sequence, next_row, rows, changed, fields, facts, and the evidence for `verify`

Readers and writers look at the facts first, in the same transaction: that locks them, so that both tables are of one
export, and the rows' columns are those that the facts state. Replaced rows keep their numbers, and new ones get higher
numbers, which order equal scores.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from jaxretr.indexes.graph_width import Width
from jaxretr.indexes.pgvector.address import Address
from jaxretr.indexes.pgvector.connections import Connection
from jaxretr.indexes.recall import Certificate
from jaxretr.runtime.errors import UserError, import_extra
from jaxretr.runtime.json_dataclass import dataclass_from

sql = import_extra("psycopg.sql", "pgvector")

Sql: TypeAlias = Any
"""A statement or part of one that psycopg.sql composed of literals and quoted names."""

FORMAT = 1

# pgvector's limits: dimensions of an HNSW index of `vector` and of `halfvec`, and of a column.
MOST_DIM, MOST_HALF_DIM, MOST_COLUMN_DIM = 2000, 4000, 16000

# The content of the index: the vectors, the vectors rounded to float16, or "none" where there is no index.
Indexed = Literal["vector", "halfvec", "none"]


def indexed_as(dim: int) -> Indexed:
    """The type in which an HNSW index can hold vectors of D dimensions; "none" if there are too many."""
    return "vector" if dim <= MOST_DIM else "halfvec" if dim <= MOST_HALF_DIM else "none"


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """The facts that an export states about a table.

    Attributes:
      format: FORMAT.
      model, model_fingerprint, texts_fingerprint, compute: as in the embedding store.
      rows, dim: N and D of the export.
      vectors_sha256: over the vectors as float32, little endian, in the order of rows.
      indexed: the type in which the HNSW index holds the vectors.
      m, ef_construction: the parameters of that index.
      settings: one for each target; empty without an index.
      certificate: the measured recall and speed; None for too few rows.
      seed: the seed of the samples.
      jaxretr, postgresql, pgvector: versions.
    """

    format: int
    model: str
    model_fingerprint: str
    texts_fingerprint: str
    compute: str
    rows: int
    dim: int
    vectors_sha256: str
    indexed: Indexed
    m: int
    ef_construction: int
    settings: tuple[Width, ...]
    certificate: Certificate | None
    seed: int
    jaxretr: str
    postgresql: str
    pgvector: str


@dataclass(frozen=True)
class State:
    """The row of facts about a table as it is now.

    Attributes:
      generation: the generation of the export; another one means another table.
      sequence: the number of the last write; 0 after an export.
      rows: the number of passages.
      changed: rows that were added, replaced or deleted since the export.
      fields: the fields of the metadata that filters know.
      facts: the export's facts.
    """

    generation: str
    sequence: int
    rows: int
    changed: int
    fields: tuple[str, ...]
    facts: TableFacts


@dataclass(frozen=True)
class Names:
    """The names of an index's two tables, quoted for SQL."""

    passages: Sql
    facts: Sql

    @classmethod
    def of(cls, table: Sequence[str]) -> "Names":
        return cls(sql.Identifier(*table), sql.Identifier(*table[:-1], f"{table[-1]}_facts"))


def read_state(connection: Connection, address: Address, known: State | None = None) -> State:
    """Read the facts' row, and lock both tables against being exchanged until the transaction ends.

    Args:
      connection: a connection in a transaction.
      known: the state that was read before; the facts are read again only if something was written since.

    Raises:
      UserError: another program or another version wrote the table.
    """
    facts = Names.of(address.table).facts
    if known is not None:
        now = connection.execute(sql.SQL("SELECT generation, sequence FROM {}").format(facts)).fetchone()
        if now == (known.generation, known.sequence):
            return known
    columns = connection.execute(
        sql.SQL("SELECT generation, sequence, rows, changed, fields, facts FROM {}").format(facts)
    ).fetchone()
    if columns is None:
        raise UserError(f"{address.shown}: its table of facts is empty; export again")
    generation, sequence, rows, changed, fields, content = columns
    if known is not None and generation == known.generation:
        return State(generation, sequence, rows, changed, tuple(fields), known.facts)
    if content.get("format") != FORMAT:
        raise UserError(f"{address.shown}: was written by another version of jaxretr; export again with this one")
    return State(generation, sequence, rows, changed, tuple(fields), dataclass_from(TableFacts, content, address.shown))


def as_text(value: Any, what: str) -> str:
    """A text that PostgreSQL can store.

    Raises:
      UserError: it contains NUL, or half of a surrogate pair.
    """
    if "\x00" in value:
        raise UserError(f"{what} contains the character NUL, which PostgreSQL cannot store; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{what} contains half of a surrogate pair, which is not text; remove it") from None
    return value


def holds(value: str) -> bool:
    """Whether PostgreSQL can store a text; one that it cannot store is in no row."""
    try:
        return "\x00" not in value and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def as_json(value: Any) -> str:
    """A value as JSON to be sent; callers check that floats are finite."""
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, ensure_ascii=False)
