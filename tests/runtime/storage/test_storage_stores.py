"""An embedding store in a bucket: it is written, gone on with and read like one on a disk, and needs little of it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import buckets
import numpy as np
import pytest
from test_encoding_store import EMBEDDINGS, IDS, META, fill

from jaxretr.embeddings.embedding_store import EmbeddingStore, is_store
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.paths import filesystem
from jaxretr.runtime.storage.shard_cache import ShardCache


@pytest.fixture(scope="module", params=["s3", "gs"])
def server(request: pytest.FixtureRequest) -> Iterator[buckets.Server]:
    yield from buckets.serving(request.param)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/buckets/stores"


@pytest.fixture
def folder(server: buckets.Server, cache: Path, request: pytest.FixtureRequest) -> str:
    return f"{server.scheme}://bucket/{request.node.originalname}"


def copies(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*.npy"))


def test_what_is_written_is_read(folder: str, tmp_path: Path) -> None:
    fill(EmbeddingStore.begin(folder, META, IDS))
    fill(EmbeddingStore.begin(tmp_path / "store", META, IDS))
    found = buckets.objects(folder)
    assert found == {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()}, "byte for byte"
    store = EmbeddingStore.open(folder)
    np.testing.assert_array_equal(np.concatenate(list(store.blocks())), EMBEDDINGS)
    np.testing.assert_array_equal(store.rows(3, 9), EMBEDDINGS[3:9])
    assert store.read_ids() == IDS and store.cut == 0 + 1 + 2 and is_store(folder)
    store.verify()


def test_int8_has_its_scales(folder: str, cache: Path) -> None:
    meta = dataclasses.replace(META, dtype="int8")
    fill(EmbeddingStore.begin(folder, meta, IDS))
    found = np.concatenate(list(EmbeddingStore.open(folder).blocks()))
    np.testing.assert_allclose(found, EMBEDDINGS, atol=np.abs(EMBEDDINGS).max() / 254)
    assert len(copies(cache)) == 6


def test_an_interrupted_one_goes_on(folder: str, cache: Path) -> None:
    fill(EmbeddingStore.begin(folder, META, IDS), [0, 2])
    with pytest.raises(UserError, match="1 of 3 shards are not finished"):
        EmbeddingStore.open(folder)
    again = EmbeddingStore.begin(folder, META, IDS)
    assert again.missing() == [1]
    assert not copies(cache), "what is there was compared without a copy of it"
    with pytest.raises(UserError, match="another model"):
        EmbeddingStore.begin(folder, dataclasses.replace(META, model_fingerprint="x"), IDS)
    fill(again)
    np.testing.assert_array_equal(np.concatenate(list(EmbeddingStore.open(folder).blocks())), EMBEDDINGS)


def test_a_changed_shard_is_never_used_and_is_written_again(folder: str, cache: Path) -> None:
    fill(EmbeddingStore.begin(folder, META, IDS))
    name, store = f"{folder}/embeddings-00001-of-00003.npy", filesystem(folder)
    content = store.cat_file(name)
    store.pipe_file(name, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"embeddings-00001-of-00003\.npy was changed; .*`jaxretr encode`"):
        list(EmbeddingStore.open(folder).blocks())
    with pytest.raises(UserError, match=r"embeddings-00001-of-00003.npy was changed"):
        EmbeddingStore.open(folder).verify()
    again = EmbeddingStore.begin(folder, META, IDS)
    assert again.missing() == [1]
    fill(again)
    # Also where the copy on the disk is that of a store of the same name before.
    list(EmbeddingStore.open(folder).blocks())
    copy = next(cache.rglob("embeddings-00001*.npy"))
    copy.write_bytes(content[:-1])
    np.testing.assert_array_equal(np.concatenate(list(EmbeddingStore.open(folder).blocks())), EMBEDDINGS)


def test_copies_stay_where_there_is_room_and_are_not_fetched_again(
    server: buckets.Server, folder: str, cache: Path
) -> None:
    fill(EmbeddingStore.begin(folder, META, IDS))
    list(EmbeddingStore.open(folder).blocks())
    assert len(copies(cache)) == 3
    server.asked.clear()
    np.testing.assert_array_equal(np.concatenate(list(EmbeddingStore.open(folder).blocks())), EMBEDDINGS)
    assert not [line for line in server.asked if ".npy" in line]


def test_a_large_store_is_streamed_through_two_shards_of_disk(
    folder: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRETR_STORE_CACHE_GIB", "0")
    monkeypatch.setattr("jaxretr.embeddings.embedding_store._BLOCK_BYTES", 1)  # Small shards come joined otherwise.
    meta = dataclasses.replace(META, shard_rows=1)
    fill(EmbeddingStore.begin(folder, meta, IDS))
    most, found = 0, []
    for block in EmbeddingStore.open(folder).blocks():
        found.append(block)
        most = max(most, len(copies(cache)))
    # Those whose copies are gone are still read, through their maps.
    np.testing.assert_array_equal(np.concatenate(found), EMBEDDINGS)
    assert len(found) == 10 and most <= 2


def test_a_cache_limit_that_is_no_number_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRETR_STORE_CACHE_GIB", "much")
    with pytest.raises(UserError, match="JAXRETR_STORE_CACHE_GIB=much: give a number"):
        ShardCache(Path(folder), 1).get({"a": ""}, "")
