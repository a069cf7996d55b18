"""Where the scripts of tpu/ are tried: a PATH of its own with stand-ins for the cloud, and workers that are folders."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
TPU = ROOT / "tpu"
SCRIPTS = ["env.sh", "create.sh", "setup.sh", "run.sh", "babysit.sh", "delete.sh", "gke.sh", "slurm.sbatch"]
TOOLS = "bash,basename,cat,date,dirname,env,find,hostname,mkdir,mktemp,mv,rm,sed,setsid,sleep,tail,touch"
CONFIG = "configs/art_small.py"
RUN = (CONFIG, "--workdir", "gs://bucket/runs/a b", "--train.steps", "3")
AWKWARD = ("--name", 'it\'s $HOME; "a" \\ b')
WORLD = {
    "queued": ["ABSENT"],
    "node": "ABSENT",
    "offers": [],
    "setups": [],
    "runs": [],
    "saved": [],
    "workers": [],
    "jobset": None,
    "srun": 0,
}
READY = {"queued": ["ACTIVE"], "node": "READY"}
GONE = {"queued": ["SUSPENDED"], "node": "PREEMPTED"}


class Call(NamedTuple):
    program: str
    words: list[str]
    read: str | None


class Cluster:
    """A folder with a PATH of its own: the few tools that the scripts call, and the stand-ins of fake_cluster.py."""

    def __init__(self, folder: Path):
        self.folder, self.path, self.cwd = folder, folder / "bin", ROOT
        self.path.mkdir()
        for name in TOOLS.split(","):
            found = shutil.which(name)
            assert found, f"{name} is not installed"
            (self.path / name).symlink_to(found)
        program = f"#!{sys.executable} -IS\n" + (ROOT / "tests/fake_cluster.py").read_text()
        for name in ("gcloud", "kubectl", "git", "srun", "scontrol"):
            self.write(self.path / name, program)
        self.world()

    def world(self, **changes: Any) -> None:
        (self.folder / "world").write_text(json.dumps({**WORLD, **changes}))

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def launch(self, script: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.shell([str(TPU / script), *words], **env)

    def shell(self, words: Sequence[str], **env: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "PATH": str(self.path),
            "HOME": str(self.folder),
            "HERE": str(self.folder),
            "PAUSE": "0",
            "TPU_POLL": "0",
            "GKE_IMAGE": "registry/jaxretr:1",
            **env,
        }
        return subprocess.run(["bash", *words], cwd=self.cwd, env=settings, capture_output=True, text=True, timeout=60)

    def calls(self, program: str = "") -> list[Call]:
        """What was called since the last time."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [call for call in (Call(*json.loads(line)) for line in lines) if program in ("", call.program)]

    def verbs(self) -> list[str]:
        """What was asked of gcloud that changes something: create, delete, install, run."""
        found = []
        for _, words, _ in self.calls("gcloud"):
            if words[3:4] in (["create"], ["delete"]):
                found.append(words[3])
            elif words[3:4] == ["ssh"] and "END_OF_JOB" in " ".join(words):
                found.append("run")
            elif words[3:4] == ["ssh"] and "uv pip install" in " ".join(words):
                found.append("install")
        return found


def codes(*of_workers: int | None, **more: Any) -> dict[str, Any]:
    return {"codes": list(of_workers), **more}


class Workers:
    """Two of them, on which the commands of run.sh are run for real."""

    def __init__(self, cluster: Cluster, program: str):
        self.cluster, self.homes = cluster, [cluster.folder / name for name in ("worker0", "worker1")]
        for home in self.homes:
            cluster.write(home / "jaxretr/.venv/bin/jaxretr", f"#!/usr/bin/env bash\n{program}\n")
        # Never the machine's own: these would end other people's runs.
        self.play("pkill", "exit 1")
        self.play("pgrep", "exit 1")
        for name in ("gcsfuse", "mountpoint"):
            self.play(name, "exit 1" if name == "mountpoint" else "exit 0")
        cluster.world(**READY, workers=[str(home) for home in self.homes])

    def play(self, name: str, text: str) -> None:
        record = f'printf "%s\\n" "{name} $*" >>"$HOME/programs"'
        self.cluster.write(self.cluster.path / name, f"#!/usr/bin/env bash\n{record}\n{text}\n")

    def programs(self) -> list[str]:
        return (self.homes[0] / "programs").read_text().splitlines()
