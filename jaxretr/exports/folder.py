"""Exporting a model: the layout's files, golden vectors, a model card, and a check of all that before it appears."""

from pathlib import Path
from typing import Any, Literal

from jaxretr.embeddings import golden
from jaxretr.exports import card, huggingface, sentence_transformers
from jaxretr.exports.card import read_run
from jaxretr.exports.verify_model import Report, verify
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.hub.sentence_transformers import read_prompts
from jaxretr.runtime.errors import UsageError, UserError, check_choice, some_names
from jaxretr.runtime.storage.copies import local_copy
from jaxretr.runtime.storage.files import atomic_folder

ModelTarget = Literal["huggingface", "sentence-transformers", "jaxretr"]


def export(
    encoder: DualEncoder | CombinedEncoder,
    out: str | Path,
    to: ModelTarget,
    *,
    layout: Literal["bert", "dpr"] | None = None,
    source: str | Path | None = None,
    license: str | None = None,
    repository: str | None = None,
) -> Report:
    """Write a model into a new folder, which appears when it is complete and verified; return the report of that.

    Args:
      encoder: the model; parameters are written as float32.
      out: a new or empty folder.
      to: the library whose layout is written.
      layout: for "huggingface": "bert" or "dpr"; by default the one that can hold the model.
      source: the folder that the model was loaded from: a run directory fills the card, prompts of a
        sentence-transformers folder are kept.
      license: the license for the card, in the hub's spelling.
      repository: OWNER/NAME, or OWNER/NAME@BRANCH, on the hub, under which the card presents the model, without this machine's
        folders; None: under the folder's name.

    Raises:
      UserError: the folder holds something, cannot be written, or the layout cannot hold the model.
    """
    check_choice(("bert", "dpr"), layout=layout)
    if layout is not None and to != "huggingface":
        raise UsageError(f"layout={layout} is for to=huggingface, not for to={to}; leave it out")
    check_free(out)
    if isinstance(encoder, CombinedEncoder) and to != "jaxretr":
        name = source or "MODEL"
        weights = ", ".join(f"{name}/part-{part} ({weight})" for part, weight in enumerate(encoder.config.weights))
        raise UserError(
            f"no layout of {to} holds several encoders; use to=jaxretr, or export the parts one by one and give "
            f"their questions these weights: {weights}"
        )
    if isinstance(encoder, DualEncoder) and to != "jaxretr":
        encoder = encoder.as_plain()
    out = Path(out).expanduser()
    chosen = None
    if isinstance(encoder, DualEncoder) and to == "huggingface":
        chosen = huggingface.choose_layout(encoder.config, layout)
    read_from = None if source is None else local_copy(str(source))
    prompts = {} if read_from is None else source_prompts(Path(read_from).expanduser())
    prompts |= dict(encoder.config.prompts) if isinstance(encoder, DualEncoder) else {}
    run = None if read_from is None else read_run(read_from)
    with atomic_folder(out) as partial:
        note = None
        if isinstance(encoder, CombinedEncoder) or to == "jaxretr":
            encoder.save(partial)
        elif chosen is not None:
            note = huggingface.write(partial, encoder, chosen)
        else:
            note = sentence_transformers.write(partial, encoder, prompts)
        if note is not None:
            note.write(partial)
        name, shown = repository or out.absolute().name, str(source or out.absolute().name)
        if repository is not None:
            shown, run = card.without_folders(shown), None if run is None else card.without_folders(run)
        options: dict[str, Any] = {
            "prompts": prompts,
            "run": run,
            "license": license,
            "published": repository is not None,
        }
        card.write(partial, name, encoder, note, source=shown, **options)
        golden.write(partial, encoder, prompts)
        try:
            return verify(partial)
        except UserError as error:
            raise UserError(f"{out}: the export was given up: its vectors are not the model's ({error})") from error


def check_free(out: str | Path) -> None:
    """Refuse a folder that an export would have to share."""
    folder = Path(out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; give a new folder as out=")
    if folder.exists() and (names := sorted(entry.name for entry in folder.iterdir())):
        raise UserError(f"{folder}: is not empty ({some_names(names)}); give a new folder as out=, or remove it")


def source_prompts(folder: Path) -> dict[str, str]:
    """The prompts that a model's folder states, in an earlier export's golden.json or sentence-transformers' files."""
    if (folder / golden.GOLDEN).exists():
        return golden.read_prompts(folder)
    return read_prompts(folder)
