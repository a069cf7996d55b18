"""`jaxretr.score`: the scores of a file's pairs of question and passage, by a cross-encoder or another scorer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

import jax
import numpy as np

from jaxretr.config import AutoDtype, ScorerKind
from jaxretr.data.formats.example_rows import ExampleRows
from jaxretr.data.formats.examples import Candidate, Example, joined
from jaxretr.data.formats.kinds import FORMATS, SCORED_FORMATS, file_kind, named_split
from jaxretr.data.formats.reading import examples_file, read_examples
from jaxretr.data.formats.writing import write_examples
from jaxretr.data.pairs import Pair, is_pair_file, read_pair_rows, write_pair_rows
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.run_reading import read_run
from jaxretr.data.runs import Hits, RunFormat, SearchRun
from jaxretr.data.source import source_of
from jaxretr.data.text_rows import json_bracket, json_lines
from jaxretr.embeddings.kept_chunks import KeptChunks
from jaxretr.embeddings.pair_scores import CHUNK, Pairs, kept_scores, score_pairs
from jaxretr.evaluate.reranking import hits_of
from jaxretr.indexes.reranking import rerank_hits
from jaxretr.models.any_scorer import Scorer, load_scorer
from jaxretr.runtime.errors import UsageError, UserError, at_least, did_you_mean
from jaxretr.runtime.storage.files import check_output, open_descriptor
from jaxretr.runtime.storage.paths import is_remote

Path_ = str | Path

PAIRS, RUN = "pairs", "run"


@dataclass(frozen=True)
class Scored:
    """A file of scores that was written.

    Attributes:
      path: the file.
      format: its format: one of training sets or runs, or "pairs".
      pairs: number of pairs scored.
    """

    path: Path
    format: str
    pairs: int


@dataclass(frozen=True)
class _Call:
    """The settings of scoring pairs, and the file to write."""

    load: Callable[[], Scorer]
    out: Path
    chunk: int
    batch_size: int | None

    @property
    def place(self) -> Path | None:
        """The file next to which scores are kept; None for a stream, which has no place."""
        return None if open_descriptor(self.out) is not None else self.out

    def score_all(self, pairs: Callable[[], Iterable[Pair]]) -> tuple[np.ndarray, KeptChunks | None]:
        """Score all pairs; every bad row is found before the model is loaded."""
        known = Pairs.of(pairs())
        scorer, kept = self.load(), None
        if self.place is not None:
            kept = kept_scores(self.place, scorer, known, self.chunk, self.batch_size)
        return score_pairs(scorer, pairs(), known.count, chunk=self.chunk, batch_size=self.batch_size, kept=kept), kept

    def write(self, kept: KeptChunks | None, write: Callable[[Path], object]) -> None:
        """Write the output in process 0, and remove the scores that were kept until then."""
        if not jax.process_index():
            write(self.out)
        if kept is not None:
            kept.remove()


def score(
    scorer: Scorer | Path_,
    pairs: Path_,
    out: Path_,
    *,
    queries: Path_ | None = None,
    corpus: Path_ | None = None,
    format: str | None = None,
    split: str | None = None,
    kind: ScorerKind = "auto",
    max_length: int | None = None,
    dtype: AutoDtype = "float32",
    batch_size: int | None = None,
    chunk: int = CHUNK,
) -> Scored:
    """Score every pair of question and passage in a file; resume where an earlier call was interrupted.

    The scores are raw: of a cross-encoder logits without a sigmoid, of a language model the mean log-likelihood of a
    question's tokens. Until `out` is complete, those of finished chunks are kept next to it, in a folder whose name is a
    hash of the model, the pairs and the settings. With several processes, each scores its share of the chunks; all must
    call this and see the folder, and process 0 writes.

    Args:
      scorer: a cross-encoder, causal language model or T5: a folder, run directory or hub name. Or a loaded one.
      pairs: a training set in any format, or a BEIR folder; a run; or JSON lines, .tsv or .csv of {query, passage, title}.
        A title may be missing; "question" and "text" are read as well. Of a run with `format` of a training set,
        examples to distil from are made, in which a question's best passage stands as the positive and the others as
        negatives.
      out: the same with scores: a training set's passages, a run in the new order, or rows with a field score; rows are a
        table where the name ends in .tsv or .csv.
      queries: the questions of a run, or of a training set with their ids alone.
      corpus: the passages of a run, or of a training set with their ids alone.
      format: format of `out`: dpr, dpr-scale, tevatron, tevatron2, sentence-transformers, distillation or flag for training
        sets; trec, dpr or jsonl for runs, of which training sets can be made too; by default that of `pairs`.
      split: split of a BEIR folder's judgements; by default train.
      kind: t5: log p(question | passage); causal_lm: the same by a decoder; cross_encoder: also a decoder that answers yes
        or no without saying so in its folder, such as Qwen3-Reranker; auto: what the folder says. kind, max_length and
        dtype are for a scorer given as a path, see `load_scorer`.
      max_length: tokens of a question and a passage together; by default a cross-encoder's own limit; 512 for others,
        or a decoder's positions if there are fewer.
      dtype: precision of the matmuls; auto: bfloat16 where this machine runs it faster.
      batch_size: pairs per batch; by default chosen for the device.
      chunk: pairs scored at a time, which an interruption loses.

    Raises:
      UsageError: a format without scores, or queries or corpus are missing.
      UserError: bad input (as `path:line: what; remedy`), or a file that cannot be written.
    """
    at_least(1, chunk=chunk, batch_size=batch_size)
    source = PAIRS if is_pair_file(pairs) else file_kind(pairs)
    to = _format(str(pairs), source, format)
    split = named_split(split, source)
    _check_inputs(str(pairs), source, queries, corpus)
    if is_remote(out):
        raise UserError(
            f"{out}: scores are kept next to the output until it is complete; give a local path, and copy it"
        )
    target = Path(out).expanduser()
    check_output(out, pairs, queries, corpus)

    def load() -> Scorer:
        if isinstance(scorer, str | Path):
            return load_scorer(scorer, kind=kind, max_length=max_length, dtype=dtype)
        return scorer

    call = _Call(load, target, chunk, batch_size)
    if source == PAIRS:
        count = _score_pairs(call, pairs)
    elif source == RUN:
        assert queries is not None and corpus is not None
        count = _score_run(call, pairs, queries, corpus, to)
    else:
        count = _score_examples(call, pairs, source, to, queries, corpus, split)
    return Scored(target, to, count)


def _format(path: str, source: str, format: str | None) -> str:
    """The format to write; raises UsageError if it has no scores."""
    if source == PAIRS:
        if format is not None:
            raise UsageError(f"format={format}: rows of pairs are written as they are read; leave it out")
        return PAIRS
    if source == RUN:
        # The name "dpr" is that of a run there.
        formats = tuple(dict.fromkeys((*get_args(RunFormat), *SCORED_FORMATS)))
        input_format = _run_format(Path(path).expanduser())
    elif source in FORMATS:
        formats, input_format = SCORED_FORMATS, source
    else:
        raise UserError(f"{path}: has no pairs of question and passage; give a training set, a run or rows of pairs")
    if format is None and input_format not in formats:
        raise UsageError(f"{path}: {input_format} has no place for scores; give format=, one of {', '.join(formats)}")
    if format is not None and format not in formats:
        what = "runs are written as runs or training sets:" if source == RUN else "formats with scores are"
        raise UsageError(f"format={format}{did_you_mean(format, formats)}; {what} {', '.join(formats)}")
    return format or input_format


def _run_format(path: Path) -> RunFormat:
    bracket = json_bracket(path)
    if bracket != "{":
        return "dpr" if bracket else "trec"
    row = next(row for _, row in json_lines(path))
    return "jsonl" if isinstance(row, dict) and "hits" in row else "dpr"


def _check_inputs(path: str, source: str, queries: Path_ | None, corpus: Path_ | None) -> None:
    """Raise UsageError if queries or corpus are missing, or would be ignored."""
    if source == PAIRS and (queries, corpus) != (None, None):
        name = "corpus" if queries is None else "queries"
        raise UsageError(f"{path}: has the texts of its pairs; leave {name}= out")
    if source == RUN:
        missing = [name for name, value in (("queries", queries), ("corpus", corpus)) if value is None]
        if missing:
            raise UsageError(f"{path}: a run has ids alone; give {' and '.join(f'{name}=' for name in missing)}")
    if source in FORMATS and FORMATS[source].needs_queries and queries is None:
        raise UsageError(f"{path}: has only the ids of its questions ({source}); give queries=")


# ---- the three kinds of file -----------------------------------------------------------------------------------------


def _score_pairs(call: _Call, path: Path_) -> int:
    scores, kept = call.score_all(lambda: (pair for _, pair in read_pair_rows(path)))
    numbers = _numbers(scores)
    rows = ({**row, "score": score} for (row, _), score in zip(read_pair_rows(path), numbers, strict=True))
    call.write(kept, lambda out: write_pair_rows(out, rows))
    return len(scores)


def _score_run(call: _Call, path: Path_, queries: Path_, corpus: Path_, to: str) -> int:
    trec = to == "trec"
    questions = read_questions(queries, trec_ids=trec)
    hits = hits_of(read_run(path, questions=questions, trec_ids=trec))
    passages = read_corpus(corpus)
    ranking, kept = rerank_hits(
        call.load,
        hits,
        questions=questions,
        corpus=passages,
        depth=None,
        chunk=call.chunk,
        batch_size=call.batch_size,
        out=call.place,
    )
    if to in get_args(RunFormat):
        run = SearchRun(ranking, questions)
        call.write(kept, lambda out: run.save(out, format=cast(RunFormat, to), corpus=passages))
    else:
        examples = _examples_of(ranking, questions)
        call.write(kept, lambda out: write_examples(out, examples, to, passages, source=path))
    return sum(len(hits.ids) for hits in ranking)


def _examples_of(ranked_hits: Sequence[Hits], questions: Sequence[Question]) -> Iterator[Example]:
    """Make an example of each question with hits, whose first passage is the positive."""
    question_of_id = {question.id: question for question in questions}
    for hits in ranked_hits:
        candidates = tuple(
            Candidate(id, "", None, score) for id, score in zip(hits.ids, _numbers(hits.scores), strict=True)
        )
        if candidates:
            question = question_of_id[hits.question_id]
            yield Example(question.id, question.text, question.answers, candidates[:1], candidates[1:])


def _score_examples(
    call: _Call, path: Path_, source: str, to: str, queries: Path_ | None, corpus: Path_ | None, split: str
) -> int:
    place = source_of(path)
    texts = place if corpus is None and source == "beir" else corpus
    passages = None if texts is None else read_corpus(texts)
    file = examples_file(place, split)
    rows = ExampleRows(passages, file)

    def examples() -> Iterator[Example]:
        rows_of_file = read_examples(place, format=source, corpus=passages, queries=queries, split=split)
        return joined(rows_of_file) if FORMATS[source].spreads and not FORMATS[to].spreads else rows_of_file

    def pairs() -> Iterator[Pair]:
        for example in examples():
            for candidate in example.candidates:
                yield Pair(example.question, *rows.content(candidate, example))

    scores, kept = call.score_all(pairs)
    call.write(kept, lambda out: write_examples(out, _scored(examples(), _numbers(scores)), to, passages, source=file))
    return len(scores)


def _scored(examples: Iterable[Example], scores: Iterator[float]) -> Iterator[Example]:
    def scored(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        return tuple(replace(candidate, score=next(scores)) for candidate in candidates)

    for example in examples:
        positives, negatives, others = map(scored, example.lists)
        yield replace(example, positives=positives, negatives=negatives, other_negatives=others)


def _numbers(scores: np.ndarray) -> Iterator[float]:
    """Turn float32 scores into the shortest decimals that give them back."""
    return (float(str(score)) for score in scores)
