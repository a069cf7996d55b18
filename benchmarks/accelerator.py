"""One big GPU: how fast the library encodes, searches, trains and refreshes there, against the card and against PyTorch.

    python benchmarks/accelerator.py --out results/h100              # unattended, under ten minutes
    python benchmarks/accelerator.py --out results/h100 --parts art-t5-xl --again
    python benchmarks/accelerator.py --out results/h100 --parts attention attention-alone
    python benchmarks/accelerator.py --out results/h100 --parts options layers threads encode-packed
    python benchmarks/accelerator.py --out results/h100-user --as-user          # what a user waits for: commands
    XLA_FLAGS=--xla_gpu_enable_triton_gemm=false python benchmarks/accelerator.py --out results/h100-cublas
    python benchmarks/accelerator.py --out results/h100 --side-by-side          # where many cores wait for one card
    JAX_PLATFORMS=cpu python benchmarks/accelerator.py --out /tmp/toy --toy

It needs this repository, jax, flax and numpy; no weights and no data, which are drawn at random in the shapes and lengths
of real ones. Where PyTorch sees the same card, the same work in plain PyTorch is timed in turns with ours; ART's step, which
takes most of the memory, in a part of its own behind all others (-torch; it needs transformers as well). Every part runs in
a process of its own with a budget of time: what runs out of memory is tried again at half the size, what fails or takes too
long is recorded and the rest goes on. Writes results.json and table.md into --out after every part; a part that is done is
not repeated without --again, and compiled programs are kept beside the results. What a case took to compile is recorded
before it is timed. On GPUs XLA tries out kernels of its own for every matrix product; the flag above leaves all products to
cuBLAS.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]

# Of the time for all parts, what starting and ending a process may take.
STARTUP = 15
SMALLEST = 1 / 16

# Parts whose programs compile within seconds, and whose arrays would leave the others no memory.
NOT_BESIDE_OTHERS = ("machine", "search")


class Plan(NamedTuple):
    """A part of the benchmark."""

    seconds: int
    """Of its process, at most; what other parts leave is not added."""
    memory: float
    """Share of the device's memory that JAX takes at once; 0: as it needs it, which leaves PyTorch the rest."""
    run: Callable[[Any, Any], None]
    """(the package on_gpu, the Part)"""
    peer_of: str | None = None
    """The part that this one does in PyTorch alone; JAX stays off the device."""
    extra: bool = False
    """Runs only where --parts names it."""


