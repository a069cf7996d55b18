"""Every system's step compiled for slices of TPUs, ahead of time and with no TPU at hand: it fits, and talks as designed."""

import dataclasses
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import tiny

REPOSITORY = Path(__file__).parents[3]
KNOWN = Path(__file__).parents[2] / "data/compiled_for_tpus.json"
SYSTEMS = ("art", "dpr", "dpr_retrieved", "spar_lexical", "spar_joint", "ddr_dam", "ddr_rem", "typos")
KINDS = ("all-reduce", "reduce-scatter", "all-gather")
HERE, ELSEWHERE = "v5e:4x4", ("v5e:8x8", "v5p:2x2x2")
CHIPS = {"v5e:4x4": 16, "v5e:8x8": 64, "v5p:2x2x2": 8}

# ART on one slice is in the quick part; lowering the others takes two minutes.
on_each_slice = pytest.mark.parametrize(
    ("system", "slice_name"),
    [
        pytest.param(system, place, marks=() if (system, place) == ("art", HERE) else pytest.mark.slow)
        for place in CHIPS
        for system in SYSTEMS
    ],
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="compiling for TPUs needs libtpu: pip install -r requirements-dev.txt",
)


# (what stands before a plan's name, slices, systems, programs, settings): each is one process, started when a test first
# asks for one of its plans. The first and the last are in the quick part, so they hold a single system.
_LARGE = ("dpr_retrieved", "spar_lexical")  # In small chunks nothing of them is larger than the index.
_PARTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str, tuple[str, ...]], ...] = (
    ("", (HERE,), ("art",), "step", ()),
    ("", (HERE,), tuple(name for name in SYSTEMS if name not in ("art", *_LARGE)), "step", ()),
    ("", (HERE,), _LARGE, "step", ("--contrastive.chunk", "32")),
    ("", ELSEWHERE, tuple(name for name in SYSTEMS if name != "ddr_dam"), "step", ("--encoder.dropout", "0")),
    ("", ELSEWHERE, ("ddr_dam",), "step", ()),
    ("refresh of ", (HERE,), ("art",), "refresh", ()),
)


