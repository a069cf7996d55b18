"""Data sets by name: each source reads like the files that its rows came from, and says what is wrong with a row."""

import hashlib
import json
import logging
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ir_datasets
import named_sets
import pytest
import tiny
from ir_datasets.formats import BaseDocPairs, GenericDocPair
from ir_datasets.util import Download, LocalDownload

from jaxretr.data.collection import CORPUS, QUERIES
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.formats.kinds import file_kind
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.mapped_corpus import mapped_corpus
from jaxretr.data.named import hub, ir_collections
from jaxretr.data.own_data import with_data
from jaxretr.data.readers import beir_splits, read_beir, read_corpus, read_qrels, read_questions
from jaxretr.data.source import FileSource, NamedSource, source_of
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training.runs.run_inputs import file_digest

SOURCES = ("ir_datasets", "tfds", "hf")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return named_sets.all_names(tmp_path_factory.mktemp("named"))


@pytest.fixture(params=SOURCES)
def name(request: pytest.FixtureRequest, names: dict[str, str]) -> str:
    return names[request.param]


# ---- names as paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["ir_datasets:beir/scifact/test", "tfds:nq/corpus:1.0.0[corpus[:10%]]", "hf:/data/x#qrels/test", "hf:./x"]
)
def test_a_name_survives_what_is_done_to_paths(text: str) -> None:
    source = source_of(Path(text))
    assert isinstance(source, NamedSource) and str(source) == text
    assert source_of(str(source.absolute())) == source == pickle.loads(pickle.dumps(source))


def test_other_paths_are_files() -> None:
    assert source_of("~/x") == FileSource(Path.home() / "x")
    assert source_of("data/hf:x") == FileSource(Path("data/hf:x"))


def test_the_pieces_of_a_name() -> None:
    name = NamedSource("tfds:nq/corpus:1.0.0[train[:10%]+test]#qrels/test")
    assert (name.scheme, name.body, name.part) == ("tfds", "nq/corpus:1.0.0", "qrels/test")
    with pytest.raises(UsageError, match="not the name of a data set; write ir_datasets:ID"):
        NamedSource("hf:a/b[train").collection()


# ---- a collection is a BEIR folder -----------------------------------------------------------------------------------


def test_a_collection_reads_as_the_folder_it_came_from(name: str) -> None:
    assert file_kind(name) == "beir" and beir_splits(name) == ["train", "tydi"]
    for split in ("train", "tydi"):
        expected, found = read_beir(tiny.DATA, split), read_beir(name, split)
        assert list(found.corpus) == list(expected.corpus)
        assert (found.questions, found.qrels) == (expected.questions, expected.qrels)
        # Their lines are rows here.
        pairs = zip(read_examples(name, split=split), read_examples(tiny.DATA, split=split), strict=True)
        assert all((a.id, a.question, a.positives) == (b.id, b.question, b.positives) for a, b in pairs)
    with pytest.raises(UserError, match=r"no split 'tran', it has train, tydi; did you mean 'train'\?"):
        read_beir(name, "tran")


def test_a_collection_stands_for_its_files(name: str) -> None:
    assert list(read_corpus(name)) == list(read_corpus(tiny.DATA))
    assert read_questions(f"{name}#queries") == read_questions(tiny.DATA)
    assert read_qrels(f"{name}#qrels/tydi") == read_qrels(tiny.DATA / "qrels/tydi.tsv")
    stream = CorpusStream([name, named_sets.register("jaxretr-test/one", docs("x", "y"))])
    assert stream.num_rows == 22 and next(stream.placed())[0] == f"{name}#corpus:1"
    # What a run and an export ask of every file that they read.
    assert len(file_digest(f"{name}#queries")) == 64 and source_of(name).file("corpus.jsonl").size == 0


def test_files_of_one_kind_are_named_by_their_config(names: dict[str, str]) -> None:
    folder = names["tfds"].removeprefix("tfds:")
    assert read_qrels(f"tfds:{folder}/qrels[tydi]") == read_qrels(tiny.DATA / "qrels/tydi.tsv")
    assert len(read_corpus(f"tfds:{folder}/corpus:1.0.0[corpus[5:8]]")) == 3
    assert read_questions(f"{names['hf']}/queries") == read_questions(tiny.DATA)
    assert read_qrels(f"{names['hf']}/data[train]") == read_qrels(tiny.DATA / "qrels/train.tsv")
    assert read_qrels("ir_datasets:jaxretr-test/wiki-qa/tydi") == read_qrels(tiny.DATA / "qrels/tydi.tsv")


