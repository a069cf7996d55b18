"""`jaxretr.evaluate_model` and `jaxretr.evaluate_run`: metrics of a model on a BEIR folder, or of a run from a file."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import BeirSet, beir_splits, read_beir, read_corpus, read_qrels, read_questions
from jaxretr.data.run_reading import has_question_ids, read_run
from jaxretr.data.runs import questions_of
from jaxretr.data.source import source_of
from jaxretr.evaluate import metrics as measures
from jaxretr.evaluate.answers import Match
from jaxretr.evaluate.measuring import (
    OF_ANSWERS,
    OF_QRELS,
    Run,
    Search,
    TestSet,
    check_same_corpus,
    cut_of_answers,
    warn_of_own,
)
from jaxretr.evaluate.measuring import depth as hits_needed
from jaxretr.evaluate.report import Report
from jaxretr.evaluate.searches import (
    OwnEncoder,
    System,
    bm25_search,
    encoder_search,
    find_all,
    index_search,
    own_encoder_search,
    store_search,
)
from jaxretr.runtime.errors import UsageError, UserError, check_list, path_text

if TYPE_CHECKING:  # They import JAX, which measuring a run does not need.
    from jaxretr.config import EncodeDtype
    from jaxretr.embeddings.encoding import Encoder
    from jaxretr.indexes.index import Index
    from jaxretr.indexes.opening import AnyIndex
    from jaxretr.indexes.reranking import AnyScorer
    from jaxretr.models.any_scorer import Scorer

log = logging.getLogger(__name__)

BM25 = "bm25"
"""The baseline that is computed, not read; a file of that name is ./bm25."""

_Path = str | Path


def evaluate_model(
    encoder: "Encoder | OwnEncoder | _Path | Callable[[], Encoder]",
    *,
    beir: _Path | BeirSet,
    split: str = "test",
    baselines: Sequence[_Path] = (),
    metrics: Sequence[str] = OF_QRELS,
    relevance_level: int = 1,
    index: "AnyIndex | None" = None,
    keep: _Path | None = None,
    batch_size: int | None = None,
    rerank: "AnyScorer | None" = None,
    depth: int = 100,
    dtype: "EncodeDtype" = "float32",
) -> Report:
    """Measure a model on a BEIR folder, and compare it with baselines question by question.

    Args:
      encoder: the model, a path or name as `load_encoder` takes it, or a function that loads it. Or anything of your own that
        has encode_queries(texts) and encode_passages(passages, with title and text) -> float [n, D].
      beir: a BEIR folder, with corpus, queries and qrels. Or one already read.
      split: the split of the folder's judgements.
      baselines: runs, as files, and models, as folders or hub names, to compare with; "bm25" is BM25. Models and BM25
        search the same corpus for the same questions.
      metrics: for instance "ndcg@10"; `jaxretr.evaluate.metrics` lists them.
      relevance_level: the lowest grade that counts as relevant, except for ndcg.
      index: an index of the BEIR folder's corpus made with the model, of any kind that jaxretr search takes. The hits of
        an approximate one are measured as they are.
      keep: folder for the embeddings of the BEIR folder's corpus: written, or reused if they exist; an interrupted call
        resumes with them.
      batch_size: texts per batch; by default chosen for the device.
      rerank: a cross-encoder or another scorer, what `load_scorer` takes, or a function that loads one: it orders the first
        hits of each question, see `jaxretr.rerank`. The report has the metrics after and before, and compares them.
      depth: hits that are re-ranked; those behind them are dropped.
      dtype: precision of the models among the baselines, see `load_encoder`.

    A passage that is the question itself does not count as found by any of the systems (`jaxretr.data.question_identity`).

    Returns:
      The metrics and the comparisons; the report prints, writes and plots them.

    Raises:
      UsageError: an unknown metric, a baseline named twice, or both index and keep.
      UserError: bad input, or embeddings of another model or corpus.
    """
    # Find every error of the arguments and files before a model is loaded.
    if index is not None and keep is not None:
        raise UsageError("index is there already and keep writes what is missing; give one of them")
    _check_metrics(metrics)
    for name in metrics:
        measures.parse(name)
    data = beir if isinstance(beir, BeirSet) else read_beir(beir, split)
    compared = read_systems(baselines, data.questions, dtype, batch_size)
    from jaxretr.embeddings.encoding import loaded, name_of
    from jaxretr.indexes.opening import opened

    k = max(hits_needed(metrics), 0 if rerank is None else depth)
    where = "the BEIR folder" if isinstance(beir, BeirSet) else str(beir)
    on = TestSet(data.questions, data.corpus, data.qrels, relevance_level=relevance_level)
    with nullcontext() if index is None else opened(index, len(data.questions), k) as stored:
        scorer = _loaded_scorer(rerank, depth, metrics)
        any_encoder: Any = encoder
        model = loaded(any_encoder)
        system = name_of(model), lambda corpus: _search_of(model, corpus, where, stored, keep, batch_size)
        return _report([system, *compared], on, metrics, scorer, depth)


def _search_of(
    encoder: "Encoder | OwnEncoder",
    corpus: Corpus,
    where: str,
    index: "Index | None",
    keep: _Path | None,
    batch_size: int | None,
) -> Search:
    from jaxretr.embeddings.encoding import encode
    from jaxretr.indexes.checks import check_index
    from jaxretr.models.combined_encoder import CombinedEncoder
    from jaxretr.models.dual_encoder import DualEncoder

    if not isinstance(encoder, DualEncoder | CombinedEncoder):
        if any(value is not None for value in (keep, index, batch_size)):
            raise UsageError(
                f"index, keep and batch_size are for jaxretr's encoders, not for a {type(encoder).__name__}; leave them out"
            )
        return own_encoder_search(encoder, corpus)
    if keep is not None:
        store = encode(encoder, corpus=corpus, out=keep, batch_size=batch_size, option="keep")
        return store_search(encoder, store, batch_size)
    if index is None:
        return encoder_search(encoder, corpus, batch_size)
    check_same_corpus([index], corpus, f"those of {where}")
    check_index(index, encoder)
    return index_search(encoder, index, batch_size)


def evaluate_run(
    run: _Path | Run,
    *,
    qrels: _Path | measures.Qrels | None = None,
    answers: _Path | Sequence[Question] | None = None,
    corpus: _Path | Corpus | None = None,
    queries: _Path | Sequence[Question] | None = None,
    match: Match = "string",
    baselines: Sequence[_Path] = (),
    metrics: Sequence[str] | None = None,
    relevance_level: int = 1,
    rerank: "AnyScorer | None" = None,
    depth: int = 100,
    dtype: "EncodeDtype" = "float32",
    batch_size: int | None = None,
) -> Report:
    """Measure a run by judgements or by answers, and compare it with baselines question by question.

    Args:
      run: a run of jaxretr search or bm25, or results in MS MARCO's or DPR's format. A file as
        `jaxretr.data.run_reading.read_run` reads it, or {question id: {passage id: score}}.
      qrels: judgements in BEIR's or TREC's format.
      answers: questions with answers, in place of judgements: Acc@k by DPR's matching in the texts of `corpus`.
      corpus: the passages of the run, for `answers`, `rerank` and baselines that search; with `queries`, a passage that is
        the question itself does not count as found. See `jaxretr.data.question_identity`; without, it counts as in
        trec_eval.
      queries: the questions of the run, for `qrels` with `corpus`, or a run without their ids (DPR's). They are found by
        their text.
      match: the way to match answers.
      baselines: runs to compare with, question by question, or models, as folders or hub names; bm25 is BM25; models and
        BM25 search `corpus` for `queries`; all tests are Holm-corrected together.
      metrics: ndcg, mrr, map, recall, precision, success, recall_cap, holes with @k, rprec, bpref; ndcg@10, mrr@10 and
        recall@100 by default, or acc@1, acc@5, acc@20 and acc@100 with `answers`.
      relevance_level: the lowest grade that counts as relevant, except for ndcg.
      rerank: a scorer that orders the first hits of each question, as for `evaluate_model`.
      depth: hits that are re-ranked; those behind them are dropped.
      dtype: precision of the models among the baselines, see `load_encoder`.
      batch_size: texts per batch of these models; by default chosen for the device.

    Returns:
      The metrics and the comparisons; the report prints, writes and plots them.

    Raises:
      UsageError: arguments that do not go together, or an unknown metric.
      UserError: a file cannot be read, or files do not fit together.
    """
    if not isinstance(run, str | Path):
        measures.check_by_question("run", run)
    if not isinstance(qrels, str | Path | None):
        measures.check_by_question("qrels", qrels)
    check_list("baselines", baselines)
    names = (OF_QRELS if answers is None else OF_ANSWERS) if metrics is None else metrics
    _check_metrics(names)
    for metric in names:
        (measures.parse if answers is None else cut_of_answers)(metric)
    if (qrels is None) == (answers is None):
        raise UsageError("a run is measured by qrels or by answers; give one of them")
    if answers is not None:
        _check_of_answers(corpus, queries, relevance_level)
    else:
        files = [file for file in (run, *baselines) if isinstance(file, str | Path) and not _is_searched(file)]
        check_texts(files, corpus, queries, next(filter(_is_searched, baselines), None), rerank is not None)
    questions = questions_of((queries if answers is None else answers) or ())
    compared = read_systems(baselines, questions, dtype, batch_size)
    loaded_run = read_run(run, questions=questions or None) if isinstance(run, str | Path) else run
    name = str(run) if isinstance(run, str | Path) else "the run"
    if answers is not None and not any(question.answers for question in questions):
        raise UserError(f"{_named(answers)}: no question has answers; give questions with answers, or qrels")
    judged = read_qrels(qrels) if isinstance(qrels, str | Path) else qrels
    on = read_test_set(questions, corpus, judged, (queries, qrels), match, relevance_level)
    if judged is not None and corpus is None:
        warn_of_own(loaded_run, judged, name)
    return _report([(name, loaded_run), *compared], on, names, _loaded_scorer(rerank, depth, names), depth)


def _check_metrics(metrics: Sequence[str]) -> None:
    check_list("metrics", metrics)
    if not metrics:
        raise UsageError("metrics=[]: name at least one, for instance ndcg@10")


def _check_of_answers(corpus: object, queries: object, relevance_level: int) -> None:
    if corpus is None:
        raise UsageError("answers are matched in the texts of the passages: give the corpus as well")
    if relevance_level != 1:
        raise UsageError("the relevance level is for judgements; answers have no grades, leave it out")
    if queries is not None:
        raise UsageError("queries are for judgements; with answers the questions are known, leave queries out")


def check_texts(
    files: Sequence[_Path], corpus: object, queries: object, searched: _Path | None = None, rerank: bool = False
) -> None:
    """Refuse a missing corpus or missing queries of runs that are measured by judgements.

    Args:
      files: of runs; for one without ids of its questions, queries alone may be given.
      searched: the first baseline that searches the corpus.
      rerank: whether a scorer reads the texts.
    """
    if corpus is not None and queries is not None:
        return
    if queries is not None and not all(map(has_question_ids, files)):
        queries = None
    if rerank:
        raise UsageError("re-ranking reads the texts of questions and passages: give corpus and queries as well")
    if searched is not None:
        file = ", or write ./bm25 for a file of that name" if searched == BM25 else ""
        raise UsageError(f"the baseline {searched} searches the corpus: give corpus and queries as well{file}")
    if corpus is not None or queries is not None:
        option, missing = ("queries", "corpus") if corpus is None else ("corpus", "queries")
        raise UsageError(
            f"with qrels, {option} and {missing} go together: give {missing} as well, or leave {option} out"
        )


def read_test_set(
    questions: Sequence[Question],
    corpus: _Path | Corpus | None,
    judged: measures.Qrels | None,
    sources: tuple[object, object],
    match: Match = "string",
    relevance_level: int = 1,
) -> TestSet:
    """The questions that runs are measured on: of those given, the ones that have judgements.

    Args:
      questions: the questions; none, for runs that are measured by judgements alone.
      corpus: the passages or their file; None likewise.
      judged: the judgements; None: the questions have answers.
      sources: what questions and judgements were read from, for errors.
      match, relevance_level: see `TestSet`.

    Raises:
      UserError: no question has judgements, or the corpus cannot be read.
    """
    passages = read_corpus(corpus) if isinstance(corpus, str | Path) else corpus or Corpus([], [], [])
    if judged is not None and questions:
        questions = [question for question in questions if question.id in judged]
        if not questions:
            queries, qrels = map(_named, sources)
            raise UserError(f"{queries}: {qrels} judges none of its questions; check that the ids agree")
    return TestSet(questions, passages, judged, match, relevance_level)


def read_own_test(
    corpus: _Path, queries: _Path | None, qrels: _Path | None, split: str
) -> tuple[Corpus, TestSet | None]:
    """Read a corpus, and the questions with judgements that are given with it or lie in its folder.

    Args:
      corpus: the passages; a BEIR folder may have the questions, too.
      queries: the questions; None: those of the folder, if there are any.
      qrels: their judgements; None likewise.
      split: the split of a BEIR folder's judgements.

    Raises:
      UsageError: queries without qrels, or the reverse.
      UserError: a file cannot be read, or none of the questions is judged.
    """
    if (queries is None) != (qrels is None):
        raise UsageError("queries= and qrels= go together; give both, or neither")
    if queries is not None and qrels is not None:
        test = read_test_set(read_questions(queries), corpus, read_qrels(qrels), (queries, qrels))
        return test.corpus, test
    folder = source_of(corpus)
    if not (folder.is_dir() and split in beir_splits(folder)):
        return read_corpus(corpus), None
    beir = read_beir(folder, split)
    return beir.corpus, TestSet(beir.questions, beir.corpus, beir.qrels)


def _named(source: object) -> str:
    return str(source) if isinstance(source, str | Path) else "the given data"


def _is_searched(baseline: _Path) -> bool:
    """Whether a baseline is BM25 or a model: a folder, or a hub name where no file can be meant."""
    path = Path(path_text(baseline)).expanduser()
    if baseline == BM25 or path.is_dir():
        return True
    if "/" not in str(baseline) or path.exists() or path.parent.exists():
        return False
    from jaxretr.models.hub.hf_files import is_hub_name

    return is_hub_name(str(baseline))


def read_systems(
    names: Sequence[_Path], questions: Sequence[Question], dtype: "EncodeDtype", batch_size: int | None
) -> list[System]:
    """Read the runs of systems, see `read_run`; BM25 and models, which search later, are functions of the corpus.

    Args:
      names: runs, as files; models, as folders or hub names; "bm25" is BM25.
      questions: those of runs without ids of them.

    Raises:
      UsageError: one is named twice.
      UserError: a run cannot be read, or a training run has no model yet.
    """
    check_list("baselines", names)
    if len(names) != len({path_text(name) for name in names}):
        raise UsageError("a system is named twice; name each once")

    def search_with(model: _Path) -> Callable[[Corpus], Search]:
        from jaxretr.models.combined_encoder import load_encoder
        from jaxretr.models.hub.dual_encoder_folder import check_finished

        check_finished(model)

        return lambda corpus: encoder_search(load_encoder(model, dtype=dtype), corpus, batch_size)

    return [
        ("BM25", bm25_search)
        if name == BM25
        else (str(name), search_with(name) if _is_searched(name) else read_run(name, questions=questions or None))
        for name in names
    ]


def _loaded_scorer(rerank: "AnyScorer | None", depth: int, metrics: Sequence[str]) -> "Scorer | None":
    """Load the scorer; warn of metrics that look further than it re-ranks."""
    if rerank is None:
        return None
    from jaxretr.indexes.reranking import loaded_scorer

    if deeper := [name for name in metrics if "@" in name and int(name.rpartition("@")[2]) > depth]:
        log.warning(
            "only the first %d hits of a question are re-ranked, and those behind them dropped: %s is lower for that; "
            "raise depth",
            depth,
            ", ".join(deeper),
        )
    return loaded_scorer(rerank)


def _report(
    systems: Sequence[System], on: TestSet, metrics: Sequence[str], scorer: "Scorer | None", depth: int
) -> Report:
    """Search, re-rank the first system's hits if there is a scorer, and measure."""
    runs = find_all(systems, on, metrics, 0 if scorer is None else depth)
    if scorer is not None:
        from jaxretr.evaluate.reranking import rerank
        from jaxretr.indexes.reranking import name_of_scorer

        name, run = runs[0]
        run = {id: hits for id, hits in run.items() if on.qrels is None or id in on.qrels}
        after = rerank(scorer, run, queries=on.questions, corpus=on.corpus, depth=depth)
        reranked = f"{PurePath(name).name} re-ranked by {PurePath(name_of_scorer(scorer)).name}"
        runs[:1] = [(reranked, dict(after)), (name, run)]
    return Report.of(runs, on, metrics)
