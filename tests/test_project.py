"""The project's own files: requirements, extras, Makefile, links, and the launch scripts of tpu/."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import jaxretr

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {
    name: entry["file"] for name, entry in PROJECT["tool"]["setuptools"]["dynamic"]["optional-dependencies"].items()
}
TOOLS = "bash,cat,dirname,env,git,grep,mktemp,rm,sed,sleep,sort,tail,tee,touch"


def requirements(name: str) -> list[Requirement]:
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in (ROOT / name).read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    # The checkout may belong to another user, as in a container.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


# ---- packaging -------------------------------------------------------------------------------------------------------


def test_version_is_stated_once() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "jaxretr.__version__"}
    answer = subprocess.run([sys.executable, "-m", "jaxretr", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert answer.stdout == f"jaxretr {jaxretr.__version__}\n"


def test_every_extra_exists_and_is_pinned() -> None:
    assert {"cuda", "tpu", "scann", "serve", "torch", "dev"} <= set(EXTRAS)
    pins: dict[str, str] = {}
    for name in ["requirements.txt", *(file for files in EXTRAS.values() for file in files)]:
        assert requirements(name), f"{name} installs nothing"
        for requirement in requirements(name):
            assert str(requirement.specifier).startswith("=="), f"{name}: {requirement} is not pinned"
            pinned = pins.setdefault(requirement.name, str(requirement.specifier))
            assert pinned == str(requirement.specifier), f"{requirement.name} is pinned twice, differently"


def test_extras_named_in_errors_exist() -> None:
    named = {}
    for path in (ROOT / "jaxretr").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "import_extra":
                named[path.name] = ast.literal_eval(call.args[1])
    assert named, "import_extra is called nowhere"
    assert set(named.values()) <= set(EXTRAS), named


def imported(folder: Path) -> dict[str, str]:
    """Top-level modules that the package imports, other than Python's own -> a file that does."""
    found = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.append(str(node.module))
            for name in names:
                found.setdefault(name.split(".")[0], str(path.relative_to(ROOT)))
    return {name: path for name, path in found.items() if name not in {*sys.stdlib_module_names, "jaxretr"}}


def test_requirements_are_what_the_package_imports() -> None:
    module_of = {"orbax-checkpoint": "orbax", "PyStemmer": "Stemmer"}
    installed = {module_of.get(requirement.name, requirement.name) for requirement in requirements("requirements.txt")}
    found = imported(ROOT / "jaxretr")
    missing = {name: path for name, path in found.items() if name not in installed}
    assert not missing, f"add to requirements.txt, or import through jaxretr.errors.import_extra: {missing}"
    # jaxretr asks only whether it is there; transformers imports it for spiece.model.
    assert installed - set(found) <= {"sentencepiece"}, "requirements.txt installs what nothing imports"


def test_package_holds_every_module_and_asset() -> None:
    package = ROOT / "jaxretr"
    for path in package.rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py and would not be installed"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["jaxretr"]
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    data = [path for path in (package / "assets").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(data) >= 5 and set(data) <= shipped


def test_no_large_file_but_assets() -> None:
    large = [path for path in tracked() if path.stat().st_size > 2_000_000]
    assert not [path for path in large if ROOT / "jaxretr/assets" not in path.parents]


def test_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.md"), *ROOT.glob("jaxretr/assets/**/*.md")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)", path.read_text()) + re.findall(r'src="([^"]+)"', path.read_text()):
        if not re.match(r"[a-z]+:|#", target):
            assert (path.parent / target.split("#")[0]).exists(), f"{path.name} links to {target}"


def test_readme_names_the_two_commands() -> None:
    text = (ROOT / PROJECT["project"]["readme"]).read_text()
    assert "make quickstart" in text and "make test" in text


# ---- Makefile --------------------------------------------------------------------------------------------------------


def make(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Without what a `make test` around this test hands down.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "GNUMAKE"))}
    return subprocess.run(["make", *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for path in (ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("requirements*.txt")):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "command", "dev"),
    [
        ("quickstart", ".venv/bin/jaxretr quickstart", False),
        ("test", "-m pytest", True),
        ("lint", "ruff format --check .", True),
        ("bench", "benchmarks/encode.py", True),
    ],
)
def test_targets_install_what_they_need_once(clone: Path, target: str, command: str, dev: bool) -> None:
    first = make("-n", target, cwd=clone).stdout
    assert "-m venv .venv" in first and "-e ." in first and command in first
    assert ("requirements-torch.txt" in first) == dev, "the quickstart needs no PyTorch"

    (clone / ".venv/bin").mkdir(parents=True)
    for name in (".venv/bin/uv", ".venv/.installed", ".venv/.installed-dev"):
        (clone / name).touch()
    second = make("-n", target, cwd=clone).stdout
    assert "install" not in second and command in second

    os.utime(clone / "requirements.txt", (2**31, 2**31))
    assert "-e ." in make("-n", target, cwd=clone).stdout, "a new requirement is installed"


