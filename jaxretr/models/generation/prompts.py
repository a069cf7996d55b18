"""Prompts from which a language model writes a question about a passage, by name or from a file."""

from pathlib import Path
from typing import Any

from jaxretr.data.tokens import bare_passage
from jaxretr.models.scorers.pair_frame import PairFrame
from jaxretr.models.scorers.pair_texts import PairTexts, split_around
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean, reason

PLACE = "{passage}"
"""Place of the passage in a template: its title, a space and its text."""

_INSTRUCTION = "Please write a question based on this passage."

TEMPLATES = {
    "upr": "Passage: {passage} . " + _INSTRUCTION + " Question:",
    "inpars": (
        "Passage: Honey bees keep their hive at about 35 degrees. When it is too warm, some of them carry water into the "
        "hive and fan it with their wings until it evaporates.\nQuestion: how do bees cool their hive\n\n"
        "Passage: The Treaty of Tordesillas of 1494 divided the newly discovered lands outside Europe between Portugal and "
        "Castile, along a meridian west of the Cape Verde islands.\nQuestion: which countries signed the treaty of "
        "tordesillas\n\n"
        "Passage: Copper roofs turn green within twenty years or so, because the metal reacts with oxygen, water and sulphur "
        "compounds of the air. The layer protects the metal below.\nQuestion: why does copper turn green\n\n"
        "Passage: {passage}\nQuestion:"
    ),
    "doc2query": "{passage}",
    "chat": "",
}
"""Templates by name. upr: the instruction with which ART's teacher scores questions (Sachan et al. 2022, arXiv
2204.07496), so that a model writes what it would rate highly; inpars: three examples, for models without instruction
tuning (Bonifacio et al. 2022, arXiv 2202.05144); doc2query: the passage alone, for models that were trained to ask (GPL's
generators); chat: the tokenizer's chat template around an instruction."""


def template_text(name_or_path: str) -> str:
    """Return a template by name, or the content of a file.

    Raises:
      UsageError: no such name, and no such file.
      UserError: the file cannot be read, or does not have the place of the passage once.
    """
    if name_or_path in TEMPLATES:
        return TEMPLATES[name_or_path]
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        raise UsageError(
            f"template={name_or_path}: neither a template nor a file{did_you_mean(name_or_path, TEMPLATES) or ''}; give a "
            f"text file with {PLACE} in it, or one of {', '.join(TEMPLATES)}"
        )
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); give a text file in UTF-8") from error
    if text.count(PLACE) != 1:
        raise UserError(f"{path}: has {PLACE} {text.count(PLACE)} times; write it once, where the passage goes")
    return text.rstrip("\n")


def suited_template(tokenizer: Any, *, encoder: bool) -> str:
    """Return the name of the template that suits a model without a word from the user; see `prompt_texts`."""
    if encoder:
        return "upr"
    return "chat" if getattr(tokenizer, "chat_template", None) else "inpars"


def prompt_texts(tokenizer: Any, template: str, max_length: int, *, encoder: bool) -> PairTexts:
    """Return the fixed ids around a passage.

    Args:
      template: a name or a file, as in `template_text`.
      max_length: largest number of tokens of a prompt; only the passage is cut.
      encoder: whether the model's encoder reads the prompt (T5), which ends with </s>.

    Raises:
      UsageError: no such template, one that does not suit the model, or no room for a passage.
      UserError: a file that cannot be used.
    """
    text = template_text(template)
    if template == "chat":
        text = _chat_text(tokenizer)
    elif template == "upr" and encoder:
        text = text.removesuffix(" Question:")
    elif template == "doc2query" and not encoder:
        raise UsageError(
            "template=doc2query: is the passage alone, which a causal language model would go on with; give upr or inpars"
        )
    before, form, after = split_around(text, PLACE)
    head, tail = (tokenizer(part, add_special_tokens=False)["input_ids"] if part else [] for part in (before, after))
    # A chat template renders the token that begins a text itself.
    begins = not encoder and template != "chat" and tokenizer.bos_token_id is not None
    first: list[Any] = [tokenizer.bos_token_id] if begins else []
    last: list[Any] = [tokenizer.eos_token_id] if encoder else []
    frame = PairFrame((*first, *head), (*tail, *last), (), max_length, order="passage_first", cut="passage")
    if frame.room < 1:
        raise UsageError(
            f"max_length={max_length}: the template takes {frame.fixed} tokens; leave room for the passage"
        )
    return PairTexts(frame, passage_form=form)


def prompts(tokenizer: Any, texts: PairTexts, titles: list[str], bodies: list[str]) -> tuple[list[list[int]], int]:
    """Return the token ids of a prompt for each passage, and the number of passages that were cut."""
    frame = texts.frame
    read = bare_passage(tokenizer, titles, bodies, frame.room, texts.passage_form)
    return [[*frame.before, *ids, *frame.between] for ids in read.ids], read.truncated


def _chat_text(tokenizer: Any) -> str:
    """Return the tokenizer's chat template around the instruction, up to the first word of the answer."""
    if not getattr(tokenizer, "chat_template", None):
        where = getattr(tokenizer, "name_or_path", "")
        raise UsageError(f"template=chat: {where} has no chat template; give upr or inpars")
    message = f"Write one question that this passage answers.\n\nPassage: {PLACE}"
    chat = [{"role": "user", "content": message}]
    # Templates of models that think first (Qwen 3) have this setting; others ignore it.
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    if text.count(PLACE) != 1:
        where = getattr(tokenizer, "name_or_path", "")
        raise UsageError(f"template=chat: the chat template of {where} changes the message; give upr or inpars")
    return f"{text}Question:"