class _Plans(dict[str, dict[str, Any]]):
    """ "system slice" -> the plan of its step, made when it is asked for."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder
        self.known = Path(os.environ.get("JAXRETR_KNOWN_PROGRAMS", folder / KNOWN.name))
        if not self.known.exists():
            shutil.copy(KNOWN, self.known)

    def __missing__(self, name: str) -> dict[str, Any]:
        if name.endswith(ELSEWHERE) and not os.environ.get("JAXRETR_ALL_SLICES"):
            pytest.skip("JAXRETR_ALL_SLICES=1 compiles for the other slices, which takes up to half an hour")
        for prefix, slices, systems, programs, settings in _PARTS:
            if name not in {f"{prefix}{system} {place}" for system in systems for place in slices}:
                continue
            words = ["--topologies", ",".join(slices), "--systems", ",".join(systems), "--programs", programs]
            planned, errors = plan_table(self.folder, *words, "--known", str(self.known), *settings)
            if "compiled anew: 0 programs" not in errors:
                warnings.warn(f"not among {KNOWN}, hence compiled: {errors[-2000:]}", stacklevel=1)
            self.update({prefix + key: plan for key, plan in planned.items()})
            return self[name]
        raise KeyError(name)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> _Plans:
    """ "system slice" -> the plan of its step, in processes of their own: loading libtpu changes how JAX finds devices.

    Every program is lowered here. One that KNOWN has, by the sha256 of its lowered text and of the compiler, is not compiled
    again: that takes minutes each. A changed one is; without the file all are.

    As published on one slice. With JAXRETR_ALL_SLICES=1 on others, too, without dropout, whose random numbers are half the
    time that compiling takes and change memory by some percent.
    """
    return _Plans(tmp_path_factory.mktemp("plans"))


def plan_table(folder: Path, *words: str) -> tuple[dict[str, Any], str]:
    """What benchmarks/plan_table.py finds, and what it writes to stderr."""
    command = [sys.executable, str(REPOSITORY / "benchmarks/plan_table.py"), "--json", str(folder / "plans.json")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    # One program at a time: some take 8 GiB to compile.
    done = subprocess.run(
        [*command, "--threads", "1", *words], env=environment, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    return json.loads((folder / "plans.json").read_text()), done.stderr


def step_of(plans: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    return next(program for program in plans[name]["programs"] if program["name"] == "step")


def reduced(step: dict[str, Any]) -> int:
    """Elements of float32 that are reduced over the devices."""
    return step["reduced_floats"]


@pytest.mark.slow
def test_the_compiler_still_says_so(plans: Any, tmp_path: Path) -> None:
    """One program, compiled here and now, is what the file knows of it."""
    recorded = plans["ddr_rem v5e:8x8"]
    words = ("--systems", "ddr_rem", "--topologies", "v5e:8x8", "--programs", "step", "--encoder.dropout", "0")
    planned, _ = plan_table(tmp_path, *words)
    assert planned["ddr_rem v5e:8x8"] == recorded


@on_each_slice
def test_every_systems_step_fits(plans: Any, system: str, slice_name: str, record_property: Any) -> None:
    planned, step = plans[f"{system} {slice_name}"], step_of(plans, f"{system} {slice_name}")
    record_property(f"{slice_name}, {system}", f"{step['peak'] / 2**30:.2f} GiB a chip")
    assert planned["chips"] == CHIPS[slice_name] and step["fits"]
    assert not any(collective["in_loop"] for collective in step["collectives"])
    assert step["loops"] >= 1
    # Weights, both moments of AdamW, and the index stay in their places.
    state = ("parameters", "frozen parameters", "optimizer state", "index embeddings", "table of scores")
    overwritten = sum(step["groups"].get(name, 0) for name in state)
    assert math.isclose(step["aliased"], overwritten, rel_tol=0.01)


@pytest.mark.parametrize(
    ("system", "passages"),
    [("art", 21_015_324), pytest.param("dpr_retrieved", 8_841_823, marks=pytest.mark.slow)],
)
def test_nothing_is_larger_than_the_indexs_shard(plans: Any, system: str, passages: int) -> None:
    """Never scores of all questions and passages."""
    rows = -(-passages // 1024) * 1024 // 16
    assert step_of(plans, f"{system} {HERE}")["largest_array"] == rows * 768


def test_a_refresh_needs_no_other_device(plans: Any) -> None:
    (refresh,) = plans["refresh of art v5e:4x4"]["programs"]
    assert refresh["fits"] and refresh["loops"] > 1 and refresh["collectives"] == []
    assert refresh["largest_array"] == -(-21_015_324 // 1024) * 1024 // 16 * 768


@on_each_slice
def test_gradients_are_reduced_once(plans: Any, system: str, slice_name: str) -> None:
    """Each trained parameter once, and beside them what questions and passages owe to each other's devices."""
    step = step_of(plans, f"{system} {slice_name}")
    embeddings = {
        "art": 64
        * 64
        * 32,  # of each question what each of up to 64 devices has found, where it is reduced, not gathered
        "ddr_dam": 0,
        "spar_joint": 128 * 4 * 1536,
        "spar_lexical": 2048 * 5 * 768,
        "dpr_retrieved": 1024 * 6 * 768,
    }.get(system, 128 * 10 * 768)
    # What is split is added up in two steps, over the columns of a rectangle of chips and then, a part of it, over the rows.
    height = {16: 4, 64: 8, 8: 2}[CHIPS[slice_name]]
    of_parts = split_elements(step, CHIPS[slice_name])
    assert 0 <= reduced(step) - step["groups"]["parameters"] // 4 - of_parts / height <= embeddings + 8


@on_each_slice
def test_the_moments_are_split_and_so_are_the_gradients(plans: Any, system: str, slice_name: str) -> None:
    """Scattered, not reduced to all chips; each parameter whose moments are split comes back once.

    All but word embeddings: libtpu 0.0.42 reduces a table to all chips. Of small modules it may do so with more.
    """
    step = step_of(plans, f"{system} {slice_name}")
    of_parts = 4 * split_elements(step, CHIPS[slice_name])
    assert of_parts > 0.9 * step["groups"]["parameters"]
    sent = {kind: sum(each["bytes"] for each in step["collectives"] if each["kind"] == kind) for kind in KINDS}
    assert sent["all-gather"] >= of_parts
    if of_parts > 2**28:
        assert sent["reduce-scatter"] > 0.75 * of_parts and sent["all-reduce"] < 0.4 * of_parts


