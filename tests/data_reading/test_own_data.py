"""One's own data with one option: a BEIR folder, a training file, a lexical set or a corpus in place of the config's."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny import art_config, contrastive_config

import jaxretr
from jaxretr import config as configuration
from jaxretr.config import MlmConfig, PretrainData, from_json, to_json
from jaxretr.data.corpus import read_corpus
from jaxretr.data.lexical_set import LexicalSet, Ranking, Selection
from jaxretr.data.own_data import with_data
from jaxretr.data.training_set import load_training_set
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training import experiment
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.art_texts import read_art_texts
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.corpus_sizes import corpus_size
from jaxretr.training.runs.run_examples import read_run_examples
from jaxretr.training.runs.text_pretraining import TextData

MLM = MlmConfig(name="mlm", data=PretrainData(corpora=("none",)))
QUESTIONS = 30


def rows(name: str, numbers: range) -> list[dict[str, Any]]:
    return [{"_id": f"{name}{n}", "title": f"{name} {n}", "text": f"the {name} of number {n}"} for n in numbers]


@pytest.fixture
def beir(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of 40 passages and 30 questions; `beir(train=range(20))` gives a split the first 20."""

    def write(**splits: range) -> Path:
        folder = tmp_path / "beir"
        (folder / "qrels").mkdir(parents=True)
        for name, content in (("corpus", rows("passage", range(40))), ("queries", rows("question", range(QUESTIONS)))):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
        for name, numbers in splits.items():
            lines = [f"question{n}\tpassage{n}\t1\n" for n in numbers]
            (folder / f"qrels/{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
        return folder

    return write


@pytest.fixture
def tevatron(tmp_path: Path) -> Path:
    """A training file of 30 questions, each with a passage of its own and one more."""
    passages = [{"docid": row["_id"], "title": row["title"], "text": row["text"]} for row in rows("passage", range(40))]
    path = tmp_path / "train.jsonl"
    lines = [
        {"query_id": f"q{n}", "query": f"question {n}", "positive_passages": [passages[n]], "negative_passages": [passages[n + 10]]}
        for n in range(QUESTIONS)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# ---- supervised runs -------------------------------------------------------------------------------------------------


def test_a_beir_folder_replaces_all_data_of_a_supervised_config(beir: Any, tmp_path: Path):
    folder = beir(train=range(20), validation=range(20, 25), test=range(25, 30))
    config: Any = with_data(contrastive_config(tmp_path, data={"mined": "x", "dev": "y"}), folder, {})
    data = config.data
    assert (data.train, data.split, data.corpus, data.mined) == (str(folder), "train", None, None)
    assert (data.dev, data.dev_split, data.dev_questions) == (str(folder), "validation", str(folder))
    assert (data.dev_qrels, data.held_out) == (f"{folder}/qrels/validation.tsv", 0)
    examples = read_run_examples(config)
    assert [len(examples.texts), len(examples.dev or ()), examples.corpus_rows] == [20, 5, 40]
    assert from_json(json.loads(json.dumps(to_json(config)))) == config  # A resumed run needs nothing else.


def test_negatives_that_only_the_config_s_own_data_had_are_not_asked_for(beir: Any, tmp_path: Path, caplog: Any):
    folder = beir(train=range(20))
    config = contrastive_config(tmp_path, negatives={"static": 1, "mined": 2}, data={"mined": "others.jsonl"})
    found: Any = with_data(config, folder, {})
    assert (found.negatives.static, found.negatives.mined, found.data.mined) == (0, 0, None)
    assert "data.mined=FILE negatives.mined=2" in caplog.text and "negatives.static is 0 now" in caplog.text


def test_a_file_of_ids_asks_for_its_corpus(beir: Any, tmp_path: Path):
    path = tmp_path / "ids.jsonl"
    row = {"query_id": "1", "query_text": "q", "positive_document_ids": ["passage1"], "negative_document_ids": []}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UsageError, match=r"only the ids of its passages \(tevatron2\).*data.corpus=FILE"):
        with_data(contrastive_config(tmp_path), path, {})
    with pytest.raises(UsageError, match=r"looks like Tevatron .* version 2 .*or a training file with passages"):
        with_data(art_config(tmp_path), path, {})
    stated: Any = with_data(contrastive_config(tmp_path), path, {"corpus": str(beir())})
    assert stated.data.train == str(path)


def test_without_a_dev_split_training_questions_are_held_out_and_the_test_split_stays_unread(beir: Any, tmp_path: Path):
    folder = beir(train=range(20), test=range(20, 30))
    (folder / "qrels/test.tsv").write_text("not to be read")
    config: Any = with_data(contrastive_config(tmp_path), folder, {})
    examples = read_run_examples(config)
    assert examples.dev is not None
    assert len(examples.texts) == 18 and len(examples.dev) == 2
    assert not set(examples.texts) & set(examples.dev.texts)
    again = read_run_examples(config)
    assert again.dev is not None and again.dev.texts == examples.dev.texts


@pytest.mark.parametrize(
    ("stated", "said"), [({}, "at most 1000"), ({"held_out": 3}, "at most 3"), ({"held_out": 0}, "")]
)
def test_what_is_held_out_is_said_as_it_is_stated(stated: Any, said: str, beir: Any, tmp_path: Path, caplog: Any):
    folder = beir(train=range(20))
    for config in (contrastive_config(tmp_path), art_config(tmp_path)):
        caplog.clear()
        with caplog.at_level("INFO"):
            found: Any = with_data(config, folder, stated)
        assert found.data.held_out == stated.get("held_out", 1000)
        assert ("held out" in caplog.text) == bool(said) and said in caplog.text
        assert ("last step's model" in caplog.text) == (not said)


def test_the_only_judgements_are_trained_on_with_a_warning(beir: Any, tmp_path: Path, caplog: Any):
    found: Any = with_data(contrastive_config(tmp_path), beir(test=range(30)), {})
    assert (found.data.split, found.data.dev, found.data.held_out) == ("test", None, 1000)
    assert (
        "split 'test' has the only judgements, and is trained on; measure the model on other questions" in caplog.text
    )


def test_a_folder_without_a_train_split_is_refused_with_a_remedy_that_works(beir: Any, tmp_path: Path):
    folder = beir(test=range(20), extra=range(20, 30))
    config = contrastive_config(tmp_path)
    with pytest.raises(
        UserError, match=r"no split 'train' \(only extra, test\).*add qrels/train.tsv.*data.split=extra"
    ):
        with_data(config, folder, {})
    stated: Any = with_data(config, folder, {"split": "test"})
    assert (stated.data.split, stated.data.dev, stated.data.held_out) == ("test", None, 1000)


def test_a_training_file_is_its_own_corpus_and_dev_set(
    tevatron: Path, tmp_path: Path, tiny_models: Path, mesh8: jax.sharding.Mesh
):
    config: Any = with_data(contrastive_config(tiny_models, negatives={"retrieved": 1}), tevatron, {})
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, token_cache=str(tmp_path / "tokens")))
    run = ContrastiveRun(config, mesh8, tmp_path)
    assert (len(run.examples.texts), run.corpus_rows) == (27, 40)
    held_out = {question.text for question in run.dev.questions}
    assert len(held_out) == 3 and not held_out & set(run.examples.texts)
    assert run.dev.qrels == {f"q{text.split()[1]}": {f"passage{text.split()[1]}": 1} for text in held_out}
    assert run.validation is not None and set(run.validation.examples.texts) == held_out
    size = corpus_size(config)
    assert (size.passages, size.searched) == (40, 40)


