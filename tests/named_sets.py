"""The passages, questions and judgements of tests/data/wiki_qa under names: of ir_datasets, of TFDS, and as parquet."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ir_datasets
import pyarrow
import pyarrow.parquet
import tiny
from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, TrecQrel
from ir_datasets.util import LocalDownload

from jaxretr.data.readers import beir_splits, qrels_path, read_corpus, read_qrels, read_questions
from jaxretr.data.tfds_builder import build_data

IR_ID = "jaxretr-test/wiki-qa"


class Doc(NamedTuple):
    """As ir_datasets has BEIR's documents."""

    doc_id: str
    text: str
    title: str


class Query(NamedTuple):
    """As ir_datasets has dpr-w100's questions."""

    query_id: str
    text: str
    answers: tuple[str, ...]


class Docs(BaseDocs):
    """Documents of JSON lines, read as ir_datasets reads BEIR's."""

    def __init__(self, file: Any):
        super().__init__()
        self.file = file

    def docs_iter(self) -> Iterator[Doc]:
        with self.file.stream() as stream:
            for line in stream:
                row = json.loads(line)
                yield Doc(row["_id"], row["text"], row.get("title"))


class Queries(BaseQueries):
    def __init__(self, folder: Path):
        self.folder = folder

    def queries_iter(self) -> Iterator[Query]:
        return (Query(each.id, each.text, each.answers) for each in read_questions(self.folder))


class Qrels(BaseQrels):
    def __init__(self, path: Path):
        self.path = path

    def qrels_iter(self) -> Iterator[TrecQrel]:
        for query, judged in read_qrels(self.path).items():
            for passage, grade in judged.items():
                yield TrecQrel(query, passage, grade, "0")


def register(id: str, *parts: Any) -> str:
    """Makes an id of ir_datasets known in this process; returns its name."""
    ir_datasets.registry._registered.pop(id, None)
    ir_datasets.registry.register(id, Dataset(*parts))
    return f"ir_datasets:{id}"


def register_beir(id: str, folder: Path = tiny.DATA) -> str:
    """Registers a BEIR folder, with an id below it for each split."""
    corpus = next(path for path in (folder / "corpus.jsonl", folder / "corpus.jsonl.gz") if path.exists())
    docs, queries = Docs(LocalDownload(corpus)), Queries(folder)
    for split in beir_splits(folder):
        register(f"{id}/{split}", docs, queries, Qrels(Path(str(qrels_path(folder, split)))))
    return register(id, docs, queries)


def write_parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> None:
    """Writes rows as a parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)


def parquet_beir(out: Path, folder: Path = tiny.DATA) -> str:
    """Writes a BEIR folder in the layout that MTEB's sets have on the hub; returns its name."""
    passages = [{"_id": each.id, "title": each.title, "text": each.text} for each in read_corpus(folder)]
    # Two shards and small row groups, which are read in their order.
    half = len(passages) // 2
    write_parquet(out / "corpus/corpus-00000-of-00002.parquet", passages[:half], row_group_size=3)
    write_parquet(out / "corpus/corpus-00001-of-00002.parquet", passages[half:])
    questions = [{"_id": q.id, "text": q.text, "answers": list(q.answers)} for q in read_questions(folder)]
    write_parquet(out / "queries/queries-00000-of-00001.parquet", questions)
    for split in beir_splits(folder):
        judged = read_qrels(qrels_path(folder, split))
        rows = [
            {"query-id": query, "corpus-id": passage, "score": float(grade)}
            for query, grades in judged.items()
            for passage, grade in grades.items()
        ]
        write_parquet(out / f"data/{split}-00000-of-00001.parquet", rows)
    return f"hf:{out}"


def tfds_beir(out: Path, folder: Path = tiny.DATA) -> str:
    """Builds a BEIR folder as a data set of TFDS; returns its name."""
    return f"tfds:{build_data(folder, out, name='wiki_qa').path}"


def all_names(out: Path, folder: Path = tiny.DATA) -> dict[str, str]:
    """The three names of one BEIR folder."""
    return {
        "ir_datasets": register_beir(IR_ID, folder),
        "tfds": tfds_beir(out / "tfds", folder),
        "hf": parquet_beir(out / "parquet", folder),
    }