PLANS = {
    "machine": Plan(20, 0, lambda gpu, part: gpu.parts.machine(part)),
    "encode-minilm": Plan(35, 0, lambda gpu, part: gpu.encoding.encode(part, gpu.shapes.MINILM, 131_072)),
    "encode-bert-base": Plan(50, 0, lambda gpu, part: gpu.encoding.encode(part, gpu.shapes.BERT_BASE, 16_384)),
    "encode-packed-minilm": Plan(
        35, 0, lambda gpu, part: gpu.encoding.encode(part, gpu.shapes.MINILM, 131_072, packed=True), extra=True
    ),
    "encode-packed-bert-base": Plan(
        50, 0, lambda gpu, part: gpu.encoding.encode(part, gpu.shapes.BERT_BASE, 16_384, packed=True), extra=True
    ),
    "search": Plan(60, 0, lambda gpu, part: gpu.parts.search(part)),
    "contrastive": Plan(110, 0, lambda gpu, part: gpu.parts.contrastive_step(part, 64)),
    "contrastive-kept": Plan(110, 0, lambda gpu, part: gpu.parts.contrastive_step(part, 64, keep=True), extra=True),
    "art-t5-base": Plan(80, 0.92, lambda gpu, part: gpu.parts.art_step(part, gpu.shapes.T5_BASE, 256)),
    "art-t5-xl": Plan(105, 0.92, lambda gpu, part: gpu.parts.art_step(part, gpu.shapes.T5_XL, 64)),
    "refresh": Plan(70, 0, lambda gpu, part: gpu.parts.refresh(part)),
    "mlm": Plan(40, 0, lambda gpu, part: gpu.parts.mlm_step(part, 128)),
    "attention": Plan(120, 0, lambda gpu, part: gpu.encoding.attention(part), extra=True),
    "attention-alone": Plan(90, 0, lambda gpu, part: gpu.attention.alone(part), extra=True),
    "art-t5-base-torch": Plan(
        60, 0, lambda gpu, part: gpu.parts.art_peer(part, gpu.shapes.T5_BASE, 256), "art-t5-base"
    ),
    "art-t5-xl-torch": Plan(90, 0, lambda gpu, part: gpu.parts.art_peer(part, gpu.shapes.T5_XL, 64), "art-t5-xl"),
    **{
        f"options-{'tuned' if tuned else 'not-tuned'}-{level}": Plan(
            60,
            0,
            lambda gpu, part, tuned=tuned, level=level: gpu.compiling.with_options(part, tuned, level),
            extra=True,
        )
        for tuned in (False, True)
        for level in (0, 1, 3, 4)
    },
    **{
        f"layers-{kind}": Plan(60, 0, lambda gpu, part, kind=kind: gpu.compiling.layers(part, kind), extra=True)
        for kind in ("scanned", "unrolled")
    },
    **{
        f"threads-{number}": Plan(90, 0, lambda gpu, part, n=number: gpu.compiling.threads(part, n), extra=True)
        for number in (8, 4, 2, 1)
    },
}
# Names for several parts.
GROUPS = {
    group: [name for name in PLANS if name.startswith(f"{group}-")]
    for group in ("options", "layers", "threads", "encode-packed")
}


# ---- one part, in a process of its own -------------------------------------------------------------------------------


def child(args: argparse.Namespace) -> int:
    """Runs the part that --part names; returns 0, or 3 if memory ran out, or 1."""
    replace_progress_bars()
    import on_gpu.attention
    import on_gpu.compiling
    import on_gpu.encoding
    import on_gpu.parts
    from on_gpu.measuring import Part, first_line

    torch = None if args.compile_only else peers(args)
    part = Part(
        args.report,
        args.seconds,
        size=args.size,
        toy=args.toy,
        torch=torch,
        profile=args.profile,
        compile_only=args.compile_only,
    )
    try:
        PLANS[args.part].run(on_gpu, part)
    except Exception as error:
        traceback.print_exc()
        part.report("", error=first_line(error), traceback=traceback.format_exc()[-4000:])
        text = str(error).lower()
        return 3 if "resource_exhausted" in text or "out of memory" in text else 1
    return 0


class NoBar:
    """Stands in for tqdm's progress bar, which the encoding engine imports and does not show here."""

    def __init__(self, **_: object):
        pass

    def __enter__(self) -> "NoBar":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, _: int) -> None:
        """Nothing is shown."""


def replace_progress_bars() -> None:
    """Lets the engine run where tqdm is not installed."""
    try:
        import tqdm  # noqa: F401
    except ImportError:
        sys.modules["tqdm"] = module = ModuleType("tqdm")
        module.tqdm = NoBar  # pyright: ignore[reportAttributeAccessIssue]


def peers(args: argparse.Namespace) -> ModuleType | None:
    """The peers, if PyTorch is installed and uses the device that JAX uses."""
    import jax

    if args.no_torch:
        return None
    try:
        import torch

        if PLANS[args.part].peer_of:
            import transformers  # noqa: F401
    except Exception as error:  # A build for another system fails in ways of its own.
        print(f"    without PyTorch: {type(error).__name__}", flush=True)
        return None
    if jax.default_backend() == "gpu" and not torch.cuda.is_available():
        print("    without PyTorch: it does not see the GPU", flush=True)
        return None
    from on_gpu import torch_peers

    return torch_peers


# ---- all parts -------------------------------------------------------------------------------------------------------


