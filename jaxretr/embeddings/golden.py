"""Golden vectors: vectors that an export must give, computed by the model it was made from.

golden.json holds a few texts, the settings that decide their vectors, and the sha256 of every other file and of its own
content; golden.npy holds the vectors. Not a .safetensors file: vLLM would load it as weights.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import jax
import numpy as np

from jaxretr.data.arrays import read_array
from jaxretr.data.sample_texts import PASSAGES, QUESTIONS
from jaxretr.data.tokens import joined, passage_joined, passage_pair, question_rows
from jaxretr.models.combined_encoder import CombinedConfig, CombinedEncoder, mapped, parts_of
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.encode import without_truncation_warnings
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import atomic_write
from jaxretr.runtime.storage.sealed_folder import (
    hashes,
    names,
    read_description,
    read_object,
    read_sealed,
    write_description,
)
from jaxretr.version import __version__

GOLDEN = "golden.json"
VECTORS = "golden.npy"

_KIND = ("jaxretr-golden", 2)


@dataclass(frozen=True)
class Golden:
    """The content of golden.json.

    Attributes:
      settings: the model's settings, as `settings_of` gives them.
      questions: the texts of the questions.
      passages: (title, text) of each passage.
      passages_as_text: each passage as one text, for a library that knows only texts.
      files: the sha256 (hexadecimal) of each file, by its path in the folder.
      prompts: name -> prompt, further prompts of the exported model, which the vectors do not use; its own are in
        `settings`.
      jaxretr: the version that wrote it.
    """

    settings: dict[str, Any]
    questions: Sequence[str]
    passages: Sequence[Sequence[str]]
    passages_as_text: Sequence[str]
    files: dict[str, str]
    prompts: dict[str, str]
    jaxretr: str


@dataclass(frozen=True)
class Vectors:
    """Embeddings of the golden texts, questions [n, D] and passages [m, D], float32."""

    questions: np.ndarray
    passages: np.ndarray


def settings_of(config: DualEncoderConfig | CombinedConfig) -> dict[str, Any]:
    """The settings that decide the vectors apart from parameters and tokenizer; they are the same in every layout."""
    if isinstance(config, CombinedConfig):
        lengths = {name: getattr(config, name) for name in ("max_question_length", "max_passage_length")}
        parts = [settings_of(part) for part in config.parts]
        return {**lengths, "how": config.how, "weights": list(config.weights), "parts": parts}
    names = ("pooling", "normalise", "passage_template", "max_question_length", "max_passage_length")
    # Left out where there are none, as earlier versions did.
    later = {name: prompt for name in ("query_prompt", "passage_prompt") if (prompt := getattr(config, name))}
    if config.projection_activation != "identity":
        later["projection_activation"] = config.projection_activation
    if config.inner_dense:
        later["inner_dense"] = [dataclasses.asdict(each) for each in config.inner_dense]
    return {**{name: getattr(config, name) for name in names}, "dimensions": config.embedding_size, **later}


def passage_as_text(encoder: DualEncoder, title: str, text: str) -> str:
    """One text that is tokenised to the row of a title and a text, where special tokens in texts are read as such."""
    prompt = encoder.config.passage_prompt
    if encoder.config.passage_template == "pair":
        return f"{prompt}{title} {encoder.tokenizer.sep_token} {text}"
    return prompt + joined(title, text)


def question_as_text(encoder: DualEncoder, question: str) -> str:
    """The text that other libraries get for a question: the model's prompt, and the question."""
    return encoder.config.query_prompt + question


def compute(
    encoder: DualEncoder | CombinedEncoder, questions: Sequence[str], passages: Sequence[Sequence[str]]
) -> Vectors:
    """Embed texts with the model's parameters in float32, whatever dtype it was loaded in, on any device."""
    exact = mapped(encoder, lambda part: DualEncoder(part.config, part.params, part.tokenizer))
    pairs = [{"title": title, "text": text} for title, text in passages]
    # Accelerators would otherwise round the operands of float32 matmuls.
    with jax.default_matmul_precision("highest"), without_truncation_warnings():
        return Vectors(
            exact.encode_queries(list(questions), progress=False), exact.encode_passages(pairs, progress=False)
        )


def write(folder: Path, encoder: DualEncoder | CombinedEncoder, prompts: dict[str, str]) -> Golden:
    """Write golden.json and golden.npy next to the files of an export.

    Args:
      folder: the folder with all other files of the export, which must not change any more.
      prompts: the model's further prompts, which are only noted.

    Raises:
      UserError: the model's tokenizer gives other libraries other rows of ids than this one.
    """
    questions, passages, texts_of_parts = texts(encoder)
    vectors = compute(encoder, questions, passages)
    with atomic_write(folder / VECTORS, "wb") as file:
        np.save(file, np.concatenate([vectors.questions, vectors.passages]), allow_pickle=False)
    golden = Golden(
        settings_of(encoder.config),
        questions,
        passages,
        texts_of_parts[0],
        hashes(folder, [name for name in names(folder) if name != GOLDEN]),
        dict(prompts),
        __version__,
    )
    write_description(folder / GOLDEN, _KIND, dataclasses.asdict(golden))
    return golden


