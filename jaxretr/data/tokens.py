"""Rows of token ids made from texts: loading a tokenizer, and the templates that every tower and scorer reads."""

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxretr.data.prompts import prompted
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Texts handed to the Rust library at once: its encodings keep some 100 bytes a token until their ids are taken.
_BATCH_TEXTS = 2048

# The first cut of a long text, in characters for each id that is wanted. English needs 4 to 6 for an id; 16 make
# a second, longer cut rare, and passages of ordinary length are not cut at all.
_CHARACTERS_PER_ID = 16
_CUT_GROWTH = 8

# Ids at the end of a cut text that are not believed, because the cut may have changed them. WordPiece maps a word of
# more than 100 characters to one [UNK]; what a cut leaves of such a word can become up to 100 pieces.
_DOUBTED_IDS = 128

_VOCABULARY_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "vocab.json",
)


class Template(StrEnum):
    """The rows of token ids that the models read; each is built by the function of the same name."""

    PASSAGE_PAIR = "passage_pair"
    PASSAGE_JOINED = "passage_joined"
    QUESTION_ROWS = "question_rows"
    SCORER_PASSAGE = "scorer_passage"
    SCORER_TARGET = "scorer_target"
    BARE_QUESTION = "bare_question"
    BARE_PASSAGE = "bare_passage"

    @property
    def reads_passages(self) -> bool:
        """Whether the rows are made of titles and texts rather than of questions."""
        return self in (
            Template.PASSAGE_PAIR,
            Template.PASSAGE_JOINED,
            Template.SCORER_PASSAGE,
            Template.BARE_PASSAGE,
        )


class Frame(NamedTuple):
    """The special ids around one text.

    Attributes:
      before: [CLS] for BERT and related encoders, a decoder's begin-of-text, or nothing.
      after: [SEP], a decoder's end-of-text where its tokenizer appends one, or nothing.
    """

    before: list[int]
    after: list[int]


class Rows(NamedTuple):
    """Token ids.

    Attributes:
      ids: one list of ids per row, none longer than the limit.
      truncated: the number of rows that lost ids to the limit.
    """

    ids: list[list[int]]
    truncated: int


def from_transformers(name: str) -> Any:
    """Import a class of transformers, without its advice to install PyTorch, which its tokenizers do not need."""
    variable = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    stated = variable in os.environ
    os.environ.setdefault(variable, "1")
    try:
        return getattr(importlib.import_module("transformers"), name)
    finally:
        if not stated:
            del os.environ[variable]


def load_tokenizer(path_or_name: str | Path) -> "PreTrainedTokenizerBase":
    """Load a tokenizer with transformers' AutoTokenizer.

    Args:
      path_or_name: a folder with tokenizer.json, or with config.json and vocab.txt or spiece.model (read without
        any network); or a name on the Hugging Face hub.

    Raises:
      UserError: no such folder, no vocabulary in it, or one that cannot be read.
    """
    path = Path(path_or_name).expanduser()
    name = str(path_or_name)
    if path.is_file():
        raise UserError(f"{path}: is a file; give the folder that contains the tokenizer")
    if path.is_dir():
        _check_tokenizer_folder(path)
        name = str(path)
    elif path.is_absolute() or name.startswith((".", "~")) or (len(path.parts) > 1 and path.parent.is_dir()):
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{path}: no such folder{did_you_mean(path.name, siblings) or '; check the path'}")
    auto = from_transformers("AutoTokenizer")
    try:
        tokenizer = auto.from_pretrained(name, local_files_only=path.is_dir())
    # The Rust library raises bare Exceptions for a broken file, transformers five other kinds.
    except Exception as error:
        what = (str(error).strip() or type(error).__name__).splitlines()[0]
        remedy = "fetch its files again" if path.is_dir() else "give a local folder, or check the name and the network"
        raise UserError(f"{name}: cannot load the tokenizer ({what}); {remedy}") from error
    if not isinstance(tokenizer.model_max_length, int | float):
        raise UserError(
            f"{name}: tokenizer_config.json has model_max_length {tokenizer.model_max_length!r}; give a number of tokens"
        )
    try:
        # No vocabulary has hieroglyphs: a tokenizer without a token for unknown words fails here, not at some text.
        tokenizer("\U00013000")
    except Exception as error:
        what = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{name}: the tokenizer cannot read unknown words ({what}); fetch its files again") from error
    return tokenizer


