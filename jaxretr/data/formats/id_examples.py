"""Training formats of bare ids: MS MARCO's id triples, stored teacher scores, judgements, and BEIR folders.

The questions' texts come from a file of their own, the passages' from the corpus.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.examples import Candidate, Example, Row, finite_score
from jaxretr.data.questions import Question
from jaxretr.data.readers import qrels_rows
from jaxretr.data.text_rows import RowError, check_utf8, json_lines, missing_field, numbered_lines, string_field

Questions = dict[str, Question] | None
"""{question id: question}; None: not at hand, and every text is empty."""


def read_id_triples(path: Path, questions: Questions) -> Iterator[Row]:
    """Yields an example for every `question-id<TAB>positive-id<TAB>negative-id`."""
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        try:
            check_utf8(text)
            fields = [field.strip(" ") for field in text.split("\t")]
            if len(fields) != 3 or not all(fields):
                raise RowError("no question-id<TAB>positive-id<TAB>negative-id; check its tabs")
            id, positive, negative = fields
            kinds = ((Candidate(positive, "", None),), (Candidate(negative, "", None),))
            yield line, _example(id, questions, *kinds, line)
        except RowError as error:
            yield line, error


def read_distillation(path: Path, questions: Questions) -> Iterator[Row]:
    """Yields an example for every {query_id, document_ids, scores}.

    The format does not say which passage is right: the one that the teacher scored best stands as the positive (the
    first of equals), the others as negatives.
    """
    for line, row in json_lines(path):
        if isinstance(row, RowError):
            yield line, row
            continue
        try:
            yield line, _distilled(row, questions, line)
        except RowError as error:
            yield line, error


def _distilled(row: dict[str, Any], questions: Questions, line: int) -> Example:
    id = string_field(row, ("query_id",), allow_int=True)
    if id is None:
        raise missing_field(row, ("query_id",))
    ids, scores = row.get("document_ids"), row.get("scores")
    if not isinstance(ids, list) or not all(isinstance(each, str) or type(each) is int for each in ids):
        raise RowError('field "document_ids" is no list of ids; write ["id", ...]')
    if not isinstance(scores, list) or len(scores) != len(ids):
        raise RowError(f'field "scores" is no list of {len(ids)} numbers; give every document a score')
    values = [finite_score(score, "scores") for score in scores]
    if None in values:
        raise RowError('a value of "scores" is null or not finite; give every document a score')
    found = [Candidate(str(each), "", None, value) for each, value in zip(ids, values, strict=True)]
    best = max(range(len(found)), key=lambda i: values[i] or 0.0, default=0)
    return _example(id, questions, tuple(found[best : best + 1]), tuple(found[:best] + found[best + 1 :]), line)


def read_judged(path: Path, questions: Questions, corpus: Corpus | None) -> Iterator[Row]:
    """Yields one example for every judged question: what is graded above 0 is right, the rest wrong.

    Args:
      path: the judgements, BEIR's or TREC's.
      questions: their questions.
      corpus: where it is given, a passage that it lacks is an error of its row.
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
            tuple(Candidate(passage, "", None) for passage, grade in grades.items() if (grade > 0) is wanted)
            for wanted in (True, False)
        )
        yield lines[query], _example(query, questions, right, wrong, lines[query])


def _question(id: str, questions: Questions) -> Question:
    if questions is None:
        return Question(id, "")
    if id not in questions:
        raise RowError(f"question '{id}' is not in the queries file; give the one that these ids are from")
    return questions[id]


def _example(
    id: str, questions: Questions, positives: tuple[Candidate, ...], negatives: tuple[Candidate, ...], line: int
) -> Example:
    question = _question(id, questions)
    return Example(id, question.text, question.answers, positives, negatives, line=line)
