"""Formats with lists of passages and of their scores side by side: FlagEmbedding's, and distillation sets."""

import logging
from collections.abc import Iterator
from typing import Any

from jaxretr.data.formats.example_rows import ExampleRows, json_bytes
from jaxretr.data.formats.examples import Candidate, Example, Row, finite_score, ids_field
from jaxretr.data.formats.format import Format, Lookup
from jaxretr.data.formats.head import Head
from jaxretr.data.source import Source
from jaxretr.data.text_rows import RowError, json_lines, missing_field, parsed, string_field
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note

_log = logging.getLogger(__name__)


class Distillation(Format):
    """sentence-transformers' distillation set: ids of passages with a teacher's scores.

    The format does not tell which passage is right: the one that the teacher scored best (the first of equals) becomes
    the positive, the others negatives.
    """

    name = "distillation"
    title = "sentence-transformers distillation set (query_id, document_ids, scores)"
    needs_queries = bare_ids = has_scores = True

    def detect(self, head: Head) -> bool:
        return {"query_id", "document_ids"} <= head.row.keys()

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        def parse(row: dict[str, Any], _: int, line: int) -> Example:
            id = string_field(row, ("query_id",), allow_int=True)
            if id is None:
                raise missing_field(row, ("query_id",))
            for name in ("document_ids", "scores"):
                if row.get(name) is None:
                    raise missing_field(row, (name,))
            found = ids_field(row, "document_ids", "scores")
            if any(each.score is None for each in found):
                raise RowError('a value of "scores" is null or not finite; give every document a score')
            best = max(range(len(found)), key=lambda i: found[i].score or 0.0, default=0)
            return lookup.example(id, found[best : best + 1], found[:best] + found[best + 1 :], line)

        return parsed(json_lines(file), parse)

    def lines(self, example: Example, rows: ExampleRows) -> list[bytes]:
        found = (*example.positives, *rows.negatives(example))
        if any(each.score is None for each in found):
            raise UserError(f"{rows.where(example)}: a passage has no score; this format is for teachers' scores")
        rows.without_answers(example)
        ids, scores = [rows.id(each, example) for each in found], [each.score for each in found]
        return [json_bytes({"query_id": example.id, "document_ids": ids, "scores": scores})]


class Flag(Format):
    """FlagEmbedding's lines {query, pos, neg, pos_scores, neg_scores, prompt, type}, with bare texts.

    The prompt of a row is ignored, with a warning, since prompts belong to the model here.
    """

    name = "flag"
    title = "FlagEmbedding training set (query, pos, neg)"
    has_passages = has_scores = True

    def detect(self, head: Head) -> bool:
        return "query" in head.row and isinstance(head.row.get("pos"), list)

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        prompts = 0

        def parse(row: dict[str, Any], number: int, line: int) -> Example:
            nonlocal prompts
            question = string_field(row, ("query",))
            if question is None:
                raise missing_field(row, ("query",))
            prompts += bool(row.get("prompt"))
            return Example(str(number), question, (), _scored_texts(row, "pos"), _scored_texts(row, "neg"), line=line)

        yield from parsed(json_lines(file), parse)
        if prompts:
            note(_log.warning, "%s: %d rows have a prompt, which is not used; set it as the model's", file, prompts)

    def lines(self, example: Example, rows: ExampleRows) -> list[bytes]:
        rows.without_answers(example)
        kinds = {"pos": example.positives, "neg": rows.negatives(example)}
        row: dict[str, Any] = {"query": example.question}
        row |= {name: [rows.bare_text(each, example) for each in found] for name, found in kinds.items()}
        known = [each.score is not None for found in kinds.values() for each in found]
        if known and all(known):
            row |= {f"{name}_scores": [each.score for each in found] for name, found in kinds.items()}
        else:
            rows.without_scores(example)
        return [json_bytes(row)]


def _scored_texts(row: dict[str, Any], name: str) -> tuple[Candidate, ...]:
    texts, scores = row.get(name) or [], row.get(f"{name}_scores")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RowError(f'field "{name}" is not a list of texts; write ["text", ...]')
    if scores is None:
        return tuple(Candidate(None, "", text) for text in texts)
    if not isinstance(scores, list) or len(scores) != len(texts):
        found = f"{len(scores)} scores" if isinstance(scores, list) else "no list"
        raise RowError(f'field "{name}_scores" has {found} for {len(texts)} texts; give each a score')
    return tuple(
        Candidate(None, "", text, finite_score(score, f"{name}_scores"))
        for text, score in zip(texts, scores, strict=True)
    )
