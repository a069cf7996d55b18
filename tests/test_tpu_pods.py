"""The scripts of tpu/ for Cloud TPU: what they ask for, in which order, and what they do when it is taken away or fails."""

import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from script_cluster import AWKWARD, CONFIG, GONE, READY, RUN, Cluster, Workers, codes


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


# ---- Cloud TPU -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "code", "verbs"),
    [
        ({}, 0, ["create"]),
        (READY, 0, []),
        ({"offers": [["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]]}, 0, ["create"]),
        ({"queued": ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"], "node": "READY"}, 0, []),
        (GONE, 0, ["delete", "create"]),
        ({"queued": ["SUSPENDING", "SUSPENDED"]}, 0, ["delete", "create"]),
        ({"queued": ["DELETING", "ABSENT"]}, 0, ["create"]),
        ({"queued": ["FAILED"]}, 0, ["delete", "create"]),
        # The queue does not know yet what the TPU says.
        ({"queued": ["ACTIVE"], "node": "PREEMPTED"}, 0, ["delete", "create"]),
        ({"queued": ["ACTIVE"], "node": "ABSENT"}, 0, ["delete", "create"]),
        # Taken away while it was being made.
        ({"offers": [["PROVISIONING", "SUSPENDING", "SUSPENDED"], ["ACTIVE"]]}, 0, ["create", "delete", "create"]),
        ({"offers": [["PROVISIONING", "FAILED"]]}, 1, ["create"]),
        # Deleted by hand while it waited: not asked for again.
        ({"offers": [["WAITING_FOR_RESOURCES", "ABSENT"]]}, 1, ["create"]),
        ({"offers": ["refused"]}, 1, ["create"]),
    ],
)
def test_create_is_idempotent(cluster: Cluster, world: dict[str, Any], code: int, verbs: list[str]) -> None:
    cluster.world(**world)
    answer = cluster.launch("create.sh")
    assert answer.returncode == code, answer.stderr
    assert cluster.verbs() == verbs
    assert bool(code) == bool(re.search("quota|was deleted", answer.stderr))
    # Again, there is nothing left to do.
    if code == 0:
        assert cluster.launch("create.sh").returncode == 0 and cluster.verbs() == []


def test_create_waits_no_longer_than_it_may(cluster: Cluster) -> None:
    cluster.world(offers=[["WAITING_FOR_RESOURCES"]])
    began = time.monotonic()
    answer = cluster.launch("create.sh", TPU_WAIT="2", TPU_POLL="1")
    assert answer.returncode == 75 and 1 < time.monotonic() - began < 30
    assert "WAITING_FOR_RESOURCES after 2 seconds" in answer.stderr and "TPU_WAIT" in answer.stderr
    # Nobody waits for it any more: the queue drops it, too.
    assert re.search(r"--valid-until-duration=[12]s", str(cluster.calls()))


@pytest.mark.parametrize(
    ("tier", "flags"),
    [("spot", ["--spot"]), ("on-demand", []), ("guaranteed", ["--guaranteed"]), ("reserved", ["--reserved"])],
)
def test_create_asks_for_what_was_set(cluster: Cluster, tier: str, flags: list[str]) -> None:
    env = {"TPU_TIER": tier, "TPU_PROJECT": "p", "TPU_SERVICE_ACCOUNT": "me@p", "TPU_TYPE": "v4-32", "TPU_VERSION": "v"}
    cluster.launch("create.sh", **env)
    [words] = [call.words for call in cluster.calls() if "create" in call.words]
    known = [
        "--node-id=jaxretr",
        "--accelerator-type=v4-32",
        "--runtime-version=v",
        "--zone=us-central2-b",
        "--project=p",
    ]
    assert set(words[5:]) - {word for word in words if "valid-until" in word} == {
        *known,
        "--service-account=me@p",
        *flags,
    }


@pytest.mark.parametrize(
    ("world", "deleted"),
    [
        (READY, "queued-resources"),
        (GONE, "queued-resources"),
        ({"queued": ["WAITING_FOR_RESOURCES"]}, "queued-resources"),
        ({"node": "READY"}, "tpu-vm"),
        ({"queued": ["DELETING"], "node": "READY"}, None),
        ({}, None),
    ],
)
def test_delete_twice(cluster: Cluster, world: dict[str, Any], deleted: str | None) -> None:
    cluster.world(**world)
    assert cluster.launch("delete.sh").returncode == 0
    assert [call.words[2] for call in cluster.calls() if "delete" in call.words] == ([deleted] if deleted else [])
    assert cluster.launch("delete.sh").returncode == 0 and cluster.verbs() == []


def test_an_answer_that_is_no_state_stops(cluster: Cluster) -> None:
    cluster.write(cluster.path / "gcloud", "#!/usr/bin/env bash\necho 'ERROR: you are not logged in' >&2\nexit 1\n")
    for script in ("create.sh", "delete.sh"):
        answer = cluster.launch(script)
        assert answer.returncode == 1 and "not logged in" in answer.stderr


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (codes(0, 0), 0),
        (codes(75, 75), 75),
        (codes(0, 0, gcloud=255), 0),  # the connection broke at the end
        (codes(134, 75, 134), 134),
        (codes(75, 137, 134), 137),
        (codes(75, 1), 1),
        (codes(1, 2, 75), 2),
        (codes(0, None), 255),
        (codes(None, None, gcloud=255), 255),
        (codes(75, None, 1), 1),
        (codes(0, 75, gcloud=0), 75),
    ],
)
def test_exit_code_is_the_one_that_says_most(cluster: Cluster, run: dict[str, Any], code: int) -> None:
    cluster.world(**READY, runs=[run])
    assert cluster.launch("run.sh", *RUN).returncode == code


AGAIN = codes(75, 75)


@pytest.mark.parametrize(
    ("world", "env", "code", "verbs"),
    [
        pytest.param({"runs": [codes(0)]}, {}, 0, "create install run", id="finished"),
        pytest.param({**READY, "runs": [codes(0)]}, {}, 0, "install run", id="there already"),
        pytest.param(
            {"offers": [["WAITING_FOR_RESOURCES", "SUSPENDED"], ["ACTIVE"]], "runs": [codes(0)]},
            {},
            0,
            "create delete create install run",
            id="taken away in the queue",
        ),
        pytest.param(
            {"setups": [codes(1, then=GONE)], "runs": [codes(0)]},
            {},
            0,
            "create delete create install run",
            id="taken away during the installation",
        ),
        pytest.param(
            {"runs": [codes(75, 75, then={**GONE, "saved": [10]}), codes(None, None, gcloud=255, then=GONE), codes(0)]},
            {"MAX_FAILURES": "1"},
            0,
            "create install run delete create install run delete create install run",
            id="taken away during the run, saved or not",
        ),
        pytest.param(
            # ssh breaks first; the second look at the state is the one that sees it.
            {**READY, "runs": [codes(None, gcloud=255, then={"queued": ["ACTIVE", "SUSPENDED"]}), codes(0)]},
            {"MAX_FAILURES": "1"},
            0,
            "install run delete create install run",
            id="taken away, known late",
        ),
        pytest.param({"runs": [codes(2, 75)]}, {}, 2, "create install run", id="wrong use"),
        pytest.param({"runs": [codes(1, 75)] * 9}, {}, 1, "create" + " install run" * 3, id="own fault"),
        pytest.param({"runs": [codes(137)] * 9}, {"MAX_FAILURES": "2"}, 1, "create" + " install run" * 2, id="killed"),
        pytest.param({"runs": [AGAIN] * 9}, {}, 1, "create" + " install run" * 3, id="75 that leads nowhere"),
        pytest.param(
            {"runs": [AGAIN] * 9, "saved": [10]},
            {"MIN_SECONDS": "0"},
            1,
            "create" + " install run" * 3,
            id="no new step",
        ),
        pytest.param(
            {"runs": [*(codes(75, then={"saved": [step]}) for step in range(3)), codes(0)]},
            {"MAX_FAILURES": "1"},
            0,
            "create" + " install run" * 4,
            id="75 with new steps",
        ),
        pytest.param(
            {"runs": [*(codes(1, then={"saved": [step]}) for step in range(3)), codes(0)]},
            {"MAX_FAILURES": "2"},
            0,
            "create" + " install run" * 4,
            id="failures with steps between them",
        ),
        pytest.param(
            {"runs": [codes(75), codes(0)]},
            {"TPU_DELETE": "1"},
            0,
            "create install run install run delete",
            id="delete",
        ),
        pytest.param({"offers": ["refused"] * 9}, {}, 1, "create create create", id="refused"),
        pytest.param({"offers": [["WAITING_FOR_RESOURCES"]]}, {"TPU_WAIT": "2"}, 75, "create", id="no TPU in time"),
        pytest.param({"setups": [codes(1)] * 9}, {}, 1, "create", id="the installation fails"),
    ],
)
def test_babysit_goes_on_until_finished(
    cluster: Cluster, world: dict[str, Any], env: dict[str, str], code: int, verbs: str
) -> None:
    cluster.world(**world)
    answer = cluster.launch("babysit.sh", *RUN, **env)
    assert answer.returncode == code, answer.stderr
    assert cluster.verbs() == verbs.split(), answer.stderr
    assert ("costs money" in answer.stderr) == ("TPU_DELETE" not in env)


def test_long_runs_that_end_with_75_are_no_failures_where_checkpoints_cannot_be_listed(cluster: Cluster) -> None:
    words = (CONFIG, "--workdir", "/shared/run")
    cluster.world(**READY, runs=[AGAIN] * 2 + [codes(0)])
    assert cluster.launch("babysit.sh", *words, MIN_SECONDS="0", MAX_FAILURES="2").returncode == 0
    assert cluster.verbs() == ["install", "run"] * 3
    cluster.world(**READY, runs=[AGAIN] * 2 + [codes(0)])
    assert cluster.launch("babysit.sh", *words, MAX_FAILURES="2").returncode == 1
    assert cluster.verbs() == ["install", "run"] * 2


# ---- what runs on the workers ----------------------------------------------------------------------------------------


def test_worker_gets_the_words_as_they_were_typed(cluster: Cluster) -> None:
    workers = Workers(
        cluster, 'printf "%s\\0" "$JAXRETR_DISTRIBUTED" "$JAXRETR_DATA" "$@" >"$HOME/words"; echo trained'
    )
    data = (
        "--data.corpus=gs://texts/a b.tsv",
        "--data.token-cache",
        "gs://not/mounted",
        "--data.questions",
        "gs://texts/q",
    )
    answer = cluster.launch("run.sh", *RUN, *data, *AWKWARD, JAXRETR_DATA="gs://more/nq it's")
    assert answer.returncode == 0 and answer.stdout.splitlines().count("trained") == 2
    mounted = ("--data.corpus=/tmp/gs/texts/a b.tsv", *data[1:3], "--data.questions", "/tmp/gs/texts/q")
    for home in workers.homes:
        words = (home / "words").read_text().split("\0")[:-1]
        assert words == ["1", "/tmp/gs/more/nq it's", "train", *RUN, *mounted, *AWKWARD]
    mounts = [line for line in workers.programs() if line.startswith("gcsfuse")]
    assert mounts == [f"gcsfuse --implicit-dirs -o ro {name} /tmp/gs/{name}" for name in ("texts", "more")]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("exit 0", 0),
        ("exit 75", 75),
        ("[[ $HOME == *0 ]] && exit 75; exit 1", 1),
        ("[[ $HOME == *0 ]] && kill -ABRT $$; exit 75", 134),
        ("[[ $HOME == *1 ]] && kill -KILL $$; kill -ABRT $$", 137),
    ],
)
def test_exit_codes_of_workers_come_back(cluster: Cluster, program: str, code: int) -> None:
    Workers(cluster, program)
    answer = cluster.launch("run.sh", *RUN)
    assert answer.returncode == code, answer.stderr


def test_a_worker_that_is_not_set_up_is_told_from_a_run_that_failed(cluster: Cluster) -> None:
    workers = Workers(cluster, "exit 0")
    shutil.rmtree(workers.homes[1] / "jaxretr")
    assert cluster.launch("run.sh", *RUN).returncode == 255


def test_a_repeated_command_looks_on_and_starts_nothing(cluster: Cluster) -> None:
    """gcloud repeats the command on a worker when its connection has broken."""
    workers = Workers(cluster, 'echo started >>"$HOME/starts"; echo started; sleep 1; echo done; exit 75')
    printed = cluster.launch("run.sh", *RUN, "--dry-run").stdout
    # The first connection breaks while the run goes on.
    broken = cluster.launch("run.sh", *RUN, "--dry-run").stdout
    assert printed != broken, "each attempt has a name of its own"
    watch = next(word for word in shlex.split(printed) if word.startswith("--command=")).removeprefix("--command=")
    home = str(workers.homes[0])
    env = {"PATH": str(cluster.path), "HOME": home}
    with subprocess.Popen(["bash", "-c", watch], env=env, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout and first.stdout.readline() == "started\n"
        first.kill()
    second = subprocess.run(["bash", "-c", watch], env=env, capture_output=True, text=True, timeout=30)
    assert second.returncode == 75 and "done" in second.stdout
    assert (workers.homes[0] / "starts").read_text() == "started\n"


def test_an_earlier_run_is_asked_to_save_and_then_killed(cluster: Cluster) -> None:
    workers = Workers(cluster, "exit 0")
    workers.play("pkill", '[[ $1 == -TERM || -e "$HOME/stubborn" ]]')
    workers.play("pgrep", '[[ -e "$HOME/stubborn" ]]')
    answer = cluster.launch("run.sh", *RUN, STOP_SECONDS="1")
    assert answer.returncode == 0 and "asked to save and end" in answer.stdout and "killed" not in answer.stdout
    assert workers.programs().count("pkill -TERM -x jaxretr") == 1
    (workers.homes[0] / "stubborn").touch()
    answer = cluster.launch("run.sh", *RUN, STOP_SECONDS="1")
    assert answer.returncode == 0 and "killed: it did not end within 1 seconds" in answer.stdout
    assert workers.programs().count("pkill -TERM -x jaxretr") == 2


def test_the_program_is_given_time_when_the_job_gets_the_signal(cluster: Cluster) -> None:
    """As when a TPU is shut down: all processes get SIGTERM, and the program's exit code is the one that counts."""
    workers = Workers(cluster, "trap 'sleep 0.5; exit 75' TERM; kill -TERM $PPID; sleep 0.2; kill -TERM $$; sleep 5")
    assert cluster.launch("run.sh", *RUN).returncode == 75
    assert len(list((workers.homes[0] / "jaxretr/.runs").iterdir())) == 1
