"""How communication and memory change with the number of devices, read off the compiled programs of 1, 2, 4 and 8.

A pod is worth its chips only if what each holds and works on falls with their number, and what it sends does not rise.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny import BERT, art_config, contrastive_config

from jaxretr.config import Config, MlmConfig, PretrainData, Train
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import outline
from jaxretr.training.plan.compiled_text import Array, Program
from jaxretr.training.plan.requirements import CPU_OPTIONS, shard_bytes
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.steps.teaching import Work

DEVICES = (1, 2, 4, 8)
B, D, K, N = 64, BERT.hidden_size, 4, 1 << 14
SYSTEMS = ("art", "in-batch", "retrieved", "mlm")


@dataclass(frozen=True)
class Compiled:
    """One program on some devices."""

    text: Program
    temporaries: int
    groups: dict[str, int]
    parameters: Counter
    """The shapes of what is trained."""

    def gathered(self, dtype: str) -> list[Array]:
        return [array for op in self.text.of_kind("all-gather") for array in op.results if array.dtype == dtype]


@pytest.fixture(scope="module")
def compiled(tiny_models: Path) -> Any:
    """compiled(system, devices, program, rows of the corpus) -> Compiled."""
    # All of a device's rows at once, so that what they need in the step shows.
    whole: dict[str, Any] = {"train": {"batch_size": B}, "encoder": {"max_passage_length": 32}}
    chunk: dict[str, object] = {"chunk": B * K}
    configs: dict[str, Config] = {
        "art": art_config(tiny_models, **whole, art=chunk, scorer=chunk),
        "in-batch": contrastive_config(tiny_models, **whole, contrastive=chunk),
        "retrieved": contrastive_config(
            tiny_models, **whole, contrastive=chunk, negatives={"retrieved": 1, "last_rank": 10}
        ),
        "mlm": MlmConfig(
            name="mlm",
            start=str(tiny_models / "encoder"),
            data=PretrainData(corpora=(), max_length=32, held_out=0),
            train=Train(batch_size=B),
        ),
    }

    @cache
    def compile(system: str, devices: int, program: str = "step", rows: int = N) -> Compiled:
        mesh = make_mesh(jax.devices()[:devices])
        run = outline(configs[system], mesh, CorpusSize(rows, rows, "for a test"))
        planned: Any = next(planned for planned in run.programs if planned.name == program)
        done = planned.program.lower(*planned.arguments).compile(CPU_OPTIONS)
        return Compiled(
            Program(done.as_text()),
            done.memory_analysis().temp_size_in_bytes,
            {name: sum(map(shard_bytes, jax.tree.leaves(tree))) for name, tree in planned.groups.items()},
            Counter(tuple(leaf.shape) for leaf in jax.tree.leaves(run.resident["parameters"])),
        )

    return compile


@pytest.mark.parametrize("system", SYSTEMS)
def test_gradients_are_the_only_large_reduction_whatever_the_number_of_devices(compiled: Any, system: str) -> None:
    """Each parameter's gradient once a step: their bytes, and a few scalars; twice the devices send no more each.

    ART also adds up a number per pair of the batch twice: the teacher's scores that the table knows, and those that the
    devices have just computed, with the counts of their work.
    """
    small = Counter([(B, K), (B * K + len(Work._fields),)] if system == "art" else [])
    for devices in DEVICES[1:]:
        step = compiled(system, devices)
        reduced = [array for op in step.text.of_kind("all-reduce") for array in op.results if array.dtype == "f32"]
        assert Counter(array.shape for array in reduced if array.shape) == step.parameters + small
        assert len([array for array in reduced if not array.shape]) <= 5
        assert not any(op.in_loop for op in step.text.collectives)
        gradients = sum(array.bytes for array in reduced if array.shape and array.shape not in small)
        assert gradients == step.groups["parameters"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_rows_fall_as_one_by_the_devices_and_parameters_stay(compiled: Any, system: str) -> None:
    one = compiled(system, 1).groups
    for devices in DEVICES[1:]:
        groups = compiled(system, devices).groups
        for name in ("parameters", "optimizer state", "scorer"):
            assert groups.get(name) == one.get(name)
        for name in ("index embeddings", "batch"):
            assert groups.get(name, 0) * devices == one.get(name, 0)
        # Each device rounds the ids of its rows up, for each tokenizer that reads them.
        room = 4096 * np.dtype(np.uint16).itemsize * {"art": 2, "mlm": 0}.get(system, 1)
        assert 0 <= groups.get("corpus tokens", 0) * devices - one.get("corpus tokens", 0) <= (devices - 1) * room


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_steps_activations_fall_as_one_by_the_devices(compiled: Any, system: str) -> None:
    """Twice the devices, half the temporaries of each: between 1.6 and 2.5, for blocks and gradients have sizes of their own."""
    memory = [compiled(system, devices).temporaries for devices in DEVICES]
    for before, after in pairwise(memory):
        assert 1.6 < before / after < 2.5


@pytest.mark.parametrize("devices", DEVICES[1:])
def test_a_search_gathers_k_candidates_a_device_and_nothing_of_the_corpuss_size(compiled: Any, devices: int) -> None:
    """Scores and rows of k candidates from every device for each question, and the questions themselves."""
    questions, k = 128, 100
    for rows in (N, 2 * N):
        search = compiled("art", devices, "search", rows)
        scores, numbers = search.gathered("f32"), search.gathered("s32")
        candidates = [array for array in scores if array.elements != questions * D]
        assert sum(array.bytes for array in candidates) == 4 * devices * k * questions
        assert sum(array.bytes for array in numbers) == 4 * devices * k * questions
        assert sum(array.bytes for array in scores) - sum(array.bytes for array in candidates) == 4 * questions * D
        assert {op.kind for op in search.text.collectives} == {"all-gather"}


@pytest.mark.parametrize("devices", DEVICES[1:])
def test_in_batch_negatives_gather_the_batchs_embeddings(compiled: Any, devices: int) -> None:
    """B passages of D numbers, on any number of devices; each device's questions stay where they are."""
    gathered = compiled("in-batch", devices).gathered("f32")
    assert sum(array.bytes for array in gathered) == B * D * 4


@pytest.mark.parametrize("devices", DEVICES[1:])
def test_retrieved_negatives_cost_a_search_and_their_own_embeddings(compiled: Any, devices: int) -> None:
    """Beside the batch's embeddings (a passage more each): the questions for the search, and its candidates' scores."""
    gathered = compiled("retrieved", devices).gathered("f32")
    depth = 10
    assert sum(array.bytes for array in gathered) == 4 * (2 * B * D + B * D + devices * depth * B)


@pytest.mark.parametrize("devices", DEVICES[1:])
def test_masked_language_modelling_sends_gradients_alone(compiled: Any, devices: int) -> None:
    assert {op.kind for op in compiled("mlm", devices).text.collectives} == {"all-reduce"}
