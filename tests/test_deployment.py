"""The files for deploying the service, as far as they can be checked without Docker and without starting a unit."""

import contextlib
import fnmatch
import re
import shlex
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from test_project import EXTRAS, requirements

from jaxretr import cli
from jaxretr.indexes.index import Document, SearchOptions
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.runtime.errors import UserError
from jaxretr.serve.settings import Settings

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "docs/deploy/jaxretr.service"
GRACE = 30  # seconds, the default of --grace


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, with their lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def enters(path: str) -> bool:
    """Whether .dockerignore lets a file into the build: the last rule that fits decides."""
    let = True
    for rule in (ROOT / ".dockerignore").read_text().splitlines():
        if rule and not rule.startswith("#"):
            pattern = rule.removeprefix("!")
            parents = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
            names = parents if "**" not in pattern else [Path(part).name for part in parents]
            if any(fnmatch.fnmatchcase(name, pattern.removeprefix("**/")) for name in names):
                let = rule.startswith("!")
    return let


def test_the_dockerfile_copies_what_exists_and_what_the_wheel_needs() -> None:
    copied = [words.split()[:-1] for name, words in instructions() if name == "COPY"]
    sources = [source for words in copied for source in words]
    for source in sources:
        found = list(ROOT.glob(source))
        assert found, f"COPY {source}: there is no such file"
        assert all(enters(str(path.relative_to(ROOT))) for path in found), f".dockerignore keeps {source} out"
    # What `test_an_installed_wheel_finds_its_configs_by_name` builds one of.
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "requirements*.txt", "configs", "jaxretr"} <= {
        *sources
    }
    assert enters("jaxretr/serve/page.html") or not (ROOT / "jaxretr/serve/page.html").exists()


@pytest.mark.parametrize(
    "path", ["keys", ".env", "runs/art/model/model.safetensors", ".git/config", "shared/x", "jaxretr/__pycache__/a.pyc"]
)
def test_nothing_private_enters_an_image(path: str) -> None:
    assert not enters(path)


def test_the_image_has_existing_extras_no_root_and_no_secret() -> None:
    known = dict(instructions())
    (extras,) = (words for name, words in instructions() if name == "ARG")
    assert set(extras.split("=")[1].split(",")) == {"serve", "scann"} <= set(EXTRAS)
    assert known["USER"] == "jaxretr" and known["STOPSIGNAL"] == "SIGTERM"
    after_user = [name for name, _ in instructions()][[name for name, _ in instructions()].index("USER") :]
    assert "RUN" not in after_user and "COPY" not in after_user
    assert not re.search(r"(?i)password|secret|api_?key|token=", (ROOT / "Dockerfile").read_text())
    assert "/health" in known["HEALTHCHECK"]


def parsed(words: list[str]) -> Any:
    """The options of a command of this program; skips where this version has no such command."""
    if words[0] not in cli.build_parser()[1]:
        pytest.skip(f"no command {words[0]} here")
    return cli.parse(words)


def test_the_images_command_is_one_of_the_program() -> None:
    entrypoint = yaml.safe_load(dict(instructions())["ENTRYPOINT"])
    assert entrypoint[0] == "jaxretr"
    args = parsed([*entrypoint[1:], "MODEL", "--index", "wiki=DIR", "--keys", "FILE"])
    assert (args.host, args.port) == ("0.0.0.0", int(dict(instructions())["EXPOSE"]))
    assert f":{args.port}/health" in dict(instructions())["HEALTHCHECK"]


