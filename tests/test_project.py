"""The project's own files: requirements, extras, the wheel and the Makefile."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import jaxretr
from jaxretr.runtime import extras
from jaxretr.runtime.errors import UserError, import_extra

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {
    name: entry["file"] for name, entry in PROJECT["tool"]["setuptools"]["dynamic"]["optional-dependencies"].items()
}


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
    named = set()
    for path in (ROOT / "jaxretr").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == import_extra.__name__:
                named.add((path.name, ast.literal_eval(call.args[1])))
    assert named
    assert {extra for _, extra in named} <= set(EXTRAS), named


@pytest.mark.parametrize("extra", extras.EXTRAS)
def test_a_missing_extra_is_an_error_with_the_command_that_installs_it(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in extras.EXTRAS[extra].modules:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            assert not extras.is_installed(extra)
            with pytest.raises(UserError, match=re.escape(f"pip install 'jaxretr[{extra}]'")):
                import_extra(module, extra)


def test_the_table_of_extras_is_that_of_the_package_and_of_the_documentation() -> None:
    assert set(extras.EXTRAS) == set(EXTRAS)
    page = (ROOT / "docs/get_started.md").read_text()
    assert not [name for name in EXTRAS if f"`{name}`" not in page]
    installed_by = importlib.metadata.packages_distributions()
    for name in set(EXTRAS) - {"cuda", "tpu"}:  # of jax's own extras
        extra = extras.EXTRAS[name]
        required = {canonicalize_name(requirement.name) for file in EXTRAS[name] for requirement in requirements(file)}
        for module in extra.modules:
            found = {canonicalize_name(distribution) for distribution in installed_by.get(module, required)}
            assert required & found, f"{name} does not install {module}"


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
    module_of = {
        "orbax-checkpoint": "orbax",
        "PyStemmer": "Stemmer",
        "Jinja2": "jinja2",
        "MarkupSafe": "markupsafe",
        "PyYAML": "yaml",
    }
    installed = {module_of.get(requirement.name, requirement.name) for requirement in requirements("requirements.txt")}
    found = imported(ROOT / "jaxretr")
    # `jaxretr serve` looks for its extra before it imports the service.
    of_service = {requirement.name for requirement in requirements("requirements-serve.txt")} | {"pydantic_core"}
    missing = {
        name: path
        for name, path in found.items()
        if name not in installed and not (name in of_service and path.startswith("jaxretr/serve/"))
    }
    assert not missing, f"add to requirements.txt, or import through jaxretr.runtime.errors.import_extra: {missing}"
    # jaxretr asks only whether it is there; transformers imports it for spiece.model.
    assert installed - set(found) <= {"sentencepiece"}, "requirements.txt installs what nothing imports"


def test_package_holds_every_module_and_asset() -> None:
    package = ROOT / "jaxretr"
    for path in package.rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py and would not be installed"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["jaxretr"]
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    data = [path for path in tracked() if package in path.parents and path.suffix != ".py"]
    assert len(data) >= 5 and set(data) <= shipped


def test_a_wheel_finds_its_configs_and_an_editable_install_its_package_beside_the_clone(tmp_path: Path) -> None:
    source = tmp_path / "jaxretr"  # setuptools writes build/ beside pyproject.toml
    names = [path.relative_to(ROOT) for path in tracked() if path.suffix == ".txt" and path.parent == ROOT]
    names += [Path("setup.py"), Path("pyproject.toml"), Path("README.md"), Path("LICENSE")]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "configs", source / "configs", ignore=shutil.ignore_patterns("__pycache__"))
    ignored = shutil.ignore_patterns("__pycache__", "assets")
    shutil.copytree(ROOT / "jaxretr", source / "jaxretr", ignore=ignored)
    shutil.copytree(
        ROOT / "jaxretr/assets", source / "jaxretr/assets", ignore=shutil.ignore_patterns("*.gz", "*.safetensors")
    )
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True, text=True)
    with zipfile.ZipFile(source / done.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(tmp_path / "site")
    shipped = {path.name for path in (tmp_path / "site/jaxretr/configs").iterdir()}
    assert shipped == {path.name for path in (ROOT / "configs").glob("*.py")}
    code = "from jaxretr.training.experiment import find, load_config; print(find('dpr_small'), load_config('typos_small').name)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(tmp_path / "site/jaxretr/configs/dpr_small.py"), "typos_small"]
    # In the working directory, jaxretr is the clone's folder, not the package.
    build = "from setuptools.build_meta import build_editable; print(build_editable('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True, text=True)
    with zipfile.ZipFile(source / done.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(tmp_path / "editable")
    code = f"import site; site.addsitedir({str(tmp_path / 'editable')!r}); import jaxretr; print(jaxretr.__file__)"
    environment.pop("PYTHONPATH")
    command = [sys.executable, "-S", "-c", code]  # without the environment's own installation
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(source / "jaxretr/__init__.py")


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {jaxretr.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_workflows_call_targets_that_exist_and_only_publishing_may_sign() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"]
        called = {
            step["run"].split()[1] for job in jobs.values() for step in job["steps"] if "make " in step.get("run", "")
        }
        assert called <= targets
        assert {name for name, job in jobs.items() if "permissions" in job} <= {"publish", "deploy"}


def test_no_large_file_but_assets() -> None:
    large = [path for path in tracked() if path.stat().st_size > 2_000_000]
    assert not [path for path in large if ROOT / "jaxretr/assets" not in path.parents]


def test_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"


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


def test_the_tests_for_gpus_report_what_they_did_and_end_in_time(tmp_path: Path) -> None:
    """With any Python that has what is tested: here with this one, on its processors."""
    report = tmp_path / "report.md"
    words = f"BIN={Path(sys.executable).parent} GPU_REPORT={report} GPU_WORKERS=0 GPU_SECONDS=1e-9".split()
    make("test-gpu", *words, "GPU_TESTS=tests/evaluate/test_rank_overlap.py", cwd=ROOT)
    first, *_ = report.read_text().splitlines()
    assert first.startswith("0 passed, 0 failed") and "8 x cpu" in first and "were over" in report.read_text()


@pytest.mark.parametrize(
    ("target", "command", "dev"),
    [
        ("quickstart", ".venv/bin/jaxretr quickstart", False),
        ("serve", ".venv/bin/jaxretr serve", False),
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
    for name in (".venv/bin/uv", ".venv/.installed", ".venv/.installed-dev", ".venv/.installed-serve"):
        (clone / name).touch()
    second = make("-n", target, cwd=clone).stdout
    assert "install" not in second and command in second

    os.utime(clone / "requirements.txt", (2**31, 2**31))
    assert "-e ." in make("-n", target, cwd=clone).stdout, "a new requirement is installed"


def test_makefile_reports_a_missing_python(clone: Path) -> None:
    answer = make("quickstart", "PYTHON=no-such-python", cwd=clone)
    assert answer.returncode
    assert "no Python 3.11 or newer" in answer.stderr and not (clone / ".venv").exists()