def test_makefile_reports_a_missing_python(clone: Path) -> None:
    answer = make("quickstart", "PYTHON=no-such-python", cwd=clone)
    assert answer.returncode
    assert "no Python 3.11 or newer" in answer.stderr and not (clone / ".venv").exists()


# ---- tpu/ ------------------------------------------------------------------------------------------------------------

FAKE_GCLOUD = """#!/usr/bin/env bash
# Keeps the pod's state in a file. A pod that trains is taken away the first time and done the second.
echo "$4" >>"$HERE/calls"
case $4 in
describe) cat "$HERE/state" 2>/dev/null || { echo "ERROR: NOT_FOUND: no such resource" >&2; exit 1; } ;;
create) echo READY >"$HERE/state" ;;
delete) rm "$HERE/state" ;;
ssh)
  [[ "$*" == *"jaxretr train"* ]] || exit 0
  echo trained >>"$HERE/runs"
  case $BEHAVIOUR-$(grep -c . "$HERE/runs") in
  preempted-1) echo PREEMPTED >"$HERE/state"; exit 255 ;;
  stopped-1) echo "interrupted: saved step 7; run the same command again to go on" ;;
  broken-*) echo "error: no such config file" >&2; exit 1 ;;
  esac ;;
esac
"""


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH of its own, with the few tools that the scripts call and no gcloud."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS.split(","):
        found = shutil.which(name)
        assert found, f"{name} is not installed"
        (folder / name).symlink_to(found)
    return folder


def launch(script: str, *words: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "tpu" / script), *words]
    settings = {"PATH": str(path), "HOME": str(path.parent), "HERE": str(path.parent), "PAUSE": "0", **env}
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60)


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


RUN = ("configs/art_small.py", "--workdir", "gs://bucket/runs/a b", "--train.steps", "3")
# As the worker's shell reads it.
TRAIN = r"JAXRETR_DISTRIBUTED=1 .venv/bin/jaxretr train configs/art_small.py --workdir /tmp/gs/bucket/runs/a\ b"
CREATE = "gcloud compute tpus tpu-vm create art --accelerator-type=v6e-16 --version=v2-alpha-tpuv6e --spot --zone=z"


@pytest.mark.parametrize(
    ("script", "words", "expected"),
    [
        ("create.sh", (), [CREATE]),
        ("setup.sh", (), ["git archive", "scp", "--worker=all", '-e ".[tpu]"']),
        ("run.sh", RUN, ["ssh art --worker=all", "gcsfuse", "bucket /tmp/gs/bucket\n", TRAIN, "JAXRETR_DATA=/d "]),
        ("babysit.sh", RUN, [CREATE, "git archive", TRAIN]),
        ("delete.sh", (), ["gcloud compute tpus tpu-vm delete art --quiet --zone=z"]),
    ],
)
def test_dry_run_prints_the_commands(bare_path: Path, script: str, words: Sequence[str], expected: list[str]) -> None:
    env = {"TPU_NAME": "art", "TPU_TYPE": "v6e-16", "TPU_ZONE": "z", "JAXRETR_DATA": "/d"}
    answer = launch(script, *words, "--dry-run", path=bare_path, **env)
    assert answer.returncode == 0 and not answer.stderr
    place = 0
    for part in expected:
        assert part in answer.stdout
        place = max(place, answer.stdout.find(part))
    assert subprocess.run(["bash", "-n"], input=answer.stdout, text=True).returncode == 0, "can be pasted into a shell"
    assert "Usage" not in answer.stdout


def test_worker_gets_the_words_as_they_were_typed(bare_path: Path) -> None:
    write_program(bare_path / "gcloud", '#!/usr/bin/env bash\nprintf "%s" "${7#--command=}" >"$HERE/remote"\n')
    launch("run.sh", *RUN, "--name", "it's $HOME", path=bare_path)
    home = bare_path.parent / "jaxretr/.venv/bin"
    home.mkdir(parents=True)
    write_program(home / "jaxretr", '#!/usr/bin/env bash\nprintf "%s\\n" "$JAXRETR_DISTRIBUTED" "$@"\n')
    for name in ("gcsfuse", "mountpoint", "mkdir", "pkill"):
        write_program(bare_path / name, "#!/usr/bin/env bash\n")
    write_program(bare_path / "pgrep", "#!/usr/bin/env bash\nexit 1\n")  # no earlier run
    env = {"PATH": str(bare_path), "HOME": str(bare_path.parent)}
    answer = subprocess.run(
        ["bash", str(bare_path.parent / "remote")], env=env, capture_output=True, text=True, timeout=60
    )
    words = ["1", "train", RUN[0], "--workdir", "/tmp/gs/bucket/runs/a b", "--train.steps", "3", "--name", "it's $HOME"]
    assert answer.stdout.splitlines() == words


