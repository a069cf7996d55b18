"""Configurations: overrides, JSON, and errors that name the setting and the place."""

import dataclasses
import functools
import json
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest

from jaxretr import config as configuration
from jaxretr.cli.config_help import settings_text
from jaxretr.config import (
    AdapterShape,
    ArtConfig,
    ArtData,
    BertShape,
    Config,
    ContrastiveConfig,
    Encoder,
    LiveIndex,
    MixtureSet,
    MlmConfig,
    Negatives,
    PairEncoder,
    PassageLmConfig,
    PretrainData,
    RerankerConfig,
    RerankerData,
    Scorer,
    Train,
    from_json,
    load,
    override,
    to_json,
    with_settings,
)
from jaxretr.config.names import ALSO_CALLED, section_of, setting_types
from jaxretr.runtime.errors import UsageError
from jaxretr.training import experiment

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))

ART = ArtConfig(name="art", data=ArtData(corpus="c", questions="q"), encoder=Encoder(path="e"), scorer=Scorer(path="s"))
MLM = MlmConfig(name="mlm", data=PretrainData(corpora=("a", "b")))
RERANKER = RerankerConfig(name="reranker", data=RerankerData(train="t"), encoder=PairEncoder(path="e"))
PASSAGE_LM = PassageLmConfig(name="lm", data=PretrainData(corpora=("a",), pairs="p"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_loads_and_survives_json(path: Path):
    config = load(path)
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize("config", [ART, MLM, PASSAGE_LM, RERANKER], ids=lambda config: config.name)
def test_json_gives_back_the_same_config(config: Config):
    values = json.loads(json.dumps(to_json(config)))
    assert from_json(values) == config
    assert type(from_json(values)) is type(config)


# ---- overrides -------------------------------------------------------------------------------------------------------


def test_overrides_replace_values_of_every_type():
    words = "--train.steps 7 --optimizer.learning-rate 3e-5 --encoder.pooling mean --art.temperature 2.5"
    changed = override(ART, words.split())
    assert changed.train.steps == 7
    assert changed.optimizer.learning_rate == 3e-5
    assert isinstance(changed, ArtConfig)
    assert (changed.encoder.pooling, changed.art.temperature) == ("mean", 2.5)
    # Everything else is as it was.
    sections = {name: getattr(ART, name) for name in ("train", "optimizer", "encoder", "art")}
    assert dataclasses.replace(changed, **sections) == ART


@pytest.mark.parametrize(
    "words, section, name, value",
    [
        (["--train.steps=7"], "train", "steps", 7),
        (["--train.batch_size", "4"], "train", "batch_size", 4),
        (["--index.no-write-back"], "index", "write_back", False),
        (["--index.dtype=float32"], "index", "dtype", "float32"),
        (["--art.shuffle-teacher"], "art", "shuffle_teacher", True),
        (["--data.dev-qrels", "f.tsv"], "data", "dev_qrels", "f.tsv"),
    ],
)
def test_ways_to_write_an_override(words: list[str], section: str, name: str, value: object):
    assert getattr(getattr(override(ART, words), section), name) == value


def test_a_list_is_overridden_as_a_whole():
    changed = override(MLM, ["--data.corpora", "x", "y", "z"])
    assert isinstance(changed, MlmConfig)
    assert changed.data.corpora == ("x", "y", "z")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--optimzer.learning-rate", "1"], "--optimzer.learning-rate: no such setting; did you mean '--optimizer.l"),
        (["--train.batchsize=4"], "--train.batchsize: no such setting; did you mean '--train.batch-size'"),
        (["--optimizer.lr", "1"], "--optimizer.lr: no such setting; did you mean '--optimizer.learning-rate'"),
        (["--train.learning_rate", "1"], "no such setting; did you mean '--optimizer.learning-rate'"),
        (["--encoder.bs=4"], "no such setting; did you mean '--train.batch-size'"),
        (["--train.epochs=4"], "no such setting; did you mean '--train.steps'"),
        (["--train.dtype", "x"], "no such setting; did you mean '--encoder.dtype'"),
        (["--train.steps", "ten"], "--train.steps: 'ten' must be a whole number"),
        (["--train.steps"], "--train.steps: needs a value, a whole number"),
        (["--encoder.dtype", "float16"], "--encoder.dtype: 'float16' must be one of float32, bfloat16"),
        (["--train.steps", "3", "extra"], "--train.steps 3: 'extra' is not expected here"),
        (["extra"], "extra: not expected here"),
        (["--encoder.no-shared", "true"], "--encoder.no-shared: takes no value"),
        (["--encoder.adapter", "4"], "--encoder.adapter: '4' must be an object or null"),
        (
            ["--encoder.adapter", '{"lora_rnk": 4}'],
            r"encoder\.adapter: unknown key 'lora_rnk'; did you mean 'lora_rank'",
        ),
        (
            ["--encoder.adapter", '{"lora_rank": "4"}'],
            r"encoder\.adapter: 'lora_rank' is '4'; it must be a whole number",
        ),
        (["--encoder.adapter.rank", "4"], "no such setting; did you mean '--encoder.adapter.lora-rank'"),
    ],
)
def test_a_wrong_override_is_one_line(words: list[str], message: str):
    with pytest.raises(UsageError, match=message) as error:
        override(ART, words)
    assert "\n" not in str(error.value)


