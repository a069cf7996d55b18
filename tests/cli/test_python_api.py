"""The package from Python: names, reprs, pickle and copy, and `search` and `train` as functions."""

import copy
import inspect
import json
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiny

import jaxretr
from jaxretr.config import AdapterShape
from jaxretr.data.readers import read_corpus, read_qrels, read_questions
from jaxretr.data.run_reading import read_run, read_trec
from jaxretr.data.tokens import load_tokenizer
from jaxretr.data.typos import TypoGenerator
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import TestSet
from jaxretr.indexes.bm25 import Bm25Index, Bm25Settings
from jaxretr.indexes.certified.index import ScannIndex
from jaxretr.indexes.exact import ExactIndex
from jaxretr.models.adapter import Adapter
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, init_params
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.runtime.errors import UserError

TEXTS = ["who founded the city", "when was it", "a river"]


@pytest.fixture(scope="module")
def encoder(tiny_models: Path) -> DualEncoder:
    return DualEncoder.from_pretrained(tiny_models / "encoder", max_passage_length=32)


# ---- names -----------------------------------------------------------------------------------------------------------


def test_notebooks_complete_every_public_name():
    assert set(jaxretr.__all__) <= set(dir(jaxretr))
    for name in jaxretr.__all__:
        assert getattr(jaxretr, name) is not None
    assert "__version__" in dir(jaxretr)


def test_no_module_takes_the_place_of_a_public_name():
    assert not set(jaxretr.__all__) & {module.name for module in pkgutil.iter_modules(jaxretr.__path__)}