def texts(encoder: DualEncoder | CombinedEncoder) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """The golden texts for a model.

    Args:
      encoder: the model; the last question and the last passage are longer than any of its parts takes.

    Returns:
      Questions; passages, [title, text]; and for each part of the model the passages as single texts.

    Raises:
      UserError: a part's tokenizer gives other libraries other rows of ids than this one.
    """
    parts = parts_of(encoder)
    # The last of each is too long: other libraries must cut it in the same way.
    questions = [*QUESTIONS, _repeated(QUESTIONS[0], max(part.config.max_question_length for part in parts))]
    long = ["A long passage", _repeated(PASSAGES[0][1], max(part.config.max_passage_length for part in parts))]
    passages = [*map(list, PASSAGES), long]
    texts_of_parts = [[passage_as_text(part, title, text) for title, text in passages] for part in parts]
    for part, as_text in zip(parts, texts_of_parts, strict=True):
        _check_tokenizer(part, questions, passages, as_text)
    return questions, passages, texts_of_parts


def read(folder: Path) -> tuple[Golden, Vectors]:
    """Read golden.json and golden.npy.

    Raises:
      UserError: they are missing, broken, or do not belong together.
    """
    path = folder / GOLDEN
    if not path.exists():
        raise UserError(f"{folder}: has no {GOLDEN}, so there is nothing to verify; give a folder of `jaxretr export`")
    content = read_description(path, _KIND, "export the model again")
    if not _is_golden(content):
        raise UserError(f"{path}: was changed, and is no longer what an export writes; export the model again")
    golden = Golden(**content)
    n = len(golden.questions)
    shape = (n + len(golden.passages), None)
    vectors = read_array(folder / VECTORS, np.float32, shape, "export the model again", mapped=False)
    return golden, Vectors(vectors[:n], vectors[n:])


def read_prompts(folder: Path) -> dict[str, str]:
    """The prompts that golden.json of any version notes.

    Raises:
      UserError: it is broken.
    """
    prompts: Any = read_object(folder / GOLDEN, "export the model again").get("prompts")
    if not _named_texts(prompts):
        raise UserError(f"{folder / GOLDEN}: was changed, and is no longer what an export writes; export it again")
    return prompts


def is_as_written(folder: Path) -> bool:
    """Whether golden.json is unchanged to the byte."""
    return read_sealed(folder / GOLDEN, "export the model again")[1]


def _is_golden(content: dict[str, Any]) -> bool:
    def all_texts(values: Any) -> bool:
        return isinstance(values, list) and all(isinstance(value, str) for value in values)

    return (
        content.keys() == {field.name for field in dataclasses.fields(Golden)}
        and isinstance(content["settings"], dict)
        and all(isinstance(content["settings"].get(f"max_{side}_length"), int) for side in ("question", "passage"))
        and all_texts(content["questions"])
        and all_texts(content["passages_as_text"])
        and isinstance(content["jaxretr"], str)
        and isinstance(content["passages"], list)
        and all(all_texts(pair) and len(pair) == 2 for pair in content["passages"])
        and len(content["passages"]) == len(content["passages_as_text"])
        and _named_texts(content["files"])
        # Nothing outside of the folder is read because a file says so.
        and not any(PurePath(name).is_absolute() or ".." in PurePath(name).parts for name in content["files"])
        and _named_texts(content["prompts"])
    )


def _named_texts(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())


def _repeated(text: str, words: int) -> str:
    return " ".join([text] * (words // len(text.split()) + 1))


def _check_tokenizer(
    encoder: DualEncoder, questions: Sequence[str], passages: Sequence[Sequence[str]], as_text: Sequence[str]
) -> None:
    """Refuse a tokenizer that gives other ids when it is called, as other libraries do, than our own rows have."""
    config, tokenizer = encoder.config, encoder.tokenizer
    template = passage_pair if config.passage_template == "pair" else passage_joined
    titles, texts = zip(*passages, strict=True)
    longest, prompt = config.max_question_length, config.query_prompt
    of_questions = question_rows(tokenizer, questions, longest, prompt)
    of_passages = template(tokenizer, titles, texts, config.max_passage_length, config.passage_prompt)
    for length, own, given in (
        (longest, of_questions, [prompt + question for question in questions]),
        (config.max_passage_length, of_passages, as_text),
    ):
        theirs: Any = tokenizer(list(given), truncation=True, max_length=length)
        for text, row, expected in zip(given, theirs["input_ids"], own.ids, strict=True):
            if list(row) != expected:
                raise UserError(
                    f"the tokenizer turns {text[:40]!r} into other ids when other libraries call it "
                    f"({tokenizer.convert_ids_to_tokens(row[:6])}) than the model was trained with "
                    f"({tokenizer.convert_ids_to_tokens(expected[:6])}); give the model's post-processor [CLS] and [SEP]"
                )