def _check_tokenizer_folder(path: Path) -> None:
    # AutoTokenizer makes an empty vocabulary from a config.json alone, and every word would become [UNK].
    found = [name for name in _VOCABULARY_FILES if (path / name).is_file()]
    if not found:
        raise UserError(f"{path}: no tokenizer in this folder; put tokenizer.json, vocab.txt or spiece.model there")
    if "tokenizer.json" in found:
        return
    if not any((path / name).is_file() for name in ("config.json", "tokenizer_config.json")):
        raise UserError(f"{path}: {found[0]} alone does not tell the kind of tokenizer; put config.json next to it")
    if found[0].endswith(".model") and importlib.util.find_spec("sentencepiece") is None:
        raise UserError(f"{path / found[0]}: needs the package sentencepiece; run: pip install sentencepiece")


def passage_pair(
    tokenizer: "PreTrainedTokenizerBase",
    titles: Sequence[str],
    texts: Sequence[str],
    max_length: int,
    prompt: str | Sequence[str] = "",
) -> Rows:
    """Build [CLS] title [SEP] text [SEP], the passages of ART and DPR.

    Right-truncated to `max_length` ids, the final [SEP] kept. An empty title gives [CLS] [SEP] text [SEP], as in
    ART; DPR's own code left the first [SEP] out.

    Args:
      tokenizer: one with [CLS] and [SEP].
      titles: N titles.
      texts: N texts.
      max_length: the most ids of a row, special ones included.
      prompt: the text to put before each title; or N of them.

    Raises:
      UserError: the tokenizer has no [CLS] or no [SEP], as decoders' and T5's have none.
    """
    _check_length(max_length, 4)
    cls, sep = _special_ids(tokenizer, "cls", "sep")
    title_ids = _first_ids(tokenizer, prompted(prompt, titles), max_length)
    text_ids = _first_ids(tokenizer, texts, max_length)
    rows = ([cls, *title, sep, *text] for title, text in zip(title_ids, text_ids, strict=True))
    return _ended(rows, [sep], max_length)


def passage_joined(
    tokenizer: "PreTrainedTokenizerBase",
    titles: Sequence[str],
    texts: Sequence[str],
    max_length: int,
    prompt: str | Sequence[str] = "",
) -> Rows:
    """Build [CLS] title text [SEP] with title and text joined by a space, as sentence-transformers and BEIR do.

    Args and Returns as for `passage_pair`; see `joined`.
    """
    return question_rows(tokenizer, [*map(joined, titles, texts)], max_length, prompt)


def joined(title: str, text: str) -> str:
    """Join a passage to one text: the title, a space and the text, or one of them alone if the other is empty.

    White space around them stays, as in sentence-transformers: byte-level tokenizers read it.
    """
    return f"{title} {text}" if title and text else title or text


def question_rows(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], max_length: int, prompt: str | Sequence[str] = ""
) -> Rows:
    """Build [CLS] prompt text [SEP], right-truncated to `max_length` ids, the final [SEP] kept.

    With a tokenizer that adds other special ids these are around the text instead, see `frame_of`. The prompt and the text
    are tokenised as one text, as sentence-transformers does it.
    """
    frame = frame_of(tokenizer)
    _check_length(max_length, len(frame.before) + len(frame.after) + 1)
    rows = ([*frame.before, *ids] for ids in _first_ids(tokenizer, prompted(prompt, texts), max_length))
    return _ended(rows, frame.after, max_length)


def frame_of(tokenizer: "PreTrainedTokenizerBase") -> Frame:
    """The special ids that the tokenizer itself puts around one text; one that has [CLS] and [SEP] may add neither."""
    [whole], [bare] = (_all_ids(tokenizer, ["a"], add_special_tokens=added) for added in (True, False))
    found = [start for start in range(len(whole)) if whole[start : start + len(bare)] == bare]
    if not found:
        where = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise UserError(f"{where}: the tokenizer changes a text that it puts special tokens around; give another one")
    return Frame(whole[: found[0]], whole[found[0] + len(bare) :])


