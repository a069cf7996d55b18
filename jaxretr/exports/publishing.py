"""`jaxretr.publish`: a model in a repository of the Hugging Face hub, exported, verified and with its card."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from jaxretr.embeddings.encoding import Encoder, Path_, loaded
from jaxretr.exports import folder as model_folder
from jaxretr.exports.exporting import MODELS, ModelTarget
from jaxretr.models.any_scorer import holds_cross_encoder
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.hub.hf_files import is_hub_name, name_and_revision
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean, reason

# Weights that an earlier upload left and this one lacks would be read in place of this one's.
_REPLACED = ("*.safetensors", "*.bin", "*.npy")

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
    model: Encoder | Path_ | Callable[[], Encoder],
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
    only the last names. A repository that exists gets a new commit; files of other names stay there, but for weights.
    Log in first, with `hf auth login` or HF_TOKEN.

    Args:
      model: an encoder, what `load_encoder` takes, or a function that loads it.
      repository: OWNER/NAME, or OWNER/NAME@BRANCH, for a branch that is made if it is not there.
      to: the library whose layout is written; by default sentence-transformers, and jaxretr for a combined model.
      layout: for huggingface: bert or dpr, as for `export`.
      license: the license for the card, in the hub's spelling; by default unknown.
      private: make a new repository private; one that exists stays as it is.
      message: the commit's message.
      dry_run: export and verify, but upload nothing.

    Raises:
      UsageError: no name of a repository, or of a layout.
      UserError: a cross-encoder, the layout cannot hold the model, or the hub refuses the upload or cannot be reached.
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
    encoder = loaded(model)
    if encoder.source is not None and holds_cross_encoder(encoder.source):
        raise UserError(
            f"{encoder.source}: is a cross-encoder, whose head would be left out; upload its folder: hf upload"
        )
    target = to or ("jaxretr" if isinstance(encoder, CombinedEncoder) else "sentence-transformers")
    with TemporaryDirectory(prefix="jaxretr-publish-") as temporary:
        folder = Path(temporary) / "model"
        report = model_folder.export(
            encoder, folder, target, layout=layout, source=encoder.source, license=license, repository=repository
        )
        files = {
            path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()
        }
        commit = None if dry_run else _upload(folder, name, branch, private, message or f"Upload {target} model")
    summary = f"{report.texts} golden vectors recomputed, largest difference {report.difference:.1g}"
    return Published(repository, files, commit, summary)


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