def test_compose_is_whole() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "service", "load"}
    assert services["postgres"]["image"] == "pgvector/pgvector:pg18"
    # From version 18 on the image keeps its data below this folder, and nothing in .../data.
    assert services["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]
    service = services["service"]
    assert set(service["build"]["args"]["EXTRAS"].split(",")) <= {*EXTRAS, "pgvector"}
    assert float(service["stop_grace_period"].removesuffix("s")) > GRACE
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    used = {
        each.split(":")[0]
        for one in services.values()
        for each in one.get("volumes", [])
        if not each.startswith(("$", "."))
    }
    assert used == set(compose()["volumes"])
    assert set(service["secrets"]) == set(compose()["secrets"])
    for one in services.values():  # A password is in .env, and no default of it here.
        for name, value in one.get("environment", {}).items():
            assert "PASSWORD" not in name or value.startswith("${POSTGRES_PASSWORD:?")


def test_composes_commands_are_the_programs() -> None:
    services = compose()["services"]
    entrypoint = yaml.safe_load(dict(instructions())["ENTRYPOINT"])
    parsed([*entrypoint[1:], *services["service"]["command"]])
    load = services["load"]
    try:
        args = parsed([*load["entrypoint"][1:], *load["command"]])
    except UserError as error:
        pytest.skip(f"no such export here: {error}")
    assert (args.to, args.index) == ("pgvector", "/store")


def test_the_unit_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    # The program is not installed where the unit looks for it.
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE)
    (tmp_path / UNIT.name).write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(tmp_path / UNIT.name)], capture_output=True, text=True)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip("systemd cannot be asked here")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_units_command_is_one_of_the_program() -> None:
    settings = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"[A-Z]\w+=", line))
    words = shlex.split(settings["ExecStart"])
    args = parsed(words[1:])
    assert (
        Path(words[0]).name == "jaxretr"
        and args.grace is None
        and Settings().grace == GRACE < float(settings["TimeoutStopSec"])
    )
    assert args.keys == "${CREDENTIALS_DIRECTORY}/keys" and settings["LoadCredential"].startswith("keys:")
    # Where it writes is what the unit gives it.
    state, cache = f"/var/lib/{settings['StateDirectory']}", f"/var/cache/{settings['CacheDirectory']}"
    assert str(args.data) == state and all(index.split("=")[1].startswith(state) for index in args.index)
    assert settings["Environment"] == f"JAXRETR_CACHE={cache}"


def test_extras_of_the_service_are_pinned_where_they_are_named() -> None:
    assert {each.name for each in requirements("requirements-serve.txt")} >= {"fastapi", "uvicorn", "mcp"}


def test_a_live_index_is_restored_from_a_copy_made_while_it_is_written(tmp_path: Path) -> None:
    """Both commands of docs/deployment.md, as SQLite's library runs them, and a plain copy, which the page warns of."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 8)).astype(np.float32)
    documents = [Document(str(number), "", f"text {number}") for number in range(60)]
    folder = tmp_path / "live"
    with contextlib.closing(LiveIndex.open(folder, model="m", model_fingerprint="f", dim=8, background=False)) as index:
        index.upsert(documents[:50], vectors[:50])
        wanted = index.search(vectors[50:], 5, SearchOptions())
        with contextlib.closing(sqlite3.connect(folder / "live.sqlite")) as reader:
            for name in ("copied", "backup", "vacuum"):
                (tmp_path / name).mkdir()
            shutil.copy(folder / "live.sqlite", tmp_path / "copied")
            with contextlib.closing(sqlite3.connect(tmp_path / "backup/live.sqlite")) as copy:
                reader.backup(copy)
            reader.execute("VACUUM INTO ?", [str(tmp_path / "vacuum/live.sqlite")])
        index.upsert(documents[50:], vectors[50:])
    for name in ("backup", "vacuum"):
        with contextlib.closing(LiveIndex.open(tmp_path / name, background=False)) as restored:
            assert len(restored) == 50 and restored.search(vectors[50:], 5, SearchOptions()) == wanted
            assert restored.documents(["7"]) == [documents[7]]
    with (
        pytest.raises((UserError, sqlite3.Error)),
        contextlib.closing(LiveIndex.open(tmp_path / "copied", background=False)) as found,
    ):
        if len(found) < 50:
            raise sqlite3.DataError("the copy lacks what was still in the write-ahead log")
