"""The embedding store: an interrupted run resumes, nothing half-written or changed is read, mixtures are refused."""

import dataclasses
import json
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny

from jaxretr.cli import main
from jaxretr.data.arrays import read_array
from jaxretr.data.tokens import load_tokenizer
from jaxretr.embeddings import embedding_store as encoding_store
from jaxretr.embeddings.embedding_store import EmbeddingStore, StoreMeta, is_store
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, init_params
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage import manifest, sealed_folder

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
        start, stop = store.meta.span(shard)
        store.write(shard, EMBEDDINGS[start:stop], cut=min(shard, stop - start))


def files(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_current_folder_may_be_a_store_or_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fill(EmbeddingStore.begin(tmp_path, META, IDS))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/file").write_text("x")
    manifest.write(tmp_path, "kind", {})
    monkeypatch.chdir(tmp_path)
    assert EmbeddingStore.open(".").read_ids() == IDS
    assert manifest.changed_files(Path(), manifest.read(Path())) == []
    assert "deep/file" in manifest.read(Path()).files


def test_a_store_by_a_relative_path_is_read_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A notebook's; the advice was to remove the store's files. Another process may have another directory as well."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    begun = EmbeddingStore.begin("store", META, IDS)
    monkeypatch.chdir("elsewhere")
    fill(begun)
    monkeypatch.chdir(tmp_path)
    store = EmbeddingStore.open("store")
    monkeypatch.chdir("elsewhere")
    for each in (store, pickle.loads(pickle.dumps(store))):
        each.verify()
        assert each.read_ids() == IDS
        np.testing.assert_array_equal(np.concatenate(list(each.blocks()))[:ROWS], EMBEDDINGS)
    assert str(store.folder) == "store" and not list(Path().iterdir())


def test_any_damage_to_an_arrays_header_is_one_line(tmp_path: Path):
    np.save(path := tmp_path / "a.npy", EMBEDDINGS)
    whole, same = path.read_bytes(), 0
    for bit in range(0, 8 * 128, 3):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            same += np.array_equal(read_array(path, "float32", (ROWS, DIM), "write it again"), EMBEDDINGS)
        except UserError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
    assert same < 20, "flips of its padding"


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoding_store, "_BLOCK_BYTES", 1)
    store = EmbeddingStore.begin(tmp_path / "new/store", META, IDS)
    fill(store)
    read = EmbeddingStore.open(tmp_path / "new/store")
    blocks = list(read.blocks())
    assert [len(block) for block in blocks] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate(blocks), EMBEDDINGS)
    assert read.read_ids() == IDS
    assert read.cut == 0 + 1 + 2
    of_shards = [f"embeddings-0000{n}-of-00003.{ending}" for n in range(3) for ending in ("json", "npy")]
    assert files(read.folder) == [*of_shards, "ids.json", "ids.jsonl", "meta.json"]
    np.testing.assert_array_equal(read.rows(3, 9), EMBEDDINGS[3:9])
    np.testing.assert_array_equal(read.rows(8, 99), EMBEDDINGS[8:])
    # A .npy file like any other.
    np.testing.assert_array_equal(np.load(read.folder / "embeddings-00001-of-00003.npy"), EMBEDDINGS[4:8])
    assert is_store(read.folder)


