"""A file with the facts of programs that were compiled earlier, for tables of plans.

Compiling one step for a slice of TPUs takes minutes, and lowering it seconds. A program whose lowered text was compiled
before, by the same compiler with the same options, therefore need not be compiled again.
"""

import dataclasses
import hashlib
import json
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxretr.runtime.storage.files import atomic_write
from jaxretr.training.plan.compiled_facts import CollectivePlan, CompiledFacts, compile_facts


class KnownPrograms:
    """Facts of programs by their fingerprints; with a file, those of earlier processes as well.

    Args:
      file: JSON, read if it is there; None keeps nothing.
    """

    def __init__(self, file: Path | None = None):
        self._file = file
        self._facts: dict[str, CompiledFacts] = {}
        self._lock = threading.Lock()
        self.compiled: list[str] = []
        """Programs that this process compiled because the file lacked them, as "TARGET FINGERPRINT"."""
        if file is not None and file.is_file():
            self._facts = {
                key: CompiledFacts(
                    **{**facts, "collectives": tuple(CollectivePlan(**each) for each in facts["collectives"])}
                )
                for key, facts in json.loads(file.read_text()).items()
            }

    def facts(self, lowered: Any, options: dict[str, Any] | None, target: str) -> CompiledFacts:
        """Return the facts of a program, which is compiled now if it has not been before.

        Args:
          lowered: the program, as jax.stages.Lowered.
          options: options of the compiler; None: its defaults.
          target: name of the devices that it is compiled for, which the program's text does not tell.
        """
        if self._file is None:
            return compile_facts(lowered, options, target)
        key = fingerprint(lowered, options, target)
        if key not in self._facts:
            facts = compile_facts(lowered, options, target)
            with self._lock, atomic_write(self._file) as out:
                self._facts[key] = facts
                self.compiled.append(f"{target} {key}")
                json.dump(
                    {name: dataclasses.asdict(known) for name, known in sorted(self._facts.items())}, out, indent=1
                )
                out.write("\n")
        return self._facts[key]


def fingerprint(lowered: Any, options: dict[str, Any] | None, target: str) -> str:
    """Return a hash of a program's text without places in source files, its target, the compiler and its options."""
    try:
        compiler = f"libtpu {metadata.version('libtpu')}"
    except metadata.PackageNotFoundError:
        compiler = ""
    words = json.dumps([target, f"jaxlib {metadata.version('jaxlib')}", compiler, options], sort_keys=True)
    return hashlib.sha256(f"{words}\n{lowered.as_text()}".encode()).hexdigest()
