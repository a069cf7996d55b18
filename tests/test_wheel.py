"""The wheel that the environment's WHEEL names (`make wheel`), or one that is built here: all of the package, and no more."""

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from test_project import ROOT, tracked

import jaxretr

# Of 19.7 MB 14.2 are the two small models, in rounded float16, and 4.1 the data.
LIMIT = 20_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    built = ROOT / os.environ.get("WHEEL", "")
    if built == ROOT:
        source = tmp_path_factory.mktemp("source")
        for path in tracked():
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        build = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
        done = subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True, text=True)
        built = source / done.stdout.splitlines()[-1]
    assert built.stat().st_size < LIMIT
    return zipfile.ZipFile(built)


def test_it_has_every_file_of_the_package_and_the_configs(wheel: zipfile.ZipFile) -> None:
    names = {path.relative_to(ROOT).as_posix(): path for path in tracked()}
    expected = {name: path for name, path in names.items() if name.startswith("jaxretr/")}
    expected |= {f"jaxretr/{name}": path for name, path in names.items() if name.startswith("configs/")}
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == set(expected)
    assert not [name for name, path in expected.items() if wheel.read(name) != path.read_bytes()]


def test_the_page_on_pypi_links_to_the_repository(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    page = Parser().parsestr(wheel.read(name).decode()).get_payload()
    assert "](https://github.com/jaxretr/jaxretr/blob/main/docs/get_started.md)" in page and "](docs/" not in page
    assert "](https://github.com/jaxretr/jaxretr/raw/main/docs/images/training_step.svg)" in page
    assert Path(name).parts[0].startswith(f"jaxretr-{jaxretr.__version__}.")