def split_elements(step: dict[str, Any], chips: int) -> float:
    """Parameters whose moments are split: each chip has a part of theirs, and all of the others'."""
    moments = 2 * step["groups"]["parameters"]
    return (moments - step["groups"]["optimizer state"] + 8) / (1 - 1 / chips) / 8


@pytest.mark.slow
def test_frozen_parameters_are_never_sent(plans: Any) -> None:
    """A relevance module's gradients are a tenth of the encoder's; a frozen lexical encoder has none."""
    module, joint = (step_of(plans, f"{system} {HERE}") for system in ("ddr_rem", "spar_joint"))
    assert reduced(module) * 4 < 1.5 * module["groups"]["parameters"] < 0.3 * module["groups"]["frozen parameters"]
    assert joint["groups"]["frozen parameters"] > 4 * 100e6
    # A quarter is added up a second time, see test_gradients_are_reduced_once.
    assert reduced(joint) * 4 < 1.26 * joint["groups"]["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("slice_name", ELSEWHERE)
@pytest.mark.parametrize("system", SYSTEMS)
def test_other_slices_change_what_is_shared_and_nothing_else(plans: Any, system: str, slice_name: str) -> None:
    """Corpus, index, batch and moments fall as one by the chips; weights and the work stay."""
    one, other = (step_of(plans, f"{system} {name}") for name in (HERE, slice_name))
    for name in ("parameters", "frozen parameters", "scorer"):
        assert one["groups"].get(name) == other["groups"].get(name)
    # Both moments in float32, as the parameters are: of some a part for each chip, of the others all.
    moments = 2 * one["groups"]["parameters"]
    shared = (moments - one["groups"]["optimizer state"]) / (1 - 1 / CHIPS[HERE])
    expected = moments - shared * (1 - 1 / CHIPS[slice_name])
    assert other["groups"]["optimizer state"] == pytest.approx(expected, rel=0.001) < 0.16 * moments
    for name in ("corpus tokens", "index embeddings", "batch"):
        of_all = [step["groups"].get(name, 0) * CHIPS[place] for step, place in ((one, HERE), (other, slice_name))]
        # Rows are padded to a multiple of the devices.
        assert of_all[0] == pytest.approx(of_all[1], rel=0.001)
    assert one["flops"] == pytest.approx(other["flops"], rel=0.01)


# ---- what reads and writes the index in one step ---------------------------------------------------------------------

# The name of the plan, and the program: index bytes of a chip, and temporaries.
INDEX_PROGRAMS = """
import json, sys
from pathlib import Path
from jaxretr.runtime.parallel.tpu_environment import compile_for_tpus
compile_for_tpus()
from jaxretr.training.plan.requirements import plan
import tiny
folder, rolling = Path(sys.argv[1]), {"refresh": "rolling", "refresh_every": 100, "write_back": True, "dtype": "bfloat16"}
common = dict(index=rolling | {"block_rows": 16384}, train={"batch_size": 32, "steps": 10})
of_corpus = dict(data={"corpus": str(tiny.DATA)}, contrastive={"corpus_softmax": True}, negatives={"retrieved": 2})
for name, config in (("art", tiny.art_config(folder, **common)), ("dpr", tiny.contrastive_config(folder, **common | of_corpus))):
    for program in plan(config, "v5e:4x4", 16_000_000, programs=["step", "rolling", "refresh"]).programs:
        print(json.dumps([name, program.name, program.groups["index embeddings"], program.temporaries, program.aliased]))
"""


def test_no_program_copies_the_index(tmp_path: Path) -> None:
    """A step searches the index, sums over it and writes to it; slices and the whole are encoded in their places.

    A million rows of 128 on each chip: a copy would be larger than all else that a program holds.
    """
    tiny.write_models(tmp_path, bert=dataclasses.replace(tiny.BERT, hidden_size=128, num_attention_heads=1))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    words = [sys.executable, "-c", INDEX_PROGRAMS, str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(system, name) for system, name, *_ in found} == {
        (system, name) for system in ("art", "dpr") for name in ("step", "rolling", "refresh")
    }
    for system, name, index, temporaries, aliased in found:
        assert index > 250e6
        assert temporaries < index / 2, (system, name, temporaries / index)
        # A refresh of everything reads nothing of the steps at which rows were encoded.
        assert aliased > 0.98 * (index - (name == "refresh") * 4_000_000), (system, name)
