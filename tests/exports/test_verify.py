"""`jaxretr verify`: whatever changes an export's vectors is found, and the line says what it is."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_checks import each_changed_byte
from test_export import make

from jaxretr import cli
from jaxretr.data.tokens import load_tokenizer
from jaxretr.exports.folder import export
from jaxretr.exports.verify_model import verify
from jaxretr.models.hub.tensor_files import TensorFiles, write_safetensors
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.storage import sealed_folder
from jaxretr.runtime.storage.files import sha256

LAYOUTS: dict[str, dict[str, Any]] = {
    "sentence-transformers": {"to": "sentence-transformers"},
    "bert": {"to": "huggingface", "layout": "bert"},
    "dpr": {"to": "huggingface", "layout": "dpr"},
    "jaxretr": {"to": "jaxretr"},
}


@pytest.fixture(scope="module")
def exports(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model of two towers in every layout."""
    folder = tmp_path_factory.mktemp("exports")
    encoder = make(load_tokenizer(tiny_models / "encoder_tokenizer"))
    for name, words in LAYOUTS.items():
        export(encoder, folder / name, **words)
    return folder


@pytest.fixture
def copied(exports: Path, tmp_path: Path) -> Any:
    """Gives a copy of an export, to be spoilt."""

    def copy(layout: str) -> Path:
        return Path(shutil.copytree(exports / layout, tmp_path / layout))

    return copy


def edit(path: Path, *keys: str, value: Any) -> None:
    """Sets one value of a JSON file."""
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    assert place[keys[-1]] != value, "nothing would change"
    place[keys[-1]] = value
    path.write_text(json.dumps(content))


def seal(path: Path) -> None:
    """Gives a changed golden.json its hash anew."""
    sealed_folder.write_record(path, sealed_folder.read_sealed(path, "")[0])


def test_golden_json_names_no_file_outside_of_the_folder(copied: Any, tmp_path: Path) -> None:
    folder = copied(next(iter(LAYOUTS)))
    (tmp_path / "outside").write_text("x")
    for name in ("../outside", str(tmp_path / "outside")):
        content, _ = sealed_folder.read_sealed(folder / "golden.json", "")
        content["files"] = {name: "0" * 64}
        sealed_folder.write_record(folder / "golden.json", content)
        with pytest.raises(UserError, match=r"golden\.json: was changed, and is no longer what an export writes"):
            verify(folder)


def change_weight(folder: Path, name: str) -> None:
    """Moves one number of a tensor by a hundredth."""
    tensors = TensorFiles.open(folder)
    arrays = {each: np.array(tensors.read(each)) for each in tensors.names}
    arrays[name].flat[3] += 0.01
    write_safetensors(folder / "model.safetensors", arrays, {"format": "pt"})


def exchange(folder: Path) -> None:
    (folder / "question").rename(folder / "third")
    (folder / "passage").rename(folder / "question")
    (folder / "third").rename(folder / "passage")


