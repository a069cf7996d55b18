"""Stand-in for gcloud, kubectl, git, srun and scontrol: the tests put this file on a PATH of their own under these names.

Each call is recorded with its exact arguments in $HERE/calls. What it does is told, and changed by it, in $HERE/world:

  queued: states of the queued resource; each look takes the first, and the last one stays
  node: state of the TPU itself
  offers: for each `create` to come, the states that follow; "refused" fails
  setups, runs: for each start to come, {"codes": exit code of each worker, or null for one that cannot be asked,
    "then": what is different in this world afterwards}; a run may have "gcloud", the exit code of ssh itself
  saved: names of checkpoints
  workers: home folders; with them commands are run for real, in a shell for each
  jobset: name and terminal state of the JobSet
  srun: its exit code
"""

import json
import os
import sys

# Little is imported, and some of it late: a test starts this dozens of times.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

HERE = os.environ["HERE"]


def fail(message: str) -> "NoReturn":
    print(f"ERROR: {message}", file=sys.stderr)
    sys.exit(1)


def queued_resources(verb: str, words: list[str], world: "dict[str, Any]") -> int:
    states = world["queued"]
    if verb == "create":
        if states[0] != "ABSENT":
            fail("ALREADY_EXISTS: there is one of that name")
        offer = world["offers"].pop(0) if world["offers"] else ["ACTIVE"]
        if offer == "refused":
            fail("RESOURCE_EXHAUSTED: quota")
        world["queued"], world["node"] = offer, "READY"
        return 0
    state = states.pop(0) if len(states) > 1 else states[0]
    if state == "ABSENT":
        fail("(gcloud.compute.tpus.queued-resources) NOT_FOUND: Resource 'x' was not found")
    if verb == "delete":
        world["queued"], world["node"] = ["ABSENT"], "ABSENT"
    else:
        print("the quota is used up" if "failedData" in " ".join(words) else state)
    return 0


def tpu_vm(verb: str, words: list[str], world: "dict[str, Any]") -> int:
    if verb == "describe":
        if world["node"] == "ABSENT":
            fail("NOT_FOUND: no such TPU")
        print(world["node"])
        return 0
    if verb == "delete":
        world["node"] = "ABSENT"
        return 0
    if verb == "scp":
        start: dict[str, Any] = world["setups"].pop(0) if world["setups"] else {"codes": [0]}
        world.update(start.get("then", {}))
        return max(start["codes"])
    command = next(word for word in words if word.startswith("--command=")).removeprefix("--command=")
    if world["workers"]:
        import subprocess

        shells = [subprocess.Popen(["bash", "-c", command], env={**os.environ, "HOME": w}) for w in world["workers"]]
        return next((code for code in [shell.wait() for shell in shells] if code), 0)
    if "END_OF_JOB" in command:
        run = world["run"] = world["runs"].pop(0)
        world.update(run.get("then", {}))
        return run.get("gcloud", next((code for code in run["codes"] if code), 0))
    if "jaxretr-exit" in command:
        attempt = command.partition("attempt=")[2].split()[0]
        print("Warning: Permanently added '10.0.0.1' to the list of known hosts.")
        for host, code in enumerate(world["run"]["codes"]):
            if code is not None:
                print(f"jaxretr-exit {attempt} host{host} {code}")
        return 255 * (None in world["run"]["codes"])
    return 0


def play(name: str, words: list[str], world: "dict[str, Any]") -> int:
    if name == "gcloud" and words[0] == "storage":
        if not world["saved"]:
            fail("One or more URLs matched no objects.")
        print("\n".join(f"{words[2]}{step}/" for step in world["saved"]))
        return 0
    if name == "gcloud":
        return {"queued-resources": queued_resources, "tpu-vm": tpu_vm}[words[2]](words[3], words[4:], world)
    if name == "kubectl" and "get" in words:
        print(world["jobset"] or "", end="")
    if name == "kubectl" and "delete" in words:
        world["jobset"] = None
    return world["srun"] if name == "srun" else 0


def main() -> int:
    name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
    read = sys.stdin.read() if "--filename=-" in words else None
    with open(f"{HERE}/calls", "a") as calls:
        calls.write(json.dumps([name, words, read]) + "\n")
    with open(f"{HERE}/world") as file:
        world = json.load(file)
    code = 1
    try:
        code = play(name, words, world)
    finally:
        with open(f"{HERE}/world", "w") as file:
            json.dump(world, file)
    return code


if __name__ == "__main__":
    sys.exit(main())
