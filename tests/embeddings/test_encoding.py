"""`jaxretr.encode`: what an interruption costs, how shards are chosen, and signs of life."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny

import jaxretr
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokens import load_tokenizer
from jaxretr.embeddings import embedding_store as encoding_store
from jaxretr.embeddings import encoding
from jaxretr.embeddings.embedding_store import EmbeddingStore, default_shard_rows
from jaxretr.models import dual_encoder
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, init_params
from jaxretr.runtime.errors import UsageError, UserError


@pytest.fixture(scope="module")
def encoder(tiny_models: Path) -> DualEncoder:
    config = DualEncoderConfig(tiny.BERT, max_question_length=16, max_passage_length=16)
    return DualEncoder(config, init_params(config, 0), load_tokenizer(tiny_models / "encoder_tokenizer"))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """5,000 passages of 3 to 12 words."""
    words = " ".join(read_corpus(tiny.DATA).texts).split()
    texts = [" ".join(words[row % 500 : row % 500 + 3 + row % 10]) for row in range(5_000)]
    return Corpus([f"p{row}" for row in range(5_000)], [""] * 5_000, texts)


class Interrupted(BaseException):
    pass


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_interrupted_run_has_lost_three_shards_of_256_passages_at_most(
    encoder: DualEncoder, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """At every moment, which is 13 seconds of work for an encoder of 60 passages a second; all would be lost in a shard."""
    out, lost, encoded = tmp_path / "store", [], 0

    class Watched(encoding.Progress):
        def advance(self, count: int) -> None:
            nonlocal encoded
            encoded += count
            # A shard counts once its record is there: what a kill at this moment would leave.
            lost.append(encoded - 256 * len(list(out.glob("embeddings-*.json"))))
            if encoded > 3_000:
                raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(encoding, "Progress", Watched)
        jaxretr.encode(encoder, corpus=corpus, out=out)
    print(f"passages lost at most: {max(lost)}")
    assert max(lost) <= 3 * 256
    before = set(out.glob("embeddings-*.json"))
    assert len(before) >= (3_000 - 3 * 256) // 256

    again, done = [], DualEncoder.encode_pieces

    def counted(self: DualEncoder, *given: object, **options: object) -> Iterator[tuple[np.ndarray, int]]:
        for found in done(self, *given, **options):  # pyright: ignore[reportArgumentType]
            again.append(len(found[0]))
            yield found

    monkeypatch.setattr(DualEncoder, "encode_pieces", counted)
    store = jaxretr.encode(encoder, corpus=corpus, out=out)
    assert sum(again) == 5_000 - 256 * len(before), "what was finished is not encoded again"
    assert store.meta.shards == 20
    jaxretr.encode(encoder, corpus=corpus, out=tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_shards_are_small_for_small_corpora_and_few_for_large_ones(monkeypatch: pytest.MonkeyPatch):
    assert default_shard_rows(5_183, 384) == 256
    assert default_shard_rows(10, 384) == 256
    assert [default_shard_rows(21_015_324, dim) for dim in (384, 768)] == [20_523, 20_523]
    assert default_shard_rows(21_015_324, 4_096) == 8_192, "128 MiB"
    assert default_shard_rows(10**9, 384) == 50_000
    # 8 devices, each of which takes 512 rows of 128 tokens a batch.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert default_shard_rows(5_183, 384) == 50_000
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    assert default_shard_rows(5_183, 384) == 16_384


def test_a_store_that_was_begun_keeps_the_size_of_its_shards(encoder: DualEncoder, corpus: Corpus, tmp_path: Path):
    """Also one that an older version, or another kind of device, began with another default."""
    some = Corpus(corpus.ids[:300], corpus.titles[:300], corpus.texts[:300])
    jaxretr.encode(encoder, corpus=some, out=tmp_path, shard_rows=140)
    whole = contents(tmp_path)
    (tmp_path / "embeddings-00001-of-00003.json").unlink()
    assert jaxretr.encode(encoder, corpus=some, out=tmp_path).meta.shard_rows == 140
    assert contents(tmp_path) == whole
    with pytest.raises(UserError, match="shard_rows=140, not 256"):
        jaxretr.encode(encoder, corpus=some, out=tmp_path, shard_rows=256)
    with pytest.raises(UserError, match=r"other texts .*another folder as out="):
        jaxretr.encode(encoder, corpus=corpus, out=tmp_path)


def test_calls_encode_some_shards_each(encoder: DualEncoder, corpus: Corpus, tmp_path: Path):
    few, out = corpus.first(40), tmp_path / "store"
    settings = {"corpus": few, "shard_rows": 16}
    begun = jaxretr.encode(encoder, **settings, out=out, shards=[])
    assert begun.missing() == [0, 1, 2] and begun.meta.shards == 3
    part = out / ".another-process.part"  # what it writes at the moment
    part.touch()
    given = jaxretr.encode(encoder, corpus=few, out=out, shards=np.array([2, 0, 2]))  # as Ray has them
    assert given.missing([0, 2]) == [] and given.missing() == [1] and part.exists()
    assert [path.name for path in sorted(out.glob("embeddings-*.npy"))] == [
        f"embeddings-0000{n}-of-00003.npy" for n in (0, 2)
    ]
    for wrong in (3, -1, "0"):
        with pytest.raises(UsageError, match=f"shards: {wrong}: the store has 3, counted from 0"):
            jaxretr.encode(encoder, corpus=few, out=out, shards=[wrong])
    jaxretr.encode(encoder, corpus=few, out=out)
    jaxretr.encode(encoder, **settings, out=tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


def test_the_next_shard_is_tokenised_while_one_is_encoded(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch):
    """Else the devices would wait at the beginning of every shard."""
    pieces = [[f"passage {number} {row}" for row in range(9)] for number in range(3)]
    tokenised = [threading.Event() for _ in pieces]
    real = dual_encoder.passage_pair

    def noted(tokenizer: object, titles: object, texts: list[str], length: int, prompt: str) -> object:
        tokenised[int(texts[0].split()[1])].set()
        return real(tokenizer, titles, texts, length, prompt)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(dual_encoder, "passage_pair", noted)
    found = encoder.encode_pieces("passage", iter(pieces))
    first, cut = next(found)
    # Nobody has asked for the second one yet.
    assert tokenised[1].wait(60)
    assert cut == 0
    np.testing.assert_allclose(first, encoder.encode_passages(pieces[0]), rtol=0, atol=2e-5)
    assert len(list(found)) == 2


@pytest.mark.parametrize("combined", [False, True])
def test_a_pieces_bytes_do_not_depend_on_what_is_encoded_before_it(
    encoder: DualEncoder, corpus: Corpus, combined: bool
):
    model = CombinedEncoder([encoder, encoder], [1.0, 2.0]) if combined else encoder
    pieces = [corpus.texts[:70], corpus.texts[70:75], corpus.texts[75:200]]
    advanced = []
    together = list(model.encode_pieces("passage", pieces, total=200, advance=advanced.append))
    for piece, (embeddings, cut) in zip(pieces, together, strict=True):
        [(alone, cut_alone)] = model.encode_pieces("passage", [piece], total=200)
        np.testing.assert_array_equal(embeddings, alone)
        assert (embeddings.shape, cut) == ((len(piece), model.config.embedding_size), cut_alone)
    assert sum(advanced) == 200
    # And they are what encoding all at once gives, up to rounding.
    whole = np.concatenate([embeddings for embeddings, _ in together])
    np.testing.assert_allclose(whole, model.encode_passages(corpus.texts[:200]), rtol=0, atol=2e-5)


def test_progress_is_told_of_every_batch(encoder: DualEncoder, corpus: Corpus):
    """And not every 2,048 passages, which are minutes on a slow machine."""
    advanced = []
    some = Corpus(corpus.ids[:160], corpus.titles[:160], corpus.texts[:160])
    encoding.encode_rows(encoder, some, batch_size=8, advance=advanced.append)
    assert sum(advanced) == 160 and max(advanced) <= 8


def test_small_shards_are_read_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A search costs something for every block of rows."""
    meta = encoding_store.StoreMeta(
        side="passage", model="m", model_fingerprint="f", texts_fingerprint="t", rows=20, dim=4, dtype="int8",
        compute="float32", shard_rows=3,
    )  # fmt: skip
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    for dtype in ("int8", "float16"):
        folder = tmp_path / dtype
        store = EmbeddingStore.begin(folder, dataclasses.replace(meta, dtype=dtype), map(str, range(20)))
        for shard in store.missing():
            store.write(shard, rows[slice(*meta.span(shard))], 0)
        monkeypatch.setattr(encoding_store, "_BLOCK_BYTES", 7 * 4 * (4 if dtype == "int8" else 2))
        blocks = list(store.blocks())
        assert [len(block) for block in blocks] == [6, 6, 6, 2] and store.block_rows == 6
        np.testing.assert_array_equal(np.concatenate(blocks).astype(np.float32), store.rows(0, 20))
        assert [len(block) for block in store.blocks([0, 2, 6])] == [6, 2]


def test_encode_takes_files_corpora_and_questions(encoder: DualEncoder, tmp_path: Path):
    stores = [
        jaxretr.encode(encoder, corpus=corpus, out=tmp_path / str(number))
        for number, corpus in enumerate([tiny.DATA, [tiny.DATA / "corpus.jsonl"], read_corpus(tiny.DATA)])
    ]
    assert {store.meta.address for store in stores} == {stores[0].meta.address}
    np.testing.assert_array_equal(stores[0].rows(0, 20), stores[2].rows(0, 20))
    questions = jaxretr.encode(encoder, queries=[Question("q", "who")], out=tmp_path / "questions")
    assert (questions.meta.side, questions.meta.rows, questions.read_ids()) == ("question", 1, ["q"])
    with pytest.raises(UsageError, match="either corpus or queries"):
        jaxretr.encode(encoder, out=tmp_path / "nothing")