def test_copies_of_a_question_are_never_on_both_sides(tevatron: Path, tmp_path: Path):
    lines = tevatron.read_text().splitlines()
    copies = [{**json.loads(line), "query_id": f"copy{n}", "query": f"Question  {n}"} for n, line in enumerate(lines)]
    tevatron.write_text("\n".join([*lines, *map(json.dumps, copies)]) + "\n")
    examples = read_run_examples(with_data(contrastive_config(tmp_path), tevatron, {}))  # pyright: ignore[reportArgumentType]
    assert examples.dev is not None and len(examples.dev) == 6
    assert not {text.split()[1] for text in examples.texts} & {text.split()[1] for text in examples.dev.texts}


def test_too_few_questions_to_hold_some_out(beir: Any, tmp_path: Path):
    config: Any = with_data(contrastive_config(tmp_path), beir(train=range(9)), {})
    with pytest.raises(UserError, match=r"9 questions are too few .*data.held_out=0"):
        read_run_examples(config)


def test_held_out_questions_beside_a_dev_set_contradict_each_other(beir: Any, tmp_path: Path):
    folder = str(beir(train=range(20)))
    config: Any = contrastive_config(tmp_path, data={"train": folder, "held_out": 5, "dev_questions": folder})
    with pytest.raises(UsageError, match=r"data.held_out is for runs without a dev set"):
        read_run_examples(config)
    with pytest.raises(UsageError, match=r"data.held_out is for runs without a dev set"):
        read_art_texts(art_config(tmp_path, data={"held_out": 5}).data, tmp_path)


def test_a_dev_split_that_is_not_there_names_its_setting(beir: Any, tmp_path: Path):
    folder = str(beir(train=range(20), test=range(20, 30)))
    config: Any = contrastive_config(tmp_path, data={"train": folder, "dev": folder})
    with pytest.raises(
        UserError, match=r"data.dev_split: .*no split 'dev', it has test, train; name one with data.dev_split"
    ):
        read_run_examples(config)


