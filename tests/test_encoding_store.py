"""The embedding store: an interrupted run goes on, nothing half-written is ever read, and mixtures are refused."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny

from jaxretr.data.tokens import load_tokenizer
from jaxretr.encoding_store import EmbeddingStore, StoreMeta, is_store, model_fingerprint
from jaxretr.errors import UserError
from jaxretr.models.dual_encoder import DualEncoder, DualEncoderConfig, init_params

ROWS, DIM = 10, 4
EMBEDDINGS = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
# A no-break space, a line separator, quotes and an empty-looking one: ids are strings, whatever they hold.
IDS = ["1", "01", "a b", "a\u00a0b", "a\u2028b", '"', "NaN", "null", "\\", "é"]
META = StoreMeta(
    side="passage",
    model="the/model",
    model_fingerprint="m",
    texts_fingerprint="t",
    rows=ROWS,
    dim=DIM,
    dtype="float32",
    compute="float32",
    shard_rows=4,
)


def fill(store: EmbeddingStore, shards: list[int] | None = None) -> None:
    for shard in store.missing() if shards is None else shards:
        start, stop = store.span(shard)
        store.write(shard, EMBEDDINGS[start:stop], cut=shard)


def files(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_what_is_written_is_read(tmp_path: Path):
    store = EmbeddingStore.begin(tmp_path / "new/store", META, IDS)
    fill(store)
    read = EmbeddingStore.open(tmp_path / "new/store")
    blocks = list(read.blocks())
    assert [len(block) for block in blocks] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate(blocks), EMBEDDINGS)
    assert read.read_ids() == IDS
    assert read.cut == 0 + 1 + 2
    assert files(read.folder) == [*(f"embeddings-0000{n}-of-00003.npy" for n in range(3)), "ids.jsonl", "meta.json"]
    # A .npy file like any other.
    np.testing.assert_array_equal(np.load(read.folder / "embeddings-00001-of-00003.npy"), EMBEDDINGS[4:8])
    assert is_store(read.folder)


def test_float16_is_rounded_once_and_refuses_what_it_cannot_hold(tmp_path: Path):
    meta = dataclasses.replace(META, dtype="float16")
    store = EmbeddingStore.begin(tmp_path, meta, IDS)
    fill(store)
    np.testing.assert_array_equal(np.concatenate(list(store.blocks())), EMBEDDINGS.astype(np.float16))
    large = EMBEDDINGS[4:8].copy()
    large[2, 1] = 70_000
    with pytest.raises(UserError, match=r"row 6: .*no finite float16; use --dtype float32"):
        store.write(1, large, 0)


def test_a_number_that_is_not_finite_is_refused_and_leaves_no_shard(tmp_path: Path):
    store = EmbeddingStore.begin(tmp_path, META, IDS)
    broken = EMBEDDINGS[:4].copy()
    broken[3, 0] = np.nan
    with pytest.raises(UserError, match=r"row 3: .*check the model"):
        store.write(0, broken, 0)
    assert files(tmp_path) == ["ids.jsonl", "meta.json"]


# ---- interrupted runs ------------------------------------------------------------------------------------------------


def test_finished_shards_are_not_asked_for_again(tmp_path: Path):
    fill(EmbeddingStore.begin(tmp_path, META, IDS), [0, 2])
    again = EmbeddingStore.begin(tmp_path, META, IDS)
    assert again.missing() == [1]
    assert again.cut == 2
    with pytest.raises(UserError, match=r"1 of 3 shards are not finished; run the same `jaxretr encode` command again"):
        EmbeddingStore.open(tmp_path)
    fill(again)
    np.testing.assert_array_equal(np.concatenate(list(EmbeddingStore.open(tmp_path).blocks())), EMBEDDINGS)


@pytest.mark.parametrize("moment", ["ids", "first meta", "shard", "shard listed"])
def test_killed_at_any_moment_the_store_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str):
    """A kill between two files, and the half file that it leaves behind."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    if moment == "ids":
        (tmp_path / ".ids.jsonl.0a1b.part").write_text('"1"\n"0')
    elif moment == "first meta":
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(EmbeddingStore, "_update", killed)
            EmbeddingStore.begin(tmp_path, META, IDS)
        assert files(tmp_path) == ["ids.jsonl"]
    else:
        store = EmbeddingStore.begin(tmp_path, META, IDS)
        fill(store, [0])
        if moment == "shard":
            (tmp_path / ".embeddings-00001-of-00003.npy.0a1b.part").write_bytes(b"\x93NUMPY half")
        else:
            with monkeypatch.context() as patch, pytest.raises(Killed):
                patch.setattr(EmbeddingStore, "_update", killed)
                fill(store, [1])
            # Written, but not listed, so its count of cut texts is not known: it is encoded again.
            assert (tmp_path / "embeddings-00001-of-00003.npy").exists()
    again = EmbeddingStore.begin(tmp_path, META, IDS)
    assert again.missing() == ([1, 2] if moment.startswith("shard") else [0, 1, 2])
    fill(again)
    read = EmbeddingStore.open(tmp_path)
    np.testing.assert_array_equal(np.concatenate(list(read.blocks())), EMBEDDINGS)
    assert read.read_ids() == IDS
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("damage", ["cut short", "removed", "another shape", "no npy"])
def test_a_damaged_shard_is_an_error_to_a_reader_and_encoded_again_by_encode(tmp_path: Path, damage: str):
    fill(EmbeddingStore.begin(tmp_path, META, IDS))
    path = tmp_path / "embeddings-00001-of-00003.npy"
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "removed":
        path.unlink()
    elif damage == "another shape":
        np.save(path, EMBEDDINGS[:3])
    else:
        path.write_bytes(b"")
    with pytest.raises(
        UserError, match=r"embeddings-00001-of-00003\.npy: .*run the same `jaxretr encode` command again"
    ):
        EmbeddingStore.open(tmp_path)
    again = EmbeddingStore.begin(tmp_path, META, IDS)
    assert again.missing() == [1]
    fill(again)
    np.testing.assert_array_equal(np.concatenate(list(EmbeddingStore.open(tmp_path).blocks())), EMBEDDINGS)