SHIPPED = {path.stem: load(path) for path in CONFIGS}


def _other(hint: Any, now: Any) -> Any:
    """A value of a setting's type that it does not have now."""
    if hint is bool:
        return not now
    if get_args(hint)[1:] == (NoneType,) and get_origin(get_args(hint)[0]) is Literal:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != now)
    if get_origin(hint) is tuple:
        if get_args(hint)[0] is MixtureSet:
            return (MixtureSet(name="one", train="a.jsonl", negatives=Negatives(static=3)), MixtureSet(name="other"))
        return (_other(get_args(hint)[0], None), _other(get_args(hint)[0], now))
    kind = next(part for part in (hint, *get_args(hint)) if part in (int, float, str))
    return {int: 1234567, float: 0.03125, str: "another one"}[kind]


def _in_json(value: Any) -> str:
    return json.dumps(value, default=dataclasses.asdict)


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        *sections, key = name.split(".")
        functools.reduce(lambda place, section: place.setdefault(section, {}), sections, found)[key] = value
    return found


def _object(hint: Any, values: Any) -> Any:
    """The section of a config's class with these values."""
    if (cls := section_of(hint)) is None:
        return values
    return cls(**{name: _object(setting_types(cls)[name], value) for name, value in values.items()})


def _at(config: Any, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), config)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_setting_can_be_typed_and_be_a_value_a_dict_or_an_object(name: str):
    """Each setting that help lists, also those of sections that the config leaves out."""
    config, words = SHIPPED[name], list[str]()
    types = setting_types(type(config))
    values: dict[str, Any] = {}
    for each, hint in types.items():
        if section_of(hint) is None:
            values[each] = _other(
                hint, functools.reduce(lambda at, key: getattr(at, key, None), each.split("."), config)
            )
            section, _, key = each.replace("_", "-").rpartition(".")
            words.append("--" + ".".join(filter(None, (section, "no-" * (values[each] is False) + key))))
            many = values[each] if isinstance(values[each], tuple) else [values[each]] * (hint is not bool)
            words += (_in_json(each) if dataclasses.is_dataclass(each) else str(each) for each in many)
    changed = with_settings(config, values)
    assert {each: _at(changed, each) for each in values} == values
    assert override(config, words) == changed
    nested = _nested(values)
    assert with_settings(config, nested) == changed
    assert with_settings(config, {each: _object(types[each], value) for each, value in nested.items()}) == changed
    in_json = [each if isinstance(each, str) else _in_json(each) for pair in nested.items() for each in pair]
    in_json[::2] = [f"--{each}" for each in in_json[::2]]
    assert override(config, in_json) == changed
    # What can be left out is, and everything else is as it was.
    optional = {each: None for each, hint in types.items() if NoneType in get_args(hint)}
    optional = {each: None for each in optional if each.rpartition(".")[0] not in optional}
    assert {"encoder.adapter"} <= set(optional) or not hasattr(getattr(config, "encoder", None), "adapter")
    without = with_settings(changed, optional)
    assert {each: _at(without, each) for each in optional} == optional
    assert override(changed, [word for each in optional for word in (f"--{each}", "None")]) == without
    for each in optional.keys() & {"encoder.adapter", "encoder.fresh"}:
        assert override(changed, [f"--{each}=null"]) == with_settings(changed, {each: None})


