"""`jaxretr.generate`: questions about passages by a language model, filtered, as training data (InPars, GPL)."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import regex

from jaxretr.config import AutoDtype
from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.duplicate_groups import duplicate_groups
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.kinds import SCORED_FORMATS
from jaxretr.data.formats.writing import write_examples
from jaxretr.data.made_of import write_record
from jaxretr.data.questions import Question
from jaxretr.embeddings.kept_chunks import KeptChunks
from jaxretr.evaluate.searches import bm25_search, encoder_search
from jaxretr.mining.sentence_queries import drawn
from jaxretr.models.combined_encoder import load_encoder
from jaxretr.models.encode import note_cut
from jaxretr.models.generation.decoding import Generated, Sampling
from jaxretr.models.hub.hf_files import resolve
from jaxretr.models.question_generator import Draw, QuestionGenerator
from jaxretr.runtime.errors import (
    UsageError,
    UserError,
    at_least,
    check_seed,
    did_you_mean,
    is_number,
    require_at_least,
)
from jaxretr.runtime.parallel.hosts import wait_for_all
from jaxretr.runtime.progress import Progress
from jaxretr.runtime.storage.files import check_output, plain_number
from jaxretr.runtime.storage.paths import is_remote

log = logging.getLogger(__name__)

Path_ = str | Path

CHUNK = 256
"""Passages whose questions are generated, and kept, at a time."""

# A version that changes when the same model would write other questions about the same passages.
_VERSION = 2

# A format of ids and scores alone would lose the questions.
_FORMATS = tuple(name for name in SCORED_FORMATS if name != "distillation")

DROPPED = {
    "empty": "are about passages without title and text",
    "unfinished": "had not ended after max_new_tokens",
    "short": "have fewer words than min_words",
    "title": "repeat the passage's title",
    "duplicate": "were asked before, about this or another passage",
    "likelihood": "are less likely than the best share that is kept",
    "round_trip": "do not find their passage among the first round_trip",
}
"""The reasons for which questions are dropped, in the order in which they are looked for."""


@dataclass(frozen=True)
class GeneratedSet:
    """Generated questions that were written.

    Attributes:
      path: the training file.
      examples: the questions that passed the filters, each with its passage, in the order of the passages.
      generated: number of questions before the filters.
      dropped: number of dropped questions by reason, see `DROPPED`.
    """

    path: Path
    examples: Sequence[Example]
    generated: int
    dropped: dict[str, int]

    def __repr__(self) -> str:
        return f"GeneratedSet('{self.path}', {len(self.examples)} of {self.generated} questions)"


def generate(
    generator: QuestionGenerator | Path_,
    *,
    corpus: Path_ | Corpus,
    out: Path_,
    per_passage: int = 1,
    limit: int | None = None,
    template: str = "auto",
    max_length: int | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.7,
    top_k: int = 25,
    top_p: float = 0.95,
    seed: int = 0,
    min_words: int = 3,
    best_share: float = 1.0,
    round_trip: int | None = None,
    retriever: Path_ = "bm25",
    format: str = "tevatron2",
    dtype: AutoDtype = "auto",
    batch_size: int | None = None,
    chunk: int = CHUNK,
) -> GeneratedSet:
    """Write questions that passages answer; resume where an earlier call was interrupted.

    Until `out` is complete, the questions of finished chunks are kept next to it, in a folder whose name is a hash of the
    model, the passages and the settings. With several processes, each writes those of its share of the chunks; all must
    call this and see the folder, and process 0 writes `out`.

    Args:
      generator: a causal language model or a T5: a folder or hub name. Or a loaded one.
      corpus: the passages, as for `jaxretr.encode`. Or a corpus that was read.
      out: training file to write: each question with its passage as the positive, whose score is the mean log-likelihood
        of the question's tokens, in nats.
      per_passage: questions to ask about each passage; repeated ones are dropped.
      limit: draw at most this many passages, evenly.
      template: prompt around a passage: upr, inpars, doc2query, chat, or a text file with {passage} in it; auto: upr for a
        T5, chat for a model with a chat template, inpars for others. template, max_length and dtype are for a generator
        given as a path.
      max_length: tokens of a prompt, beyond which its passage is cut; by default 512, or the model's positions if fewer.
      max_new_tokens: tokens of a question, at most.
      temperature: divisor of the logits; 0: always the most likely token.
      top_k: number of most likely tokens to draw from; 0: all.
      top_p: probability of the most likely tokens to draw from.
      seed: seed of the draws.
      min_words: fewest words of a question; in scripts without spaces, a question is one word: give 1.
      best_share: share of the questions to keep, those with the highest likelihood.
      round_trip: keep a question only if `retriever` finds its passage among the first so many.
      retriever: the searcher of `round_trip`: bm25, or a model by exact search.
      format: format of `out`: dpr, dpr-scale, tevatron, tevatron2, sentence-transformers or flag.
      dtype: precision of the matmuls; auto: bfloat16 where this machine runs it faster.
      batch_size: passages per batch; by default chosen for the device.
      chunk: passages at a time, which an interruption loses.

    Raises:
      UsageError: a setting out of its range, or one that does not suit the model.
      UserError: bad input, no question passes the filters, or a file cannot be written.
    """
    require_at_least(1, per_passage=per_passage, chunk=chunk)
    at_least(1, limit=limit, round_trip=round_trip, batch_size=batch_size)
    require_at_least(0, min_words=min_words)
    check_seed(seed)
    if not is_number(best_share) or not 0 < best_share <= 1:
        raise UsageError(f"best_share={best_share!r}: give a number above 0, up to 1 for all questions")
    if per_passage > 1 and temperature == 0:
        raise UsageError(
            f"per_passage={per_passage}: with temperature=0 all questions about a passage are equal; raise it"
        )
    if format not in _FORMATS:
        raise UsageError(f"format={format}{did_you_mean(format, _FORMATS) or ''}; give one of {', '.join(_FORMATS)}")
    if retriever != "bm25":
        if round_trip is None:
            raise UsageError(
                f"retriever={retriever}: is the searcher of round_trip=; give that as well, or leave it out"
            )
        resolve(retriever)  # A name that leads nowhere is found before the generation.
    if is_remote(out):
        raise UserError(
            f"{out}: chunks are kept next to the output until it is complete; give a local path, and copy it"
        )
    sampling = Sampling(temperature, top_k, top_p, max_new_tokens)
    target = Path(out).expanduser()
    check_output(out, corpus)
    passages = corpus if isinstance(corpus, Corpus) else read_corpus(corpus)
    generator = loaded_generator(generator, template, max_length, dtype)
    rows = np.arange(len(passages))
    if limit is not None and limit < len(passages):
        rows = drawn(len(passages), limit, seed, "passages")

    settings = [per_passage, limit, temperature, top_k, top_p, max_new_tokens, seed, chunk, batch_size]
    settings = json.loads(json.dumps(settings, default=plain_number))
    facts = {
        "version": _VERSION,
        "model": generator.fingerprint(),
        "passages": passages.fingerprint(),
        "settings": settings,
    }
    kept = KeptChunks.beside(target, "questions", facts)
    shares = [rows[start : start + chunk] for start in range(0, len(rows), chunk)]

    def ask(share: np.ndarray) -> Generated:
        texts = [passages[row] for row in share.tolist()]
        return generator.generate_tokens(
            [{"title": each.title, "text": each.text} for each in texts],
            per_passage=per_passage,
            sampling=sampling,
            seed=seed,
            numbers=share,
            batch_size=batch_size,
        )

    shapes = [_shapes(len(share) * per_passage, max_new_tokens) for share in shares]
    _generate_missing(kept, shares, shapes, ask, generator)
    found = GeneratedSet(target, [], 0, {})
    if not jax.process_index():
        draws = _draws(kept, shapes, per_passage, generator)
        found = _filtered(target, draws, rows, passages, min_words, best_share, round_trip, retriever)
        write_examples(target, found.examples, format, passages, source=target)
        made_of = {"corpus": facts["passages"], "generator": facts["model"], "settings": str(settings)}
        write_record(target, made_of)
    kept.remove()
    return found


def loaded_generator(
    generator: QuestionGenerator | Path_, template: str, max_length: int | None, dtype: AutoDtype
) -> QuestionGenerator:
    """Return the generator of `generate`, whose arguments these are.

    Raises:
      UsageError: settings for a loaded generator, which has its own, or that do not suit the model.
      UserError: it cannot be loaded.
    """
    if not isinstance(generator, QuestionGenerator):
        return QuestionGenerator.from_pretrained(generator, template=template, max_length=max_length, dtype=dtype)
    if template != "auto" or max_length is not None:
        raise UsageError(
            "template= and max_length= are for a generator given as a path; this one was loaded with its own"
        )
    return generator


# ---- generation ------------------------------------------------------------------------------------------------------

Shapes = Sequence[tuple[type, tuple[int, ...]]]
"""Dtype and shape of each array of a chunk."""


def _generate_missing(
    kept: KeptChunks,
    shares: Sequence[np.ndarray],
    shapes: Sequence[Shapes],
    ask: Callable[[np.ndarray], Generated],
    generator: QuestionGenerator,
) -> None:
    """Ask about the rows of those of this process's chunks that are not kept yet."""
    own = range(jax.process_index(), len(shares), jax.process_count())
    missing = [number for number in own if kept.read(number, *shapes[number]) is None]
    of_own, new = (sum(len(shares[number]) for number in numbers) for numbers in (own, missing))
    began, cut, tokens = time.monotonic(), 0, 0
    with Progress(of_own, "passage", "asked about") as progress:
        progress.skip(of_own - new)
        for number in missing:
            generated = ask(shares[number])
            kept.write(number, *generated)
            cut, tokens = cut + generator.truncated, tokens + int(generated.counts.sum())
            progress.advance(len(shares[number]))
    note_cut(cut, new, "passage", generator.texts.frame.room)
    if new:
        seconds = time.monotonic() - began
        log.info("asked about %d passages in %.0f s, %.0f tokens/s", new, seconds, tokens / seconds)
    wait_for_all("the last question")