@pytest.mark.parametrize("dtype, error", [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_half_precision_is_rounded_once_and_memory_mapped(
    tmp_path: Path, dtype: str, error: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(encoding_store, "_BLOCK_BYTES", 1)
    meta = dataclasses.replace(META, dtype=dtype)
    fill(EmbeddingStore.begin(tmp_path, meta, IDS))
    store = EmbeddingStore.open(tmp_path)
    blocks = list(store.blocks())
    assert all(block.dtype.name == dtype and isinstance(block, np.memmap) for block in blocks)
    # Rounding to the nearest changes a number by at most half of its last place.
    np.testing.assert_allclose(np.concatenate(blocks).astype(np.float32), EMBEDDINGS, rtol=error, atol=0)
    np.testing.assert_array_equal(store.rows(2, 7), np.concatenate(blocks)[2:7].astype(np.float32))
    assert meta.bytes == sum((tmp_path / name).stat().st_size - 128 for name in files(tmp_path) if name.endswith("npy"))


def test_int8_is_off_by_half_a_step_of_each_rows_own_scale(tmp_path: Path):
    meta = dataclasses.replace(META, dtype="int8")
    # Rows of very different size: one scale for all would leave nothing of the small ones. And a row of zeros.
    embeddings = EMBEDDINGS * np.float32(10.0) ** np.arange(-5, 5, dtype=np.float32)[:, None]
    embeddings[4] = 0
    store = EmbeddingStore.begin(tmp_path, meta, IDS)
    for shard in store.missing():
        store.write(shard, embeddings[slice(*meta.span(shard))], 0)
    read = np.concatenate(list(EmbeddingStore.open(tmp_path).blocks()))
    assert read.dtype == np.float32
    step = np.abs(embeddings).max(axis=1, keepdims=True) / 127
    assert (np.abs(read - embeddings) <= step * (0.5 + 1e-5)).all()
    np.testing.assert_array_equal(EmbeddingStore.open(tmp_path).rows(3, 10), read[3:10])
    # The headers of .npy files, 128 bytes each, are not counted.
    assert meta.bytes == sum((tmp_path / name).stat().st_size - 128 for name in files(tmp_path) if name.endswith("npy"))


def test_float16_is_rounded_once_and_refuses_what_it_cannot_hold(tmp_path: Path):
    meta = dataclasses.replace(META, dtype="float16")
    store = EmbeddingStore.begin(tmp_path, meta, IDS)
    fill(store)
    np.testing.assert_array_equal(np.concatenate(list(store.blocks())), EMBEDDINGS.astype(np.float16))
    large = EMBEDDINGS[4:8].copy()
    large[2, 1] = 70_000
    with pytest.raises(UserError, match=r"row 6: .*float16; .*dtype=float32"):
        store.write(1, large, 0)


def test_a_number_that_is_not_finite_is_refused_and_leaves_no_shard(tmp_path: Path):
    store = EmbeddingStore.begin(tmp_path, META, IDS)
    broken = EMBEDDINGS[:4].copy()
    broken[3, 0] = np.nan
    with pytest.raises(UserError, match=r"row 3: .*check the model"):
        store.write(0, broken, 0)
    assert files(tmp_path) == ["ids.json", "ids.jsonl", "meta.json"]


# ---- interrupted runs ------------------------------------------------------------------------------------------------


def test_finished_shards_are_not_asked_for_again(tmp_path: Path):
    fill(EmbeddingStore.begin(tmp_path, META, IDS), [0, 2])
    again = EmbeddingStore.begin(tmp_path, META, IDS)
    assert again.missing() == [1]
    assert again.cut == 2
    with pytest.raises(UserError, match=r"1 of 3 shards .*`jaxretr encode`"):
        EmbeddingStore.open(tmp_path)
    fill(again)
    np.testing.assert_array_equal(np.concatenate(list(EmbeddingStore.open(tmp_path).blocks())), EMBEDDINGS)


@pytest.mark.parametrize("moment", ["before ids", "before their record", "shard", "before its record"])
def test_killed_at_any_moment_the_store_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str):
    """A kill between two files, and the half file that it leaves behind."""

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    if moment == "before ids":
        with pytest.raises(Killed):
            EmbeddingStore.begin(tmp_path, META, (killed() for _ in range(1)))
        assert files(tmp_path) == ["meta.json"]
        (tmp_path / ".ids.jsonl.0a1b.part").write_text('"1"\n"0')
    elif moment == "before their record":
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(EmbeddingStore, "_write_record", killed)
            EmbeddingStore.begin(tmp_path, META, IDS)
        assert files(tmp_path) == ["ids.jsonl", "meta.json"]
    else:
        store = EmbeddingStore.begin(tmp_path, META, IDS)
        fill(store, [0])
        if moment == "shard":
            (tmp_path / ".embeddings-00001-of-00003.npy.0a1b.part").write_bytes(b"\x93NUMPY half")
        else:
            with monkeypatch.context() as patch, pytest.raises(Killed):
                patch.setattr(EmbeddingStore, "_write_record", killed)
                fill(store, [1])
            # Written, but without a record, so its count of cut texts is not known: it is encoded again.
            assert (tmp_path / "embeddings-00001-of-00003.npy").exists()
    again = EmbeddingStore.begin(tmp_path, META, IDS)
    assert again.missing() == ([1, 2] if "shard" in moment or "its" in moment else [0, 1, 2])
    fill(again)
    read = EmbeddingStore.open(tmp_path)
    np.testing.assert_array_equal(np.concatenate(list(read.blocks())), EMBEDDINGS)
    assert read.read_ids() == IDS
    read.verify()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_one_changed_byte_in_any_file_is_found(tmp_path: Path, dtype: str):
    fill(EmbeddingStore.begin(tmp_path, dataclasses.replace(META, dtype=dtype), IDS))
    counted = []
    EmbeddingStore.open(tmp_path).verify(counted.append)
    assert sum(counted) == ROWS
    for name in files(tmp_path):
        path = tmp_path / name
        content = path.read_bytes()
        # In the middle of what is in the file: of a .npy, behind its header.
        place = len(content) - 3 if name.endswith("npy") else len(content) // 2
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(UserError, match=name.split("-")[0].split(".")[0]):
            EmbeddingStore.open(tmp_path).verify()
        path.write_bytes(content)
    EmbeddingStore.open(tmp_path).verify()


def test_a_shard_with_a_changed_byte_is_encoded_again(tmp_path: Path):
    fill(EmbeddingStore.begin(tmp_path, META, IDS))
    path = tmp_path / "embeddings-00001-of-00003.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 4]))
    again = EmbeddingStore.begin(tmp_path, META, IDS)
    assert again.missing() == [1]
    fill(again)
    assert path.read_bytes() == whole


def test_a_shard_of_another_store_is_found(tmp_path: Path):
    other = dataclasses.replace(META, model_fingerprint="another")
    for folder, meta in (("one", META), ("other", other)):
        fill(EmbeddingStore.begin(tmp_path / folder, meta, IDS))
    for ending in ("npy", "json"):
        name = f"embeddings-00001-of-00003.{ending}"
        (tmp_path / "one" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(UserError, match=r"embeddings-00001.*another store"):
        EmbeddingStore.open(tmp_path / "one")
    assert EmbeddingStore.begin(tmp_path / "one", META, IDS).missing() == [1]


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
    with pytest.raises(UserError, match=r"embeddings-00001-of-00003\.npy: .*`jaxretr encode`"):
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
    with pytest.raises(UserError, match=r"ids\.jsonl was changed"):
        store.verify()
    assert EmbeddingStore.begin(tmp_path, META, IDS).read_ids() == IDS
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
        ({"texts_fingerprint": "x"}, r"embeddings of other texts \(passages\); give another folder as out="),
        ({"side": "question"}, "embeddings of other texts"),
        ({"dtype": "float16"}, "was begun with dtype=float32, not float16; use that again, or"),
        ({"compute": "bfloat16"}, "was begun with compute=float32, not bfloat16"),
        ({"shard_rows": 5}, "was begun with shard_rows=4, not 5"),
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
    with pytest.raises(UserError, match=r"something else \(thesis\.tex\)"):
        EmbeddingStore.begin(tmp_path, META, IDS)
    assert files(tmp_path) == ["thesis.tex"]
    with pytest.raises(UserError, match=r"cannot be written .*out="):
        EmbeddingStore.begin(tmp_path / "thesis.tex", META, IDS)


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "no store is there; run `jaxretr encode` first"),
        ("{", "cannot be read"),
        ("[]", "holds no JSON object"),
        ('{"format": "jaxretr-exact-index", "version": 1}', "not the description of a jaxretr-embeddings version 2"),
        ({"rows": 11}, r"meta\.json: was changed after it was written; encode into another folder"),
        ({"more": 1}, r"meta\.json: was changed after it was written"),
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


def test_verify_reads_every_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fill(EmbeddingStore.begin(tmp_path, META, IDS))
    assert main(["verify", str(tmp_path)]) == 0
    assert f"{tmp_path}: intact; 10 passages in 3 shards, of the/model; all hashes agree" in capsys.readouterr().out
    path = tmp_path / "embeddings-00002-of-00003.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert main(["verify", str(tmp_path)]) == 1
    assert "embeddings-00002-of-00003.npy was changed; run the same" in capsys.readouterr().err
    assert main(["verify", str(tmp_path), "--with", "transformers"]) == 2


# ---- a store that vouches for itself, by whoever changed it ----------------------------------------------------------


def resealed(path: Path, **changes: object) -> None:
    """Changes entries of a sealed file; None removes one."""
    content, intact = sealed_folder.read_sealed(path, "")
    assert intact
    sealed_folder.write_record(path, {key: value for key, value in {**content, **changes}.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 10**15}, r"250000000000000 of 250000000000000 shards are not finished"),
        ({"rows": 10**15, "shard_rows": 4 * 10**14}, r"embeddings-00000-of-00003\.json: belongs to another store"),
        ({"rows": 0}, r"meta\.json: 'rows' is 0, but must be at least 1"),
        ({"rows": -1}, r"meta\.json: 'rows' is -1, but must be at least 1"),
        ({"dim": 0}, r"meta\.json: 'dim' is 0, but must be at least 1"),
        ({"shard_rows": 0}, r"meta\.json: 'shard_rows' is 0, but must be at least 1"),
    ],
)
def test_a_store_of_absurd_sizes_is_refused_at_once(tmp_path: Path, changes: dict, message: str) -> None:
    """Not after a loop over 10**15 shards, nor with a bare ZeroDivisionError."""
    fill(EmbeddingStore.begin(tmp_path, META, IDS))
    resealed(tmp_path / "meta.json", **changes)
    with pytest.raises(UserError, match=message) as caught:
        EmbeddingStore.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_ids_are_bounded_by_their_file(tmp_path: Path) -> None:
    """As of a store in a bucket, whose shards are looked at only when they are fetched."""
    fill(EmbeddingStore.begin(tmp_path, META, IDS))
    store = EmbeddingStore(tmp_path, dataclasses.replace(META, rows=10**15), [])
    with pytest.raises(UserError, match=r"ids\.jsonl: too short .*1000000000000000 rows"):
        store.read_ids(range(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": {}}, "'sha256' does not name embeddings-00001-of-00003.npy"),
        ({"sha256": None}, "'sha256' does not name"),
        ({"sha256": "x"}, "'sha256' does not name"),
        ({"sha256": {"../../x": "0" * 64}}, "'sha256' does not name"),
        ({"truncated": None}, "'truncated' is None of 4 texts"),
        ({"truncated": "3"}, "'truncated' is '3' of 4 texts"),
        ({"truncated": 5}, "'truncated' is 5 of 4 texts"),
    ],
)
def test_a_record_vouches_for_its_shard_and_for_nothing_else(tmp_path: Path, changes: dict, message: str) -> None:
    fill(EmbeddingStore.begin(tmp_path, META, IDS))
    resealed(tmp_path / "embeddings-00001-of-00003.json", **changes)
    with pytest.raises(UserError, match=message):
        EmbeddingStore.open(tmp_path)
    # And `encode` writes that shard again.
    store = EmbeddingStore.begin(tmp_path, META, IDS)
    assert store.missing() == [1]
    fill(store)
    EmbeddingStore.open(tmp_path).verify()


@pytest.mark.parametrize("hashes", [None, {}, {"../../x": "0" * 64}, {"ids.jsonl": "0" * 64, "meta.json": "0"}])
def test_the_record_of_the_ids_names_the_ids_alone(tmp_path: Path, hashes: dict | None) -> None:
    fill(EmbeddingStore.begin(tmp_path, META, IDS))
    resealed(tmp_path / "ids.json", sha256=hashes)
    with pytest.raises(UserError, match=r"ids\.json: 'sha256' does not name ids\.jsonl; run the same"):
        EmbeddingStore.open(tmp_path).verify()
    fill(EmbeddingStore.begin(tmp_path, META, IDS))
    EmbeddingStore.open(tmp_path).verify()


def test_encode_does_not_go_on_where_meta_json_says_other_sizes(tmp_path: Path) -> None:
    fill(EmbeddingStore.begin(tmp_path, META, IDS), [0])
    resealed(tmp_path / "meta.json", rows=11)
    with pytest.raises(UserError, match=r"meta\.json: .*11 rows of 4 .*10 of 4"):
        EmbeddingStore.begin(tmp_path, META, IDS)