def test_a_dict_changes_some_settings_of_a_section_and_an_object_all():
    small: Any = with_settings(SHIPPED["dpr_small"], {"encoder.adapter": {"lora_rank": 4}})
    assert small.encoder.adapter == AdapterShape(lora_rank=4) and small.encoder.adapter.bottleneck == 0
    assert override(SHIPPED["dpr_small"], ["--encoder.adapter.lora-rank", "4"]) == small
    assert with_settings(SHIPPED["dpr_small"], {"encoder.adapter": {"lora_rank": np.int32(4)}}) == small
    module: Any = with_settings(SHIPPED["ddr_small_rem"], {"encoder.adapter": {"lora_rank": 4}})
    assert (module.encoder.adapter.lora_rank, module.encoder.adapter.bottleneck) == (4, 32)
    whole: Any = with_settings(SHIPPED["ddr_small_rem"], {"encoder": {"adapter": AdapterShape(lora_rank=4)}})
    assert whole.encoder.adapter == AdapterShape(lora_rank=4)
    assert with_settings(ART, {"train": {}, "art": {}}) == ART


@pytest.mark.parametrize(
    "words",
    [
        ["--train.steps", "1", "--train.steps", "2"],
        ["--train.steps=2", "--train.steps", "2"],
        ["--train.batch-size=2", "--train.batch_size=3"],
        ["--art.shuffle-teacher", "--art.no-shuffle-teacher"],
        ["--index.refresh-every", "3", "--index.refresh_every", "3"],
        ["--encoder.adapter", "None", "--encoder.adapter.lora-rank", "4"],
        ["--encoder.adapter", '{"lora_rank": 4}', "--encoder.adapter.lora-rank", "5"],
        ["--encoder", '{"adapter": {"lora_rank": 4}}', "--encoder.adapter", '{"lora_rank": 4}'],
    ],
    ids=" ".join,
)
def test_a_setting_that_is_given_twice_is_refused(words: list[str]):
    with pytest.raises(UsageError, match="given twice"):
        override(ART, words)


def test_a_key_that_is_in_a_json_object_twice_is_refused():
    with pytest.raises(UsageError, match=r"--encoder\.adapter: .*each key once"):
        override(ART, ["--encoder.adapter", '{"lora_rank": 4, "lora_rank": 5}'])


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"encoder.adapter": BertShape()}, r"encoder\.adapter is a BertShape; give AdapterShape"),
        ({"train.steps": BertShape()}, r"train\.steps is a BertShape"),
        ({"encoder.adapter": 4}, r"'adapter' is 4; it must be an object or null"),
        ({"train": Train(), "train.steps": 3}, r"train\.steps is given twice"),
        ({"train.steps": {"x": 1}}, r"'steps' is \{'x': 1\}; it must be a whole number"),
    ],
)
def test_a_wrong_section_in_python_is_one_line(settings: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message) as error:
        with_settings(ART, settings)
    assert "\n" not in str(error.value)


def test_each_setting_s_nearest_name_in_another_library_exists():
    leaves = {name.rpartition(".")[2] for name in configuration.all_settings()}
    assert set(ALSO_CALLED.values()) <= leaves
    assert not set(ALSO_CALLED) & leaves


# ---- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [ART, MLM, PASSAGE_LM, load(CONFIGS[-1].with_name("dpr_small.py"))], ids=lambda config: config.name
)
def test_help_lists_every_setting_with_its_value_and_meaning(config: Config):
    entries = {}
    for block in settings_text(config).split("\n  --")[1:]:
        head, *meaning = block.split("\n\n")[0].split("\n")
        entries[head.split(" ")[0].rstrip(",")] = (head, " ".join(line.strip() for line in meaning))
    types = setting_types(type(config))
    assert set(entries) == {
        name.replace("_", "-") for name, hint in types.items() if not dataclasses.is_dataclass(hint)
    }
    assert not [name for name, (_, meaning) in entries.items() if not meaning.endswith(".")], (
        "settings without a docstring"
    )
    assert entries["train.steps"][0] == f"train.steps INT  ({config.train.steps})"


