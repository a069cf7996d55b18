"""Training files: one example after the other, in any of the formats of `jaxretr.data.formats.kinds.FORMATS`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.columns import read_columns, read_flag, read_triples
from jaxretr.data.formats.examples import Candidate, Example, Row, answers_field, finite_score, objects_field
from jaxretr.data.formats.kinds import NEED_QUERIES, training_format
from jaxretr.data.named.names import DataName, data_path
from jaxretr.data.named.tables import QUERIES
from jaxretr.data.questions import Question, read_questions
from jaxretr.data.readers import qrels_path, qrels_rows
from jaxretr.data.text_rows import (
    BadRows,
    RowError,
    bare_suffix,
    check_utf8,
    filled_lines,
    find_input,
    json_array,
    json_lines,
    missing_field,
    parsed,
    string_field,
)
from jaxretr.runtime.errors import UsageError

Questions = dict[str, Question] | None
"""The questions by id; None: not given, and every text is empty."""

# DPR's own files have passage_id (Natural Questions) and psg_id (TriviaQA).
_IDS = ("passage_id", "psg_id", "id", "docid", "_id")
_SCORES = ("score", "relevance")
_QUESTIONS = ("question", "query", "query_text")
_QUESTION_IDS = ("id", "_id", "question_id", "query_id", "qid")

_DPR_LISTS = ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
_LISTS = {
    "dpr": _DPR_LISTS,
    "dpr-scale": _DPR_LISTS,
    "tevatron": ("positive_passages", "negative_passages"),
    "tevatron2": ("positive_document_ids", "negative_document_ids"),
}


def examples_file(path: str | Path, split: str = "train") -> Path:
    """Return the file that line numbers refer to: `path`, or the judgements of `split` in a BEIR folder."""
    path = data_path(path)
    return qrels_path(path, split) if path.is_dir() else find_input(path)


def own_queries(path: str | Path, format: str) -> Path | None:
    """Return the questions' table for a training set with their ids alone, if its collection has them as well."""
    place = data_path(path)
    return place.sibling(QUERIES) if format in NEED_QUERIES and isinstance(place, DataName) else None


def read_examples(
    path: str | Path,
    *,
    format: str | None = None,
    skip_bad: bool = False,
    corpus: Corpus | None = None,
    queries: str | Path | None = None,
    split: str = "train",
) -> Iterator[Example]:
    """Yield the examples of a training set one after the other, in the order of the file.

    A question without an id gets its row number, counted from 0. Candidates that are ids stay ids (text None).

    Args:
      path: a file (gzipped or not) in one of FORMATS, or a BEIR folder.
      format: its format; None: detected from the content.
      skip_bad: whether bad rows are skipped, with one warning that counts them.
      corpus: the passages to which dpr-scale's docidx refer; judged passages that it lacks are bad rows.
      queries: the questions' texts, for "triples-ids", "qrels" and "distillation".
      split: the judgements of a BEIR folder.

    Raises:
      UserError: a bad row (as `path:line: what; remedy`), an unknown format, or no such file.
      UsageError: the questions' texts are missing, or given although the file has them.
    """
    format = training_format(path, format)
    queries = own_queries(path, format) if queries is None else queries
    bad = BadRows(examples_file(path, split), skip_bad)
    if format in NEED_QUERIES and queries is None:
        raise UsageError(f"{path}: has only the ids of its questions ({format}); give the queries file as well")
    kept = 0
    for line, row in numbered_examples(path, format=format, corpus=corpus, queries=queries, split=split):
        if isinstance(row, RowError):
            bad.add(line, row)
        else:
            kept += 1
            yield row
    bad.report(kept)