def refused(folder: Path) -> str:
    with pytest.raises(UserError, match="not what was exported") as caught:
        verify(folder)
    assert caught.value.exit_code == 1 and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_export_is_intact_wherever_it_lies(copied: Any, layout: str) -> None:
    folder = copied(layout)
    (folder / ".gitattributes").write_text("Of the hub.")  # What was added is nobody's business.
    report = verify(folder)
    assert report.readers == ("jaxretr",) and report.texts == 10 and report.difference < 1e-6
    assert report.files == len([path for path in folder.rglob("*") if path.is_file()]) - 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_changed_byte_in_any_file(exports: Path, copied: Any, layout: str) -> None:
    """Also in files that no vector depends on, and in the file that holds the hashes of all the others."""
    folder = copied(layout)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert {path.name for path in files} >= {"golden.json", "golden.npy", "README.md", "tokenizer_config.json"}
    # Of golden.json, which hashes itself, every kind of byte: in texts, hashes, numbers and between them.
    for path, at in each_changed_byte(folder, "golden.json"):
        with pytest.raises(UserError) as caught:
            verify(folder)
        assert path.name in str(caught.value), f"{path} at byte {at}"
    verify(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_changed_weight(copied: Any, layout: str) -> None:
    folder = copied(layout)
    place = folder if layout == "jaxretr" else folder / "passage"
    prefix = {"dpr": "ctx_encoder.bert_model.", "jaxretr": "passage.bert."}.get(layout, "")
    name = prefix + ("layers.ffn_in.bias" if layout == "jaxretr" else "encoder.layer.1.intermediate.dense.bias")
    change_weight(place, name)
    file = (place / "model.safetensors").relative_to(folder).as_posix()
    message = refused(folder)
    assert f"{file} was changed; the vectors of 5 of 5 passages differ by up to" in message
    assert "questions" not in message and "golden.json" not in message
    # Whoever writes the new hash into golden.json is found out by its own hash, and by the vectors.
    edit(folder / "golden.json", "files", file, value=sha256(place / "model.safetensors"))
    assert "golden.json was changed; the vectors of 5 of 5 passages differ" in refused(folder)
    seal(folder / "golden.json")
    message = refused(folder)
    assert "was changed" not in message and "of 5 passages differ" in message


@pytest.mark.parametrize("layout", ["sentence-transformers", "bert", "dpr"])
def test_swapped_towers(copied: Any, layout: str) -> None:
    folder = copied(layout)
    exchange(folder)
    message = refused(folder)
    assert "question/model.safetensors is what passage/model.safetensors was" in message
    assert "towers are swapped" in message if layout == "dpr" else "passage tower are exchanged" in message
    if layout == "sentence-transformers":  # Its lengths are exchanged with it.
        assert "max_question_length is 48 instead of 16" in message


def test_swapped_towers_in_one_file(copied: Any) -> None:
    folder = copied("jaxretr")
    tensors = TensorFiles.open(folder)
    other = {"question": "passage", "passage": "question"}
    swapped = {f"{other[side]}.{rest}": f"{side}.{rest}" for side, rest in (n.split(".", 1) for n in tensors.names)}
    write_safetensors(folder / "model.safetensors", {new: tensors.read(old) for new, old in swapped.items()}, {})
    assert "model.safetensors was changed; the question tower and the passage tower are exchanged" in refused(folder)


@pytest.mark.parametrize("layout", ["sentence-transformers", "bert", "jaxretr"])
def test_a_wrong_pooling(copied: Any, layout: str) -> None:
    folder = copied(layout)
    if layout == "sentence-transformers":
        for side in ("question", "passage"):
            path = folder / side / "1_Pooling/config.json"
            edit(path, "pooling_mode_cls_token", value=False)
            if side == "question":
                edit(path, "pooling_mode_mean_tokens", value=True)
                assert "pooling is mean in question/ and cls in passage/" in refused(folder)
    else:
        edit(folder / "jaxretr.json", "export" if layout == "bert" else "config", "pooling", value="mean")
    message = refused(folder)
    assert "pooling is mean instead of cls; the vectors of 5 of 5 questions differ" in message
    # Nor does it help to correct golden.json.
    edit(folder / "golden.json", "settings", "pooling", value="mean")
    files = [name for name in sealed_folder.names(folder) if name != "golden.json"]
    edit(folder / "golden.json", "files", value=sealed_folder.hashes(folder, files))
    seal(folder / "golden.json")
    message = refused(folder)
    assert "was changed" not in message
    assert "pooling is" not in message and "the vectors of 5 of 5 questions differ" in message


@pytest.mark.parametrize("layout", ["sentence-transformers", "bert", "jaxretr"])
def test_a_changed_maximum_length(copied: Any, layout: str) -> None:
    folder = copied(layout)
    if layout == "sentence-transformers":
        edit(folder / "passage/sentence_bert_config.json", "max_seq_length", value=47)
    else:
        section = "export" if layout == "bert" else "config"
        edit(folder / "jaxretr.json", section, "max_passage_length", value=47)
    # To the small vocabulary all passages but "Title alone" are long.
    assert "max_passage_length is 47 instead of 48; the vectors of 4 of 5 passages differ" in refused(folder)


def test_other_settings_and_files(copied: Any, tmp_path: Path) -> None:
    folder = copied("bert")
    edit(folder / "jaxretr.json", "export", "normalise", value=True)
    assert "normalise is True instead of False; the vectors of 5 of 5 questions differ" in refused(folder)
    edit(folder / "jaxretr.json", "export", "normalise", value=False)
    edit(folder / "jaxretr.json", "export", "passage_template", value="joined")
    assert "passage_template is joined instead of pair; the vectors of" in refused(folder)
    edit(folder / "jaxretr.json", "export", "passage_template", value="pair")
    assert refused(folder).endswith("jaxretr.json was changed; export the model again")  # its spaces
    edit(folder / "question/tokenizer.json", "normalizer", "lowercase", value=False)
    message = refused(folder)
    assert "question/tokenizer.json was changed" in message and "questions differ" in message
    (folder / "passage/model.safetensors").unlink()
    assert "passage/model.safetensors is missing; " in refused(folder)
    pytest.importorskip("torch", reason="transformers reads the export with it")
    with pytest.raises(UserError, match=r"passage/model.safetensors is missing; .*transformers cannot read it \("):
        verify(folder, "transformers")


def test_changed_golden_vectors(copied: Any) -> None:
    folder = copied("jaxretr")
    vectors = np.load(folder / "golden.npy")
    vectors[2, 1] = np.nan
    np.save(folder / "golden.npy", vectors)
    assert "golden.npy was changed; the vectors of 1 of 5 questions differ by up to inf" in refused(folder)
    np.save(folder / "golden.npy", vectors[1:])
    with pytest.raises(UserError, match=r"golden.npy: holds float32 \[9, 16\]"):
        verify(folder)
    (folder / "golden.npy").write_bytes(b"")
    with pytest.raises(UserError, match=r"golden.npy: cannot be read"):
        verify(folder)
    edit(folder / "golden.json", "questions", value="all")
    with pytest.raises(UserError, match="was changed, and is no longer what an export writes"):
        verify(folder)
    (folder / "golden.json").unlink()
    with pytest.raises(UserError, match=r"has no golden.json, so there is nothing to verify"):
        verify(folder)


def test_a_model_that_is_one_tower_must_stay_one(tiny_models: Path, tmp_path: Path) -> None:
    encoder = make(load_tokenizer(tiny_models / "encoder_tokenizer"), shared=True)
    export(encoder, tmp_path / "out", "huggingface", layout="dpr")  # Two folders of the same weights.
    change_weight(tmp_path / "out/question", "question_encoder.bert_model.encoder.layer.1.intermediate.dense.bias")
    message = refused(tmp_path / "out")
    assert "question/model.safetensors was changed" in message and "question/ and passage/ differ" in message


@pytest.mark.parametrize(
    ("layout", "library"), [("sentence-transformers",) * 2, ("bert", "transformers"), ("dpr", "transformers")]
)
def test_other_libraries_verify_too(copied: Any, capsys: pytest.CaptureFixture[str], layout: str, library: Any) -> None:
    pytest.importorskip("sentence_transformers", reason="one of the libraries that read an export")
    folder = copied(layout)
    assert cli.main(["verify", str(folder), "--with", library]) == 0
    printed = capsys.readouterr().out
    count = sum(path.is_file() for path in folder.rglob("*")) - 1
    assert printed.startswith(f"{folder}: intact; 10 golden vectors agree to ")
    assert f"read by jaxretr and {library}; {count} files unchanged" in printed
    change_weight(
        folder / "question",
        ("question_encoder.bert_model." if layout == "dpr" else "") + "encoder.layer.0.output.dense.bias",
    )
    assert cli.main(["verify", str(folder), "--with", library]) == 1
    error = capsys.readouterr().err
    assert f"read by {library}, the vectors of 5 of 5 questions differ" in error
    assert len(error.splitlines()) == 1


def test_a_library_of_another_layout_is_wrong_use(exports: Path) -> None:
    for layout, library in (("bert", "sentence-transformers"), ("jaxretr", "transformers")):
        with pytest.raises(UsageError, match=r"was exported for .*, so .* cannot read it; leave library= out"):
            verify(exports / layout, library)  # pyright: ignore[reportArgumentType]