def reads_pairs(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether a tokenizer has the [CLS] and [SEP] that `passage_pair` needs."""
    return tokenizer.cls_token_id is not None and tokenizer.sep_token_id is not None


def scorer_passage(
    tokenizer: "PreTrainedTokenizerBase", titles: Sequence[str], texts: Sequence[str], max_length: int
) -> Rows:
    """Build title text for a T5 scorer: two segments tokenised apart, no special ids, no prompt.

    Args:
      tokenizer: the scorer's.
      titles: N titles.
      texts: N texts.
      max_length: the most ids of a row: the part of the scorer's input that the prompt leaves. Longer rows are cut.
    """
    _check_length(max_length, 1)
    title_ids = _first_ids(tokenizer, titles, max_length + 1)
    text_ids = _first_ids(tokenizer, texts, max_length + 1)
    whole = [title + text for title, text in zip(title_ids, text_ids, strict=True)]
    return Rows([row[:max_length] for row in whole], sum(len(row) > max_length for row in whole))


def scorer_target(tokenizer: "PreTrainedTokenizerBase", questions: Sequence[str], max_length: int) -> Rows:
    """Build "Question: {question}" </s>, the text that a T5 scorer scores; truncated, the final </s> kept."""
    _check_length(max_length, 2)
    (eos,) = _special_ids(tokenizer, "eos")
    prompts = [f"Question: {question}" for question in questions]
    return _ended(_first_ids(tokenizer, prompts, max_length), [eos], max_length)


def bare_question(
    tokenizer: "PreTrainedTokenizerBase", questions: Sequence[str], max_length: int, form: str = ""
) -> Rows:
    """Build a question without special ids, for rows that hold a question and a passage.

    Args:
      tokenizer: the scorer's.
      questions: N questions.
      max_length: the most ids of a row; where a row is cut, the part of `form` behind the question is kept.
      form: a text around the question, which takes the place of its "{}"; tokenised with it as one text.
    """
    before, _, behind = form.partition("{}")
    end = _first_ids(tokenizer, [behind], max_length)[0] if behind else []
    _check_length(max_length, len(end) + 1)
    # A blank in front of nothing is no text.
    bare = not (before + behind).strip()
    texts = [f"{before}{each}{behind}" if each or not bare else "" for each in questions] if form else questions
    rows = _first_ids(tokenizer, texts, max_length + 1)
    fitting = [row if len(row) <= max_length else [*row[: max_length - len(end)], *end] for row in rows]
    return Rows(fitting, sum(len(row) > max_length for row in rows))


def bare_passage(
    tokenizer: "PreTrainedTokenizerBase",
    titles: Sequence[str],
    texts: Sequence[str],
    max_length: int,
    form: str = "",
) -> Rows:
    """Build a passage without special ids, title and text put together by `joined`; see `bare_question`."""
    return bare_question(tokenizer, [*map(joined, titles, texts)], max_length, form)


def template_rows(
    template: Template,
    tokenizer: "PreTrainedTokenizerBase",
    columns: Sequence[Sequence[str]],
    max_length: int,
    prompt: str | Sequence[str] = "",
) -> Rows:
    """Build the rows of `template` from (titles, texts) for passages or (questions,) for questions.

    T5's templates take no prompt; that of the bare ones is the form around the text.
    """
    builders: dict[Template, Any] = {
        Template.PASSAGE_PAIR: passage_pair,
        Template.PASSAGE_JOINED: passage_joined,
        Template.QUESTION_ROWS: question_rows,
        Template.SCORER_PASSAGE: scorer_passage,
        Template.SCORER_TARGET: scorer_target,
        Template.BARE_QUESTION: bare_question,
        Template.BARE_PASSAGE: bare_passage,
    }
    return builders[template](tokenizer, *columns, max_length, *((prompt,) if prompt else ()))


def _ended(rows: Iterable[list[int]], end: list[int], max_length: int) -> Rows:
    """End every row with the ids `end`, cutting it before when it has no place left for them."""
    ended = []
    truncated = 0
    for row in rows:
        truncated += len(row) + len(end) > max_length
        ended.append([*row[: max_length - len(end)], *end])
    return Rows(ended, truncated)


def _check_length(max_length: int, least: int) -> None:
    if max_length < least:
        raise UsageError(f"a length of {max_length} ids leaves no room for text; use at least {least}")


def _special_ids(tokenizer: "PreTrainedTokenizerBase", *names: str) -> list[int]:
    ids = [getattr(tokenizer, f"{name}_token_id") for name in names]
    for name, id in zip(names, ids, strict=True):
        if id is None:
            where = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise UserError(
                f"{where}: the tokenizer has no {name}_token; name it in tokenizer_config.json"
                + (", or give passage_template 'joined'" if "sep" in names else "")
            )
    return ids


def _first_ids(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], count: int) -> list[list[int]]:
    """Tokenise texts without special ids, reading no more of a long text than its first `count` ids need.

    A text of 10 MB would keep its whole batch waiting for ids that are then thrown away, so a long text is cut in
    characters first: at a white space where there is one, and so far out that at least `count` ids precede the
    last `_DOUBTED_IDS`. A cut that gives fewer is made longer, up to the whole text. The first `count` ids are those
    of the whole text for every tokenizer that works word by word (WordPiece; SentencePiece as the Hugging Face
    library runs it). One that weighs a whole sentence without any spaces at once could in principle differ, if its
    choice of pieces hung on something more than 128 pieces further on.

    Returns:
      a list of ids for each text. Where a text has more than `count` ids, the list has more too, and those behind
      the first `count` are not to be used.
    """
    characters = (count + _DOUBTED_IDS) * _CHARACTERS_PER_ID
    rows = _all_ids(tokenizer, [_cut(text, characters) for text in texts])
    while short := [
        row for row, text in enumerate(texts) if len(text) > characters and len(rows[row]) < count + _DOUBTED_IDS
    ]:
        characters *= _CUT_GROWTH
        for row, ids in zip(short, _all_ids(tokenizer, [_cut(texts[row], characters) for row in short]), strict=True):
            rows[row] = ids
    return rows


def _cut(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    space = max(text.rfind(" ", 0, characters), text.rfind("\n", 0, characters))
    return text[: space if space > characters // 2 else characters]


def _all_ids(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], *, add_special_tokens: bool = False
) -> list[list[int]]:
    rows: list[list[int]] = []
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # A tokenizer.json may carry a truncation or padding of its own, and a call of the tokenizer leaves its own.
        if backend.truncation is not None:
            backend.no_truncation()
        if backend.padding is not None:
            backend.no_padding()
    for start in range(0, len(texts), _BATCH_TEXTS):
        batch = list(texts[start : start + _BATCH_TEXTS])
        if backend is not None:
            # The library's own call: a third faster than the tokenizer's, which makes a dictionary of every row.
            rows.extend(
                encoding.ids for encoding in backend.encode_batch_fast(batch, add_special_tokens=add_special_tokens)
            )
        else:
            rows.extend(tokenizer(batch, add_special_tokens=add_special_tokens)["input_ids"])  # pyright: ignore[reportArgumentType]
    return rows


def vocabulary_size(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return one more than the largest id, added tokens included: the number of rows of an embedding table."""
    return max(tokenizer.get_vocab().values()) + 1


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return a sha256 (hexadecimal) over everything that determines the ids: vocabulary, normaliser, model, special tokens."""
    if (known := getattr(tokenizer, "fingerprint", None)) is not None:
        return known
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        # Left there by the last call of the tokenizer; the templates switch both off.
        state["truncation"] = state["padding"] = None
    else:
        state = {"class": type(tokenizer).__name__, "vocabulary": sorted(tokenizer.get_vocab().items())}
    special = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("cls", "sep", "eos")}
    content = json.dumps({"state": state, "special": special}, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()