def numbered_examples(
    path: str | Path,
    *,
    format: str | None = None,
    corpus: Corpus | None = None,
    queries: str | Path | None = None,
    split: str = "train",
) -> Iterator[Row]:
    """Yield (line number, example or the row's fault) for every row; see `read_examples` for the rest.

    If `queries` are needed and not given, the questions' texts are empty.
    """
    path = data_path(path)
    format = training_format(path, format)
    queries = own_queries(path, format) if queries is None else queries
    file = examples_file(path, split)
    if format not in NEED_QUERIES and queries is not None:
        raise UsageError(f"{path}: contains its questions ({format}); leave the queries file out")
    questions: Questions = None
    if format == "beir" or queries is not None:
        questions = {question.id: question for question in read_questions(path if queries is None else queries)}
    match format:
        case "dpr" | "dpr-scale" | "tevatron" | "tevatron2":
            rows = json_array(file) if format == "dpr" else json_lines(file)
            # Only DPR's formats have docidx, the rows of a corpus.
            of_rows = corpus if format.startswith("dpr") else None
            return parsed(rows, lambda row, number, line: _of_lists(row, number, line, _LISTS[format], of_rows))
        case "sentence-transformers":
            return read_columns(file)
        case "flag":
            return read_flag(file)
        case "triples":
            return read_triples(file)
        case "triples-ids":
            if bare_suffix(file) == ".jsonl":
                return parsed(json_lines(file), lambda row, _, line: _json_id_triple(row, line, questions))
            return parsed(filled_lines(file), lambda text, _, line: _id_triple(text, line, questions))
        case "distillation":
            return parsed(json_lines(file), lambda row, _, line: _distilled(row, line, questions))
        case _:
            return _judged(file, questions, corpus)


# ---- lists of passages: DPR, dpr-scale, Tevatron ---------------------------------------------------------------------


def _of_lists(
    row: dict[str, Any], row_number: int, line: int, lists: tuple[str, ...], corpus: Corpus | None
) -> Example:
    question = string_field(row, _QUESTIONS)
    if question is None and row.get("query_image"):
        raise RowError("a query_image without a query_text; only text is trained on: leave such rows out")
    if question is None:
        raise missing_field(row, _QUESTIONS)
    if not any(name in row for name in lists):
        raise missing_field(row, lists)
    kinds = []
    for name in lists:
        if name.endswith("_ids"):
            kinds.append(_ids(row, name))
        else:
            kinds.append(tuple(_candidate(element, name, corpus) for element in objects_field(row, name)))
    id = string_field(row, _QUESTION_IDS, allow_int=True)
    return Example(id or str(row_number), question, answers_field(row), *kinds, line=line)


def _ids(row: dict[str, Any], name: str) -> tuple[Candidate, ...]:
    value = row.get(name) or []
    if not isinstance(value, list) or not all(isinstance(id, str) or type(id) is int for id in value):
        raise RowError(f'field "{name}" is not a list of ids; write ["id", ...]')
    scores_name = f"{name.removesuffix('_document_ids')}_scores"
    scores = row.get(scores_name)
    if scores is None:
        scores = [None] * len(value)
    if not isinstance(scores, list) or len(scores) != len(value):
        raise RowError(f'field "{scores_name}" is not a list of {len(value)} numbers; give every document a score')
    return tuple(
        Candidate(str(id), "", None, finite_score(score, scores_name)) for id, score in zip(value, scores, strict=True)
    )


def _candidate(row: dict[str, Any], where: str, corpus: Corpus | None) -> Candidate:
    id, text = string_field(row, _IDS, allow_int=True), string_field(row, ("text", "contents"))
    score_name = next((name for name in _SCORES if row.get(name) is not None), "score")
    score = finite_score(row.get(score_name), score_name)
    if row.get("docidx") is not None:
        id = _id_of_row(row["docidx"], id, corpus)
    if text is None and not id:
        raise RowError(f'a passage in "{where}" has neither a text nor an id; give it one of them')
    return Candidate(id or None, string_field(row, ("title",)) or "", text, score)


def _id_of_row(docidx: Any, id: str | None, corpus: Corpus | None) -> str:
    if type(docidx) is not int:
        raise RowError(f'field "docidx" is {str(docidx)[:40]!r}, not a row of the corpus; write a whole number from 0')
    if corpus is None:
        raise RowError(f"docidx {docidx} is a row of a corpus; give the corpus that the file was made from")
    if not 0 <= docidx < len(corpus):
        raise RowError(
            f"docidx {docidx} in a corpus of {len(corpus)} rows; give the corpus that the file was made from"
        )
    found = corpus.ids[docidx]
    if id and id in corpus and id != found:
        raise RowError(
            f"docidx {docidx} is passage '{found}' in the corpus, not '{id}'; give the corpus that the file was made from"
        )
    return found