def _shapes(rows: int, length: int) -> Shapes:
    """The dtypes and shapes of `Generated`, as `KeptChunks.read` takes them."""
    return (np.int32, (rows, length)), (np.int32, (rows,)), (np.float32, (rows,)), (bool, (rows,))


def _draws(
    kept: KeptChunks, shapes: Sequence[Shapes], per_passage: int, generator: QuestionGenerator
) -> list[list[Draw]]:
    """Return the questions about each passage, of all processes."""
    draws: list[list[Draw]] = []
    for number, of_chunk in enumerate(shapes):
        arrays = kept.read(number, *of_chunk)
        if arrays is None:
            raise UserError(f"{kept.folder}: chunk {number} is missing or damaged; run the command again")
        tokens, counts, log_probs, ended = arrays
        draws += generator.draws(tokens, counts, log_probs, ended, per_passage)
    return draws


# ---- filters ---------------------------------------------------------------------------------------------------------


def _filtered(
    out: Path,
    draws: Sequence[Sequence[Draw]],
    rows: np.ndarray,
    corpus: Corpus,
    min_words: int,
    best_share: float,
    round_trip: int | None,
    retriever: Path_,
) -> GeneratedSet:
    """Return the questions that pass all filters."""
    dropped = dict.fromkeys(DROPPED, 0)
    asked: set[str] = set()
    left: list[tuple[int, int, Draw]] = []  # (row, number among those about the passage, question)
    for row, of_passage in zip(rows.tolist(), draws, strict=True):
        for number, draw in enumerate(of_passage):
            text = _plain(draw.text)
            reason = None
            if not (corpus[row].title.strip() or corpus[row].text.strip()):
                reason = "empty"
            elif not draw.ended:
                reason = "unfinished"
            elif len(text.split()) < max(min_words, 1):
                reason = "short"
            elif text == _plain(corpus[row].title):
                reason = "title"
            elif text in asked:
                reason = "duplicate"
            if reason is not None:
                dropped[reason] += 1
                continue
            asked.add(text)
            left.append((row, number, draw))
    if best_share < 1 and left:
        order = sorted(range(len(left)), key=lambda place: -left[place][2].log_prob)
        best = sorted(order[: max(1, round(best_share * len(left)))])
        dropped["likelihood"] = len(left) - len(best)
        left = [left[place] for place in best]
    ids = corpus.ids
    questions = [Question(f"{ids[row]}-q{number}", draw.text) for row, number, draw in left]
    finds = np.ones(len(left), bool)
    if round_trip is not None and left:
        finds = _finds(questions, [ids[row] for row, _, _ in left], corpus, round_trip, retriever)
        dropped["round_trip"] = int((~finds).sum())
    examples = [
        Example(question.id, question.text, (), (Candidate(ids[row], "", None, round(draw.log_prob, 4)),), ())
        for question, (row, _, draw), found in zip(questions, left, finds.tolist(), strict=True)
        if found
    ]
    generated = sum(map(len, draws))
    for reason, count in dropped.items():
        if count:
            log.info("dropped %d questions that %s (%s)", count, DROPPED[reason], reason)
    if not examples:
        raise UserError(
            f"{out}: none of the {generated} generated questions passes the filters ({dropped}); try another template, or "
            "a larger model"
        )
    return GeneratedSet(out, examples, generated, dropped)


def _finds(
    questions: Sequence[Question], ids: Sequence[str], corpus: Corpus, depth: int, retriever: Path_
) -> np.ndarray:
    """Whether each question finds its passage among the first `depth`, bool [n]."""
    search = bm25_search(corpus) if retriever == "bm25" else encoder_search(load_encoder(str(retriever)), corpus, None)
    _, found = search(questions, min(depth, len(corpus)))
    # A copy of the passage is as good.
    groups, row = duplicate_groups(corpus), corpus.row
    return np.array([groups[row(id)] in groups[[*map(row, of_one)]] for id, of_one in zip(ids, found, strict=True)])


def _plain(text: str) -> str:
    """Return the words of a text, without regard to case and punctuation."""
    # With their marks, which are the vowels of Hindi and others.
    return " ".join(regex.findall(r"[\w\p{M}]+", text.casefold()))