def test_help_says_what_may_be_typed_and_what_a_setting_is():
    text = settings_text(ART)
    assert (
        "--encoder.pooling {cls,mean,max,lasttoken,weightedmean,mean_sqrt_len_tokens,splade,splade_sum,splade_log1p,splade_sum_log1p,unicoil}|None  (none)\n      Pooling of"
        in text
    )
    assert "--encoder.adapter JSON|None  (none)" in text and "--encoder.adapter.lora-rank INT  (0)" in text
    assert "--index.write-back, --index.no-write-back  (on)" in text
    assert "--data.dev-qrels TEXT|None  (none)\n      Judgements of the dev questions" in text  # of the class above


# ---- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kind": "arts"}, "c.json: unknown kind 'arts'; did you mean 'art'"),
        ({"trian": {}}, "c.json: unknown key 'trian'; did you mean 'train'"),
        ({"train": {"stps": 3}}, "c.json.train: unknown key 'stps'; did you mean 'steps'"),
        ({"train": 5}, "c.json: 'train' is 5; it must be an object"),
        ({"train": {"steps": "ten"}}, "c.json.train: 'steps' is 'ten'; it must be a whole number"),
        ({"train": {"steps": True}}, "'steps' is True; it must be a whole number"),
        ({"optimizer": {"clip": "1"}}, "c.json.optimizer: 'clip' is '1'; it must be a number"),
        ({"encoder": {"path": "e", "pooling": "sum"}}, "'pooling' is 'sum'; it must be one of cls, mean, max"),
        ({"encoder": {"path": "e", "passage_path": 3}}, "'passage_path' is 3; it must be a string or null"),
        ({"index": {"write_back": 1}}, "c.json.index: 'write_back' is 1; it must be true or false"),
        ({"art": {"refresh_every": 1}}, "c.json.art: unknown key 'refresh_every'"),
        ({"encoder": {}}, "c.json.encoder: .*path"),
    ],
)
def test_json_with_an_unknown_key_or_a_wrong_value_names_it(change: dict, message: str):
    with pytest.raises(UsageError, match=message):
        from_json({**to_json(ART), **change}, "c.json")


def test_json_that_is_no_object_or_lists_what_it_should_not():
    with pytest.raises(UsageError, match=r"c\.json: a JSON object is expected, not list"):
        from_json([], "c.json")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"'corpora' is .*; it must be a list, each a string"):
        from_json({**to_json(MLM), "data": {"corpora": ["a", 1]}}, "c.json")


OF_THE_INDEX = {"refresh_every": 7, "write_back": False, "index_dtype": "float32", "block_rows": 8, "encode_rows": 4}


def test_json_of_runs_whose_index_was_part_of_art_is_read():
    """Checkpoints and run folders from before `index` was a section of its own resume."""
    values = to_json(ART)
    del values["index"]
    values["art"] |= OF_THE_INDEX
    config = from_json(values, "c.json")
    assert isinstance(config, ArtConfig)
    assert config.index == LiveIndex(7, False, "float32", 8, 4)
    assert dataclasses.replace(config, index=ART.index) == ART
    assert from_json(to_json(config)) == config
    with pytest.raises(UsageError, match=r"--index\.refresh-every"):
        override(ART, ["--art.refresh-every", "7"])


def test_a_whole_number_serves_as_a_number():
    config = from_json({**to_json(ART), "optimizer": {"clip": 2}})
    assert config.optimizer.clip == 2


