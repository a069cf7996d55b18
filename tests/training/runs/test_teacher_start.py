"""What a plan takes a teacher to be is what a run loads."""

from pathlib import Path

import jax
import pytest
from pair_models import make_model
from tiny import art_config

from jaxretr.training.runs.teacher_start import load_teacher, stored, teacher_shape


@pytest.mark.parametrize("kind", ["scorer", "bert", "qwen3_lm"])
def test_a_plan_has_the_teacher_of_the_run(kind: str, tiny_models: Path, tmp_path: Path) -> None:
    """In bfloat16: what a pair's teacher keeps in float32 is no more in a plan than on the devices."""
    path = tiny_models / kind if kind == "scorer" else make_model(kind, tmp_path)
    config = art_config(tiny_models, scorer={"path": str(path), "dtype": "bfloat16", "max_length": 64}).scorer
    loaded, shape = load_teacher(config), teacher_shape(config)
    assert shape.teacher == loaded.teacher
    assert (shape.passage_length, shape.question_length) == (loaded.passage_length, loaded.question_length)

    def arrays(params: object) -> object:
        return jax.tree.map(lambda x: (x.shape, str(x.dtype)), params)

    on_devices = arrays(stored(loaded.teacher, loaded.params, "bfloat16"))
    planned = jax.eval_shape(lambda params: stored(shape.teacher, params, "bfloat16"), shape.teacher.abstract_params())
    assert arrays(planned) == on_devices
    assert "bfloat16" in str(on_devices) and ("float32" in str(on_devices)) == (kind != "scorer")