def run_part(name: str, args: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Runs a part, at half the size and half of that again while memory runs out; returns what is recorded of it."""
    plan, size, torch = PLANS[name], 1.0, not args.no_torch
    began, attempts, cases = time.monotonic(), [], {}
    while True:
        seconds = min(plan.seconds * args.pace, deadline - time.monotonic())
        if seconds < (5 if args.toy else STARTUP):
            status = "out of time"
            break
        print(f"{name}: size {size:g}, {seconds:.0f} s", flush=True)
        code, lines = run_child(name, args, size, torch, seconds, plan.memory)
        cases |= {line["case"]: {**line, "size": size} for line in lines if line["case"]}
        error = next((line for line in lines if "error" in line), {})
        if code == 0:
            status = "done"
            break
        said = {name: error.get(name) for name in ("error", "traceback")}
        attempts.append({"size": size, "torch": torch, "code": code, **said})
        crashed = code is not None and code < 0
        if code is None:
            status = "out of time"
            break
        if not (code == 3 or crashed) or size <= SMALLEST:
            status = "failed"
            break
        # A crash can be the two frameworks' in one process.
        size, torch = size / 2, torch and not crashed
    return {
        "status": status,
        "cases": cases,
        "attempts": attempts,
        "seconds": round(time.monotonic() - began, 1),
    }


def compile_side_by_side(
    names: Sequence[str], args: argparse.Namespace, deadline: float
) -> dict[str, dict[str, float]]:
    """Compiles several parts' programs at the same time, each part in a process, and leaves them in the cache.

    Returns:
      part -> case -> seconds; what does not fit into the memory beside the others, or not into the time, is missing.
    """
    seconds = deadline - time.monotonic()
    chosen = [name for name in names if name not in NOT_BESIDE_OTHERS and not PLANS[name].peer_of]
    with ThreadPoolExecutor(max(1, len(chosen))) as pool:
        ran = pool.map(lambda name: run_child(name, args, 1.0, False, seconds, 0, compile_only=True)[1], chosen)
        found = {
            name: {line["case"]: line["compile"] for line in lines if "compile" in line}
            for name, lines in zip(chosen, ran, strict=True)
        }
    for name, cases in found.items():
        print(
            f"{name}: compiled beside the others in {', '.join(f'{each:.0f} s' for each in cases.values())}", flush=True
        )
    return found


def run_child(
    name: str,
    args: argparse.Namespace,
    size: float,
    torch: bool,
    seconds: float,
    memory: float,
    *,
    compile_only: bool = False,
) -> tuple[int | None, list[dict[str, Any]]]:
    """Runs a part's process; returns its exit code (None if it was stopped) and what it reported by then."""
    report = args.out / f"{name}.part"
    report.unlink(missing_ok=True)
    words = ["--part", name, "--report", report, "--size", size, "--seconds", max(1.0, seconds - STARTUP)]
    words += ["--out", args.out, *(["--toy"] if args.toy else []), *([] if torch else ["--no-torch"])]
    words += ["--profile"] if args.profile else []
    words += ["--compile-only"] if compile_only else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(args.out / "compiled")),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true" if memory else "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": str(memory or 0.92),
        **({"JAX_PLATFORMS": "cpu"} if PLANS[name].peer_of else {}),
    }
    process = subprocess.Popen([*args.python, __file__, *map(str, words)], env=environment)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = None
    except BaseException:
        process.kill()
        raise
    lines = report.read_text().splitlines() if report.exists() else []
    report.unlink(missing_ok=True)
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # The last line of a process that was stopped.
            found.append(json.loads(line))
    return code, found


