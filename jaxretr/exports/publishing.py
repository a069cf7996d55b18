"""`jaxretr.publish`: a model in a repository of the Hugging Face hub, exported, verified and with its card."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np

from jaxretr.data.sample_texts import PASSAGES, QUESTIONS
from jaxretr.embeddings.encoding import Encoder, Path_, loaded
from jaxretr.exports import card
from jaxretr.exports import folder as model_folder
from jaxretr.exports.card import read_run
from jaxretr.exports.exporting import MODELS
from jaxretr.exports.folder import ModelTarget
from jaxretr.models.any_scorer import holds_cross_encoder
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.hub.hf_files import is_hub_name, name_and_revision
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean, reason

# Weights, and JSON that says how a model is read, which an earlier upload left and this one lacks, would be read with this one.
_REPLACED = ("*.safetensors", "*.bin", "*.npy", "*.json")

# The largest difference of a score of a cross-encoder that is read back.
_TOLERANCE = 1e-4

# Of refusals by their HTTP status.
_REMEDIES = {
    401: "log in: hf auth login, or set HF_TOKEN to a token that may write",
    403: "use a token that may write there, and an owner that you are or belong to",
}


@dataclass(frozen=True)
class Published:
    """A model in a repository, or what would be uploaded.

    Attributes:
      repository: OWNER/NAME, with @REVISION where one was given.
      files: path in the repository -> bytes.
      commit: the address of the commit; None for a dry run.
      summary: a line that says what was verified.
    """

    repository: str
    files: dict[str, int]
    commit: str | None
    summary: str

    def __str__(self) -> str:
        rows = "".join(f"{size:>14,}  {name}\n" for name, size in sorted(self.files.items()))
        done = "a dry run: nothing was uploaded" if self.commit is None else self.commit
        return f"{rows}{self.repository}: {self.summary}; {done}"


def publish(
    model: Encoder | CrossEncoder | Path_ | Callable[[], Encoder],
    repository: str,
    *,
    to: ModelTarget | None = None,
    layout: Literal["bert", "dpr"] | None = None,
    license: str | None = None,
    private: bool = False,
    message: str | None = None,
    dry_run: bool = False,
) -> Published:
    """Export a model, verify it, and upload it to the Hugging Face hub, where `load_encoder` and the library of its layout read it.

    The card has the model's shape, how it is loaded, and of a run its data, metrics and settings; of this machine's paths
    only the last names. A repository that exists gets a new commit; files of other names stay there, but for
    weights and JSON. Log in first, with `hf auth login` or HF_TOKEN.

    Args:
      model: an encoder or cross-encoder, the path or hub name of one, or a function that loads an encoder.
      repository: OWNER/NAME, or OWNER/NAME@BRANCH, for a branch that is made if it is not there.
      to: the library whose layout is written; by default sentence-transformers, and jaxretr for a combined model. A
        cross-encoder has one layout, which transformers, sentence-transformers and jaxretr read.
      layout: for huggingface: bert or dpr, as for `export`.
      license: the license for the card, in the hub's spelling; by default unknown.
      private: make a new repository private; one that exists stays as it is.
      message: the commit's message.
      dry_run: export and verify, but upload nothing.

    Raises:
      UsageError: no name of a repository, or of a layout; or a layout for a cross-encoder.
      UserError: the layout cannot hold the model, or the hub refuses the upload or cannot be reached.
    """
    from huggingface_hub.utils import validate_repo_id

    name, branch = name_and_revision(str(repository))
    try:
        if not is_hub_name(str(repository)) or "/" not in name:
            raise ValueError
        validate_repo_id(name)
    except ValueError as error:
        hint = "no name of a repository; give OWNER/NAME or OWNER/NAME@BRANCH"
        raise UsageError(f"repository={str(repository)!r}: {str(error).rstrip('.') or hint}") from None
    if to not in (None, *MODELS):
        layouts = ", ".join(MODELS)
        raise UsageError(f"to={to}: no layout of a model{did_you_mean(str(to), MODELS) or f'; give {layouts}'}")
    if isinstance(model, str | Path) and holds_cross_encoder(str(model)):
        model = CrossEncoder.from_pretrained(model)
    if isinstance(model, CrossEncoder) and (to or layout):
        raise UsageError(f"to={to or layout}: a cross-encoder has one layout; leave it out")
    with TemporaryDirectory(prefix="jaxretr-publish-") as temporary:
        folder = Path(temporary) / "model"
        if isinstance(model, CrossEncoder):
            target, summary = "cross-encoder", _write_cross_encoder(model, folder, repository, license)
        else:
            encoder = loaded(model)
            target = to or ("jaxretr" if isinstance(encoder, CombinedEncoder) else "sentence-transformers")
            report = model_folder.export(
                encoder, folder, target, layout=layout, source=encoder.source, license=license, repository=repository
            )
            summary = f"{report.texts} golden vectors recomputed, largest difference {report.difference:.1g}"
        files = {
            path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()
        }
        commit = None if dry_run else _upload(folder, name, branch, private, message or f"Upload {target} model")
    return Published(repository, files, commit, summary)


def _write_cross_encoder(scorer: CrossEncoder, folder: Path, repository: str, license: str | None) -> str:
    """Write a cross-encoder's folder and card, and return a line that says how far the scores of what is read back differ."""
    scorer.save(folder)
    source = scorer.source or "a cross-encoder that was not loaded from a folder"
    run = read_run(source) if scorer.source else None
    shown, run = card.without_folders(source), None if run is None else card.without_folders(run)
    card.write_of_cross_encoder(folder, repository, scorer, source=shown, run=run, license=license)
    passages = [{"title": title, "text": text} for title, text in PASSAGES]
    read = CrossEncoder.from_pretrained(folder, dtype=scorer.dtype)
    difference = float(np.abs(read.score(QUESTIONS, passages) - scorer.score(QUESTIONS, passages)).max())
    if not difference <= _TOLERANCE:
        raise UserError(f"{source}: not published: read back, its scores differ by {difference:.1g}")
    return f"{len(QUESTIONS)} scores recomputed, largest difference {difference:.1g}"


def _upload(folder: Path, name: str, branch: str | None, private: bool, message: str) -> str:
    """Make the repository and the branch where they are missing, and upload a folder; return the commit's address."""
    import huggingface_hub as hub
    from huggingface_hub import errors

    api = hub.HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(name, branch=branch, exist_ok=True)
        done = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=branch,
            commit_message=message,
            delete_patterns=list(_REPLACED),
        )
    except errors.HfHubHTTPError as error:
        remedy = _REMEDIES.get(error.response.status_code, "try again")
        raise UserError(f"{name}: the hub refuses the upload ({reason(error)}); {remedy}") from error
    except Exception as error:  # Whatever its HTTP library raises: the network is missing or fails.
        raise UserError(f"{name}: the hub cannot be reached ({reason(error)}); connect and try again") from error
    return done.commit_url