def test_tfds_finds_a_data_set_below_its_data_folders(names: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorflow_datasets.core.utils import file_utils

    root = Path(names["tfds"].removeprefix("tfds:")).parent
    monkeypatch.setattr(file_utils, "list_data_dirs", lambda: [root])
    assert read_corpus("tfds:wiki_qa/corpus:1.0.0").ids == read_corpus("tfds:wiki_qa").ids == read_corpus(tiny.DATA).ids
    for wrong, hint in (("wiki_q", "did you mean 'wiki_qa'"), ("wiki_qa/corpu", "did you mean 'corpus'")):
        with pytest.raises(UserError, match=hint):
            read_corpus(f"tfds:{wrong}")


# ---- what runs need to know of files ---------------------------------------------------------------------------------


def test_a_mapped_corpus_is_made_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = mapped_corpus(name, tmp_path)
    assert first.fingerprint() == read_corpus(tiny.DATA).fingerprint()
    monkeypatch.setattr("jaxretr.data.mapped_corpus._write", lambda *_: pytest.fail("it was read again"))
    assert list(mapped_corpus(name, tmp_path)) == list(first)


def test_facts_change_with_the_content(tmp_path: Path) -> None:
    """Mapped corpora and kept results of other content must not be taken for it."""
    digests = set()
    for number in range(2):
        file = tmp_path / "corpus.parquet"
        named_sets.write_parquet(file, [{"_id": f"{number}", "text": "x" * (number + 1)}])
        folder = tmp_path / str(number)
        built = named_sets.build_data(file_of(folder, [{"_id": f"{number}", "title": "", "text": "x"}]), folder)
        local = file_of(tmp_path, [{"_id": f"{number}", "title": "", "text": "x" * (number + 1)}])
        ir = named_sets.register("jaxretr-test/changing", named_sets.Docs(LocalDownload(local)))
        digests |= {source_of(each).digest() for each in (f"hf:{file}", f"tfds:{built.path}", ir)}
    assert len(digests) == 6
    assert source_of(ir).facts()[0] == "ir_datasets:jaxretr-test/changing"


def test_a_config_records_names(name: str, tmp_path: Path) -> None:
    config = with_data(tiny.contrastive_config(tmp_path), f"{name}", {"dev_split": "tydi"})
    data = config.data  # pyright: ignore[reportAttributeAccessIssue]
    assert (data.train, data.dev_questions, data.dev_qrels) == (name, name, f"{name}#qrels/tydi")
    art = with_data(tiny.art_config(tmp_path), name, {})
    assert (art.data.corpus, art.data.questions_split) == (name, "train")  # pyright: ignore[reportAttributeAccessIssue]


# ---- training examples -----------------------------------------------------------------------------------------------


def test_columns_of_parquet_are_a_training_set(tmp_path: Path) -> None:
    rows = [
        {"anchor": "q", "positive": "p", "negative_1": "n", "score": 1.5},
        {"anchor": "q", "positive": "p2", "negative_1": None, "score": None},
    ]
    file = file_of(tmp_path, rows)
    named_sets.write_parquet(tmp_path / "set/train-00000-of-00001.parquet", rows)
    named_sets.write_parquet(tmp_path / "set/test-00000-of-00001.parquet", rows[:1])
    assert file_kind(f"hf:{tmp_path}/set") == "sentence-transformers"
    assert list(read_examples(f"hf:{tmp_path}/set")) == list(read_examples(file))
    assert len(list(read_examples(f"hf:{tmp_path}/set[test]"))) == 1
    with pytest.raises(UserError, match=r"no split 'tst'; did you mean 'test'\?"):
        list(read_examples(f"hf:{tmp_path}/set[tst]"))


def test_lists_of_passages_in_parquet_are_a_training_set(tmp_path: Path) -> None:
    passage = {"docid": "1", "title": "t", "text": "x"}
    rows = [{"query_id": "a", "query": "q", "positive_passages": [passage], "negative_passages": [passage, passage]}]
    named_sets.write_parquet(tmp_path / "tevatron.parquet", rows)
    name = f"hf:{tmp_path}/tevatron.parquet"
    assert file_kind(name) == "tevatron"
    assert list(read_examples(name)) == list(read_examples(file_of(tmp_path, rows)))


def test_a_card_names_the_files_of_a_split(tmp_path: Path) -> None:
    card = {"configs": [{"config_name": "pairs", "data_files": [{"split": "dev", "path": "odd/*.parquet"}]}]}
    assert hub.splits_of(["odd/b.parquet", "odd/a.parquet", "x.json"], card) == {
        "pairs": {"dev": ["odd/a.parquet", "odd/b.parquet"]}
    }
    (tmp_path / "odd").mkdir()
    named_sets.write_parquet(tmp_path / "odd/a.parquet", [{"anchor": "q", "positive": "p"}])
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: pairs\n  data_files:\n  - split: dev\n    path: odd/*.parquet\n---\nText.\n"
    )
    assert len(list(read_examples(f"hf:{tmp_path}[dev]"))) == 1
    by_name = hub.splits_of(
        ["corpus/corpus/0000.parquet", "default/test/0000.parquet", "data/train-00000-of-00001-ab.parquet"]
    )
    assert by_name == {
        "corpus": {"corpus": ["corpus/corpus/0000.parquet"]},
        "default": {"test": ["default/test/0000.parquet"], "train": ["data/train-00000-of-00001-ab.parquet"]},
    }


class Pairs(BaseDocPairs):
    def docpairs_iter(self) -> Any:
        return iter([GenericDocPair("q1", "x", "y")])


def test_pairs_of_documents_bring_questions_and_corpus(tmp_path: Path) -> None:
    """As msmarco-passage/train/triples-small has them."""
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q1", "text": "what"}\n')
    name = named_sets.register("jaxretr-test/pairs", docs("x", "y"), named_sets.Queries(queries), Pairs())
    assert file_kind(name) == "triples-ids"
    (example,) = read_examples(name)
    assert (example.question, example.positives[0].id, example.negatives[0].id) == ("what", "x", "y")
    config = with_data(tiny.contrastive_config(tmp_path), name, {})
    assert config.data.corpus == f"{name}#corpus"  # pyright: ignore[reportAttributeAccessIssue]


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def test_a_bad_row_is_named_by_its_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"_id": str(number), "text": "x" if number != 16 else None} for number in range(20)]
    named_sets.write_parquet(tmp_path / "corpus.parquet", rows)
    name = f"hf:{tmp_path}/corpus.parquet"
    with pytest.raises(UserError) as error:
        read_corpus(name)
    assert str(error.value) == f'{name}:17: field "text" is null; give it a value'
    with caplog.at_level(logging.WARNING):
        assert len(read_corpus(name, skip_bad=True)) == 19
    assert f"{name}: skipped 1 bad rows, kept 19" in caplog.text


def test_ids_without_anything_suggest_the_nearest() -> None:
    with pytest.raises(UserError, match=r"ir_datasets has no such id; did you mean 'beir/scifact'\?"):
        read_corpus("ir_datasets:beir/scifct")
    with pytest.raises(UserError, match="ids of ir_datasets contain their split; write ir_datasets:beir/scifact/test"):
        read_corpus("ir_datasets:beir/scifact[test]")


@pytest.mark.parametrize(
    ("name", "module"),
    [("ir_datasets:beir/scifact", "ir_datasets"), ("tfds:x", "tensorflow_datasets"), ("hf:{}", "pyarrow")],
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named_sets.write_parquet(tmp_path / "corpus.parquet", [{"_id": "1", "text": "x"}])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"^{module} is not installed .*; run: pip install 'jaxretr\[data\]'$"):
        read_corpus(name.format(tmp_path / "corpus.parquet"))


class Mirror:
    """A place on the web that gives these bytes; without any it is out of reach."""

    url = "https://example.org/corpus.jsonl"

    def __init__(self, path: Path):
        self.stream = LocalDownload(path).stream


def test_a_download_with_another_checksum_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ir_datasets.log.easy(), "warn", lambda *_: None)
    file = file_of(tmp_path, [{"_id": "1", "title": "", "text": "x"}])
    md5 = hashlib.md5(file.read_bytes()).hexdigest()
    right = Download([Mirror(file)], expected_md5=md5, cache_path=str(tmp_path / "right"))
    assert len(read_corpus(named_sets.register("jaxretr-test/right", named_sets.Docs(right)))) == 1
    wrong = Download([Mirror(file)], expected_md5="0" * 32, cache_path=str(tmp_path / "wrong"))
    name = named_sets.register("jaxretr-test/wrong", named_sets.Docs(wrong))
    with pytest.raises(UserError) as error:
        read_corpus(name)
    assert str(error.value) == (
        f"{name}: https://example.org/corpus.jsonl does not have its checksum (Expected md5 hash to be {'0' * 32} but got "
        f"{md5}); fetch it again, or download https://example.org/corpus.jsonl by hand and save it as {tmp_path}/wrong"
    )
    assert not (tmp_path / "wrong").exists()


def test_what_cannot_be_fetched_says_where_to_put_it(tmp_path: Path) -> None:
    gone = Download([Mirror(tmp_path / "nothing")], expected_md5="0" * 32, cache_path=str(tmp_path / "kept"))
    name = named_sets.register("jaxretr-test/gone", named_sets.Docs(gone))
    with pytest.raises(
        UserError, match=rf"check the network, or download {Mirror.url} by hand and save it as .*/kept$"
    ):
        read_corpus(name)