def test_a_lexical_config_takes_a_lexical_set_and_says_how_to_make_one(beir: Any, tmp_path: Path):
    config: Any = contrastive_config(tmp_path, data={"train": "runs/lexical", "dev": "runs/lexical/dev"})
    with pytest.raises(UsageError, match=r"jaxretr mine lexical --corpus .* and give it as data=LEXICAL"):
        with_data(config, beir(train=range(20)), {})


def test_a_lexical_set_brings_its_corpus_and_its_dev_set(beir: Any, tmp_path: Path):
    folder, ranks = beir(), np.arange(20, dtype=np.int32).reshape(4, 5)
    corpus = read_corpus(folder)
    for place in (tmp_path / "lexical", tmp_path / "lexical/dev"):
        LexicalSet.write(
            place,
            [f"sentence {n}" for n in range(4)],
            np.full(4, -1, np.int32),
            [Ranking("bm25", ranks, (100.0 - ranks).astype(np.float32))],
            selection=Selection(2, 4, 5),
            corpus_fingerprint=corpus.fingerprint(),
            corpus_rows=len(corpus),
            settings={"corpus": {"files": [f"{folder}/corpus.jsonl"]}},
        )
    config: Any = with_data(contrastive_config(tmp_path, data={"dev_questions": "x"}), tmp_path / "lexical", {})
    examples = read_run_examples(config)
    assert (len(examples.texts), len(examples.dev or ()), examples.corpus_rows) == (4, 4, 40)
    assert config.data.dev_questions is None


# ---- ART -------------------------------------------------------------------------------------------------------------


def test_art_takes_questions_and_dev_data_from_the_same_folder(beir: Any, tmp_path: Path):
    folder = beir(train=range(20), dev=range(20, 25), test=range(25, 30))
    data = with_data(art_config(tmp_path, data={"judged": "x"}), folder, {}).data  # pyright: ignore[reportAttributeAccessIssue]
    assert data.judged == str(folder)
    texts = read_art_texts(data, tmp_path)
    assert [question.id for question in texts.questions] == [f"question{n}" for n in range(20)]
    assert texts.dev is not None and {question.id for question in texts.dev.questions} == {
        f"question{n}" for n in range(20, 25)
    }


def test_art_without_a_train_split_learns_from_questions_of_no_split(beir: Any, tmp_path: Path, caplog: Any):
    folder = beir(test=range(25))
    data = with_data(art_config(tmp_path), folder, {}).data  # pyright: ignore[reportAttributeAccessIssue]
    texts = read_art_texts(data, tmp_path)
    assert [question.id for question in texts.questions] == [f"question{n}" for n in range(25, 30)]
    assert texts.dev is None
    assert "no judgements choose a checkpoint (never those of a test split), so the last" in caplog.text


def test_art_whose_questions_are_all_test_questions_is_refused(tmp_path: Path, beir: Any):
    data = with_data(art_config(tmp_path), beir(test=range(30)), {}).data  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UserError, match=r"leave no question to train on; name a split with data.questions_split"):
        read_art_texts(data, tmp_path)


def test_art_reads_a_training_file_as_questions_and_corpus(
    tevatron: Path, tmp_path: Path, tiny_models: Path, mesh8: jax.sharding.Mesh
):
    config: Any = with_data(art_config(tiny_models), tevatron, {})
    assert config.train.best_metric == "recall@5"  # acc@5 asks for answers
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, token_cache=str(tmp_path / "tokens")))
    run = ArtRun(config, mesh8, tmp_path)
    assert (len(run.corpus), len(run.questions), len(run.dev.questions)) == (40, 27, 3)
    assert run.corpus.ids == load_training_set(tevatron).passages.ids
    assert corpus_size(config).passages == 40


def test_an_art_run_refuses_judgements_of_another_corpus(
    beir: Any, tmp_path: Path, tiny_models: Path, mesh8: jax.sharding.Mesh
):
    folder = beir(dev=range(20))
    changes = {"dev_questions": str(folder), "dev_qrels": f"{folder}/qrels/dev.tsv"}
    config = art_config(tiny_models, data=changes)
    with pytest.raises(UserError, match=r"dev.tsv: none of the 20 passages that it judges is in the corpus; set data"):
        ArtRun(config, mesh8, tmp_path)


