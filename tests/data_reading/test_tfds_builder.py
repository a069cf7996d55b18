"""`jaxretr data build`: data sets of TFDS that anything reads, that train what their files train, and that are checked."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from jaxretr import cli
from jaxretr.data import tfds_records
from jaxretr.data.formats.kinds import file_kind
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.named.tfds_collections import CHECKSUMS
from jaxretr.data.readers import read_corpus, read_qrels, read_questions
from jaxretr.data.tfds_builder import build_data
from jaxretr.data.validation import validate_data
from jaxretr.runtime.errors import UsageError, UserError

FORMATS = Path(__file__).parents[1] / "data/formats"

# A process that never sees jaxretr, as any other user of the data set.
_PLAIN = """
import json, sys
import tensorflow_datasets as tfds
folder, data_dir = sys.argv[1:]
rows = tfds.builder_from_directory(folder + "/corpus/1.0.0").as_data_source("corpus")
judged = tfds.data_source("wiki_qa/qrels:1.0.0", split="tydi", data_dir=data_dir)
info = tfds.builder_from_directory(folder + "/corpus/1.0.0").info
assert "jaxretr" not in sys.modules and "tensorflow" not in sys.modules
print(json.dumps({
    "ids": [row["_id"].decode() for row in rows],
    "texts": [row["text"].decode() for row in rows],
    "judged": [[row["query-id"].decode(), row["corpus-id"].decode(), int(row["score"])] for row in judged],
    "about": [info.description, info.homepage, info.citation, info.redistribution_info.license],
    "examples": info.splits["corpus"].num_examples,
}))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    about = {"description": "Passages of Wikipedia.", "homepage": "https://example.org", "citation": "@misc{x}"}
    out = tmp_path_factory.mktemp("built")
    return build_data(tiny.DATA, out, name="wiki_qa", licence="CC BY-SA 4.0", **about).path


