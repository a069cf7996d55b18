"""A model measured on a BEIR folder, beside baselines."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import BeirSet, read_beir
from jaxretr.errors import UsageError
from jaxretr.evaluate import metrics as measures
from jaxretr.evaluate.measuring import (
    OF_QRELS,
    Run,
    Values,
    check_same_corpus,
    depth,
    of_qrels,
    run_of,
    warn_of_missing,
)
from jaxretr.evaluate.report import Measured, Report
from jaxretr.evaluate.runs import read_run
from jaxretr.evaluate.searches import bm25_search, encoder_search, stored_search

if TYPE_CHECKING:  # They bring JAX along, which a run is measured without.
    from jaxretr.stores.embedding_store import EmbeddingStore
    from jaxretr.stores.encoding import Encoder

BM25 = "bm25"
"""The baseline that is computed and not read; a file of that name is ./bm25."""

Measure = Callable[[Run, Sequence[str], str], Values]
"""From a run, names of metrics and the run's name for errors to the values of every question."""

_Path = str | Path


def evaluate_model(
    encoder: "Encoder | _Path",
    *,
    beir: _Path | BeirSet,
    split: str = "test",
    baselines: Sequence[_Path] = (),
    metrics: Sequence[str] = OF_QRELS,
    relevance_level: int = 1,
    index: "EmbeddingStore | _Path | None" = None,
    keep: _Path | None = None,
    batch_size: int | None = None,
) -> Report:
    """Measures a model on a BEIR folder, and compares it with baselines question by question.

    Args:
      encoder: the model, or what `load_encoder` takes.
      beir: a folder with corpus, queries and qrels, or such a one that was read.
      split: of the folder's judgements.
      baselines: runs, as files; "bm25" is BM25 on the same corpus and questions.
      metrics: for instance "ndcg@10"; `jaxretr.evaluate.metrics` lists them.
      relevance_level: the lowest grade that counts as relevant, except for ndcg.
      index: what `jaxretr.encode` made of the corpus with the model.
      keep: the folder of a store of the corpus's embeddings, which is written there, or used if it is there; an
        interrupted call goes on with it.
      batch_size: texts a batch; None: what suits the device.

    Raises:
      UsageError: an unknown metric, or both index and keep.
      UserError: bad input, or embeddings of another model or corpus.
    """
    # Everything that can be wrong is found before a model is loaded.
    if index is not None and keep is not None:
        raise UsageError("index is there already and keep writes what is missing; give one of them")
    for name in metrics:
        measures.parse(name)
    runs = read_baselines(baselines)
    data = beir if isinstance(beir, BeirSet) else read_beir(beir, split)
    from jaxretr.stores.encoding import loaded, name_of

    model, k = loaded(encoder), depth(metrics)
    where = "the BEIR folder" if isinstance(beir, BeirSet) else str(beir)
    found = model_run(model, data, k, name=name_of(model), where=where, index=index, keep=keep, batch_size=batch_size)
    compared = with_bm25(runs, data.corpus, data.questions, k)
    return report_of([(name_of(model), found), *compared], by_qrels(data.qrels, relevance_level), metrics)


def model_run(
    encoder: "Encoder",
    data: BeirSet,
    k: int,
    *,
    name: str,
    where: str,
    index: "EmbeddingStore | _Path | None" = None,
    keep: _Path | None = None,
    keep_option: str = "keep",
    batch_size: int | None = None,
) -> Run:
    """Searches the corpus with a model; arguments as of `evaluate_model`.

    Args:
      encoder: the model.
      data: corpus and questions.
      k: passages a question.
      name: of the model, for errors.
      where: the data are, for errors.
      index, keep: at most one of them.
      keep_option: what errors call `keep`.
      batch_size: texts a batch.
    """
    from jaxretr.stores.encoding import encode

    if keep is not None:
        store = encode(encoder, corpus=data.corpus, out=keep, batch_size=batch_size, model=name, option=keep_option)
        search = stored_search(encoder, store, data.corpus.ids, batch_size)
    elif index is not None:
        from jaxretr.search.searching import check_store
        from jaxretr.stores.opening import open_store

        store = open_store(index) if isinstance(index, str | Path) else index
        check_same_corpus([store], data.corpus, f"those of {where}")
        check_store(store, encoder, name)
        search = stored_search(encoder, store, data.corpus.ids, batch_size)
    else:
        search = encoder_search(encoder, data.corpus, batch_size)
    return run_of(search, data.questions, k)


def read_baselines(names: Sequence[_Path]) -> list[tuple[str, Run | None]]:
    """Reads the runs of baselines; None stands for BM25, which is not there yet."""
    return [("BM25", None) if name == BM25 else (str(name), read_run(name)) for name in names]


def with_bm25(
    baselines: Sequence[tuple[str, Run | None]], corpus: Corpus, questions: Sequence[Question], k: int
) -> list[tuple[str, Run]]:
    """The baselines with BM25's run over a corpus where it is asked for."""
    return [(name, run_of(bm25_search(corpus), questions, k) if run is None else run) for name, run in baselines]


def by_qrels(qrels: measures.Qrels, relevance_level: int) -> Measure:
    """Measures by judgements."""
    return lambda run, names, name: of_qrels(qrels, run, names, relevance_level, name)


def report_of(runs: Sequence[tuple[str, Run]], measure: Measure, names: Sequence[str]) -> Report:
    """Measures the first run and compares it with the others."""
    systems = []
    for name, run in runs:
        values = measure(run, names, name)
        warn_of_missing(next(iter(values.values())), run, name)
        systems.append(Measured(name, run, values))
    return Report.of(systems[0], systems[1:])
