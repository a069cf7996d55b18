"""The inputs of a run, identified by their content, so that it resumes with the ones that it began with."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxretr.config import Config, ContrastiveConfig, MixtureSet
from jaxretr.data.questions import Question
from jaxretr.data.source import source_of
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.own_parts import is_own, source_digest
from jaxretr.runtime.storage.files import write_json
from jaxretr.runtime.storage.sealed_folder import read_object

INPUTS = "inputs.json"
"""Name of the record in a run's folder."""

# Settings that name the files behind each input.
_SETTINGS = {
    "corpus": ("data.corpus",),
    "questions": ("data.questions", "data.train", "data.mixture"),
    "passages": ("data.corpus", "data.more_corpora", "data.train", "data.mined", "data.dev", "data.mixture"),
    "examples": ("data.train", "data.mined", "data.mixture"),
    "judged passages": ("data.judged",),
    "dev questions": (
        "data.dev_questions",
        "data.dev_qrels",
        "data.dev",
        "data.questions",
        "data.train",
        "data.mixture",
    ),
    "dev run": ("data.dev_run",),
    "suites": ("train.suites",),
    "misspellings": ("typos.misspellings",),
    "text": ("data.corpora",),
    "short texts": ("data.corpora", "questions"),
    "pairs": ("data.pairs",),
    "tokenizer": ("encoder.path", "start"),
    "encoder": ("encoder.path", "encoder.passage_path", "joint.lexical", "start"),
    "own encoder": ("encoder.path",),
    "scorer": ("scorer.path",),
    "teacher": ("teacher",),
    "guide": ("negatives.guide",),
}
# Settings that may name a function of the user's.
_FUNCTIONS = {
    "loss function": ("contrastive.loss",),
    "optimizer function": ("optimizer.name",),
    "schedule function": ("optimizer.schedule",),
}
_PATHS = tuple(dict.fromkeys(setting for settings in _SETTINGS.values() for setting in settings))


class Inputs(NamedTuple):
    """Fingerprints of a run's inputs by name, the same on all hosts. The record has the `digest` of each."""

    read: dict[str, str]
    """Fingerprints of the contents of files, the same on every machine: a run resumes only with the same ones."""
    made: dict[str, str]
    """Fingerprints of values that follow from these and the seed; another kind of machine may round differently."""


def digest(value: Any) -> str:
    """Return a sha256 (hexadecimal) of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def judged_digest(questions: Sequence[Question], qrels: Mapping[str, Mapping[str, int]] | None) -> str:
    """Return a digest of questions with their answers and judgements."""
    rows = [(each.id, each.text, each.answers, (qrels or {}).get(each.id)) for each in questions]
    return digest([qrels is None, rows])


def file_digest(path: str | None) -> str:
    """Return a digest of a file's bytes; "none" for None."""
    return "none" if path is None else source_of(path).digest()


def with_own_parts(inputs: Inputs, config: Config) -> Inputs:
    """Return the inputs with digests of the sources of the user's functions, if the config names any."""
    sources = dict[str, str]()
    for name, (setting,) in _FUNCTIONS.items():
        # The sets of a mixture may each name one.
        found = {value for one in _members(config) for value in _values(one, setting) if is_own(value)}
        digests = {value: source_digest(value, setting) for value in sorted(found)}
        if digests:
            sources[name] = digest(digests) if len(digests) > 1 else next(iter(digests.values()))
    return inputs._replace(read={**inputs.read, **sources})


def write_inputs(workdir: Path, inputs: Inputs) -> None:
    """Record the inputs that a run begins with; a folder that has a record keeps it."""
    path = workdir / INPUTS
    if not path.exists():
        write_json(path, {name: digest(value) for name, value in inputs.read.items()}, indent=1)


def read_inputs(workdir: Path) -> dict[str, str]:
    """Return the record's digests by name; none in a folder without one.

    Raises:
      UserError: the record is damaged.
    """
    path = workdir / INPUTS
    return read_object(path, "restore the file or use another workdir=") if path.exists() else {}


def check_inputs(workdir: Path, inputs: Inputs, config: Config) -> None:
    """Refuse to resume a run whose data or models were edited. An older version's folder has no record, and resumes.

    Raises:
      UserError: the inputs differ from the record; the message names them, and the settings that lead to them.
    """
    if changed := changed_inputs(workdir, inputs):
        settings = dict.fromkeys(setting for name in changed for setting in {**_SETTINGS, **_FUNCTIONS}[name])
        values = {setting: ",".join(_values(config, setting)) for setting in settings}
        files = ", ".join(f"{setting}={value}" for setting, value in values.items() if value)
        raise UserError(
            f"{workdir / INPUTS}: this folder was started with other {', '.join(changed)} than there are now ({files}); restore what "
            "the run began with, or use another workdir="
        )


def changed_inputs(workdir: Path, inputs: Inputs) -> list[str]:
    """The names of the inputs that differ from the record; none in a folder of an older version, which has none."""
    begun = read_inputs(workdir)
    return [name for name, value in inputs.read.items() if begun.get(name, digest(value)) != digest(value)]


def missing_files(config: Config, error: str) -> list[str]:
    """The settings, as "section.key=path", of files that are not there and that an error begins with."""
    paths = [(setting, Path(path)) for setting in _PATHS for path in _values(config, setting)]
    missing = [(setting, path) for setting, path in paths if not path.expanduser().exists()]
    return [f"{setting}={path}" for setting, path in missing if error.startswith(str(path.expanduser()))]


def at_new_paths(begun: Config, config: Config, workdir: Path) -> Config:
    """Return the settings that a run began with, but its data at the paths of `config`; `check_inputs` compares them.

    A path that only one of the two has is another setting, and a folder without a record keeps its paths.
    """
    if type(begun) is not type(config) or not read_inputs(workdir):
        return begun
    names = [name for setting in _PATHS if (name := setting.removeprefix("data.")) not in (setting, "mixture")]
    names.append("token_cache")
    old: Any = getattr(begun, "data", None)
    new: Any = getattr(config, "data", None)

    def moved(old: Any, new: Any) -> dict[str, Any]:
        return {name: getattr(new, name) for name in names if getattr(old, name, None) and getattr(new, name)}

    changes = moved(old, new)
    sets = getattr(old, "mixture", ())
    if sets and len(sets) == len(new.mixture):
        others = {each.name: each for each in new.mixture}
        changes["mixture"] = tuple(dataclasses.replace(one, **moved(one, others.get(one.name, one))) for one in sets)
    return dataclasses.replace(begun, data=dataclasses.replace(old, **changes)) if changes else begun


def _members(config: Config) -> Iterable[Config]:
    return config.members.values() if isinstance(config, ContrastiveConfig) else (config,)


def _values(config: Config, setting: str) -> tuple[str, ...]:
    value = functools.reduce(lambda section, name: getattr(section, name, None), setting.split("."), config)
    values = value if isinstance(value, tuple) else (value,) if value else ()
    return tuple(path for each in values for path in (_paths(each) if isinstance(each, MixtureSet) else (str(each),)))


def _paths(one: MixtureSet) -> tuple[str, ...]:
    """Return all files and folders of a mixture's set, each once."""
    found = (one.train, one.corpus, *one.more_corpora, one.mined, one.dev_questions, one.dev_qrels)
    return tuple(dict.fromkeys(path for path in found if path))