def test_plain_tfds_reads_it_without_jaxretr(built: Path) -> None:
    command = [sys.executable, "-c", _PLAIN, str(built), str(built.parent)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(command, capture_output=True, text=True, cwd=built, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    said = json.loads(found.stdout.splitlines()[-1])
    corpus = read_corpus(tiny.DATA)
    assert (said["ids"], said["texts"], said["examples"]) == (list(corpus.ids), list(corpus.texts), len(corpus))
    expected = read_qrels(tiny.DATA / "qrels/tydi.tsv")
    assert said["judged"] == [[q, p, grade] for q, judged in expected.items() for p, grade in judged.items()]
    assert said["about"] == ["Passages of Wikipedia.", "https://example.org", "@misc{x}", "CC BY-SA 4.0"]


def test_records_are_those_of_tfds(built: Path) -> None:
    """The serialiser writes what TFDS's own does, for every shape of feature, and lists that are empty."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.proto import tf_example_pb2

    passages = tfds.features.Sequence({"text": tfds.features.Text(), "score": tfds.features.Scalar(np.float32)})
    grade, answers = tfds.features.Scalar(np.int64), tfds.features.Sequence(tfds.features.Text())
    features = tfds.features.FeaturesDict({"q": tfds.features.Text(), "p": passages, "g": grade, "a": answers})
    parse = tf_example_pb2.Example.FromString  # pyright: ignore[reportAttributeAccessIssue]
    for row in (
        {"q": "où", "p": [{"text": "x", "score": 1.5}, {"text": "", "score": 0.0}], "g": 2, "a": ["b", "c"]},
        {"q": "", "p": [], "g": -1, "a": []},
    ):
        expected = features.serialize_example(features.encode_example(row))
        assert parse(tfds_records.serialiser(features)(row)) == parse(expected)


WITH_CORPUS = {"corpus": tiny.DATA}
WITH_BOTH = {**WITH_CORPUS, "queries": tiny.DATA / "queries.jsonl"}


@pytest.mark.parametrize(
    ("file", "options"),
    [
        *(
            (file, {})
            for file in (
                "columns.jsonl",
                "columns.csv",
                "dpr.json",
                "flag.jsonl",
                "tevatron.jsonl",
                "tevatron2.jsonl",
                "triples.tsv",
            )
        ),
        *((file, WITH_CORPUS) for file in ("dpr_scale.jsonl", "tevatron2.jsonl")),
        *((file, WITH_BOTH) for file in ("distillation.jsonl", "triples_ids.tsv")),
    ],
)
def test_every_training_format_keeps_its_examples(file: str, options: dict[str, Path], tmp_path: Path) -> None:
    """Scores keep float32's precision, as training uses them."""
    name = f"tfds:{build_data(FORMATS / file, tmp_path, name='examples', **options).path}"
    assert file_kind(name) == "dpr-scale"
    content = read_corpus(tiny.DATA) if options else None
    expected = list(read_examples(FORMATS / file, corpus=content, queries=options.get("queries")))
    for found, example in zip(read_examples(name), expected, strict=True):
        assert (found.id, found.question, found.answers) == (example.id, example.question, example.answers)
        for kind in ("positives", "negatives", "other_negatives"):
            for a, b in zip(getattr(found, kind), getattr(example, kind), strict=True):
                text = content.texts[content.row(b.id)] if b.text is None and content is not None else b.text
                assert (a.id, a.text) == (b.id, text)
                assert a.score == (None if b.score is None else float(np.float32(b.score)))


def test_a_large_corpus_has_shards_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfds_records, "_SHARD_BYTES", 3000)
    built = build_data(tiny.DATA / "corpus.jsonl", tmp_path, name="sharded")
    shards = sorted((built.path / "corpus/1.0.0").glob("*.array_record-*"))
    assert len(shards) > 2 and shards[-1].name.endswith(f"-{len(shards) - 1:05d}-of-{len(shards):05d}")
    assert list(read_corpus(f"tfds:{built.path}")) == list(read_corpus(tiny.DATA))
    some = read_corpus(f"tfds:{built.path}/corpus[corpus[2:-3]]")
    assert list(some.ids) == list(read_corpus(tiny.DATA).ids)[2:-3]


def test_questions_and_judgements_are_data_sets_too(tmp_path: Path) -> None:
    questions = build_data(tiny.DATA / "queries.jsonl", tmp_path, name="asked")
    assert read_questions(f"tfds:{questions.path}") == read_questions(tiny.DATA)
    qrels = build_data(tiny.DATA / "qrels/train.tsv", tmp_path, name="judged", split="dev")
    assert qrels.rows == {"qrels": {"dev": 6}}
    assert read_qrels(f"tfds:{qrels.path}") == read_qrels(tiny.DATA / "qrels/train.tsv")


# ---- checks ----------------------------------------------------------------------------------------------------------


def test_a_changed_file_stops_every_reader(tmp_path: Path) -> None:
    built = build_data(tiny.DATA, tmp_path, name="changed")
    name, folder = f"tfds:{built.path}", built.path / "corpus/1.0.0"
    (records,) = folder.glob("*.array_record-*")
    content = bytearray(records.read_bytes())
    content[len(content) // 2] ^= 1
    records.write_bytes(content)
    for read in (lambda: read_corpus(name), lambda: validate_data(name), lambda: read_corpus(f"{name}/corpus")):
        with pytest.raises(
            UserError, match=rf"{records} has the sha256 .* as recorded; copy or build the data set again"
        ):
            read()
    records.unlink()
    with pytest.raises(UserError, match=rf"{records} cannot be read \(No such file or directory\)"):
        read_corpus(name)


def test_validation_verifies_the_parts_that_it_does_not_read(tmp_path: Path) -> None:
    built = build_data(tiny.DATA, tmp_path, name="changed")
    (records,) = (built.path / "qrels/1.0.0").glob("*tydi*")
    records.write_bytes(records.read_bytes()[:-1])
    with pytest.raises(UserError, match="has the sha256"):
        validate_data(f"tfds:{built.path}", split="train")


def test_a_file_is_digested_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"tfds:{build_data(tiny.DATA / 'corpus.jsonl', tmp_path, name='once').path}"
    digested: list[Any] = []
    digest = tfds_records.sha256
    monkeypatch.setattr("jaxretr.data.named.checksums.sha256", lambda path: digested.append(path) or digest(path))
    assert len(read_corpus(name)) == len(read_corpus(name)) == 20
    recorded = json.loads((tmp_path / "once/corpus/1.0.0" / CHECKSUMS).read_text())["sha256"]
    assert len(digested) == len(recorded) == 3


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"_id": "1", "title": "", "text": "x"}\n{"_id": "2", "title": ""}\n')
    out = tmp_path / "out"
    (out / ".bad-1.0.0.dead.part").mkdir(parents=True)  # of a call that was killed
    assert cli.main(["data", "build", str(bad), "--out", str(out)]) == 1
    assert f'{bad}:2: no field "text"; add it' in capsys.readouterr().err
    assert list(out.iterdir()) == []
    assert cli.main(["data", "build", str(bad), "--out", str(out), "--skip-bad"]) == 0
    assert f"{out}/bad/corpus/1.0.0: 1 rows in corpus" in capsys.readouterr().out
    assert cli.main(["data", "build", str(bad), "--out", str(out), "--skip-bad"]) == 1
    assert "is there already; choose another --version" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "Wiki QA"}, "must be lower-case letters"),
        ({"version": "1.0"}, "must be three numbers"),
        ({"split": "dev"}, "split= names the split of a file of judgements"),
        ({"corpus": "x"}, "are for training sets"),
    ],
)
def test_what_tfds_does_not_take(arguments: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        build_data(tiny.DATA, tmp_path, **arguments)  # pyright: ignore[reportArgumentType]


# ---- data sets of others ---------------------------------------------------------------------------------------------


def test_a_data_set_of_others_is_read(tmp_path: Path) -> None:
    """Made by TFDS's own classes, without checksums: plain features, and those that only its decoder knows."""
    import tensorflow_datasets as tfds

    text = tfds.features.Text()
    pairs = {"negative_2": text, "negative_10": text, "positive": text, "anchor": text}
    write_with_tfds(tmp_path / "pairs/1.0.0", "pairs", pairs, [{name: f"{name} text" for name in pairs}])
    (example,) = read_examples(f"tfds:{tmp_path}/pairs")
    assert (example.question, example.positives[0].text) == ("anchor text", "positive text")
    assert [each.text for each in example.negatives] == ["negative_2 text", "negative_10 text"]

    label = tfds.features.ClassLabel(names=["law", "art"])
    vector = tfds.features.Tensor(shape=(2,), dtype=np.float32)
    rows = [{"id": str(n), "text": f"text {n}", "topic": "art", "vector": [n, 0.5]} for n in range(3)]
    write_with_tfds(
        tmp_path / "labelled/2.0.0", "labelled", {"id": text, "text": text, "topic": label, "vector": vector}, rows
    )
    assert read_corpus(f"tfds:{tmp_path}/labelled").texts == ["text 0", "text 1", "text 2"]
    assert read_corpus(f"tfds:{tmp_path}/labelled:2.0.0[train[:2]]").ids == ["0", "1"]
    with pytest.raises(UserError, match=r"no split 'tra\[:2'; it has train"):
        read_corpus(f"tfds:{tmp_path}/labelled[tra[:2]")


def write_with_tfds(folder: Path, name: str, features: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    import tensorflow_datasets as tfds
    from etils import epath
    from tensorflow_datasets.core import dataset_info, file_adapters, naming, splits
    from tensorflow_datasets.core.utils.version import Version

    place = epath.Path(folder)
    place.mkdir(parents=True)
    of_rows = tfds.features.FeaturesDict(features)
    identity = dataset_info.DatasetIdentity(name, Version(folder.name), str(folder), module_name="")
    info = dataset_info.DatasetInfo(builder=identity, features=of_rows)
    info.set_file_format(file_adapters.FileFormat.ARRAY_RECORD)
    template = naming.ShardedFileTemplate(
        dataset_name=name, data_dir=place, split="train", filetype_suffix="array_record"
    )
    records = [(n, of_rows.serialize_example(of_rows.encode_example(row))) for n, row in enumerate(rows)]
    file_adapters.ArrayRecordFileAdapter.write_examples(folder / f"{name}-train.array_record-00000-of-00001", records)
    info.set_splits(
        splits.SplitDict(
            [splits.SplitInfo(name="train", shard_lengths=[len(rows)], num_bytes=1, filename_template=template)]
        )
    )
    info.write_to_directory(place)
