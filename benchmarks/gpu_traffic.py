"""What a training step reads and writes on an H100, from the step compiled for it on a machine without a card.

    pip install 'jaxretr[cuda]' && export JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1     # the check wants a card's driver
    python benchmarks/gpu_traffic.py dpr_nq --passages 1000000

Four forms of the step: padded rows, packed rows, packed rows with the layers apart in the backward pass, which runs of
many steps have, and these with a residual stream in bfloat16. Bytes are those of the operands and results of every kernel,
as often as its loops run if all texts are as long as they may be (a conditional counts as its dearest branch), without the
workspaces of cuBLAS; what a cache saves is not known. Seconds of compiling are this machine's, without autotuning, which a
card does beside it.
"""

import argparse
import os
import re
import time
from types import SimpleNamespace
from typing import Any

import jax

from jaxretr.models.engine_choice import ENGINE_VARIABLE
from jaxretr.runtime.parallel.matmul_flops import TRIPS
from jaxretr.training import experiment
from jaxretr.training.plan.compiled_facts import CompiledFacts, compile_facts
from jaxretr.training.plan.compiled_text import Program, arrays
from jaxretr.training.plan.requirements import GPU_OPTIONS, plan
from jaxretr.training.runs.corpus_programs import MANY_STEPS

FORMS = {
    "padded": ("padded", MANY_STEPS, "float32"),
    "packed": ("packed", MANY_STEPS - 1, "float32"),
    "packed, layers apart": ("packed", MANY_STEPS, "float32"),
    "packed, layers apart, residual in bfloat16": ("packed", MANY_STEPS, "bfloat16"),
}
LINE = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\(([^)]*)(.*)")
LOOP, BRANCHES = re.compile(r"body=%?([\w.-]+)"), re.compile(r"branch_computations=\{([^}]*)\}")
KNOWN, ASSUMED = re.compile(r'"known_trip_count":\{"n":"(\d+)"'), re.compile(rf"{TRIPS}(\d+)/while")
# Neither moves anything.
NOTHING = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all"}
WORKSPACE = "s8"


class Kernels:
    """The kernels of a compiled program.

    Args:
      text: the program's text.
      layers: number of layers: a loop over them reads and writes its own part of an array with so many lines.
    """

    def __init__(self, text: str, layers: int):
        self.layers = layers
        self.lines = {
            name: [found.groups() for line in lines if (found := LINE.match(line))]
            for name, lines in Program(text).computations.items()
        }
        *_, self.entry = self.lines

    def traffic(self, name: str, loop: int | None = None) -> tuple[float, float]:
        """Return the kernels that are started and the bytes that they read and write, in one run of a computation.

        Args:
          name: the computation.
          loop: how often the loop runs whose body it is; None: it is none.
        """
        sizes, kernels, moved = {}, 0.0, 0.0
        for result, kind, operation, operands, rest in self.lines[name]:
            sizes[result] = size = self._bytes(kind, loop)
            if operation in NOTHING:
                continue
            inner: list[tuple[float, float]] = []
            if operation == "while":
                found = KNOWN.search(rest) or ASSUMED.search(rest)
                count = int(found[1]) if found else 1
                one = self.traffic(LOOP.search(rest)[1], count)  # pyright: ignore[reportOptionalSubscript]
                inner = [(one[0] * count, one[1] * count)]
            elif operation == "conditional":
                names = re.findall(r"%?([\w.-]+)", BRANCHES.search(rest)[1])  # pyright: ignore[reportOptionalSubscript]
                inner = [self.traffic(branch, loop) for branch in names]
            elif "dynamic_update_slice" in result:
                inner = [(1, 2 * size)]  # in place: one layer's part is read, and written
            else:
                inner = [(1, size + sum(sizes.get(operand.strip().lstrip("%"), 0) for operand in operands.split(",")))]
            dearest = max(inner, key=lambda each: each[1])
            kernels, moved = kernels + dearest[0], moved + dearest[1]
        return kernels, moved

    def _bytes(self, kind: str, loop: int | None) -> int:
        total = 0
        for array in arrays(kind):
            if array.dtype != WORKSPACE:
                part = self.layers if loop == self.layers and array.shape[:1] == (self.layers,) else 1
                total += array.bytes // part
        return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a config of contrastive training or ART")
    parser.add_argument("--passages", type=int, required=True, help="number of passages of the corpus")
    parser.add_argument("--layers", type=int, default=12, help="the encoder's layers")
    args = parser.parse_args()
    options: Any = {**GPU_OPTIONS, "xla_gpu_enable_triton_gemm": False}
    print("| the step | compiling, s | kernels | read and written, GB | temporaries, GB |\n|---|---:|---:|---:|---:|")
    for form, (engine, steps, residual) in FORMS.items():
        os.environ[ENGINE_VARIABLE] = engine

        def facts(lowered: Any, _: Any, target: str, form: str = form) -> CompiledFacts:
            start = time.perf_counter()
            compiled = lowered.compile(options)
            seconds = time.perf_counter() - start
            found = Kernels(compiled.as_text(), args.layers)
            kernels, moved = found.traffic(found.entry)
            kept = compiled.memory_analysis().temp_size_in_bytes
            print(f"| {form} | {seconds:.0f} | {kernels:,.0f} | {moved / 1e9:.0f} | {kept / 1e9:.1f} |", flush=True)
            return compile_facts(SimpleNamespace(compile=lambda _: compiled), options, target)

        config = experiment.load_config(args.config, **{"train.steps": steps, "encoder.residual": residual})
        plan(config, "h100:1", args.passages, programs=["step"], facts_of=facts)
        jax.clear_caches()


if __name__ == "__main__":
    main()
