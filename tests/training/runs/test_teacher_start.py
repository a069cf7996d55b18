"""What a plan takes a teacher to be is what a run loads."""

from pathlib import Path

import jax
import pytest
from pair_models import make_model
from tiny import art_config

from jaxretr.models.scorers.teachers import Teacher
from jaxretr.training.runs.art import note_temperature
from jaxretr.training.runs.teacher_start import load_teacher, stored, teacher_shape

SETTINGS = [("published", 1.0, 0.0), ("suited", 0.2, 1.0)]


@pytest.mark.parametrize("kind", ["scorer", "bert", "qwen3_lm"])
def test_a_plan_has_the_teacher_of_the_run(
    kind: str, tiny_models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In bfloat16: what a pair's teacher keeps in float32 is no more in a plan than on the devices."""
    path = tiny_models / kind if kind == "scorer" else make_model(kind, tmp_path)
    config = art_config(tiny_models, scorer={"path": str(path), "dtype": "bfloat16", "max_length": 64}).scorer
    loaded, shape = load_teacher(config), teacher_shape(config)
    assert shape.teacher == loaded.teacher

    def advice(teacher: Teacher, temperature: float, prior: float) -> str:
        caplog.clear()
        caplog.set_level("INFO")
        art = {"teacher_temperature": temperature, "prior_weight": prior}
        note_temperature(art_config(tiny_models, art=art, scorer={"path": str(path)}), teacher)
        return "".join(caplog.messages)

    told = {name: advice(loaded.teacher, temperature, prior) for name, temperature, prior in SETTINGS}
    if kind == "scorer":
        assert not any(told.values())
    elif kind == "bert":
        assert all("compare a few values" in line for line in told.values())
    else:
        assert all("; 0.2 and 1 with art.prior=start suited SmolLM2" in line for line in told.values())
        assert "teacher_temperature=1, with art.prior_weight=0," in told["published"]
    assert (shape.passage_length, shape.question_length) == (loaded.passage_length, loaded.question_length)

    def arrays(params: object) -> object:
        return jax.tree.map(lambda x: (x.shape, str(x.dtype)), params)

    on_devices = arrays(stored(loaded.teacher, loaded.params, "bfloat16"))
    planned = jax.eval_shape(lambda params: stored(shape.teacher, params, "bfloat16"), shape.teacher.abstract_params())
    assert arrays(planned) == on_devices
    assert "bfloat16" in str(on_devices) and ("float32" in str(on_devices)) == (kind != "scorer")