def test_damaged_ids_are_named_and_removed_ones_written_again(tmp_path: Path):
    store = EmbeddingStore.begin(tmp_path, META, IDS)
    fill(store)
    lines = (tmp_path / "ids.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "ids.jsonl").write_text("".join([*lines[:2], "3\n", *lines[3:]]))
    with pytest.raises(UserError, match=r"ids\.jsonl:3: not a JSON string"):
        store.read_ids()
    (tmp_path / "ids.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(UserError, match="9 ids for 10 embeddings"):
        store.read_ids()
    (tmp_path / "ids.jsonl").unlink()
    assert EmbeddingStore.begin(tmp_path, META, IDS).read_ids() == IDS


# ---- mixtures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"model_fingerprint": "x", "model": "other"},
            r"embeddings of another model \(the/model\) than other; give an",
        ),
        ({"texts_fingerprint": "x"}, r"embeddings of other texts \(passages\); give another --out"),
        ({"side": "question"}, "embeddings of other texts"),
        ({"dtype": "float16"}, "was begun with --dtype float32, not float16; use that again, or"),
        ({"compute": "bfloat16"}, "was begun with --compute float32, not bfloat16"),
        ({"shard_rows": 5}, "was begun with --shard-rows 4, not 5"),
    ],
)
def test_a_store_is_not_mixed(tmp_path: Path, change: dict, message: str):
    fill(EmbeddingStore.begin(tmp_path, META, IDS), [0])
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with pytest.raises(UserError, match=message):
        EmbeddingStore.begin(tmp_path, dataclasses.replace(META, **change), IDS)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_the_same_model_by_another_name_goes_on(tmp_path: Path):
    fill(EmbeddingStore.begin(tmp_path, META, IDS), [0])
    assert EmbeddingStore.begin(tmp_path, dataclasses.replace(META, model="../model"), IDS).missing() == [1, 2]


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match=r"holds something else \(thesis\.tex\)"):
        EmbeddingStore.begin(tmp_path, META, IDS)
    assert files(tmp_path) == ["thesis.tex"]
    with pytest.raises(UserError, match=r"cannot be written .*give another --out"):
        EmbeddingStore.begin(tmp_path / "thesis.tex", META, IDS)


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "no readable store .*run `jaxretr encode` first"),
        ("{", "no readable store"),
        ("[]", "not the description of a jaxretr-embeddings version 1"),
        ('{"format": "jaxretr-exact-index", "version": 1}', "not the description of a jaxretr-embeddings version 1"),
        ({"version": 2}, "not the description of a jaxretr-embeddings version 1"),
        ({"row": 3}, r"meta\.json: unknown key 'row'; did you mean 'rows'"),
        ({"truncated": [0]}, "not the description"),
        ({"rows": "10"}, r"meta\.json: 'rows' is '10'; it must be a whole number"),
    ],
)
def test_meta_that_is_not_ours(tmp_path: Path, content: str | dict | None, message: str):
    fill(EmbeddingStore.begin(tmp_path, META, IDS))
    path = tmp_path / "meta.json"
    if content is None:
        path.unlink()
    elif isinstance(content, str):
        path.write_text(content)
        assert not is_store(tmp_path)
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    with pytest.raises(UserError, match=message):
        EmbeddingStore.open(tmp_path)


# ---- fingerprints ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> DualEncoder:
    folder = tmp_path_factory.mktemp("models")
    tiny.write_models(folder)
    config = DualEncoderConfig(tiny.BERT, max_question_length=16, max_passage_length=48)
    return DualEncoder(config, init_params(config, 0), load_tokenizer(folder / "encoder_tokenizer"))


def test_a_saved_model_keeps_its_fingerprint(encoder: DualEncoder, tmp_path: Path):
    encoder.save(tmp_path / "model")
    loaded = DualEncoder.from_pretrained(tmp_path / "model", dtype="bfloat16")
    assert model_fingerprint(loaded) == model_fingerprint(encoder)


@pytest.mark.parametrize("what", ["question tower", "passage tower", "length", "pooling", "tokenizer"])
def test_whatever_decides_the_embeddings_is_in_the_fingerprint(encoder: DualEncoder, tmp_path: Path, what: str):
    config, params, tokenizer = encoder.config, jax.tree.map(np.array, encoder.params), encoder.tokenizer
    if what.endswith("tower"):
        weights = params[what.split()[0]]["bert"]
        largest = max(jax.tree.leaves(weights), key=np.size)
        largest.flat[7] += np.float32(1e-6)
    elif what == "length":
        config = dataclasses.replace(config, max_passage_length=47)
    elif what == "pooling":
        config = dataclasses.replace(config, pooling="mean")
    else:
        encoder.save(tmp_path)
        path = tmp_path / "tokenizer.json"
        content = json.loads(path.read_text())
        content["normalizer"] = None
        path.write_text(json.dumps(content))
        tokenizer = load_tokenizer(tmp_path)
    assert model_fingerprint(DualEncoder(config, params, tokenizer)) != model_fingerprint(encoder)
