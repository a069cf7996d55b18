"""The scripts of tpu/ for Kubernetes and Slurm: what they apply and start, and what follows each exit code."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from script_cluster import AWKWARD, CONFIG, ROOT, RUN, TPU, Cluster, Workers


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


# ---- Google Kubernetes Engine ----------------------------------------------------------------------------------------


def jobset(cluster: Cluster, *words: str, **env: str) -> dict[str, Any]:
    answer = cluster.launch("gke.sh", "create", *(words or RUN), **env)
    assert answer.returncode == 0, answer.stderr
    [applied] = [call for call in cluster.calls("kubectl") if call.read]
    assert applied.words == ["--namespace=default", "apply", "--filename=-"]
    return yaml.safe_load(applied.read or "")


def pod_of(filled: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    [replicated] = filled["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (
        replicated["replicas"] == 1 and job["completions"] == job["parallelism"] and job["completionMode"] == "Indexed"
    )
    return job, job["template"]["spec"]


@pytest.mark.parametrize(
    ("topology", "env", "hosts", "chips"),
    [
        ("4x4", {}, 4, 4),
        ("2x2x4", {}, 4, 4),
        ("16x16", {}, 64, 4),
        ("1x1", {}, 1, 1),
        ("2x4", {"GKE_CHIPS_PER_HOST": "8"}, 1, 8),
    ],
)
def test_gke_has_one_pod_a_host(cluster: Cluster, topology: str, env: dict[str, str], hosts: int, chips: int) -> None:
    filled = jobset(
        cluster, GKE_TOPOLOGY=topology, GKE_ACCELERATOR="tpu-v5p-slice", GKE_NAME="art", GKE_SPOT="1", **env
    )
    job, pod = pod_of(filled)
    assert filled["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and filled["metadata"]["name"] == "art"
    assert job["completions"] == hosts and pod["containers"][0]["resources"] == {"limits": {"google.com/tpu": chips}}
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": topology,
        "cloud.google.com/gke-spot": "true",
    }


def test_gke_processes_on_gpus_find_one_another(cluster: Cluster) -> None:
    job, pod = pod_of(jobset(cluster, GKE_ACCELERATOR="gpu", GKE_HOSTS="3", GKE_GPUS_PER_HOST="4", GKE_NAME="art"))
    [container] = pod["containers"]
    env = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}
    assert env["JAX_COORDINATOR_ADDRESS"] == "art-train-0-0.art:8476" and env["JAX_NUM_PROCESSES"] == "3"
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    assert env["JAX_PROCESS_ID"] == index and "JAXRETR_DISTRIBUTED" not in env
    assert job["completions"] == 3 and container["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]} == {"shared-memory"}


@pytest.mark.parametrize("accelerator", ["tpu-v6e-slice", "gpu"])
def test_gke_restarts_all_pods_but_for_own_faults(cluster: Cluster, accelerator: str) -> None:
    filled = jobset(cluster, GKE_ACCELERATOR=accelerator, GKE_MAX_RESTARTS="7")
    job, pod = pod_of(filled)

    def follows(code: int) -> str:
        """What the Job's policy and then the set's make of a pod that ends with an exit code."""
        reason = "BackoffLimitExceeded"
        for rule in job["podFailurePolicy"]["rules"]:
            assert rule["action"] == "FailJob" and rule["onExitCodes"]["operator"] == "In"
            assert rule["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
            if code in rule["onExitCodes"]["values"]:
                reason = "PodFailurePolicy"
        actions = [rule["action"] for rule in policy["rules"] if reason in rule["onJobFailureReasons"]]
        return actions[0] if actions else "RestartJobSet"

    policy = filled["spec"]["failurePolicy"]
    # One failed pod fails the Job: Kubernetes is never to start it alone again. A pod failure policy asks for Never.
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never" and policy["maxRestarts"] == 7
    assert {code: follows(code) for code in (1, 2)} == {1: "FailJobSet", 2: "FailJobSet"}
    assert {follows(code) for code in (75, 134, 137, 139, 143)} == {"RestartJobSet"}


@pytest.mark.parametrize("accelerator", ["tpu-v6e-slice", "gpu"])
def test_gke_starts_what_run_sh_starts(cluster: Cluster, accelerator: str) -> None:
    workers = Workers(cluster, 'printf "%s\\0" "$@" >"$HOME/words"')
    assert cluster.launch("run.sh", *RUN, *AWKWARD).returncode == 0
    cluster.calls()
    words = (workers.homes[0] / "words").read_text().split("\0")[:-1]
    _, pod = pod_of(jobset(cluster, *RUN, *AWKWARD, GKE_ACCELERATOR=accelerator))
    [container] = pod["containers"]
    # The command is the program itself, so that SIGTERM reaches it, with time to save.
    assert [*container["command"], *container["args"]] == ["jaxretr", *words]
    assert pod["terminationGracePeriodSeconds"] >= 60
    if accelerator != "gpu":
        assert {"name": "JAXRETR_DISTRIBUTED", "value": "1"} in container["env"]


def test_gke_mounts_buckets_of_data_and_hands_variables_on(cluster: Cluster) -> None:
    words = (
        *RUN,
        "--data.corpus",
        "gs://texts/c.tsv",
        "--data.questions",
        "gs://texts/q",
        "--name",
        "$(JAXRETR_DATA) __NAME__",
    )
    filled = jobset(cluster, *words, JAXRETR_DATA='gs://more/n "q"')
    _, pod = pod_of(filled)
    [container] = pod["containers"]
    assert container["args"] == [
        *RUN,
        "--data.corpus",
        "/gs/texts/c.tsv",
        "--data.questions",
        "/gs/texts/q",
        "--name",
        "$$(JAXRETR_DATA) __NAME__",
    ]
    assert {"name": "JAXRETR_DATA", "value": '/gs/more/n "q"'} in container["env"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume["csi"]["volumeAttributes"]["bucketName"] for volume in pod["volumes"]}
    assert {mounts[name]: bucket for name, bucket in volumes.items()} == {"/gs/texts": "texts", "/gs/more": "more"}
    assert filled["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["annotations"] == {
        "gke-gcsfuse/volumes": "true"
    }


@pytest.mark.parametrize(
    ("found", "verbs"),
    [
        (None, ["get", "apply"]),
        ("jaxretr ", ["get", "apply"]),
        ("jaxretr Failed", ["get", "delete", "apply"]),
        ("jaxretr Completed", ["get"]),
    ],
)
def test_gke_create_is_idempotent(cluster: Cluster, found: str | None, verbs: list[str]) -> None:
    cluster.world(jobset=found)
    answer = cluster.launch("gke.sh", "create", *RUN)
    assert answer.returncode == 0
    assert [call.words[1] for call in cluster.calls("kubectl")] == verbs
    assert ("finished" in answer.stdout) == ("apply" not in verbs)


def test_gke_status_logs_and_delete(cluster: Cluster) -> None:
    for words in (["status"], ["logs"], ["delete"], ["delete"]):
        assert cluster.launch("gke.sh", *words, GKE_NAME="art", GKE_NAMESPACE="mine").returncode == 0
    calls = [call.words for call in cluster.calls("kubectl")]
    assert {words[0] for words in calls} == {"--namespace=mine"}
    assert [words[1:3] for words in calls[:2]] == [["get", "jobset"], ["get", "pods"]]
    assert "--selector=jobset.sigs.k8s.io/jobset-name=art,batch.kubernetes.io/job-completion-index=0" in calls[2]
    assert calls[3:] == [["--namespace=mine", "delete", "jobset", "art", "--ignore-not-found"]] * 2


# ---- Slurm -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "restarts", "env", "requeued"),
    [
        (0, 0, {}, False),
        (1, 0, {}, False),
        (2, 0, {}, False),
        (75, 0, {}, True),
        (75, 20, {}, False),  # again and again, soon after the start
        (75, 99, {"MIN_SECONDS": "0"}, True),  # each time its time was up
        (137, 19, {}, True),
        (134, 20, {}, False),
        (143, 3, {"MAX_REQUEUES": "3"}, False),
    ],
)
def test_slurm_job_goes_back_into_the_queue(
    cluster: Cluster, code: int, restarts: int, env: dict[str, str], requeued: bool
) -> None:
    folder = cluster.cwd = cluster.folder / "checkout"
    for name in (".venv/bin/jaxretr", CONFIG):
        cluster.write(folder / name, "#!/usr/bin/env bash\n")
    cluster.world(srun=code)
    words = (CONFIG, "--workdir", "/shared/a b", *AWKWARD)
    count = {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}  # Slurm sets none at the first start
    answer = cluster.launch("slurm.sbatch", *words, SLURM_JOB_ID="12", **count, **env)
    started, *rest = cluster.calls()
    assert started.program == "srun"
    assert started.words == ["--kill-on-bad-exit=0", "--wait=300", ".venv/bin/jaxretr", "train", *words]
    assert [(call.program, call.words) for call in rest] == [("scontrol", ["requeue", "12"])] * requeued
    assert answer.returncode == (0 if requeued else code)


def test_slurm_in_a_container(cluster: Cluster) -> None:
    shared = cluster.folder / "shared/run"
    env = {"CONTAINER": "registry#jaxretr:1", "CONTAINER_MOUNTS": "/data:/data", "SLURM_JOB_ID": "12"}
    assert cluster.launch("slurm.sbatch", CONFIG, f"--workdir={shared}", **env).returncode == 0
    [call] = cluster.calls()
    mounts = f"--container-mounts={ROOT}:{ROOT},{shared}:{shared},/data:/data"
    container = ["--container-image=registry#jaxretr:1", mounts, f"--container-workdir={ROOT}"]
    assert call.words[2:] == [*container, "jaxretr", "train", CONFIG, f"--workdir={shared}"]
    assert shared.is_dir(), "what is not there cannot be mounted"


def test_slurm_without_an_installation_says_so(cluster: Cluster) -> None:
    cluster.write(cluster.folder / CONFIG, "")
    cluster.cwd = cluster.folder
    answer = cluster.launch("slurm.sbatch", CONFIG, "--workdir", "/r", SLURM_JOB_ID="12")
    assert answer.returncode == 1 and "pip install" in answer.stderr and not cluster.calls()


def test_slurm_starts_one_task_a_gpu_and_asks_for_the_signal() -> None:
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)$", (TPU / "slurm.sbatch").read_text(), re.MULTILINE))
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert options["signal"] == "TERM@180" and "requeue" in options and options["open-mode"] == "append"
