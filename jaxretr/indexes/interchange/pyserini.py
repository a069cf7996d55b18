"""Pyserini's embeddings.jsonl: one object {id, contents, vector} a line.

`pyserini.index.faiss --input DIR` reads every file of its folder as such lines, so the file has one of its own,
DIR/embeddings; golden hits, manifest.json and README.md are next to it. The vector of a sparse encoder is an object of its
words' impacts, as `pyserini.index.lucene --impact --pretokenized` reads them.
"""

import json
import math
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.corpus import iter_passages
from jaxretr.data.text_rows import find_input
from jaxretr.embeddings.vector_files import is_sparse
from jaxretr.indexes import golden_hits
from jaxretr.indexes.source import IndexSource, as_json, expected_bytes, silent
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.storage import manifest
from jaxretr.runtime.storage.files import atomic_folder, atomic_write

KIND = "pyserini"
EMBEDDINGS = "embeddings/embeddings.jsonl"

IMPACT = 100
"""An impact is the whole number nearest to so many times the weight, as in SPLADE's own exports; those of 0 are left out."""


def export(
    source: IndexSource,
    encoder: TextEncoder,
    out: str | Path,
    *,
    corpus: str | Path | None = None,
    advance: Callable[[int], None] = silent,
) -> str:
    """Write the folder, which appears when it is complete and verified; return a summary of what was written.

    Args:
      source, encoder, out, advance: see `faiss_index.export`.
      corpus: the corpus that was encoded, for `contents` ("title" and text, a line each); without it they are empty.

    Raises:
      UserError: an id that a file of lines cannot hold, vectors that are not finite, another corpus than the store's,
        or a folder that cannot be written.
    """
    out, meta = Path(out).expanduser(), source.store.meta
    source.check_ids_of_lines("Pyserini's docid file")
    texts = 0 if corpus is None else 2 * find_input(corpus, "corpus.jsonl").size
    disk = expected_bytes(meta.rows, meta.dim) + texts
    memory.announce(f"{meta.rows} passages for Pyserini", 200 * meta.rows + (128 << 20), disk=disk, folder=out)
    with atomic_folder(out) as partial:
        with atomic_write(partial / EMBEDDINGS) as file:
            if is_sparse(meta.dtype):
                vectors = _impacts(source, encoder, advance)
            else:
                vectors = (as_json(vector) for piece in source.pieces(advance) for vector in piece)
            contents = repeat("") if corpus is None else source.in_step(_contents(corpus), corpus)
            for vector, name, text in zip(vectors, source.ids, contents, strict=corpus is not None):
                head = json.dumps({"id": name, "contents": text}, ensure_ascii=False)
                file.write(f'{head[:-1]}, "vector": {vector}}}\n')
        if not is_sparse(meta.dtype):
            asked = golden_hits.questions(encoder)
            golden_hits.write(partial, asked, golden_hits.exact(source.pieces(), source.ids, asked))
        facts = {**source.facts(), "contents": corpus is not None, "impacts": is_sparse(meta.dtype)}
        return manifest.finish(partial, out, KIND, facts, _readme(out.absolute().name, facts), verify)


def verify(folder: Path) -> str:
    """Check hashes and lines, and golden questions if there are vectors; return a summary of what agrees.

    Raises:
      UserError: something differs; the message names it file by file.
    """
    record = manifest.read(folder)
    problems = manifest.changed_files(folder, record)
    ids: list[str] = []
    impacts, found = bool(record.facts.get("impacts")), ""
    try:
        rows = _read(folder, ids, None if impacts else record.facts.get("dim"))
        if impacts:
            found = f"{sum(map(len, rows))} impacts"
        else:
            vectors, expected = golden_hits.read(folder)
            hits = golden_hits.exact((np.array([row], np.float32) for row in rows), ids, vectors)
            problems += [difference] if (difference := golden_hits.difference(hits, expected)) else []
            found = f"{len(expected.ids)} golden questions find their passages"
    except UserError as error:
        problems.append(str(error))
    if len(set(ids)) != len(ids):
        problems.append(f"{EMBEDDINGS} holds an id twice")
    if len(ids) != record.facts.get("rows"):
        problems.append(f"{EMBEDDINGS} gives {len(ids)} rows instead of {record.facts.get('rows')}")
    manifest.refuse(folder, problems)
    return f"{len(ids)} rows for Pyserini; {found}"


