"""`train.suites`: named collections as dev data during training, searched with the current weights on eight devices."""

import json
from pathlib import Path
from typing import Any

import named_sets
import pytest
import tiny

from jaxretr.config import MlmConfig, PretrainData, Train, check_numbers
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.runs.suites import suites_of

FAMILY = "jaxretr-test-family"


@pytest.fixture(scope="module")
def family() -> str:
    """Two collections of ir_datasets under one id: that of the run, and its first 12 passages."""
    named_sets.register_beir(f"{FAMILY}/whole")
    docs, queries = named_sets.Docs(named_sets.LocalDownload(tiny.DATA / "corpus.jsonl")), named_sets.Queries(tiny.DATA)

    class FirstDocs(named_sets.Docs):
        def docs_iter(self) -> Any:
            return (each for number, each in enumerate(docs.docs_iter()) if number < 12)

    qrels = named_sets.Qrels(tiny.DATA / "qrels/train.tsv")
    named_sets.register(f"{FAMILY}/first/test", FirstDocs(docs.file), queries, qrels)
    return f"ir_datasets:{FAMILY}"


def evaluations(folder: Path) -> list[dict[str, float]]:
    return [line for line in read_metrics(folder) if any("@" in name for name in line)]


@pytest.mark.parametrize("kind", ["contrastive", "art"])
def test_a_suite_of_the_runs_own_corpus_has_the_metrics_of_its_dev_set(
    kind: str, tiny_models: Path, tmp_path: Path
) -> None:
    """At every evaluation; and it may choose the best checkpoint."""
    qrels = tmp_path / "test.tsv"
    qrels.write_text((tiny.DATA / "qrels/train.tsv").read_text())
    collection = tmp_path / "own/qrels"
    collection.mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / "own" / name).symlink_to(tiny.DATA / name)
    (collection / "test.tsv").symlink_to(qrels)
    name = named_sets.tfds_beir(tmp_path / "built", tmp_path / "own")
    data: dict[str, Any] = {"corpus": str(tiny.DATA), "dev_qrels": str(qrels)}
    settings: dict[str, Any] = {"steps": 2, "eval_every": 1, "suites": (name,), "best_metric": "wiki_qa:ndcg@10"}
    make = tiny.contrastive_config if kind == "contrastive" else tiny.art_config
    train(make(tiny_models, data=data, train=settings), tmp_path / "run")
    found = evaluations(tmp_path / "run")
    assert len(found) == 3
    for line in found:
        for metric in ("recall@5", "mrr@10", "ndcg@10"):
            # Of the same index, made by a program of its own: its reductions may be ordered otherwise.
            assert line[f"wiki_qa:{metric}"] == pytest.approx(line[metric], abs=1e-6)
    best = json.loads((tmp_path / "run/best.json").read_text())
    assert best["figures"]["wiki_qa:ndcg@10"] == max(line["wiki_qa:ndcg@10"] for line in found)


def test_a_family_has_the_mean_of_its_collections(family: str, tiny_models: Path, tmp_path: Path) -> None:
    named_sets.register(f"{FAMILY}/unjudged", named_sets.Docs(named_sets.LocalDownload(tiny.DATA / "corpus.jsonl")))
    settings: dict[str, Any] = {"steps": 1, "suites": (family,), "best_metric": f"{FAMILY}:recall@5"}
    config = tiny.contrastive_config(tiny_models, data={"dev_questions": None}, train=settings)
    train(config, tmp_path)
    for line in evaluations(tmp_path):
        names = [name for name in line if name.startswith(f"{FAMILY}/") and name.endswith(":recall@5")]
        # Not whole/train, which has no judgements but those of training.
        assert names == [f"{FAMILY}/first/test:recall@5", f"{FAMILY}/whole/tydi:recall@5"]
        assert line[f"{FAMILY}:recall@5"] == pytest.approx(sum(line[name] for name in names) / 2)


def test_an_unknown_metric_of_a_suite_stops_before_the_first_step(
    family: str, tiny_models: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"steps": 1, "suites": (family,), "best_metric": f"{FAMILY}:ndcg@11"}
    config = tiny.contrastive_config(tiny_models, data={"dev_questions": None}, train=settings)
    with pytest.raises(UsageError, match=rf"the evaluation gives .*{FAMILY}:ndcg@10"):
        train(config, tmp_path)
    assert not any("loss" in line for line in read_metrics(tmp_path))


def test_nano_beir_is_short_for_its_thirteen() -> None:
    ((suite, data_sets),) = suites_of(["nano-beir"]).items()
    assert suite == "nano-beir" and len(data_sets) == 13
    assert {str(one.folder) for one in data_sets} >= {"ir_datasets:nano-beir/scifact", "ir_datasets:nano-beir/nq"}


def test_a_test_split_is_the_last_choice(tmp_path: Path) -> None:
    (tmp_path / "a/qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "qrels/dev.tsv"):
        (tmp_path / "a" / name).write_text("")
    assert [one.split for one in suites_of([str(tmp_path / "a")])["a"]] == ["dev"]
    with pytest.raises(UsageError, match="two are called 'a'"):
        suites_of([str(tmp_path / "a"), str(tmp_path / "a")])
    with pytest.raises(UserError, match="has no collection with questions and judgements"):
        suites_of([named_sets.register_beir("jaxretr-test/odd") + "/train"])


def test_other_runs_refuse_suites() -> None:
    config = MlmConfig(name="m", data=PretrainData(corpora=("x",)), train=Train(suites=("nano-beir",)))
    with pytest.raises(UsageError, match="only art and contrastive runs evaluate on collections"):
        check_numbers(config)
