"""A run resumes with the data and models that it began with, told by their content."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pair_training
import pytest
import tiny
from test_best_is_start import Measured

from jaxretr.config import BertShape, Config, MlmConfig, PassageLmConfig, PretrainData, T5Shape, Train
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.backbones.bert import BertEncoder
from jaxretr.models.backbones.layers import initialise
from jaxretr.models.hub.encoder_params import export_encoder
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training import loop as program
from jaxretr.training.loop import build
from jaxretr.training.metrics_log import read_best, read_metrics, read_starts
from jaxretr.training.runs.run_inputs import INPUTS, Inputs, check_inputs, read_inputs, write_inputs

TEXT: dict[str, Any] = {"vocab_size": 400, "vocabulary_every": 1, "max_length": 24, "held_out": 8}


def art(folder: Path) -> Config:
    data = {"corpus": str(folder / "data"), "questions": str(folder / "data"), "token_cache": None}
    dev = {"dev_questions": str(folder / "data"), "dev_qrels": str(folder / "data/qrels/tydi.tsv")}
    return tiny.art_config(folder, data={**data, **dev}, train={"best_metric": "mrr@10"})


def contrastive(folder: Path) -> Config:
    files = {"train": str(folder / "data"), "dev": str(folder / "data"), "dev_split": "tydi"}
    return tiny.contrastive_config(folder, data={**files, "dev_questions": None, "token_cache": None})


def cross_encoder(folder: Path) -> Config:
    dev = {"dev_questions": str(folder / "data"), "dev_qrels": str(folder / "data/qrels/tydi.tsv")}
    return pair_training.config(folder / "encoder", data={"train": str(folder / "data"), **dev})


def mlm(folder: Path) -> Config:
    shape = BertShape(hidden_size=16, layers=1, heads=2, intermediate_size=16)
    data = PretrainData(corpora=(str(folder / "data"),), **TEXT)
    return MlmConfig(name="mlm", data=data, bert=shape, train=Train(batch_size=8))


def passage_lm(folder: Path) -> Config:
    shape = T5Shape(d_model=16, d_kv=8, d_ff=16, heads=2, encoder_layers=1, decoder_layers=1)
    data = PretrainData(corpora=(str(folder / "data"),), pairs=str(folder / "data"), pair_share=0.5, **TEXT)
    return PassageLmConfig(name="lm", data=data, t5=shape, train=Train(batch_size=8))


def rewrite(name: str, before: str, after: str) -> Callable[[Path], None]:
    """An edit of one file of the data."""

    def edit(folder: Path) -> None:
        path = folder / "data" / name
        content = path.read_text()
        assert before in content
        path.write_text(content.replace(before, after, 1))

    return edit


def another_encoder(folder: Path) -> None:
    params = tiny.lively(initialise(lambda rngs: BertEncoder(tiny.BERT, rngs=rngs), 0), 9)
    write_folder(folder / "encoder", *export_encoder(tiny.BERT, params), load_tokenizer(folder / "encoder_tokenizer"))


LAST_PASSAGE = rewrite("corpus.jsonl", '"text": "', '"text": "Edited. ')
QUESTION = rewrite("queries.jsonl", '"text": "', '"text": "edited ')
JUDGEMENT = rewrite("qrels/train.tsv", "\t1\n", "\t0\n")
DEV_JUDGEMENT = rewrite("qrels/tydi.tsv", "\t1\n", "\t2\n")


@pytest.mark.parametrize(
    ("kind", "edit", "changed", "setting"),
    [
        (art, LAST_PASSAGE, "corpus", "data.corpus"),
        (art, QUESTION, "questions", "data.questions"),
        (art, DEV_JUDGEMENT, "dev questions", "data.dev_qrels"),
        (art, another_encoder, "encoder", "encoder.path"),
        (contrastive, LAST_PASSAGE, "passages", "data.train"),
        (contrastive, JUDGEMENT, "examples", "data.train"),
        (contrastive, rewrite("qrels/tydi.tsv", "\t1\n", "\t0\n"), "dev questions", "data.dev"),
        (contrastive, another_encoder, "encoder", "encoder.path"),
        (cross_encoder, QUESTION, "questions", "data.train"),
        (cross_encoder, DEV_JUDGEMENT, "dev questions", "data.dev_qrels"),
        (cross_encoder, another_encoder, "encoder", "encoder.path"),
        (mlm, LAST_PASSAGE, "text", "data.corpora"),
        (passage_lm, QUESTION, "pairs", "data.pairs"),
    ],
)
def test_what_was_edited_is_named_with_its_setting(
    kind: Any, edit: Callable[[Path], None], changed: str, setting: str, tiny_models: Path, mesh1: Any, tmp_path: Path
) -> None:
    shutil.copytree(tiny.DATA, tmp_path / "data")
    for name in ("encoder", "encoder_tokenizer", "scorer"):
        shutil.copytree(tiny_models / name, tmp_path / name)
    config, workdir = kind(tmp_path), tmp_path / "run"
    workdir.mkdir()
    write_inputs(workdir, build(config, mesh1, workdir).inputs())
    check_inputs(workdir, build(config, mesh1, workdir).inputs(), config)
    edit(tmp_path)
    inputs = build(config, mesh1, workdir).inputs()
    with pytest.raises(UserError, match=rf"{INPUTS}: .*other ([a-z, ]+, )?{changed}[ ,].*{setting}=.*workdir="):
        check_inputs(workdir, inputs, config)
    write_inputs(workdir, inputs)  # The record stays that of the beginning.
    with pytest.raises(UserError, match=changed):
        check_inputs(workdir, inputs, config)


def test_a_run_resumes_with_its_own_data_and_not_with_others(tmp_path: Path, monkeypatch: Any) -> None:
    """A folder of an older version, which has no record, resumes and gets one."""
    content = {"corpus": "one"}

    class Reads(Measured):
        def inputs(self) -> Inputs:
            return Inputs(dict(content), {"weights": "as this machine rounds"})

        def abstract_state(self) -> Any:
            return jax.eval_shape(self.init)

    config = tiny.art_config(tmp_path, train={"steps": 1, "best_metric": "mrr"}, data={"corpus": "c.jsonl"})
    monkeypatch.setattr(program, "build", lambda config, *_: Reads(config, [0.1, 0.2]))
    program.train(config, tmp_path / "run")
    (tmp_path / "run" / INPUTS).unlink()
    moved = tiny.art_config(tmp_path, train={"steps": 1, "best_metric": "mrr"}, data={"corpus": "moved/c.jsonl"})
    with pytest.raises(UsageError, match=r"other settings \(data\.corpus\)"):
        program.train(moved, tmp_path / "run")
    program.train(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / INPUTS).read_text()).keys() == {"corpus"}
    program.train(moved, tmp_path / "run")  # What the files hold decides, not where they lie.
    assert json.loads((tmp_path / "run/config.json").read_text())["data"]["corpus"] == "moved/c.jsonl"
    for setting, value in (("judged", "j.jsonl"), ("exclude_splits", ["test"])):
        other = tiny.art_config(tmp_path, train={"steps": 1, "best_metric": "mrr"}, data={setting: value})
        with pytest.raises(UsageError, match=rf"other settings \(.*data\.{setting}.*\)"):
            program.train(other, tmp_path / "run")
    content["corpus"] = "another"
    with pytest.raises(UserError, match=r"other corpus than .*data.corpus=c.jsonl"):
        program.train(config, tmp_path / "run")


@pytest.mark.parametrize("content", ["{", "[3]", "\xff", "7", '{"step": 1}', '{"step": 1, "figures": {"mrr": "0.5"}}'])
@pytest.mark.parametrize(
    "name, read",
    [
        (INPUTS, read_inputs),
        ("best.json", read_best),
        ("environment.json", read_starts),
        ("metrics.jsonl", read_metrics),
    ],
)
def test_a_damaged_record_is_one_line(tmp_path: Path, name: str, read: Callable[[Path], Any], content: str) -> None:
    if name != "metrics.jsonl":
        assert not read(tmp_path)
    (tmp_path / name).write_text(content + "\n", encoding="latin-1")
    if (name, content[:7]) in ((INPUTS, '{"step"'), ("metrics.jsonl", '{"step"')):
        read(tmp_path)
        return
    with pytest.raises(UserError, match=rf"{name}: [^\n]*; restore [^\n]*$"):
        read(tmp_path)


@pytest.mark.parametrize(
    "name, content", [("best.json", '{"step": 0, "figures": {"ndcg@10": 0.5}}'), ("environment.json", "{}")]
)
def test_a_damaged_record_stops_a_run_that_resumes(tiny_models: Path, tmp_path: Path, name: str, content: str) -> None:
    def interrupting(step: int, metrics: dict[str, Any]) -> None:
        if step == 3:
            raise KeyboardInterrupt

    config = tiny.contrastive_config(tiny_models, train={"steps": 4})
    with pytest.raises(KeyboardInterrupt):
        program.train(config, tmp_path, on_step=interrupting)
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=rf"{name}: is damaged .*; restore"):
        program.train(config, tmp_path)