def _impacts(source: IndexSource, encoder: TextEncoder, advance: Callable[[int], None]) -> Iterator[str]:
    """Yield the impacts of each passage of a sparse store, as JSON."""
    assert isinstance(encoder, DualEncoder)  # No other one is sparse.
    words = encoder.tokenizer.convert_ids_to_tokens(list(range(source.store.meta.dim)))
    for shard in range(source.store.meta.shards):
        entries, weights, counts = source.store.sparse_rows(shard)
        impacts, ends = np.rint(IMPACT * weights).astype(np.int64), np.cumsum(counts)
        for end, count in zip(ends.tolist(), counts.tolist(), strict=True):
            row = range(end - count, end)
            yield json.dumps({words[entries[n]]: int(impacts[n]) for n in row if impacts[n]}, ensure_ascii=False)
        advance(len(counts))


def _contents(corpus: str | Path) -> Iterator[tuple[str, str, str]]:
    for line, passage in iter_passages(corpus):
        contents = f"{passage.title}\n{passage.text}" if passage.title else passage.text
        yield f"{find_input(corpus, 'corpus.jsonl')}:{line}", passage.id, contents


def _read(folder: Path, ids: list[str], dim: Any) -> Iterator[Any]:
    """Yield the vectors one by one, D numbers each, or an object of impacts where `dim` is None, and note their ids."""
    try:
        with open(folder / EMBEDDINGS, encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                where = f"{EMBEDDINGS}:{number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{where}: no JSON ({error})") from None
                if not isinstance(row, dict) or list(row) != ["id", "contents", "vector"]:
                    raise UserError(f"{where}: no object of id, contents and vector")
                vector = row["vector"]
                if not isinstance(row["id"], str) or not isinstance(row["contents"], str):
                    raise UserError(f"{where}: its id or its contents are not text")
                if dim is None:
                    if not isinstance(vector, dict) or not all(type(x) is int and x > 0 for x in vector.values()):
                        raise UserError(f"{where}: its vector is not an object of whole numbers above 0")
                elif not isinstance(vector, list) or len(vector) != dim or not all(map(_is_number, vector)):
                    raise UserError(f"{where}: its vector is not a list of {dim} numbers")
                ids.append(row["id"])
                yield vector
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{EMBEDDINGS}: cannot be read ({error})") from error


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _readme(name: str, facts: dict[str, Any]) -> str:
    if facts["impacts"]:
        return _IMPACTS_README.format(name=name, impact=IMPACT, **facts)
    return (
        f"# {name}: vectors for Pyserini\n\n"
        f"{facts['rows']} passages, {facts['dim']} dimensions, encoded by `{facts['model']}`"
        f"{'' if facts['contents'] else '; their contents were left out'}.\n\n"
        f"```bash\npython -m pyserini.index.faiss --input {name}/embeddings --output index --dim {facts['dim']}\n```\n\n"
        "makes the folder that Pyserini's FaissSearcher reads; `jaxretr export ... --to faiss` writes such a folder "
        "itself. Encode questions with the same model.\n\n"
        f"`jaxretr verify {name}` checks every file here against its hash, and that golden questions find their "
        "passages.\n"
    )


_IMPACTS_README = """# {name}: impacts for Pyserini

{rows} passages, their words weighted by `{model}`: {impact} times the weights, rounded to whole numbers.

```bash
python -m pyserini.index.lucene --collection JsonVectorCollection --input {name}/embeddings --index index --generator DefaultLuceneDocumentGenerator --impact --pretokenized
```

Questions are weighted by the same model:

```python
import jaxretr
from pyserini.search.lucene import LuceneImpactSearcher


class Questions:
    def __init__(self, model):
        self.encoder = jaxretr.SparseEncoder.from_pretrained(model)

    def encode(self, text, **_):
        [weights] = self.encoder.words(self.encoder.encode_queries([text]))
        return {{word: round({impact} * weight) for word, weight in weights.items()}}


hits = LuceneImpactSearcher("index", Questions("{model}")).search("who wrote Faust?", k=10)
```

`jaxretr verify {name}` checks every file here against its hash, and every line.
"""
