"""Compiles a training step for 16 TPU v5e chips, with no TPU at hand, and prints what it needs as JSON.

Two BERT-base towers over 21,015,324 passages of Wikipedia. ART at the paper's size: a T5 of 3B parameters (T0-3B,
T5-XL), 64 questions a step with 32 passages each; and the refresh. The contrastive step with 1024 questions, each with
a positive, a static and a retrieved negative. All arrays are abstract, so this takes little memory.

Run it in a process of its own: python tests/aot_tpu.py [--objective contrastive] [--model N]. Loading libtpu changes
how JAX finds devices.
"""

import argparse
import json
import os
import sys
import time
from functools import partial
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
# No chip is touched, so that other processes may have libtpu loaded too; its lock file is for those that run on chips.
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"

import jax
import jax.numpy as jnp
from hlo_text import Program
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from jaxretr import optim
from jaxretr.config import Optimizer
from jaxretr.models.bert import BertConfig
from jaxretr.models.dual_encoder import DualEncoderConfig, abstract_params
from jaxretr.models.layers import define
from jaxretr.models.scorer import Prompt
from jaxretr.models.t5 import T5Config, T5Model
from jaxretr.objectives import contrastive
from jaxretr.objectives.art import ArtProgram, QuestionBatch, make_step
from jaxretr.objectives.contrastive import ContrastiveBatch, ContrastiveProgram
from jaxretr.objectives.live_index import make_refresh
from jaxretr.parallel import sharding
from jaxretr.parallel.mesh import make_mesh, padded_rows
from jaxretr.state import CorpusState, CorpusTokens, TrainState

PASSAGES, WIDTH, SIZE = 21_015_324, 256, 768
QUESTIONS, TOP_K = 64, 32
CONTRASTIVE_QUESTIONS = 1024
T5_XL = T5Config(d_model=2048, d_kv=64, d_ff=5120, num_heads=32, num_layers=24, num_decoder_layers=24)
# The length of T5's own ids of the instruction; which ids they are changes nothing here.
PROMPT = Prompt(prefix=(3, 4, 5, 6), suffix=(*range(3, 15), 1))
# The compiler then spends a sixth of the time, and finds about the same use of memory.
QUICK = {"exec_time_optimization_effort": -1.0}


def program() -> ArtProgram:
    return ArtProgram(
        encoder=DualEncoderConfig(BertConfig()),
        t5=T5_XL,
        prompt=PROMPT,
        corpus_rows=PASSAGES,
        top_k=TOP_K,
        temperature=SIZE**0.5,
        teacher_temperature=1.0,
        write_back=True,
        shuffle_teacher=False,
        teacher_chunk=16,
        block_rows=16384,
        encode_rows=512,
        chunk=32,
        encoder_dtype="bfloat16",
        scorer_dtype="bfloat16",
        seed=0,
    )


def contrastive_program() -> ContrastiveProgram:
    return ContrastiveProgram(
        encoder=DualEncoderConfig(BertConfig()),
        encoder_dtype="bfloat16",
        corpus_rows=PASSAGES,
        block_rows=16384,
        encode_rows=512,
        seed=0,
        positives=1,
        retrieved=1,
        first_rank=1,
        last_rank=100,
        draw="random",
        margin=None,
        mask_known_positives=True,
        mask_duplicates=True,
        temperature=1.0,
        symmetric=False,
        corpus_softmax=False,
        sizes=(SIZE,),
        chunk=32,
        write_back=True,
        distillation="none",
        distillation_weight=1.0,
        contrastive_weight=1.0,
        teacher_temperature=1.0,
    )


def compile_contrastive(mesh: Mesh) -> dict[str, Any]:
    """Compiles the contrastive step; returns name -> its compiled form."""
    settings, optimizer = contrastive_program(), optim.build(Optimizer(), 1000)
    array = partial(_rows, mesh)
    train = jax.eval_shape(lambda: TrainState.create(_zeros(abstract_params(settings.encoder)), optimizer))
    n, b = padded_rows(PASSAGES, mesh), CONTRASTIVE_QUESTIONS
    step = contrastive.make_step(settings, optimizer, mesh).lower(
        sharding.abstract(train, mesh),
        CorpusState(array(jnp.bfloat16, n, SIZE), array(jnp.int32, n)),
        CorpusTokens(array(jnp.uint16, n, WIDTH), array(jnp.int32, n)),
        array(jnp.int32, n),
        ContrastiveBatch(
            array(jnp.uint16, b, 16), array(jnp.int32, b), array(jnp.int32, b, 2), array(jnp.int32, b, 4), None
        ),
    )
    return {"step": step.compile(QUICK)}


def _rows(mesh: Mesh, dtype: Any, *shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, sharding.ROWS))


def compile_art(mesh: Mesh) -> dict[str, Any]:
    """Compiles both programs of ART; returns name -> their compiled forms."""
    array = partial(_rows, mesh)
    art, optimizer = program(), optim.build(Optimizer(), 1000)
    train = jax.eval_shape(lambda: TrainState.create(_zeros(abstract_params(art.encoder)), optimizer))
    state = sharding.abstract(train, mesh)
    t5 = define(lambda rngs: T5Model(art.t5, rngs=rngs))[1]
    t5 = sharding.abstract(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), t5), mesh)
    n = padded_rows(PASSAGES, mesh)
    index = CorpusState(array(jnp.bfloat16, n, SIZE), array(jnp.int32, n))
    tokens = CorpusTokens(array(jnp.uint16, n, WIDTH), array(jnp.int32, n))
    batch = QuestionBatch(
        array(jnp.uint16, QUESTIONS, 64),
        array(jnp.int32, QUESTIONS),
        array(jnp.uint16, QUESTIONS, 64),
        array(jnp.int32, QUESTIONS),
    )
    step = make_step(art, optimizer, mesh).lower(state, index, tokens, tokens, t5, batch)
    refresh = make_refresh(art, mesh).lower(state.params, tokens, index, state.step)
    return {"step": step.compile(QUICK), "refresh": refresh.compile(QUICK)}


def _zeros(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)


def describe(compiled: Any) -> dict[str, Any]:
    """What the test asks about: GiB a chip, collectives, the largest array."""
    hlo, memory = Program(compiled.as_text()), compiled.memory_analysis()
    return {
        "peak_gib": memory.peak_memory_in_bytes / 2**30,
        "arguments_gib": memory.argument_size_in_bytes / 2**30,
        "aliased_gib": memory.alias_size_in_bytes / 2**30,
        "loops": hlo.loops,
        "in_loops": sorted({collective.kind for collective in hlo.collectives if collective.in_loop}),
        "reduced": sum(
            array.elements for op in hlo.of_kind("all-reduce") for array in op.results if array.dtype == "f32"
        ),
        "largest_array": max(array.elements for array in hlo.arrays),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=int, default=1, help="chips that one copy of the large matrices is split over")
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--objective", choices=("art", "contrastive"), default="art")
    args = parser.parse_args()
    devices = topologies.get_topology_desc(args.topology, "tpu").devices
    mesh = make_mesh(devices, model=args.model)
    started = time.perf_counter()
    programs = (compile_art if args.objective == "art" else compile_contrastive)(mesh)
    result: dict[str, Any] = {name: describe(compiled) for name, compiled in programs.items()}
    params = jax.tree.leaves(abstract_params(program().encoder))
    result |= {
        "chips": len(devices),
        "parameters": sum(leaf.size for leaf in params),
        "shard_rows": padded_rows(PASSAGES, mesh) // (len(devices) // args.model),
        "seconds": time.perf_counter() - started,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
