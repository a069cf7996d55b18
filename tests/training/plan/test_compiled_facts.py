"""Programs that were compiled before are not compiled again; others are, whatever a file says."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from tiny import art_config

from jaxretr.training.plan.compiled_facts import CompiledFacts, compile_facts
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.plan.requirements import plan
from jaxretr.training.plan.topologies import at_hand
from jaxretr.training.runs.corpus_sizes import corpus_size

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import known_programs
from known_programs import KnownPrograms, fingerprint

sys.path.pop(0)


def lowered(rows: int = 8):
    shape = jax.ShapeDtypeStruct((rows, 4), jnp.float32)
    return jax.jit(lambda x: (x @ x.T).sum()).lower(shape)


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing may be compiled."""

    def compiled(*_: object) -> CompiledFacts:
        raise AssertionError("compiled again")

    monkeypatch.setattr(known_programs, "compile_facts", compiled)


def test_a_plan_from_a_file_is_the_compiled_one(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, file = art_config(tiny_models), tmp_path / "known.json"
    words = config, at_hand(), corpus_size(config)
    compiled = plan(*words)
    known = KnownPrograms(file)
    assert plan(*words, facts_of=known.facts) == compiled
    # A refresh and an evaluation encode by one program.
    assert len(json.loads(file.read_text())) == len(known.compiled) == len(compiled.programs) - 1
    refuse(monkeypatch)
    again = KnownPrograms(file)
    assert plan(*words, facts_of=again.facts) == compiled and again.compiled == []
    with pytest.raises(AssertionError, match="compiled again"):
        plan(art_config(tiny_models, art={"chunk": 1}), *words[1:], facts_of=KnownPrograms(file).facts)


def test_the_peak_has_the_temporaries() -> None:
    """The second product reads the first, and both exist with the two arguments; XLA's own peak on CPUs lacks the first."""
    matrix, size = jax.ShapeDtypeStruct((256, 256), jnp.float32), 4 * 256**2
    facts = compile_facts(jax.jit(lambda a, b: jnp.tanh(a @ b) @ b).lower(matrix, matrix), None, "cpu")
    assert facts.arguments == 2 * size and facts.temporaries is not None and facts.temporaries >= size
    assert facts.peak >= facts.arguments + facts.temporaries + size


def test_another_program_target_or_option_is_another_fingerprint() -> None:
    keys = [
        fingerprint(lowered(), None, "v5e:4x4"),
        fingerprint(lowered(16), None, "v5e:4x4"),
        fingerprint(lowered(), None, "v5e:8x8"),
        fingerprint(lowered(), {"xla_backend_optimization_level": 0}, "v5e:4x4"),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == fingerprint(lowered(), None, "v5e:4x4")


def test_another_compiler_is_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    key = fingerprint(lowered(), None, "v5e:4x4")
    monkeypatch.setattr(known_programs.metadata, "version", lambda name: "999")
    assert fingerprint(lowered(), None, "v5e:4x4") != key


def test_that_a_compiler_gave_up_is_known_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "known.json"
    monkeypatch.setattr(known_programs, "compile_facts", lambda *_: CompiledFacts(20 * 2**30))
    KnownPrograms(file).facts(lowered(), None, "v5e:4x4")
    refuse(monkeypatch)
    facts = KnownPrograms(file).facts(lowered(), None, "v5e:4x4")
    assert facts == CompiledFacts(20 * 2**30) and facts.temporaries is None


def test_without_a_file_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownPrograms()
    known.facts(lowered(), None, "cpu")
    refuse(monkeypatch)
    with pytest.raises(AssertionError, match="compiled again"):
        known.facts(lowered(), None, "cpu")


GPU_TEXT = """
%cond (c: (s32[], f32[4])) -> pred[] {
}
%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {
}
%fused (f: f32[8,16]) -> f32[8] {
}
ENTRY %main (p: f32[8,16]) -> f32[1,16] {
  %a-start = ((f32[8,16]{1,0}), f32[1,16]{1,0}) reduce-scatter-start(%p), replica_groups={{0,1,2,3,4,5,6,7}}
  %loop = (s32[], f32[4]{0}) while(%t), condition=%cond, body=%body
  %a-done = f32[1,16]{1,0} reduce-scatter-done(%a-start)
  %b-start = (f32[1,16]{1,0}, f32[8,16]{1,0}) all-gather-start(%a-done), replica_groups={{0,1,2,3,4,5,6,7}}
  %copied = f32[8]{0} fusion(%p), kind=kLoop, calls=%fused
  %b-done = f32[8,16]{1,0} all-gather-done(%b-start)
  %c = f32[16]{0} all-reduce(%p), replica_groups={{0,1,2,3,4,5,6,7}}
}
"""


def test_a_collective_beside_a_loop_is_overlapped() -> None:
    """The halves of an asynchronous one count once, with the bytes of the whole array; a copy between them is no work."""
    found = [(each.kind, each.bytes, each.overlapped) for each in Program(GPU_TEXT).collectives]
    assert found == [("reduce-scatter", 512, True), ("all-gather", 512, False), ("all-reduce", 64, False)]