# ---- config files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, message",
    [
        ("x = 1\n", r"c\.py: defines no function config"),
        ("x = 1\ny = = 2\n", r"c\.py:2: invalid syntax"),
        ("import json\nimport no_such_module\n", r"c\.py:2: ModuleNotFoundError: .*no_such_module"),
        ("def config():\n    values = {}\n    return values['x']\n", r"c\.py:3: KeyError: 'x'"),
        ("def config():\n    raise ValueError('two\\nlines')\n", r"c\.py:2: ValueError: two"),
        ("def config():\n    return 3\n", r"c\.py: config\(\) returned a int"),
    ],
)
def test_a_broken_config_file_is_named_with_its_line(tmp_path: Path, content: str, message: str):
    path = tmp_path / "c.py"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        load(path)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("train.best_metric", "mrr@10x", r"train\.best_metric=mrr@10x: no metric .*did you mean 'mrr@10'"),
        ("train.best_metric", "recal@20", r"train\.best_metric=recal@20: no metric .*did you mean 'recall@"),
        ("train.best_metric", "ndcg", r"train\.best_metric=ndcg: no metric .*did you mean 'ndcg@10'"),
        ("train.best_metric", "loss@10", r"train\.best_metric=loss@10: no metric .*did you mean 'loss'"),
        ("optimizer.learning_rate", "nan", r"optimizer\.learning_rate=nan: must be a finite number"),
        ("contrastive.temperature", "inf", r"contrastive\.temperature=inf: must be a finite number"),
        ("train.steps", "0", r"train\.steps=0: must be at least 1"),
        ("train.seed", str(2**32), r"train\.seed=4294967296: must be below 2\^32"),
        ("optimizer.learning_rate", "-0.1", r"optimizer\.learning_rate=-0\.1: must be at least 0"),
        ("optimizer.clip", "0", r"optimizer\.clip=0\.0: must be above 0"),
        ("optimizer.warmup", "1.5", r"optimizer\.warmup=1\.5: must be from 0 to 1"),
        ("encoder.dropout", "1", r"encoder\.dropout=1\.0: must be from 0 to below 1"),
        ("typos.contrast_weight", "-1", r"typos\.contrast_weight=-1\.0: must be at least 0"),
        ("index.block_rows", "0", r"index\.block_rows=0: must be at least 1"),
    ],
)
def test_a_value_that_no_run_can_have_is_refused_when_the_config_is_loaded(name: str, value: str, message: str):
    with pytest.raises(UsageError, match=message):
        experiment.load("dpr_small", [f"--{name}", value])
    kind = setting_types(ContrastiveConfig)[name]
    with pytest.raises(UsageError, match=message):
        experiment.load_config("dpr_small", **{name: kind(value)})


@pytest.mark.parametrize("metric", ["typo_mrr@10", "nano-beir/scifact:ndcg@10", "acc@20", "average_rank", "perplexity"])
def test_the_metrics_of_every_evaluation_can_choose_the_best(metric: str):
    assert experiment.load_config("dpr_small", **{"train.best_metric": metric}).train.best_metric == metric


def test_a_missing_config_file_or_a_folder(tmp_path: Path):
    (tmp_path / "art_small.py").write_text("")
    with pytest.raises(UsageError, match=r"did you mean '.*art_small\.py'"):
        load(tmp_path / "art_smal.py")
    with pytest.raises(UsageError, match="is a folder"):
        load(tmp_path)


def test_every_kind_of_config_has_a_name_in_json():
    kinds = {cls for cls in vars(configuration).values() if isinstance(cls, type) and issubclass(cls, Config)}
    assert kinds - {Config} == set(configuration.KINDS.values())


# ---- where data sets are ---------------------------------------------------------------------------------------------


def test_a_shipped_config_takes_the_folder_of_its_data_sets() -> None:
    here = experiment.load("dpr_nq", data_folder="gs://bucket/sets")
    assert here.data.train == "gs://bucket/sets/biencoder-nq-train.json"  # pyright: ignore[reportAttributeAccessIssue]
    assert experiment.load_config("dpr_nq", data_folder=Path("data")) == experiment.load_config("dpr_nq")
    with pytest.raises(UsageError, match=r"dpr_small\.py.*data_folder"):
        experiment.load("dpr_small", data_folder="data")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_no_environment_variable_decides_what_a_config_says(path: Path) -> None:
    assert "environ" not in path.read_text()