@pytest.mark.parametrize("name", ["passages.tsv", "triples.tsv"])
def test_a_corpus_in_columns_is_never_taken_for_a_training_file(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_text("p1\ta text of some words\ta title\np2\tanother text\tanother title\n")
    with pytest.raises(UserError, match="3 columns instead of id<TAB>text"):
        read_art_texts(art_config(tmp_path, data={"corpus": str(path)}).data, tmp_path)


# ---- text alone, and what is no use ----------------------------------------------------------------------------------


def test_masked_language_modelling_reads_a_folder_a_corpus_or_the_passages_of_a_training_file(
    beir: Any, tevatron: Path, tmp_path: Path, tiny_models: Path
):
    from jaxretr.data.tokens import Template, load_tokenizer

    tokenizer = load_tokenizer(tiny_models / "encoder")
    folder = beir()
    for number, path in enumerate((folder, folder / "corpus.jsonl", tevatron)):
        config: Any = with_data(MLM, path, {})
        data = dataclasses.replace(config.data, held_out=4)
        read = TextData(data, "bert", Template.PASSAGE_PAIR, tmp_path / str(number), 64, tokenizer)
        assert set(read.corpus.texts) == set(read_corpus(folder).texts)


@pytest.mark.parametrize("make", [contrastive_config, art_config])
def test_a_corpus_alone_is_refused_where_questions_are_needed(make: Any, beir: Any, tmp_path: Path):
    with pytest.raises(UsageError, match="looks like corpus; give data=a BEIR folder"):
        with_data(make(tmp_path), beir() / "corpus.jsonl", {})


@pytest.mark.parametrize("name", experiment.configs())
def test_every_shipped_config_takes_one_s_own_data_or_refuses_it_in_one_line(name: str, beir: Any, tevatron: Path):
    shipped: Any = configuration.load(experiment.find(name))
    for path in (beir(train=range(20), dev=range(20, 25)), tevatron):
        try:
            config: Any = with_data(shipped, path, {})
        except UsageError as error:
            assert "spar" in name and "lexical" in str(error) and "\n" not in str(error)
            continue
        # Nothing of the config's own data remains, but for what chooses among it.
        files = [
            each
            for key, value in vars(config.data).items()
            if key != "token_cache"
            for each in (value if isinstance(value, tuple) else [value])
        ]
        paths = {each for each in files if isinstance(each, str) and "/" in each}
        assert paths and all(each.startswith(str(path)) for each in paths)
        assert {*getattr(config, "questions", ())} <= {str(path)}


def test_embedding_distillation_reads_one_s_own_questions(beir: Any, tevatron: Path):
    shipped = configuration.load(experiment.find("pretrain_encoder_small"))
    folder = str(beir(train=range(20)))
    config: Any = with_data(shipped, folder, {})
    assert (config.data.corpora, config.questions) == ((folder,), (folder,))
    assert (config.exclude_questions, config.questions_split) == ((), "train")
    config = with_data(shipped, tevatron, {})
    assert (config.data.corpora, config.questions) == ((str(tevatron),), ())


@pytest.mark.parametrize(
    "config, stated",
    [
        ("dpr_small", ["train"]),
        ("cross_encoder_small", ["train"]),
        ("art_small", ["corpus", "questions"]),
        ("ddr_small_dam", ["corpora"]),
    ],
)
def test_data_that_a_setting_replaces_entirely_is_refused(config: str, stated: list[str], beir: Any):
    settings = {f"data.{name}": ["other"] if name == "corpora" else "other" for name in stated}
    with pytest.raises(UsageError, match=r"is given as the data of .* as well; leave one of them out"):
        jaxretr.load_config(config, data=beir(train=range(20), dev=range(20, 25)), **settings)


# ---- from the command line and from Python ---------------------------------------------------------------------------


def test_overrides_win_over_the_data_and_names_find_shipped_configs(beir: Any):
    folder = beir(train=range(20), dev=range(20, 25), tydi=range(25, 30))
    words = ["--data.dev-split", "tydi", "--data.corpus", "c", "--train.steps", "3"]
    typed: Any = experiment.load("dpr_small", words, folder)
    assert (typed.data.dev_split, typed.data.corpus, typed.train.steps) == ("tydi", "c", 3)
    assert typed.data.dev_qrels == f"{folder}/qrels/tydi.tsv"
    settings = {"data.dev_split": "tydi", "data.corpus": "c", "train.steps": 3}
    assert jaxretr.load_config("configs/dpr_small.py", beir=folder, **settings) == typed
    assert experiment.load_config("dpr_small") == configuration.load(experiment.find("dpr_small"))


def test_python_s_settings_are_checked_like_a_file_s():
    with pytest.raises(UsageError, match=r"settings.train: unknown key 'stps'; did you mean 'steps'"):
        experiment.load_config("dpr_small", **{"train.stps": 3})
    with pytest.raises(UsageError, match="data and beir are the same"):
        experiment.load_config("dpr_small", data="a", beir="b")
    with pytest.raises(
        UsageError, match=r"dpr_smal: no such config file, nor a config of that name; did you mean 'dpr_small'"
    ):
        experiment.find("dpr_smal")
