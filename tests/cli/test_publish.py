"""Publishing on the hub, tried with a stand-in: what arrives, what the card gives away, what is read again, and refusals."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hub_server import TOKEN, Hub, serving
from test_cli import train_once

import jaxretr
from jaxretr import cli
from jaxretr.config import to_json
from jaxretr.exports.card import without_folders
from jaxretr.exports.publishing import publish
from jaxretr.runtime.errors import UsageError, UserError

TEXTS = ["which planet is the fourth from the sun", "Mars"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_once(tmp_path_factory.getbasetemp())


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    hub = Hub()
    with serving(hub) as address:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def test_a_published_model_is_read_by_name_and_by_revision(
    hub: Hub, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, name = trained / "run", "me/planets"
    assert cli.main(["publish", str(run), name, "--license", "apache-2.0", "--private"]) == 0
    printed = capsys.readouterr().out
    assert f"{name}: " in printed and "golden vectors recomputed" in printed and "/commit/" in printed
    assert hub.private == {name} and hub.messages == ["Upload sentence-transformers model"]
    files = hub.files(name, "main")
    assert files is not None and {"modules.json", "README.md", "golden.npy"} <= files.keys()
    card = files["README.md"].decode()
    assert 'license: "apache-2.0"' in card and f"# {name}" in card and f'SentenceTransformer("{name}")' in card
    assert "On the dev set, at step" in card and '"learning_rate"' in card
    assert not [path for path, data in files.items() if str(tmp_path.parent).encode() in data], "paths of this machine"

    encoder, read = jaxretr.load_encoder(run), jaxretr.load_encoder(name)
    np.testing.assert_allclose(read.encode_queries(TEXTS), encoder.encode_queries(TEXTS), atol=1e-6)

    # Another layout on a branch: stale weights go, the branch main stays as it was.
    published = publish(run, f"{name}@towers", to="jaxretr", message="towers")
    assert published.commit is not None and hub.messages[-1] == "towers"
    assert hub.files(name, "main") == files
    on_branch = hub.files(name, "towers")
    assert on_branch is not None and set(published.files) <= set(on_branch)
    assert {path for path in on_branch if path.endswith(".safetensors")} <= set(published.files)
    card = on_branch["README.md"].decode()
    assert (
        f'from_pretrained("{name}@towers")' in card and f"hf download {name} --revision towers --local-dir DIR" in card
    )
    for revision in ("towers", hub.branches[name]["main"]):
        read = jaxretr.load_encoder(f"{name}@{revision}")
        np.testing.assert_allclose(read.encode_queries(TEXTS), encoder.encode_queries(TEXTS), atol=1e-6)
    with pytest.raises(UserError, match=r"me/planets@v9: the hub's model me/planets has no branch, tag or commit v9"):
        jaxretr.load_encoder(f"{name}@v9")


def test_a_published_cross_encoder_is_read_by_name(
    hub: Hub, tiny_cross_encoder: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, own, run = "me/reranker", jaxretr.load_scorer(tiny_cross_encoder), tmp_path / "run"
    shutil.copytree(tiny_cross_encoder, run / "model")
    (run / "config.json").write_text(json.dumps(to_json(jaxretr.load_config("cross_encoder_small"))))
    assert cli.main(["publish", str(run), f"{name}@v1", "--license", "mit"]) == 0
    printed = capsys.readouterr().out
    assert "4 scores recomputed, largest difference" in printed and hub.messages == ["Upload cross-encoder model"]
    files = hub.files(name, "v1")
    assert files is not None and {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= files.keys()
    card = files["README.md"].decode()
    assert 'license: "mit"\n' in card and f'CrossEncoder("{name}", revision="v1")' in card and "| 48 tokens |" in card
    assert "Objective: a cross-encoder's loss `listwise`." in card and '"positive_weight"' in card
    assert f'load_scorer("{name}@v1")' in card and str(tmp_path.parent) not in card
    read = jaxretr.load_scorer(f"{name}@v1")
    passages = [{"title": "Planets", "text": text} for text in TEXTS]
    np.testing.assert_allclose(read.score(TEXTS, passages), own.score(TEXTS, passages), atol=1e-6)
    # What is read back must score as the model does.
    own.save = lambda folder: jaxretr.load_scorer(tiny_cross_encoder).save(folder)  # pyright: ignore[reportAttributeAccessIssue]
    own.score = lambda questions, passages: np.zeros(len(questions))  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UserError, match="not published: read back, its scores differ by"):
        publish(own, name)  # pyright: ignore[reportArgumentType]
    # An encoder in its place is not taken for a cross-encoder by what that one left.
    publish(trained / "run", f"{name}@v1", to="jaxretr")
    assert jaxretr.load_encoder(f"{name}@v1").encode_queries(TEXTS).any()
    with pytest.raises(UserError, match="is a dual encoder"):
        jaxretr.load_scorer(f"{name}@v1")


def test_a_dry_run_uploads_nothing(hub: Hub, trained: Path) -> None:
    published = publish(trained / "run", "me/planets", dry_run=True)
    assert published.commit is None and published.files["golden.npy"] > 100 and not hub.branches
    assert "a dry run: nothing was uploaded" in str(published)


def test_what_cannot_be_published_is_said(
    hub: Hub, trained: Path, tiny_cross_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    for name, said in (
        *(
            (name, "no name of a repository; give OWNER/NAME")
            for name in ("planets", "a/b/c", "me/", "me/planets@", None)
        ),
        ("me/pla--nets", "Cannot have -- or .."),
        (f"me/{'x' * 100}", "the maximum length is 96"),
    ):
        with pytest.raises(UsageError, match=said):
            publish("nothing is loaded", name)  # pyright: ignore[reportArgumentType]
    config = {"corpus": "files:/home/me/secret/notes[words=10]", "dev": ["s3://secret/dev.jsonl", "./secret/x", "~/y"]}
    kept = {"path": "me/model", "data": "ir_datasets:beir/scifact", "train": "data/train.jsonl", "rate": 1e-5}
    assert without_folders({**config, **kept}) == {
        "corpus": "files:notes[words=10]",
        "dev": ["s3:dev.jsonl", "x", "y"],
        **kept,
    }
    with pytest.raises(UsageError, match="to=onnx: no layout of a model; give huggingface"):
        publish("nothing is loaded", "me/x", to="onnx")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="to=jaxretr: a cross-encoder has one layout; leave it out"):
        publish(tiny_cross_encoder, "me/x", to="jaxretr")
    encoder = jaxretr.load_encoder(trained / "run")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match=r"me/planets: the hub refuses the upload \(.*\); log in: hf auth login"):
        publish(encoder, "me/planets")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"me/planets: the hub cannot be reached \(.*\); connect and try again"):
        publish(encoder, "me/planets")
