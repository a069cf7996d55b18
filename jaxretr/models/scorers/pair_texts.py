"""Texts around question and passage in the rows of cross-encoders and causal language models."""

from dataclasses import dataclass
from typing import Any

from jaxretr.models.scorers.pair_frame import PairFrame, frame_of_pairs
from jaxretr.runtime.errors import UserError

# The template for rerankers that answer with yes or no and whose folder has no chat template for pairs:
# Qwen3-Reranker's, published with its weights (https://arxiv.org/abs/2506.05176, section 2).
_YES_NO = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {}\n<Query>: {}\n'
    "<Document>: {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

# ART's instruction to a T5, whose target would be "Question: {q}"; here the word precedes the scored text.
_PASSAGE, _QUESTION = "Passage:", " . Please write a question based on this passage. Question:"

# Marks, which no text contains, for the places of question and passage in a rendered template.
_MARKS = ("\ue000question\ue000", "\ue000passage\ue000")


@dataclass(frozen=True)
class PairTexts:
    """Texts and ids around question and passage, from which rows are built.

    Attributes:
      frame: the fixed ids around question and passage.
      question_form: text around a question, in the form of `jaxretr.data.tokens.bare_question`.
      passage_form: text around a passage, in the form of `jaxretr.data.tokens.bare_passage`.
    """

    frame: PairFrame
    question_form: str = ""
    passage_form: str = ""


def of_tokenizer(tokenizer: Any, max_length: int) -> PairTexts:
    """Return the tokenizer's own way to join two texts."""
    return PairTexts(frame_of_pairs(tokenizer, max_length))


def of_answers(tokenizer: Any, max_length: int, instruction: str | None) -> PairTexts:
    """Return the row of a reranker that answers with a token: by the folder's chat template, or Qwen3-Reranker's.

    Args:
      tokenizer: tokenizer, with its chat template if it has one.
      max_length: largest number of ids of a row.
      instruction: the task; None: the template's own, or the one that Qwen3-Reranker was trained with.
    """
    rendered = _rendered(tokenizer, instruction)
    if rendered is None:
        rendered = _YES_NO.format(instruction or _INSTRUCTION, *_MARKS)
    before, rest = rendered.split(_MARKS[0])
    before, question_lead = _cut_right(before)
    middle, passage_form, after = split_around(rest, _MARKS[1])
    frame = PairFrame(
        before=tuple(_ids(tokenizer, before)),
        between=(),
        after=tuple(_ids(tokenizer, after)),
        max_length=max_length,
        cut="passage",
    )
    return PairTexts(frame, f"{question_lead}{{}}{middle}", passage_form)


def split_around(text: str, mark: str) -> tuple[str, str, str]:
    """Split a text around the place of a passage: the text before it, the form of `bare_passage`, and the text after it.

    Tokenizers join a space to the next word, and a line break to the preceding full stop, so that both belong to the
    text that is tokenised with them.
    """
    before, after = text.split(mark)
    before, lead = _cut_right(before)
    head = after[: len(after) - len(after.lstrip("\r\n"))]
    return before, f"{lead}{{}}{head}", after[len(head) :]


def has_pair_template(tokenizer: Any) -> bool:
    """Whether a tokenizer's chat template takes a question and a passage, as rerankers' do in sentence-transformers."""
    template = getattr(tokenizer, "chat_template", None)
    return isinstance(template, str) and "query" in template and "document" in template


def _rendered(tokenizer: Any, instruction: str | None) -> str | None:
    """Return the folder's chat template around the marks; None if it has none for pairs."""
    if not has_pair_template(tokenizer):
        return None
    messages = [
        *([] if instruction is None else [{"role": "system", "content": instruction}]),
        {"role": "query", "content": _MARKS[0]},
        {"role": "document", "content": _MARKS[1]},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    if any(text.count(mark) != 1 for mark in _MARKS) or text.index(_MARKS[0]) > text.index(_MARKS[1]):
        raise UserError(
            f"{getattr(tokenizer, 'name_or_path', '')}: its chat template does not put the roles query and document into "
            "a row once each, the query first; correct chat_template.jinja"
        )
    return text


def of_likelihood(tokenizer: Any, max_length: int) -> PairTexts:
    """Return the row in which a causal language model reads a passage, an instruction and the question."""
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    frame = PairFrame(
        before=(*begin, *_ids(tokenizer, _PASSAGE)),
        between=tuple(_ids(tokenizer, _QUESTION)),
        after=(),
        max_length=max_length,
        order="passage_first",
        cut="passage",
    )
    return PairTexts(frame, " {}", " {}")


def _cut_right(text: str) -> tuple[str, str]:
    bare = text.rstrip(" ")
    return bare, text[len(bare) :]


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
