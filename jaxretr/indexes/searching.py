"""`jaxretr.search`: finds the passages of questions in an index of any kind."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_corpus
from jaxretr.data.runs import Hits, Queries, SearchRun, questions_of
from jaxretr.data.text_rows import RowError, check_trec_id
from jaxretr.embeddings.encoding import Encoder, Path_, encode_texts, loaded
from jaxretr.embeddings.fingerprints import texts_fingerprint
from jaxretr.indexes.checks import check_index, warn_of_other_texts
from jaxretr.indexes.filters import Where
from jaxretr.indexes.index import Document
from jaxretr.indexes.opening import has_texts, opened
from jaxretr.indexes.read_only import search_ids
from jaxretr.indexes.reranking import AnyScorer, loaded_scorer, rerank_hits
from jaxretr.indexes.row_filter import RowFilter
from jaxretr.runtime.errors import UsageError, UserError, at_least, require_at_least
from jaxretr.runtime.parallel.hosts import agree

if TYPE_CHECKING:
    from jaxretr.indexes.opening import AnyIndex


def search(
    encoder: Encoder | Path_ | Callable[[], Encoder],
    index: "AnyIndex",
    *,
    queries: Queries,
    k: int = 100,
    allow: Path | Iterable[str] | None = None,
    deny: Path | Iterable[str] | None = None,
    where: Where | None = None,
    corpus: Path_ | None = None,
    batch_size: int | None = None,
    trec_ids: bool = False,
    rerank: AnyScorer | None = None,
    depth: int = 100,
    passages: Corpus | None = None,
    with_texts: bool = False,
) -> SearchRun:
    """Find the k best passages of each question in an index of any kind, exactly or as its certificate says.

    With several processes, each searches its share of a store, or of an exact index given as a folder, on its own
    devices; all must call this, and all return the same run.

    Args:
      encoder: the model that made the index, what `load_encoder` takes, or a function that loads the model: it is
        called once the questions, the index and the filters have been checked.
      index: an embedding store (jaxretr encode), an exact index (ExactIndex.save), a certified one (jaxretr export --to
        scann), a live index that no service has open, pgvector:DSN or lance:DIR. Or another `Index`.
      queries: the questions; BEIR jsonl or folder, DPR tsv, id<TAB>text, or .txt lines. Also questions, or their texts,
        whose ids are then "0", "1", ...
      k: passages per question. Fewer are returned if fewer passages may be found.
      allow: ids of the only passages to search. A `Path` is a file with one per line.
      deny: ids of passages to exclude. A `Path` is a file with one per line.
      where: a field of the index's metadata, or of the rows of `corpus` or their "metadata", and its required value. Of
        several values of a field a passage must have one. Values are compared as text, as JSON writes them. A dict in
        place of a value has bounds, gt, gte, lt, lte, or values that a passage must not have: {"year": {"gte": 2020},
        "language": {"not_in": ["en", "de"]}}. On the command line FIELD=VALUE, FIELD!=VALUE, FIELD>=VALUE, ..., in quotes.
      corpus: the passages' file: JSON lines with the fields for `where`; titles and texts to re-rank or write; by default
        those that the index holds.
      batch_size: questions per batch; by default chosen for the device.
      trec_ids: refuse ids that a TREC run cannot represent, before the search.
      rerank: a cross-encoder or another scorer, what `load_scorer` takes, or a function that loads one: it orders the first
        `depth` hits of each question by its raw scores, and reads their texts in `corpus`, or in the index if it holds them;
        see `jaxretr.rerank`.
      depth: hits of a question that are re-ranked; those behind them are dropped.
      passages: the corpus for re-ranking, if it was read already.
      with_texts: read the hits' titles and texts from the index, if there is no corpus, for `.save` to write them.

    Returns:
      The hits, {question id: {passage id: score}}; `.save(path)` writes them.

    Raises:
      UserError: another model made the index, it is damaged, the questions cannot be read, a filter names an unknown
        id, field or value, or no passage passes the filters.
      UsageError: several processes, with a kind of index that only one can search; or texts are needed, and neither given
        nor in the index.
    """
    require_at_least(1, k=k, depth=depth)
    at_least(1, batch_size=batch_size)
    has_corpus = corpus is not None or passages is not None
    reads = (with_texts or rerank is not None) and not has_corpus
    if reads and not has_texts(index):
        raise UsageError("rerank reads the passages' texts, which this index lacks: give the corpus as well")
    questions = questions_of(queries, trec_ids)
    with opened(index, len(questions), k) as index:
        options = RowFilter(allow, deny, where, corpus).options(index)
        if trec_ids:
            _check_trec_ids(index.listing(share=True)[0], index.name)
        scorer = None if rerank is None else loaded_scorer(rerank)
        encoder = loaded(encoder)
        check_index(index, encoder)
        facts = {name: value for name, value in index.facts().items() if name != "bytes"}
        agree("the search", {"index": json.dumps(facts, default=str), "questions": texts_fingerprint(questions)})
        if passages is None and corpus is not None and scorer is not None:
            passages = read_corpus(corpus)
        if passages is not None:
            warn_of_other_texts(passages, facts, corpus or "the corpus", index.name)
        vectors = encode_texts(encoder, questions, batch_size)
        if reads:
            findings = index.find(vectors, k, options, with_documents=True)
            passages = _texts_of(findings.documents.values())
            each = (([hit.id for hit in hits], [hit.score for hit in hits]) for hits in findings.hits)
        else:
            scores, ids = search_ids(index, vectors, k, options)
            each = ((names, row[: len(names)]) for names, row in zip(ids, scores, strict=True))
        hits = [
            Hits(question.id, names, np.asarray(row, np.float32))
            for question, (names, row) in zip(questions, each, strict=True)
        ]
    if scorer is not None:
        assert passages is not None
        hits, _ = rerank_hits(scorer, hits, questions=questions, corpus=passages, depth=depth)
    return SearchRun(hits, questions, passages if reads else None)


def _texts_of(documents: Iterable[Document]) -> Corpus:
    """The titles and texts of passages, as a corpus of these alone."""
    rows = list(documents)
    return Corpus([each.id for each in rows], [each.title for each in rows], [each.text for each in rows])


def _check_trec_ids(ids: Sequence[str], index: str) -> None:
    """Refuse ids that the columns of a TREC run cannot hold, before the work of a search is lost to one."""
    for number, name in enumerate(ids, start=1):
        try:
            check_trec_id(name)
        except RowError as error:
            raise UserError(f"{index}: passage {number}: {error}, with corpus=") from None
