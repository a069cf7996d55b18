"""`jaxretr.inspect_data`: the format and size of a file or folder, and its first row."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from jaxretr.data.description import Description, Spread, shortened_line
from jaxretr.data.formats.format import Format, Lookup
from jaxretr.data.formats.kinds import KINDS, file_kind
from jaxretr.data.formats.reading import lookup
from jaxretr.data.lexical_set import LexicalSet, is_lexical_set
from jaxretr.data.source import NamedSource, source_of
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.memory import size
from jaxretr.runtime.storage.copies import local_folder
from jaxretr.runtime.storage.paths import as_path, is_remote

_SAMPLED_VECTORS = 1000


def inspect_data(path: str | Path, *, format: str | None = None, queries: str | Path | None = None) -> Description:
    """Describe a training set, corpus, question file, judgements, run, BEIR folder, store or index.

    Args:
      path: any data file or folder, also in a bucket.
      format: format of a data file; by default detected from its content. A key of `jaxretr.data.formats.kinds.KINDS`.
      queries: the questions of triples-ids and distillation.

    Raises:
      UserError: the format is not recognised, or the file cannot be read.
      UsageError: `queries` for another format.
    """
    source = source_of(path)
    if not isinstance(source, NamedSource):
        place = as_path(path)
        if is_remote(place):
            from jaxretr.embeddings.embedding_store import is_store

            place = place if is_store(place) else local_folder(place)
        if (place / "meta.json").is_file():
            return _folder(place)
        source = source_of(place)
    kind = KINDS[format or file_kind(source)]
    if queries is not None and kind.name not in ("triples-ids", "distillation"):
        raise UsageError(f"queries= is for triples-ids and distillation; {source} looks like {kind.title}")
    file = source if kind.name == "beir" else source.file()
    # Judgements are described by themselves: their questions are not needed.
    found = Lookup()
    if isinstance(kind, Format) and not kind.has_grades:
        found = lookup(source, kind, queries=queries)
    return replace(kind.describe(file, found), path=str(source))


def _folder(path: Path) -> Description:
    """Describe a folder with a meta.json."""
    if is_lexical_set(path):
        examples = LexicalSet.open(path)
        teacher = examples.teachers[0]
        facts = {
            "queries": len(examples),
            "dropped": examples.counts["dropped"],
            "passages of the corpus": examples.corpus_rows,
            "teachers": ", ".join(each.name for each in examples.teachers),
            "positives, negatives": f"{teacher.positives.shape[1]}, {teacher.negatives.shape[1]}",
        }
        return Description(
            str(path), "lexical set", facts, first=[shortened_line(f"first query: {examples.queries[0]}")]
        )
    # Imported here: they bring JAX.
    if (path / "offsets.npy").is_file():
        from jaxretr.data.token_store import TokenStore

        tokens = TokenStore(path)
        facts = {
            "rows": tokens.num_rows,
            "cut at the length limit": tokens.truncated,
            "type": str(tokens.dtype),
            "tokens a row": Spread.of(tokens.lengths),
        }
        return Description(str(path), "token store", facts)
    from jaxretr.embeddings.embedding_store import EmbeddingStore, is_store
    from jaxretr.embeddings.index_folder import read

    if is_store(path):
        store = EmbeddingStore.open(path)
        meta = store.meta
        lengths = np.linalg.norm(store.rows(0, _SAMPLED_VECTORS), axis=1)
        facts = {
            f"{meta.side}s": meta.rows,
            "cut at the model's length": store.cut,
            "dimensions": meta.dim,
            "shards": meta.shards,
            "type": meta.dtype,
            "matmuls": meta.compute,
            "on disk": size(store.bytes),
            "model": meta.model,
            "address": meta.address[:12],
            # Shows whether the model normalises its vectors.
            "length of a vector": f"{lengths.mean():.4f} (of the first {len(lengths)}, from {lengths.min():.4f} to "
            f"{lengths.max():.4f})",
        }
        return Description(str(path), "embedding store", facts)
    embeddings, ids, metadata = read(path)
    facts = {
        "rows": len(embeddings),
        "dimensions": embeddings.shape[1],
        "type": embeddings.dtype.name,
        "ids": "none" if ids is None else len(ids),
        **({"metadata": ", ".join(metadata)} if metadata else {}),
    }
    return Description(str(path), "exact index", facts)