def facts_of_machine(args: argparse.Namespace) -> dict[str, Any]:
    """Device, driver and versions; in a process of its own, since one that has asked for a GPU keeps memory of it."""
    code = "import json, jax; d = jax.devices()[0]; m = d.memory_stats() or {}; print(json.dumps([d.device_kind, jax.default_backend(), m.get('bytes_limit')]))"
    answer = subprocess.run([*args.python, "-c", code], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"jax found no device: {answer.stderr.strip().splitlines()[-1:]}; check the installation")
    device, backend, memory = json.loads(answer.stdout.splitlines()[-1])
    versions = {}
    for package in ("jax", "jaxlib", "flax", "numpy", "torch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    try:
        words = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        driver = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        driver = None
    from machine import describe

    return {
        "device": device,
        "backend": backend,
        "memory_bytes": memory,
        "nvidia_smi": driver,
        "host": describe(),
        "python": sys.version.split()[0],
        "versions": versions,
    }


def table(results: dict[str, Any]) -> str:
    """All cases as Markdown."""
    from on_gpu.table import table

    return table(results, {name: plan.peer_of for name, plan in PLANS.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if str(ROOT) not in sys.path:  # The package need not be installed.
        sys.path.insert(1, str(ROOT))
    parser.add_argument("--out", type=Path, required=True, help="folder of results.json and table.md")
    parser.add_argument(
        "--parts", nargs="+", choices=[*PLANS, *GROUPS], default=[name for name in PLANS if not PLANS[name].extra]
    )
    parser.add_argument("--again", action="store_true", help="also those that are done")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all parts (default: %(default)s)")
    parser.add_argument("--pace", type=float, default=1.0, help="of each part's seconds (default: %(default)s)")
    parser.add_argument("--peak-tflops", type=float, help="of the device, bfloat16 (default: by its name)")
    parser.add_argument("--peak-gbs", type=float, help="of its memory, 10^9 bytes a second (default: by its name)")
    parser.add_argument("--no-torch", action="store_true", help="leave the peers out")
    parser.add_argument("--profile", action="store_true", help="also the kernels that a call of each case took")
    parser.add_argument("--toy", action="store_true", help="tiny shapes, to try the program on a CPU")
    parser.add_argument(
        "--side-by-side", action="store_true", help="compile all parts' programs first, at the same time"
    )
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    for hidden, kind in (("--part", str), ("--report", Path), ("--size", float), ("--seconds", float)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--as-user", action="store_true", help="commands instead of parts; see --as-user --help")
    if "--as-user" in sys.argv:
        import as_user

        return as_user.main([word for word in sys.argv[1:] if word != "--as-user"])
    args = parser.parse_args()
    if args.part:
        sys.exit(child(args))
    args.parts = [part for name in args.parts for part in GROUPS.get(name, [name])]
    args.python = [sys.executable]
    deadline = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "results.json"
    machine = facts_of_machine(args)
    results: dict[str, Any] = {"parts": {}}
    if file.exists():
        results = json.loads(file.read_text())
        if results["machine"]["device"] != machine["device"] or results["toy"] != args.toy:
            sys.exit(f"{file}: results of {results['machine']['device']}; give another folder with --out")
    from on_gpu.formulas import peak_of

    known = peak_of(machine["device"])
    tflops, gbs = args.peak_tflops or (known and known.tflops), args.peak_gbs or (known and known.gbs)
    peak = {"tflops": tflops, "gbs": gbs} if tflops and gbs else None
    results |= {"machine": machine, "peak": peak, "toy": args.toy}
    left = [name for name in args.parts if args.again or results["parts"].get(name, {}).get("status") != "done"]
    compiled = compile_side_by_side(left, args, deadline) if args.side_by_side else {}
    for name in args.parts:
        if name not in left:
            print(f"{name}: done before; --again repeats it")
            continue
        results["parts"][name] = run_part(name, args, deadline)
        beside = compiled.get(name, {})
        for case, facts in results["parts"][name]["cases"].items():
            if case in beside:
                facts["compile"] = beside[case]
        print(f"{name}: {results['parts'][name]['status']}", flush=True)
        for path, text in ((file, json.dumps(results, indent=1)), (args.out / "table.md", table(results))):
            fresh = path.with_suffix(".new")
            fresh.write_text(text)
            fresh.replace(path)
    print(table(results))
    if any(results["parts"][name]["status"] != "done" for name in args.parts):
        sys.exit("not all parts are done; the same command goes on with the rest")


if __name__ == "__main__":
    main()
