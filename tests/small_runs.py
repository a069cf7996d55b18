"""The smallest runs that show what larger ones do: encoders of one layer, texts of 16 tokens, one compiled step a file.

The tests of guarantees (test_*_guarantees.py) share them, so that `make test` compiles each of these programs once. Their
corpus has 4,400 passages, 640 rows for each of eight devices: seven devices' rows are passages, at least in part, the last
device's are padding alone; and nothing else has that size, so that an array with scores of the whole corpus shows.
"""

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import tiny

from jaxretr.data.readers import read_corpus
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.backbones.bert import BertEncoder
from jaxretr.models.backbones.layers import Params, define
from jaxretr.models.backbones.t5 import T5Model
from jaxretr.models.hub.encoder_params import export_encoder
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.models.hub.t5_params import export_t5
from jaxretr.training.loop import train
from jaxretr.training.plan.compiled_text import Program

PASSAGES, ROWS, DEVICES = 4_400, 5_120, 8
LENGTH, SIZE = 16, tiny.BERT.hidden_size
# Of a device.
SHARD = ROWS // DEVICES

ENCODER = {"max_question_length": LENGTH, "max_passage_length": LENGTH}
INDEX = {"refresh_every": 2, "write_back": True, "block_rows": 8, "encode_rows": SHARD}
# Some biases have no gradient but rounding noise; with the usual eps Adam would take full steps along it. And nothing
# is clipped, so that Adam's first moment tells the gradient.
OPTIMIZER = {"learning_rate": 1e-2, "warmup": 0.0, "final": 1.0, "eps": 1e-5, "clip": 1e9, "weight_decay": 0.1}
TRAIN = {"steps": 4, "save_every": 2, "eval_every": 2, "best_metric": "acc@20"}


def write_models(folder: Path) -> None:
    """`encoder` and `scorer` of one layer, whose embeddings differ much from text to text."""
    texts = [f"{passage.title} {passage.text}" for passage in read_corpus(tiny.DATA)]
    bert = dataclasses.replace(tiny.BERT, num_hidden_layers=1)
    t5 = dataclasses.replace(tiny.T5, num_layers=1, num_decoder_layers=1)
    for name, kind, exported in (
        ("encoder", "bert", export_encoder(bert, drawn(lambda rngs: BertEncoder(bert, rngs=rngs), 1, 0.3))),
        ("scorer", "t5", export_t5(t5, drawn(lambda rngs: T5Model(t5, rngs=rngs), 2, 0.15))),
    ):
        tiny.write_tokenizer(kind, texts, folder / f"{name}_tokenizer")
        write_folder(folder / name, *exported, load_tokenizer(folder / f"{name}_tokenizer"))


def drawn(make: Callable[[Any], Any], seed: int, scale: float) -> Params:
    """Random parameters, by numpy: a program that draws them as models begin takes seconds to compile."""
    rng = np.random.default_rng(seed)

    def draw(path: Any, shape: Any) -> np.ndarray:
        around = 1.0 if path[-1].key == "scale" else 0.0
        return (around + scale * rng.normal(size=shape.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, define(make)[1])


def write_corpus(path: Path) -> str:
    """The test passages, and shuffled words of theirs up to `PASSAGES`."""
    known = list(read_corpus(tiny.DATA))
    words = sorted({word for passage in known for word in passage.text.split()})
    draws = random.Random(0)
    rows = [{"_id": passage.id, "title": passage.title, "text": passage.text} for passage in known]
    for number in range(PASSAGES - len(rows)):
        rows.append(
            {"_id": f"drawn {number}", "title": "", "text": " ".join(draws.sample(words, draws.randint(4, 12)))}
        )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def first_gradients(state: Any) -> dict[str, np.ndarray]:
    """The gradients of the step behind a run's first state: Adam's first moment is a tenth of them."""
    (adam,) = (
        part
        for part in jax.tree.leaves(state.train.opt_state, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState))
        if isinstance(part, optax.ScaleByAdamState)
    )
    return {jax.tree_util.keystr(path): 10 * np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(adam.mu)}


def assert_gradients_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """To 1e-5 of the largest element of all: float32 sums in another order."""
    assert found.keys() == expected.keys()
    largest = max(float(np.abs(leaf).max()) for leaf in expected.values())
    assert largest > 1e-3
    for name, leaf in expected.items():
        np.testing.assert_allclose(found[name], leaf, atol=1e-5 * largest, rtol=0, err_msg=name)


def compiled_step(run: Any, *arguments: Any) -> Program:
    """Compiles a run's step for these arguments, lets the run use that, and returns its text."""
    compiled = run.programs.step.lower(*arguments).compile({"xla_backend_optimization_level": 0})
    run.programs.step = compiled
    return Program(compiled.as_text())


def of_corpus_size(program: Program) -> set[tuple[int, ...]]:
    """The shapes of the arrays with a place for every row of the corpus, or of a device's part of it."""
    return {array.shape for array in program.arrays if {SHARD, ROWS} & set(array.shape)}


@contextmanager
def trained_by(run: Any) -> Iterator[None]:
    """`train` takes this run, with its compiled programs, for any config."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxretr.training.loop.build", lambda *_: run)
        yield


class Killed(Exception):
    """What ends a run in the middle of a step."""


def train_disturbed(run: Any, folder: Path, at: int, disturb: Any) -> None:
    """Trains until step `at` (counted from 0), which `disturb()` is called before."""
    step = run.step

    def disturbed(state: Any, number: int, batch: Any) -> Any:
        if number == at:
            disturb()
        return step(state, number, batch)

    run.step = disturbed
    try:
        with trained_by(run):
            train(run.config, folder)
    finally:
        run.step = step


def train_killed_once(kind: type, config: Any, folder: Path, at: int) -> Any:
    """Trains a run of this class until step `at` (counted from 0), which kills it; then to the end in the same folder.

    Returns:
      What `train` gives at the end.
    """
    step = kind.step

    def killed(run: Any, state: Any, number: int, batch: Any) -> Any:
        if number == at:
            raise Killed
        return step(run, state, number, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "step", killed)
        with pytest.raises(Killed):
            train(config, folder)
    return train(config, folder)
