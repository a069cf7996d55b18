"""The model card: README.md of an export, filled from the model and from the run that trained it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxretr.config import KINDS, Pooling
from jaxretr.errors import UserError
from jaxretr.export.golden import passage_as_text, question_as_text
from jaxretr.metrics_log import read_metrics
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.formats.encoder_params import display_name, loading_class, names_of
from jaxretr.models.formats.export_note import ExportNote
from jaxretr.storage.files import atomic_write
from jaxretr.version import __version__

CARD = "README.md"

_QUESTION = "who wrote The Magic Flute?"
_TITLE, _TEXT = "The Magic Flute", "An opera by Wolfgang Amadeus Mozart."

_OBJECTIVES = {
    "art": "ART: from questions alone, with a frozen T5 as the teacher (https://arxiv.org/abs/2206.10658)",
    "contrastive": "contrastive, as in DPR (https://arxiv.org/abs/2004.04906)",
    "mlm": "masked language modelling",
}


@dataclass(frozen=True)
class RunRecord:
    """A training run, read from its files.

    Attributes:
      config: the content of config.json.
      best_step: the step whose model was kept; None without a dev set, where it is the last one.
      figures: the dev set's metrics at that step.
      note: a note that training did not improve them, where the best step is the start; otherwise empty.
      last: the last line of metrics.jsonl that reports a training loss, `step` included; empty if there is none.
    """

    config: dict[str, Any]
    best_step: int | None
    figures: dict[str, float]
    note: str
    last: dict[str, float]


def write(
    folder: Path,
    name: str,
    encoder: DualEncoder | CombinedEncoder,
    note: ExportNote | None,
    *,
    source: str,
    prompts: Mapping[str, str],
    run: RunRecord | None,
    license: str | None,
) -> None:
    """Write README.md.

    Args:
      folder: the export's folder.
      name: the model's name, which is that of the final folder.
      encoder: the exported model.
      note: the note of the layout; None: our own layout.
      source: the model as the user named it.
      prompts: name -> prompt, of the model that was exported.
      run: the run that trained the model, if it is known.
      license: the license, in the hub's spelling; None: unknown.
    """
    library = "jaxretr" if note is None else _LIBRARIES[note.layout]
    parts = [
        _front_matter(library, license),
        f"# {name}",
        f"A dense passage retriever: questions and passages become vectors, whose dot product ranks the passages. "
        f"Exported by jaxretr {__version__} from `{source}`.",
        _facts_of_parts(encoder) if isinstance(encoder, CombinedEncoder) else _facts(encoder, note),
        "## How to load it",
        "The paths below are this folder's"
        + (
            "; of a model on the hub, download the folder first (`hf download`)."
            if library == "transformers" and note and note.separate
            else "."
        ),
        _passages_as_text(encoder, prompts) if note and isinstance(encoder, DualEncoder) else "",
        _code(_CODE[library](name, encoder, note)) if note else "",
        "With jaxretr:" if note else "",
        _code(_with_jaxretr(name, type(encoder).__name__)),
        _training(run) if run else "",
        "## Is it intact?",
        f"`jaxretr verify {name}` recomputes the vectors in golden.npy from the files here, and compares hashes.",
    ]
    with atomic_write(folder / CARD) as file:
        file.write("\n\n".join(part for part in parts if part) + "\n")


def _front_matter(library: str, license: str | None) -> str:
    tags = ["sentence-similarity", "feature-extraction", "dense-retrieval", "passage-retrieval", "jaxretr"]
    lines = [
        f"library_name: {library}",
        "pipeline_tag: sentence-similarity",
        f"license: {license or 'unknown'}",
        "tags:",
    ]
    return "\n".join(["---", *lines, *(f"- {tag}" for tag in tags), "---"])


def _facts(encoder: DualEncoder, note: ExportNote | None) -> str:
    config, shape = encoder.config, encoder.config.backbone
    kind = display_name(shape)
    towers = "one for questions and passages" if config.shared else "two, for questions and for passages"
    if note and note.separate:
        towers += ", in question/ and passage/" + (" (the same weights twice)" if config.shared else "")
    rows = {
        "encoder": f"{kind}, {shape.num_hidden_layers} layers of {shape.hidden_size}, vocabulary {shape.vocab_size}",
        "towers": towers,
        "pooling": _POOLED[config.pooling].what
        + "".join(f", a linear layer to {each.size} ({each.activation})" for each in config.inner_dense)
        + (f", then a projection to {config.projection_size}" if config.projection_size else "")
        + (f" and {config.projection_activation}" if config.projection_activation != "identity" else ""),
        "dimensions": f"{config.embedding_size}"
        + (f", the first of {config.full_size}" if config.embedding_size < config.full_size else ""),
        "vectors": "of length 1" if config.normalise else "of any length: compare by dot product, not cosine",
        "longest question": f"{config.max_question_length} tokens",
        "longest passage": f"{config.max_passage_length} tokens",
    }
    if note and note.layout == "sentence-transformers" and note.max_question_length:
        longest = max(config.max_question_length, config.max_passage_length)
        rows["in sentence-transformers"] = f"{longest} tokens for both, which has one maximum length"
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _facts_of_parts(encoder: CombinedEncoder) -> str:
    config = encoder.config
    meaning = {
        "concatenate": "the vectors of its parts one behind the other, the questions' multiplied by the weights: the "
        "dot product is the weighted sum of the parts' own",
        "sum": "the sums of its parts' vectors, the questions' multiplied by the weights",
    }[config.how]
    rows = [f"| part-{n} | {encoder.names[n]} | {weight:g} |" for n, weight in enumerate(config.weights)]
    facts = [f"### part-{number}\n\n{_facts(part, None)}" for number, part in enumerate(encoder.parts)]
    return "\n\n".join(
        [
            f"A combined model of {config.embedding_size} dimensions. Its vectors are {meaning}. A corpus that is "
            "encoded once can be searched with any weights.",
            "\n".join(["| part | made from | weight |", "|---|---|---|", *rows]),
            *facts,
        ]
    )


def _passages_as_text(encoder: DualEncoder, prompts: Mapping[str, str]) -> str:
    sep = encoder.tokenizer.sep_token
    if encoder.config.passage_template == "pair":
        how = (
            f"**Passages are written as `title {sep} text`**, with `{sep}` as it is here: the tokenizer reads it as "
            f"the separator that the model was trained with. Where there is no title: `{sep} text`."
        )
    else:
        how = "**Passages are written as `title text`**, joined by a space."
    config = encoder.config
    for what, prompt in (("question", config.query_prompt), ("passage", config.passage_prompt)):
        if prompt:
            how += f"\n\n**Every {what} begins with `{prompt}`**, which jaxretr puts there by itself."
    others = {
        name: prompt for name, prompt in prompts.items() if prompt not in (config.query_prompt, config.passage_prompt)
    }
    if others:
        listed = ", ".join(f"{name}: `{prompt}`" for name, prompt in others.items())
        how += f"\n\nThe model it comes from names further prompts ({listed}), which are not applied unless you ask for them."
    return how


# ---- code that works: a test runs it ---------------------------------------------------------------------------------


class _Pooled(NamedTuple):
    """A pooling in words, and in torch."""

    what: str
    code: str


_MASK = 'mask = inputs["attention_mask"].unsqueeze(-1)\n'
_POOLED: Mapping[Pooling, _Pooled] = {
    "cls": _Pooled("[CLS]", "vectors = outputs.last_hidden_state[:, 0]"),
    "mean": _Pooled("mean of the tokens", f"{_MASK}vectors = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1)"),
    "mean_sqrt_len_tokens": _Pooled(
        "sum of the tokens over the square root of their number",
        f"{_MASK}vectors = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1).sqrt()",
    ),
    "weightedmean": _Pooled(
        "mean of the tokens, weighted by their positions",
        f"{_MASK}mask = mask * mask.cumsum(1)\nvectors = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1)",
    ),
    "max": _Pooled(
        "largest value of the tokens",
        f"{_MASK}vectors = outputs.last_hidden_state.masked_fill(mask == 0, -1e9).max(1).values",
    ),
    "lasttoken": _Pooled(
        "last token",
        'last = inputs["attention_mask"].sum(1) - 1\n'
        "vectors = outputs.last_hidden_state[torch.arange(len(last)), last]",
    ),
}


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _with_jaxretr(name: str, kind: str) -> str:
    return (
        "import jaxretr\n\n"
        f'encoder = jaxretr.{kind}.from_pretrained("{name}")\n'
        f'questions = encoder.encode_queries(["{_QUESTION}"])\n'
        f'passages = encoder.encode_passages([{{"title": "{_TITLE}", "text": "{_TEXT}"}}])\n'
        "print(questions @ passages.T)"
    )


def _with_sentence_transformers(name: str, encoder: DualEncoder, note: ExportNote) -> str:
    passage = passage_as_text(encoder, _TITLE, _TEXT).removeprefix(encoder.config.passage_prompt)
    return (
        "from sentence_transformers import SentenceTransformer\n\n"
        f'model = SentenceTransformer("{name}")\n'
        f'questions = model.encode_query(["{_QUESTION}"])\n'
        f'passages = model.encode_document(["{passage}"])\n'
        "print(questions @ passages.T)"
    )


def _with_transformers(name: str, encoder: DualEncoder, note: ExportNote) -> str:
    config = encoder.config
    passage, question = passage_as_text(encoder, _TITLE, _TEXT), question_as_text(encoder, _QUESTION)
    question_class, passage_class = (
        ("DPRQuestionEncoder", "DPRContextEncoder") if note.layout == "dpr" else (loading_class(config.backbone),) * 2
    )
    pooled = ["vectors = outputs.pooler_output"] if note.layout == "dpr" else _POOLED[config.pooling].code.split("\n")
    if config.embedding_size < config.full_size:
        pooled.append(f"vectors = vectors[:, :{config.embedding_size}]")
    result = "torch.nn.functional.normalize(vectors, dim=-1)" if config.normalise else "vectors"
    without_pooler = ", add_pooling_layer=False" if note.layout != "dpr" and names_of(config.backbone).pooler else ""
    question_folder, passage_folder = (f"{name}/question", f"{name}/passage") if note.separate else (name, name)
    # The pooling indexes rows that are padded on the right, but decoders' tokenizers pad on the left.
    right = "" if encoder.tokenizer.padding_side == "right" else ', padding_side="right"'
    names = ", ".join(["AutoTokenizer", *dict.fromkeys([question_class, passage_class])])
    body = "\n    ".join(
        [
            f"tokenizer = AutoTokenizer.from_pretrained(folder{right})",
            f"model = model_class.from_pretrained(folder{without_pooler}).eval()",
            'inputs = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")',
            "with torch.inference_mode():",
            "    outputs = model(**inputs)",
            *pooled,
            f"return {result}",
        ]
    )
    return (
        f"import torch\nfrom transformers import {names}\n\n\n"
        f"def encode(model_class, folder, texts, length):\n    {body}\n\n\n"
        f'questions = encode({question_class}, "{question_folder}", ["{question}"], {config.max_question_length})\n'
        f'passages = encode({passage_class}, "{passage_folder}", ["{passage}"], {config.max_passage_length})\n'
        "print(questions @ passages.T)"
    )


_LIBRARIES = {"bert": "transformers", "dpr": "transformers", "sentence-transformers": "sentence-transformers"}
_CODE: Mapping[str, Any] = {"transformers": _with_transformers, "sentence-transformers": _with_sentence_transformers}


# ---- the run ---------------------------------------------------------------------------------------------------------


def _training(run: RunRecord) -> str:
    config = run.config
    data = {name: value for name, value in config.get("data", {}).items() if value not in (None, [], False)}
    parts = ["## Training", f"Objective: {_OBJECTIVES.get(config['kind'], config['kind'])}.", "Data:"]
    parts.append("\n".join(f"- {name}: `{value}`" for name, value in data.items()))
    if run.figures:
        parts.append(f"On the dev set, at step {run.best_step} of {config['train']['steps']}, the best one:")
        rows = [f"| {name} | {value:.4f} |" for name, value in run.figures.items()]
        parts.append("\n".join(["| metric | value |", "|---|---|", *rows]))
    if run.note:
        parts.append(f"**{run.note[0].upper()}{run.note[1:]}.**")
    if run.last:
        parts.append(f"The training loss at step {run.last['step']} was {run.last['loss']:.4f}.")
    settings = json.dumps(config, indent=2, ensure_ascii=False)
    parts.append(f"<details><summary>All settings</summary>\n\n```json\n{settings}\n```\n\n</details>")
    return "\n\n".join(parts)


def read_run(model: str | Path) -> RunRecord | None:
    """Read the run that a model comes from.

    Args:
      model: a run directory, or its model/ folder; anything else has no record.

    Raises:
      UserError: one of its files is broken.
    """
    folder = Path(model).expanduser().absolute()
    if folder.name == "model" and not (folder / "model").is_dir():
        folder = folder.parent
    config = _json(folder / "config.json") if (folder / "model").is_dir() else None
    if config is None or config.get("kind") not in KINDS:
        return None
    best = _json(folder / "best.json") or {}
    lines = _metrics(folder)
    last = next((line for line in reversed(lines) if "loss" in line and "examples_per_s" in line), {})
    return RunRecord(config, best.get("step"), best.get("figures", {}), best.get("note", ""), last)


def _json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); restore the file, or export the run's model/") from error
    return content if isinstance(content, dict) else None


def _metrics(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "metrics.jsonl").exists():
        return []
    try:
        return read_metrics(folder)
    except ValueError as error:
        raise UserError(f"{folder / 'metrics.jsonl'}: not valid JSON lines ({error}); restore or remove it") from error
