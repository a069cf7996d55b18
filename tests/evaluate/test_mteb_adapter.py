"""The real mteb measures a model as `jaxretr evaluate` does, through its encoders' protocol and through its searchers'."""

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest
import tiny
from peers import datasets, mteb

import jaxretr
from jaxretr.assets import ENCODER_SMALL, QUICKSTART
from jaxretr.data.readers import BeirSet, Corpus, read_beir
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import run_of
from jaxretr.evaluate.mteb_adapter import MtebModel
from jaxretr.evaluate.searches import encoder_search
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A model with two towers, whose confusion would show."""
    small = DualEncoder.from_pretrained(ENCODER_SMALL)
    towers = {"question": small.params["shared"], "passage": tiny.lively(small.params["shared"], 3, noise=0.01)}
    place = tmp_path_factory.mktemp("mteb") / "model"
    DualEncoder(dataclasses.replace(small.config, shared=False), towers, small.tokenizer).save(place)
    return place


@pytest.fixture(scope="module")
def beir():
    """A handful of questions, and few enough passages for a test."""
    whole = read_beir(QUICKSTART, "dev")
    questions = whole.questions[:30]
    qrels = {question.id: whole.qrels[question.id] for question in questions}
    wanted = {passage for judged in qrels.values() for passage in judged} | set(whole.corpus.ids[:150])
    return BeirSet(Corpus.from_passages(row for row in whole.corpus if row.id in wanted), questions, qrels)


def local_task(beir, candidates=None):
    """A retrieval task of mteb that loads nothing from anywhere."""

    class LocalRetrieval(mteb.abstasks.retrieval.AbsTaskRetrieval):
        metadata = mteb.abstasks.task_metadata.TaskMetadata(
            name="LocalRetrieval",
            description="Passages of the tests.",
            reference=None,
            dataset={"path": "local/none", "revision": "1"},
            type="Retrieval" if candidates is None else "Reranking",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
            date=("2020-01-01", "2020-01-02"),
            domains=["Encyclopaedic"],
            task_subtypes=[],
            license="cc-by-4.0",
            annotations_creators="derived",
            dialect=[],
            sample_creation="found",
            bibtex_citation="",
        )

        def load_data(self, **kwargs):
            corpus = [{"id": row.id, "title": row.title, "text": row.text} for row in beir.corpus]
            queries = [{"id": question.id, "text": question.text} for question in beir.questions]
            known = {question.id for question in beir.questions}
            self.dataset = {
                "default": {
                    "test": {
                        "corpus": datasets.Dataset.from_list(corpus),
                        "queries": datasets.Dataset.from_list(queries),
                        "relevant_docs": {id: dict(judged) for id, judged in beir.qrels.items() if id in known},
                        "top_ranked": candidates,
                    }
                }
            }
            self.data_loaded = True

    return LocalRetrieval()


def main_score(model, task, folder) -> tuple[float, dict[str, dict[str, float]]]:
    """mteb's score, and the run that it comes from."""
    found = mteb.evaluate(model, task, cache=None, prediction_folder=folder, show_progress_bar=False, co2_tracker=False)
    predictions = json.loads(next(folder.glob("*.json")).read_text())
    return found.task_results[0].get_score(), predictions["default"]["test"]


def nearly(scores: dict[str, float]):
    """Equal up to float32 rounding, which follows the vectors' lengths: a score near zero has that of the largest."""
    return pytest.approx(scores, rel=1e-6, abs=1e-6 * max(map(abs, scores.values())))


def test_mteb_measures_what_evaluate_measures(folder, beir, tmp_path):
    model = jaxretr.mteb_model(folder)
    assert isinstance(model, mteb.EncoderProtocol) and isinstance(model, mteb.SearchProtocol)
    expected_run = run_of(encoder_search(model.encoder, beir.corpus, None), beir.questions, 1000)
    expected = metrics.evaluate(beir.qrels, expected_run, ["ndcg@10"])["ndcg@10"]
    assert 0.1 < expected < 0.99  # a score that says something
    for name, each in (("search", model), ("encoder", mteb.models.SearchEncoderWrapper(model))):
        score, run = main_score(each, local_task(beir), tmp_path / name)
        # mteb rounds the scores that it reports to 5 digits; those of its run have all of them.
        assert score == pytest.approx(round(expected, 5), abs=1e-6), name
        assert metrics.evaluate(beir.qrels, run, ["ndcg@10"])["ndcg@10"] == pytest.approx(expected, abs=1e-6), name
        for question in run:
            assert run[question] == nearly(expected_run[question]), (name, question)


