"""The model card: README.md of an export, filled from the model and from the run that trained it."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxretr.config import KINDS
from jaxretr.embeddings.golden import passage_as_text, question_as_text
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.own import EncoderShape
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.hub.encoder_params import MASKED_LM, names_of
from jaxretr.models.hub.export_note import LIBRARIES, ExportNote
from jaxretr.models.hub.hf_files import name_and_revision
from jaxretr.models.hub.poolings import POOLINGS
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.runtime.storage.files import atomic_write
from jaxretr.runtime.storage.sealed_folder import read_object
from jaxretr.training.metrics_log import read_best, read_metrics
from jaxretr.version import __version__

CARD = "README.md"

# "files:/home/me/notes", "s3://bucket/corpus.jsonl", "./data"; not OWNER/NAME or "ir_datasets:beir/scifact".
_PLACE = re.compile(r"(\w+:)?([/~.].*)", re.DOTALL)

_EXAMPLE = {
    "question": "who wrote The Magic Flute?",
    "title": "The Magic Flute",
    "text": "An opera by Wolfgang Amadeus Mozart.",
}

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
    published: bool,
) -> None:
    """Write README.md.

    Args:
      name: the model's name, which is that of the final folder.
      note: the note of the layout; None: our own layout.
      source: the model as the user named it.
      prompts: name -> prompt, of the model that was exported.
      run: the run that trained the model, if it is known.
      license: the license, in the hub's spelling; None: unknown.
      published: whether `name` is a repository of the hub, OWNER/NAME or OWNER/NAME@BRANCH, and no folder's.
    """
    values: dict[str, Any] = {
        "library": "jaxretr" if note is None else LIBRARIES[note.layout],
        "config": encoder.config,
        "combined": isinstance(encoder, CombinedEncoder),
        "poolings": POOLINGS,
        "published": published,
        "encoder": encoder,
        "note": note,
    }
    if note and isinstance(encoder, DualEncoder):
        config, dpr = encoder.config, note.layout == "dpr"
        applied = (config.query_prompt, config.passage_prompt)
        loaded_by = MASKED_LM if config.sparse else names_of(config.backbone).loaded_by
        values |= {
            "sep": encoder.tokenizer.sep_token,
            "padding_side": encoder.tokenizer.padding_side,
            "prompts": {name: prompt for name, prompt in prompts.items() if prompt not in applied},
            "question": question_as_text(encoder, _EXAMPLE["question"]),
            "passage": passage_as_text(encoder, _EXAMPLE["title"], _EXAMPLE["text"]),
            "question_class": "DPRQuestionEncoder" if dpr else loaded_by,
            "passage_class": "DPRContextEncoder" if dpr else loaded_by,
            "without_pooler": not dpr and not config.sparse and names_of(config.backbone).pooler,
        }
    _render("card.md.jinja", folder, name if published else None, name, source, run, license, values)


def write_of_cross_encoder(
    folder: Path, repository: str, scorer: CrossEncoder, *, source: str, run: RunRecord | None, license: str | None
) -> None:
    """Write README.md of a cross-encoder for a repository of the hub; see `write`."""
    values: dict[str, Any] = {"shape": scorer.config.backbone, "max_length": scorer.texts.frame.max_length}
    if run:
        values["objective"] = f"a cross-encoder's loss `{run.config['ranking']['loss']}`"
    _render("card_cross_encoder.md.jinja", folder, repository, repository, source, run, license, values)


def _render(
    template: str,
    folder: Path,
    repository: str | None,
    address: str,
    source: str,
    run: RunRecord | None,
    license: str | None,
    values: Mapping[str, Any],
) -> None:
    """Write a card, with the values that all of them have."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    # What Python and YAML read as this text, whatever is in it.
    environment.filters["literal"] = lambda text: json.dumps(text, ensure_ascii=False)
    name, revision = (address, None) if repository is None else name_and_revision(repository)
    shared: dict[str, Any] = {
        "name": name,
        "revision": revision,
        "address": address,
        "source": source,
        "run": run,
        "license": license,
        "version": __version__,
        "example": _EXAMPLE,
        "display_name": _display_name,
    }
    if run:
        shared["objective"] = _OBJECTIVES.get(run.config["kind"], run.config["kind"])
        shared["settings"] = json.dumps(run.config, indent=2, ensure_ascii=False)
    with atomic_write(folder / CARD) as file:
        file.write(environment.get_template(template).render({**shared, **values}))


def without_folders(content: Any) -> Any:
    """A value, and all values in it, with the last names of files, folders and remote addresses in place of their full paths."""
    if isinstance(content, RunRecord):
        return dataclasses.replace(content, config=without_folders(content.config))
    if isinstance(content, Mapping):
        return {name: without_folders(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_folders(value) for value in content]
    place = _PLACE.fullmatch(content) if isinstance(content, str) else None
    return content if place is None else f"{place[1] or ''}{Path(place[2]).name}"


def _display_name(backbone: Backbone) -> str:
    own = isinstance(backbone, EncoderShape)
    return backbone.architecture_name if own else names_of(backbone).display_name


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
    is_run = (folder / "model").is_dir() and (folder / "config.json").exists()
    config = read_object(folder / "config.json", "restore the file, or export the run's model/") if is_run else {}
    if config.get("kind") not in KINDS:
        return None
    best = read_best(folder) or {}
    lines = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    last = next((line for line in reversed(lines) if "loss" in line and "examples_per_s" in line), {})
    return RunRecord(config, best.get("step"), best.get("figures", {}), best.get("note", ""), last)