@pytest.mark.parametrize("script", ["run.sh", "slurm.sbatch"])
def test_run_without_a_work_directory_is_wrong_use(bare_path: Path, script: str) -> None:
    answer = launch(script, "configs/art_small.py", "--dry-run", path=bare_path)
    assert answer.returncode == 2 and answer.stderr.startswith("usage: ") and not answer.stdout


@pytest.mark.parametrize(
    ("before", "calls"), [(None, ["create"]), ("READY", []), ("PREEMPTED", ["delete", "create"]), ("CREATING", None)]
)
def test_create_is_idempotent(bare_path: Path, before: str | None, calls: list[str] | None) -> None:
    write_program(bare_path / "gcloud", FAKE_GCLOUD)
    if before:
        (bare_path.parent / "state").write_text(before + "\n")
    answer = launch("create.sh", path=bare_path)
    verbs = (bare_path.parent / "calls").read_text().split()
    assert verbs == ["describe", *(calls or [])]
    assert answer.returncode == (calls is None)


@pytest.mark.parametrize(
    ("behaviour", "code", "runs", "created"), [("preempted", 0, 2, 2), ("stopped", 0, 2, 1), ("broken", 1, 3, 1)]
)
def test_babysit_goes_on_until_finished(bare_path: Path, behaviour: str, code: int, runs: int, created: int) -> None:
    write_program(bare_path / "gcloud", FAKE_GCLOUD)
    answer = launch("babysit.sh", *RUN, path=bare_path, BEHAVIOUR=behaviour)
    verbs = (bare_path.parent / "calls").read_text().split()
    assert answer.returncode == code, answer.stderr
    assert (bare_path.parent / "runs").read_text().count("trained") == runs
    assert verbs.count("create") == created and verbs.count("scp") == created


def test_slurm_job_goes_back_into_the_queue(bare_path: Path) -> None:
    words = ("configs/art_small.py", "--workdir", "/shared/run")
    dry = launch("slurm.sbatch", *words, "--dry-run", path=bare_path)
    assert dry.stdout == f"srun --kill-on-bad-exit=1 .venv/bin/jaxretr train {' '.join(words)}\n"

    write_program(bare_path / "scontrol", '#!/usr/bin/env bash\necho "$*" >"$HERE/queued"\n')
    write_program(bare_path / "srun", "#!/usr/bin/env bash\necho done\n")
    assert launch("slurm.sbatch", *words, path=bare_path, SLURM_JOB_ID="12").returncode == 0
    assert not (bare_path.parent / "queued").exists()
    write_program(bare_path / "srun", "#!/usr/bin/env bash\necho 'interrupted: saved step 3'\n")
    assert launch("slurm.sbatch", *words, path=bare_path, SLURM_JOB_ID="12").returncode == 0
    assert (bare_path.parent / "queued").read_text() == "requeue 12\n"
    write_program(bare_path / "srun", "#!/usr/bin/env bash\nexit 3\n")
    assert launch("slurm.sbatch", *words, path=bare_path, SLURM_JOB_ID="12").returncode == 3


@pytest.mark.parametrize(
    ("program", "code"), [("echo finished", 0), ("echo 'interrupted: saved step 3'", 1), ("exit 2", 2)]
)
def test_gke_pod_succeeds_when_the_run_is_finished(bare_path: Path, program: str, code: int) -> None:
    service, job = yaml.safe_load_all((ROOT / "tpu/gke-job.yaml").read_text())
    spec = job["spec"]["template"]["spec"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert service["metadata"]["name"] == spec["subdomain"]
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    [container] = spec["containers"]
    assert {"name": "JAXRETR_DISTRIBUTED", "value": "1"} in container["env"]
    config = re.search(r"jaxretr train (\S+)", container["args"][0])
    assert config and (ROOT / config[1]).is_file()

    (bare_path.parent / "jaxretr").mkdir()
    (bare_path / "git").unlink()
    for name, text in (("git", ""), ("pip", ""), ("jaxretr", program)):
        write_program(bare_path / name, f"#!/usr/bin/env bash\n{text}\n")
    # pkill -P, not needed in a pod: what ends the container ends tail, too.
    script = f"trap 'kill $(jobs -p) 2>/dev/null' EXIT\n{container['args'][0]}"
    answer = subprocess.run(
        [*container["command"], script],
        env={"PATH": str(bare_path)},
        cwd=bare_path.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == code