def test_candidates_are_reranked(folder, beir, tmp_path):
    ids = beir.corpus.ids
    candidates = {question.id: ids[number : number + 6] for number, question in enumerate(beir.questions)}
    model = jaxretr.mteb_model(folder)
    _, run = main_score(model, local_task(beir, candidates), tmp_path)
    whole = run_of(encoder_search(model.encoder, beir.corpus, None), beir.questions, len(ids))
    for question, of_one in candidates.items():
        assert run[question] == nearly({id: whole[question][id] for id in of_one})
    queries = datasets.Dataset.from_list([{"id": "q", "text": "what"}])
    task = {"task_metadata": local_task(beir).metadata, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
    with pytest.raises(UserError, match="candidate 'nowhere' of query 'q' is not in the corpus"):
        model.search(queries, top_k=3, top_ranked={"q": ["nowhere"]}, **task)
    with pytest.raises(UserError, match="search was called before index"):
        jaxretr.mteb_model(folder).search(queries, top_k=3, **task)


def test_roles_and_texts(folder):
    model = jaxretr.mteb_model(folder)
    query, document = mteb.types.PromptType.query, mteb.types.PromptType.document
    task = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
    texts = ["who wrote it", "a river in Asia", "the first man"]
    batches = [{"text": texts[:2]}, {"text": texts[2:]}]
    encoder = model.encoder
    np.testing.assert_array_equal(model.encode(batches, prompt_type=query, **task), encoder.encode_queries(texts))
    np.testing.assert_array_equal(model.encode(batches, **task), encoder.encode_passages(texts))
    titled = [{"text": ["T who wrote it"], "title": ["T"], "body": ["who wrote it"]}]
    expected = encoder.encode_passages([{"title": "T", "text": "who wrote it"}])
    np.testing.assert_array_equal(model.encode(titled, prompt_type=document, **task), expected)
    assert not np.allclose(encoder.encode_passages(["T who wrote it"]), expected)
    with pytest.raises(UserError, match="precision='int8'"):
        model.encode(batches, precision="int8", **task)
    a, b = encoder.encode_queries(texts), encoder.encode_passages(texts)
    np.testing.assert_allclose(np.asarray(model.similarity(a, b)), a @ b.T, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(model.similarity_pairwise(a, b)), (a * b).sum(axis=1), rtol=1e-5)


def test_metadata(folder):
    meta = jaxretr.mteb_model(folder, license="apache-2.0", training_datasets={"NQ"}).mteb_model_meta
    assert (meta.name, meta.framework, meta.embed_dim) == (
        "jaxretr/model",
        ["JAX"],
        DualEncoder.from_pretrained(folder).config.embedding_size,
    )
    assert (meta.license, meta.training_datasets) == ("apache-2.0", {"NQ"})
    model = DualEncoder.from_pretrained(folder)
    sizes = [leaf.size for leaf in jax.tree.leaves(model.params)]
    assert meta.n_parameters == sum(sizes) > meta.n_embedding_parameters > 0
    # Other weights are another revision: mteb keeps results by name and revision.
    other = DualEncoder(model.config, tiny.lively(model.params, 9), model.tokenizer)
    assert jaxretr.mteb_model(other, name="jaxretr/model").mteb_model_meta.revision != meta.revision
    assert jaxretr.mteb_model(model, name="me/mine").mteb_model_meta.revision == meta.revision
    # So are other prompts, and another precision.
    revisions = {
        jaxretr.mteb_model(DualEncoder.from_pretrained(folder, **settings)).mteb_model_meta.revision
        for settings in (
            {},
            {"query_prompt": "a"},
            {"passage_prompt": "a"},
            {"passage_prompt": "b"},
            {"dtype": "bfloat16"},
        )
    }
    assert len(revisions) == 5
    # mteb loads it again by its metadata.
    again = meta.load_model()
    assert again.mteb_model_meta.revision == meta.revision and again.mteb_model_meta.license == "apache-2.0"


def test_wrong_use_is_one_line(folder, monkeypatch):
    with pytest.raises(UserError, match="license") as error:
        jaxretr.mteb_model(folder, license=7)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="organization/model_name"):
        jaxretr.mteb_model(folder, name="noslash")
    with pytest.raises(UsageError, match="device='cuda:0': JAX computes on cpu here"):
        MtebModel("a/b", path=str(folder), device="cuda:0")
    with pytest.raises(UserError, match=r"its weights are revision [0-9a-f]{16}, not abc"):
        MtebModel("a/b", "abc", path=str(folder))
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", None)
    with pytest.raises(UserError, match=r"is not installed .*; run: pip install 'jaxretr\[mteb\]'"):
        jaxretr.mteb_model(folder)