def test_search_and_train_can_be_called_whatever_was_imported_before():
    program = """
import importlib, sys
orders = [[], ["jaxretr.indexes.bm25.words"], ["jaxretr.indexes.searching", "jaxretr.training.loop"], ["jaxretr.mining.negatives"]]
for order in orders:
    for name in [name for name in sys.modules if name.split(".")[0] == "jaxretr"]:
        del sys.modules[name]
    import jaxretr
    for name in order:
        importlib.import_module(name)
    assert callable(jaxretr.search) and callable(jaxretr.train) and callable(jaxretr.mine), order
    from jaxretr import search, train
    from jaxretr.training.loop import train as function, TrainResult
    from jaxretr.indexes.filters import Filters
    assert callable(search) and callable(train) and callable(function), order
    assert search is jaxretr.search and jaxretr.train is train
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_functions_arguments_can_be_asked_for(tmp_path: Path):
    names = ["config", "workdir", "loss", "optimizer", "schedule", "on_step", "profile_steps"]
    assert list(inspect.signature(jaxretr.train).parameters) == names
    assert list(inspect.signature(jaxretr.search).parameters)[:3] == ["encoder", "index", "queries"]
    with pytest.raises(UserError, match="corpus or queries"):
        jaxretr.encode("m", out=tmp_path)
    with pytest.raises(UserError, match="model=3: give a name"):
        jaxretr.encode("m", queries=[], model=3, out=tmp_path / "store")  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "store").exists()


# ---- what is seen ----------------------------------------------------------------------------------------------------


def test_reprs_say_what_it_is(encoder: DualEncoder, tiny_models: Path, tmp_path: Path):
    path = str(tiny_models / "encoder")
    count = f"{sum(leaf.size for leaf in jax.tree.leaves(encoder.params)):,}"
    assert repr(encoder) == (
        f"DualEncoder({path!r}, 16 dimensions, cls pooling, one tower of 2 x 16, {count} parameters, float32)"
    )
    combined = CombinedEncoder([encoder, encoder], [1, 0.5])
    assert repr(combined).startswith("CombinedEncoder(32 dimensions, concatenated with weights 1, 0.5: DualEncoder('")
    scorer = QuestionScorer.from_pretrained(tiny_models / "scorer")
    assert repr(scorer).startswith(f"QuestionScorer('{tiny_models / 'scorer'}', T5 of 2 + 2 x 16, ")
    index = ExactIndex(np.eye(3, dtype=np.float32), ["a", "b", "c"])
    assert repr(index) == "ExactIndex(3 passages, 3 dimensions, float32, on 8 cpu)"
    assert "first pass in int8, on the host" in repr(ExactIndex(np.eye(3, dtype=np.float32), first_pass="int8"))
    shape = AdapterShape(lora_rank=2, bottleneck=4)
    config = DualEncoderConfig(tiny.BERT, adapter=shape, max_question_length=16, max_passage_length=16)
    adapter = Adapter.of(DualEncoder(config, init_params(config, 0), encoder.tokenizer))
    assert repr(adapter).startswith("Adapter(LoRA of rank 2 and parallel adapters of 4, for question and passage, ")
    store = jaxretr.encode(encoder, corpus=read_corpus(tiny.DATA), out=tmp_path / "store")
    assert repr(store) == (
        f"EmbeddingStore('{tmp_path / 'store'}', 20 passages, 16 dimensions, float32, 1 shards, of {path})"
    )
    corpus = read_corpus(tiny.DATA)
    assert repr(corpus) == "Corpus(20 passages)"
    assert repr(Bm25Index.build(corpus)).startswith("Bm25Index(20 passages, ")
    assert repr(TypoGenerator(seed=3)) == "TypoGenerator('dictionary', keyboard='qwerty', seed=3)"


# ---- pickle and copy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy])
def test_models_and_indexes_can_be_sent_to_another_process_and_copied(
    duplicate, encoder: DualEncoder, tiny_models: Path, tmp_path: Path
):
    wanted = encoder.encode_queries(TEXTS)  # Compiled programs are there now, which no pickle can hold.
    again = duplicate(encoder)
    np.testing.assert_array_equal(again.encode_queries(TEXTS), wanted)
    assert (again.config, again.source) == (encoder.config, encoder.source)
    combined = CombinedEncoder([encoder, encoder], [1, 0.5])
    np.testing.assert_array_equal(duplicate(combined).encode_queries(TEXTS), combined.encode_queries(TEXTS))

    scorer = QuestionScorer.from_pretrained(tiny_models / "scorer", max_length=64, max_question_length=24)
    assert repr(duplicate(scorer)) == repr(scorer)

    rows = np.random.default_rng(0).normal(size=(30, 16)).astype(np.float32)
    for options in ({}, {"dtype": "bfloat16"}, {"first_pass": "int8"}, {"max_device_bytes": 2**17}):
        index = ExactIndex(rows, [f"p{row}" for row in range(30)], metadata={"n": list(range(30))}, **options)
        found, expected = (
            duplicate(index).search(wanted, 5, where={"n": [1, 2, 3]}),
            index.search(wanted, 5, where={"n": [1, 2, 3]}),
        )
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1] == expected[1] and repr(duplicate(index)) == repr(index)

    store = jaxretr.encode(encoder, corpus=read_corpus(tiny.DATA), out=tmp_path / "store")
    np.testing.assert_array_equal(duplicate(store).rows(0, 20), store.rows(0, 20))


@pytest.mark.parametrize(
    ("kind", "remedy"), [(ScannIndex, "ScannIndex.load(folder)"), (Bm25Index, "Bm25Index.build(corpus)")]
)
def test_an_index_that_cannot_be_copied_says_what_to_do(kind: type, remedy: str):
    index = kind.__new__(kind)
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=rf"cannot be pickled or copied: .* {re.escape(remedy)}"):
            attempt(index)


# ---- search and train ------------------------------------------------------------------------------------------------


def test_search_finds_the_same_in_a_store_and_an_index(encoder: DualEncoder, tmp_path: Path):
    corpus, questions = read_corpus(tiny.DATA), read_questions(tiny.DATA)
    store = jaxretr.encode(encoder, corpus=corpus, out=tmp_path / "store", shard_rows=3)
    index = ExactIndex(store.rows(0, 20), store.read_ids())
    index.save(tmp_path / "index")
    run = jaxretr.search(encoder, store, queries=tiny.DATA / "queries.jsonl", k=5)
    scores, ids = index.search(encoder.encode_queries([question.text for question in questions]), 5)
    assert list(run) == [question.id for question in questions] and [list(hits) for hits in run.values()] == ids
    np.testing.assert_allclose([list(hits.values()) for hits in run.values()], scores, rtol=1e-5)
    assert repr(run) == "SearchRun(10 questions, 50 hits)"
    for other in (index, tmp_path / "index", str(tmp_path / "store")):
        found = jaxretr.search(encoder, other, queries=questions, k=5)
        assert [list(hits) for hits in found.values()] == ids
    # A run is what metrics and files take.
    assert metrics.evaluate(read_qrels(tiny.DATA / "qrels/train.tsv"), run, ["recall@5"])["recall@5"] >= 0
    run.save(tmp_path / "run.trec")
    assert {question: list(hits) for question, hits in read_trec(tmp_path / "run.trec").items()} == dict(
        zip(run, ids, strict=True)
    )
    # Filters, texts in place of questions, and another model.
    few = jaxretr.search(encoder, store, queries=["who"], k=5, allow=corpus.ids[:3], deny=corpus.ids[:1])
    assert set(few["0"]) == set(corpus.ids[1:3])
    other = DualEncoder(
        encoder.config, init_params(encoder.config, 1), load_tokenizer(tiny_tokenizer(encoder, tmp_path))
    )
    with pytest.raises(UserError, match="was encoded with another model"):
        jaxretr.search(other, store, queries=["who"])


def test_search_filters_by_fields_and_files_and_saves_every_format(encoder: DualEncoder, tmp_path: Path):
    corpus = read_corpus(tiny.DATA)
    store = jaxretr.encode(encoder, corpus=corpus, out=tmp_path / "store", shard_rows=3)
    rows = [json.loads(line) for line in (tiny.DATA / "corpus.jsonl").read_text().splitlines()]
    fields = tmp_path / "fields.jsonl"
    fields.write_text("".join(json.dumps({**row, "year": 2000 + n % 3}) + "\n" for n, row in enumerate(rows)))
    (tmp_path / "deny").write_text(f"{corpus.ids[2]}\n")
    asked = {"queries": ["who"], "k": 20, "deny": tmp_path / "deny"}
    for year in (2002, "2002", ["2002"]):
        run = jaxretr.search(encoder, store, **asked, where={"year": year}, corpus=fields)
        assert set(run["0"]) == set(corpus.ids[5::3])
    # An index's own fields, and a model that is loaded only once the filters have been checked.
    index = ExactIndex(store.rows(0, 20), corpus.ids, metadata={"year": [2000 + n % 3 for n in range(20)]})
    assert set(jaxretr.search(lambda: encoder, index, **asked, where={"year": 2002})["0"]) == set(corpus.ids[5::3])
    with pytest.raises(UserError, match="where year=1999: no passage has this value"):
        jaxretr.search(lambda: pytest.fail("loaded"), index, **asked, where={"year": 1999})

    run.save(tmp_path / "run.jsonl", format="jsonl", corpus=corpus)
    run.save(tmp_path / "run.json", format="dpr", corpus=tiny.DATA)
    for name in ("run.jsonl", "run.json"):
        assert [list(hits) for hits in read_run(tmp_path / name).values()] == [list(run["0"])]
    with pytest.raises(UserError, match="give the corpus"):
        run.save(tmp_path / "other", format="dpr")
    with pytest.raises(UserError, match="did you mean 'jsonl'"):
        run.save(tmp_path / "other", format="json")  # pyright: ignore[reportArgumentType]


def test_bm25_gives_a_run_as_search_does():
    run = jaxretr.search_bm25(tiny.DATA, queries=tiny.DATA / "queries.jsonl", k=3)
    assert list(run) == [question.id for question in read_questions(tiny.DATA)]
    assert max(map(len, run.values())) == 3
    best = next(
        iter(jaxretr.search_bm25(read_corpus(tiny.DATA), queries=["xyzzy", read_corpus(tiny.DATA).texts[4]])["1"])
    )
    assert best == read_corpus(tiny.DATA).ids[4]


def tiny_tokenizer(encoder: DualEncoder, folder: Path) -> Path:
    encoder.tokenizer.save_pretrained(folder / "tokenizer")
    return folder / "tokenizer"


def test_train_tells_the_metrics_the_step_and_the_model(tiny_models: Path, tmp_path: Path):
    config = tiny.contrastive_config(tiny_models, train={"steps": 2, "eval_every": 1, "save_every": 2})
    result = jaxretr.train(config, workdir=str(tmp_path / "run"))
    assert result == result.metrics and result["acc@5"] == result.metrics["acc@5"]
    assert result.best in (0, 1, 2)
    assert repr(jaxretr.load_encoder(result.model)).startswith(f"DualEncoder('{result.model}', 16 dimensions")


def test_what_is_no_model_no_path_and_no_column_is_refused_in_one_line(tmp_path: Path):
    """Rather than with a traceback from inside: a module of one's own, a list of files, a list of rows."""

    class Module:
        def __call__(self, tokens: Any) -> Any:
            return tokens

    class Own:
        def encode_passages(self, passages: Any) -> Any:
            return [[1.0] * (1 + number % 2) for number in range(len(passages))]

        encode_queries = encode_passages

    wrong: list[tuple[Any, str]] = [
        (
            lambda: jaxretr.evaluate_model(Module(), beir=tiny.DATA, split="train"),
            "a Module is not an encoder; give a Dual",
        ),
        (lambda: jaxretr.evaluate_model(lambda: Module(), beir=tiny.DATA, split="train"), "a Module is not an encoder"),
        (lambda: jaxretr.encode(3, corpus=tiny.DATA, out=tmp_path / "out"), "a int is not an encoder"),
        (lambda: jaxretr.load_config("dpr_small", data=["a", 3]), "data: a path is expected, or a list of them, not"),
        (lambda: jaxretr.load_config(3), "config: a path or name is expected, not a int"),
        (
            lambda: jaxretr.ExactIndex(np.eye(2, dtype=np.float32), metadata=[{"a": 1}]),
            "metadata: a list is not a dict",
        ),
        (
            lambda: jaxretr.search(Module(), np.eye(2), queries={"q1": "who"}),
            "questions: a list is expected, not a dict; give Question(id, text)",
        ),
        (
            lambda: jaxretr.search("model", tmp_path, queries={"who", "what"}),
            "questions: a set has no order; give a list",
        ),
        (
            lambda: jaxretr.ExactIndex(np.eye(2, dtype=np.float32), ids={"a", "b"}),
            "ids: a set has no order; give a list",
        ),
        (lambda: jaxretr.load_encoder(3), "3: a int is neither a path nor a name; give a str or a Path"),
        (lambda: jaxretr.load_encoder("a\0b"), "'a\\x00b': a path has no NUL character"),
        (lambda: jaxretr.load_encoder("a/" + "b" * 300), "no file has so long a name; choose a shorter name"),
        (lambda: jaxretr.mine(tiny.DATA, corpus=tiny.DATA, bm25={"k1": 1}), "bm25: a dict is no Bm25Settings"),
        (lambda: jaxretr.search("model", "~no-such-user/x", queries=["who"]), "there is no user 'no-such-user' here"),
        (lambda: jaxretr.search("model", tmp_path, queries="~no-such-user/x"), "there is no user 'no-such-user' here"),
        (lambda: jaxretr.report("runs/art", out=tmp_path / "x.html"), "runs='runs/art': is a single one; give a list"),
        (lambda: jaxretr.evaluate_model("model", beir=3), "3: a int is neither a path"),
        (lambda: jaxretr.ExactIndex.load(None), "None: a NoneType is neither a path"),
        (lambda: jaxretr.update(3), "3: a int is neither a path"),
        (lambda: jaxretr.search("model", 3, queries=["who"]), "a int is no index; give an index, an embedding store"),
        (lambda: jaxretr.search("model", tmp_path, queries=[1]), "questions: 1 is no text"),
        (lambda: jaxretr.search("model", tmp_path, queries=3), "questions: a int is neither a path nor a list"),
        (lambda: jaxretr.search("model", tmp_path, queries=["who"], k=1.5), "k=1.5: give a whole number, at least 1"),
        (lambda: jaxretr.search("model", tmp_path, queries=["who"], k=None), "k=None: give a whole number, at least 1"),
        (lambda: jaxretr.ExactIndex(np.eye(2)).search(np.eye(2), None), "k=None: give a whole number, at least 1"),
        (lambda: jaxretr.ExactIndex(np.eye(2)).search(np.eye(2), True), "k=True: give a whole number, at least 1"),
        (lambda: jaxretr.rerank(3, {}, queries=["who"], corpus=tiny.DATA), "a int is no scorer; give what load_scorer"),
        (
            lambda: jaxretr.evaluate_model("model", beir=tiny.DATA, split="train", baselines="bm25"),
            "baselines='bm25': is a single one",
        ),
        (lambda: jaxretr.evaluate_model("model", beir=tiny.DATA, metrics="mrr"), "metrics='mrr': is a single one"),
        (lambda: jaxretr.evaluate_model("model", beir=tiny.DATA, metrics=[]), "metrics=[]: name at least one"),
        (lambda: jaxretr.evaluate_run({}, qrels={"q": {"a": 1}}, metrics=[]), "metrics=[]: name at least one"),
        (lambda: jaxretr.combine("model", [1]), "models='model': is a single one; give a list"),
        (lambda: jaxretr.combine(["model"], 1), "weights=1: a int is no list; give a list"),
        (lambda: jaxretr.evaluate_model("model", beir=tiny.DATA, metrics=[10]), "measure 10 is no text"),
        (lambda: jaxretr.evaluate_run([1], qrels={"q": {"a": 1}}), "run: a list is no dict; give {question id"),
        (lambda: jaxretr.evaluate_run({"q": ["a"]}, qrels={}), "run: question 'q' has a list, not a dict"),
        (
            lambda: jaxretr.evaluate_run({"q": {"a": 1}}, qrels={"q": {"a": "1"}}),
            "the grade of passage 'a' for question",
        ),
        (
            lambda: jaxretr.evaluate_run({"q": {"a": 1}}, qrels={"q": {"a": 10**400}}),
            "the grade of passage 'a' for question",
        ),
        (
            lambda: jaxretr.evaluate_run({"q": {"a": "x"}}, qrels={"q": {"a": 1}}),
            "passage 'a' for question 'q' is not a",
        ),
        (
            lambda: jaxretr.evaluate_run({"q": {"a": 1}}, qrels={"q": {"a": 1}}, baselines=[{"q": {"a": 1}}]),
            "a dict is neither a path nor a name",
        ),
        (
            lambda: jaxretr.evaluate_run({"q": {"a": 10**400}}, qrels={"q": {"a": 1}}),
            "passage 'a' for question 'q' is not a",
        ),
        (
            lambda: jaxretr.fuse([{"q": {"a": "x"}}, {"q": {"a": 1}}], weights=[1]),
            "passage 'a' for question 'q' is not",
        ),
        (lambda: jaxretr.fuse("ab", weights=[1]), "runs='ab': is a single one; give a list"),
        (lambda: jaxretr.fuse([["a"], ["b"]], weights=[1]), "run: a list is no dict"),
        (lambda: jaxretr.fuse([{}, {}], weights=0.5), "weights=0.5: a float is no list"),
        (lambda: jaxretr.fuse([{}, {}], weights=["a"]), "the weights [1.0, 'a'] must be finite numbers"),
        (lambda: jaxretr.fuse([{}, {}], tune={}, grid=["a"]), "grid=['a']: give log, paper, or weights above 0"),
        (lambda: jaxretr.mine(tiny.DATA, corpus=tiny.DATA, run=[1]), "run: a list is no dict"),
        (lambda: jaxretr.mine(tiny.DATA, corpus=tiny.DATA, margin="x"), "margin='x': must be a finite number"),
        (
            lambda: jaxretr.mine(tiny.DATA, corpus=tiny.DATA, relative_margin="x"),
            "relative_margin='x': must be a share",
        ),
        (lambda: Bm25Settings(k1="1"), "k1='1': must be at least 0 and finite"),
        (
            lambda: jaxretr.generate("model", corpus=tiny.DATA, out=tmp_path / "out", best_share="1"),
            "best_share='1': give",
        ),
        (lambda: jaxretr.mine(tiny.DATA, corpus=tiny.DATA, ranks="1:5"), "ranks='1:5': give the first and the last"),
        (lambda: jaxretr.encode(Own(), corpus=3, out=tmp_path / "out"), "corpus=3: a int is no list"),
        (lambda: jaxretr.encode(Own(), queries=["who"], out=tmp_path / "out"), "queries: a str is no Question"),
        (
            lambda: jaxretr.evaluate_model(Own(), beir=tiny.DATA, split="train"),
            "returned a list that is no array of numb",
        ),
        (
            lambda: jaxretr.train("dpr_small", tmp_path / "run"),
            "a Config is expected, not a str; load it with load_config",
        ),
        (
            lambda: jaxretr.train(jaxretr.load_config("dpr_small"), tmp_path / "run", on_step=lambda step: None),
            "is called with a step's number and its metrics (too many positional arguments)",
        ),
    ]
    for call, message in wrong:
        with pytest.raises(jaxretr.UserError) as error:
            call()
        assert message in str(error.value) and "\n" not in str(error.value)