# ---- bare ids: the texts are in other files --------------------------------------------------------------------------


def _id_triple(text: str, line: int, questions: Questions) -> Example:
    """Return an example of `question-id<TAB>positive-id<TAB>negative-id`."""
    check_utf8(text)
    fields = [field.strip(" ") for field in text.split("\t")]
    if len(fields) != 3 or not all(fields):
        raise RowError("not question-id<TAB>positive-id<TAB>negative-id; check its tabs")
    return _of_pair(fields, questions, line)


def _json_id_triple(row: dict[str, Any], line: int, questions: Questions) -> Example:
    """Return an example of {query-id, positive-id, negative-id}."""
    ids = []
    for name in ("query-id", "positive-id", "negative-id"):
        id = string_field(row, (name,), allow_int=True)
        if not id:
            raise missing_field(row, (name,))
        ids.append(id)
    return _of_pair(ids, questions, line)


def _of_pair(ids: Sequence[str], questions: Questions, line: int) -> Example:
    id, positive, negative = ids
    return _of_ids(id, questions, (Candidate(positive, "", None),), (Candidate(negative, "", None),), line)


def _distilled(row: dict[str, Any], line: int, questions: Questions) -> Example:
    """Return an example of {query_id, document_ids, scores}.

    The format does not tell which passage is right: the one that the teacher scored best (the first of equals) becomes
    the positive, the others negatives.
    """
    id = string_field(row, ("query_id",), allow_int=True)
    if id is None:
        raise missing_field(row, ("query_id",))
    ids, scores = row.get("document_ids"), row.get("scores")
    if not isinstance(ids, list) or not all(isinstance(each, str) or type(each) is int for each in ids):
        raise RowError('field "document_ids" is not a list of ids; write ["id", ...]')
    if not isinstance(scores, list) or len(scores) != len(ids):
        raise RowError(f'field "scores" is not a list of {len(ids)} numbers; give every document a score')
    values = [finite_score(score, "scores") for score in scores]
    if None in values:
        raise RowError('a value of "scores" is null or not finite; give every document a score')
    found = [Candidate(str(each), "", None, value) for each, value in zip(ids, values, strict=True)]
    best = max(range(len(found)), key=lambda i: values[i] or 0.0, default=0)
    return _of_ids(id, questions, tuple(found[best : best + 1]), tuple(found[:best] + found[best + 1 :]), line)


def _judged(path: Path, questions: Questions, corpus: Corpus | None) -> Iterator[Row]:
    """Yield one example for every judged question: grades above 0 are positives, the rest negatives.

    Args:
      path: the judgements, BEIR's or TREC's.
      questions: their questions.
      corpus: if given, a passage that it lacks is an error of its row.
    """
    judged: dict[str, dict[str, int]] = {}
    lines: dict[str, int] = {}
    for line, row in qrels_rows(path):
        try:
            if isinstance(row, RowError):
                raise row
            query, passage, grade = row
            _question(query, questions)
            if corpus is not None and passage not in corpus:
                raise RowError(f"passage '{passage}' is not in the corpus; give the corpus that was judged")
            if judged.setdefault(query, {}).setdefault(passage, grade) != grade:
                raise RowError(f"'{query}' and '{passage}' have another grade on an earlier line; keep one")
            lines.setdefault(query, line)
        except RowError as error:
            yield line, error
    for query, grades in judged.items():
        right, wrong = (
            tuple(Candidate(id, "", None, grade=grade) for id, grade in grades.items() if (grade > 0) is wanted)
            for wanted in (True, False)
        )
        yield lines[query], _of_ids(query, questions, right, wrong, lines[query])


def _question(id: str, questions: Questions) -> Question:
    if questions is None:
        return Question(id, "")
    if id not in questions:
        raise RowError(f"question '{id}' is not in the queries file; give the one that these ids are from")
    return questions[id]


def _of_ids(
    id: str, questions: Questions, positives: tuple[Candidate, ...], negatives: tuple[Candidate, ...], line: int
) -> Example:
    question = _question(id, questions)
    return Example(id, question.text, question.answers, positives, negatives, line=line)