@pytest.mark.parametrize("cached", [False, True])
def test_the_hub_out_of_reach(cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fetched before is read; otherwise the message says what to do by hand."""
    import huggingface_hub

    class Api:
        def dataset_info(self, *_: Any, **__: Any) -> Any:
            raise OSError("Name or service not known")

    commit = "a" * 40
    named_sets.parquet_beir(tmp_path / commit)

    def snapshot(*_: Any, **__: Any) -> str:
        if not cached:
            raise OSError("nothing")
        return str(tmp_path / commit)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda repository, file, revision, **_: str(tmp_path / revision / file)
    )
    hub._listed.cache_clear()
    if cached:
        assert list(read_corpus("hf:some/set")) == list(read_corpus(tiny.DATA))
    else:
        with pytest.raises(UserError, match=r"the hub cannot be reached .*download its parquet files by hand"):
            read_corpus("hf:some/set")
    hub._listed.cache_clear()


def test_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repositories as BeIR has them: the judgements in one of their own; a blob with another sha256 stops."""
    import huggingface_hub

    named_sets.parquet_beir(tmp_path / "files")
    blob = tmp_path / hashlib.sha256(b"other content").hexdigest()
    blob.write_bytes((tmp_path / "files/corpus/corpus-00000-of-00002.parquet").read_bytes())
    listing = {
        "BeIR/wiki": ["corpus/corpus-00000-of-00002.parquet", "corpus/corpus-00001-of-00002.parquet",
                      "queries/queries-00000-of-00001.parquet"],
        "BeIR/wiki-qrels": ["data/train-00000-of-00001.parquet", "data/tydi-00000-of-00001.parquet"],
    }  # fmt: skip

    class Api:
        def dataset_info(self, repository: str, revision: str | None) -> Any:
            return SimpleNamespace(sha="c", siblings=[SimpleNamespace(rfilename=file) for file in listing[repository]])

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    fetched = {}

    def fetch(repository: str, file: str, **_: Any) -> str:
        return str(fetched.get(file, tmp_path / "files" / file))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    hub._listed.cache_clear()
    expected, found = read_beir(tiny.DATA, "tydi"), read_beir("hf:BeIR/wiki", "tydi")
    assert list(found.corpus) == list(expected.corpus) and found.qrels == expected.qrels
    fetched["corpus/corpus-00000-of-00002.parquet"] = blob
    with pytest.raises(UserError, match=r"has the sha256 .* as recorded; remove it, and it is fetched again"):
        read_corpus("hf:BeIR/wiki")
    hub._listed.cache_clear()


def test_a_collection_without_the_part(names: dict[str, str], tmp_path: Path) -> None:
    folder = names["tfds"].removeprefix("tfds:")
    with pytest.raises(UserError, match="has corpus, queries, qrels/train, qrels/tydi; name one of them, as"):
        read_qrels(names["tfds"])
    with pytest.raises(UserError, match="is a collection of corpus, qrels, queries; name one of them before"):
        read_corpus(f"tfds:{folder}[train]")
    with pytest.raises(UserError, match=r"is not a collection with corpus, queries and judgements \(it has corpus\)"):
        read_beir(f"tfds:{folder}/corpus", "train")
    with pytest.raises(UserError, match="has no qrels/dev, only corpus"):
        read_qrels(f"{names['hf']}#qrels/dev")


def test_nano_beir_is_known_without_the_network() -> None:
    assert len(ir_collections.members("nano-beir")) == 13
    collection = ir_collections.open_collection("nano-beir/scifact")
    assert collection.splits == ["test"] and set(collection.parts) == {CORPUS, QUERIES, "qrels/test"}
    assert ir_collections.open_collection("beir/scifact").splits == ["test", "train"]


def docs(*ids: str) -> Any:
    class Few(named_sets.Docs):
        def __init__(self) -> None:
            self.file = None

        def docs_iter(self) -> Any:
            return iter([named_sets.Doc(id, f"text of {id}", "") for id in ids])

    return Few()


def file_of(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Two writes within a tick of the clock would have one modification time.
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + len(rows)))
    return path


def test_beirs_documents_are_read_from_their_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ir_datasets.datasets.beir import BeirDocs, BeirTitleDoc

    monkeypatch.setattr(ir_datasets.util, "home_path", lambda: tmp_path)
    docs = BeirDocs("jaxretr-test", LocalDownload(tiny.DATA / "corpus.jsonl"), BeirTitleDoc)
    assert list(read_corpus(named_sets.register("jaxretr-test/as-beir", docs))) == list(read_corpus(tiny.DATA))
    assert not list(tmp_path.rglob("*.pklz4")), "the store, which takes longer, is not made"