def test_a_name_that_is_none_of_the_choices_is_refused_before_the_work(encoder: DualEncoder, tmp_path: Path):
    runs, out = [{"q": {"a": 1.0}}, {"q": {"b": 1.0}}], tmp_path / "out"
    calls: list[tuple[Any, str]] = [
        (lambda wrong: jaxretr.fuse(runs, weights=[1], method=wrong), "method"),
        (lambda wrong: jaxretr.fuse(runs, weights=[1], normalise=wrong), "normalise"),
        (lambda wrong: jaxretr.fuse(runs, weights=[1], missing=["zero", wrong]), "missing"),
        (lambda wrong: jaxretr.fuse(runs, tune={"q": {"a": 1}}, grid=wrong), "grid"),
        (lambda wrong: jaxretr.encode(encoder, corpus=tiny.DATA, out=out, dtype=wrong), "dtype"),
        (lambda wrong: jaxretr.export(encoder, to="huggingface", out=out, layout=wrong), "layout"),
        (lambda wrong: jaxretr.export(encoder, to="onnx", out=out, side=wrong), "side"),
        (lambda wrong: jaxretr.export(encoder, to="onnx", out=out, quantise=wrong), "quantise"),
        (lambda wrong: jaxretr.load_encoder(tmp_path, passage_template=wrong), "passage_template"),
        (lambda wrong: encoder.tokenise(wrong, ["a"]), "side"),
        (lambda wrong: TestSet([], read_corpus(tiny.DATA), match=wrong), "match"),
    ]
    for call, name in calls:
        with pytest.raises(UserError, match=rf"{name}='wrong': give "):
            call("wrong")
    assert not out.exists()
