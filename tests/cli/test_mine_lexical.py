"""`jaxretr mine lexical` writes what the sampler, the teachers' rankings and the asked ranks give, also after a kill."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import jaxretr
from jaxretr import cli
from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.lexical_set import LexicalSet
from jaxretr.data.made_of import note_settings
from jaxretr.data.questions import read_questions
from jaxretr.data.sentences import split_sentences
from jaxretr.embeddings import embedding_store, encoding
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.indexes.bm25.lexical_ranker import FORMAT_VERSION
from jaxretr.indexes.bm25.words import Bm25Settings
from jaxretr.mining import lexical, teachers
from jaxretr.mining.sentence_queries import Sampling
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UserError

DATA = Path(__file__).parents[1] / "data"
CORPUS = DATA / "wiki_qa" / "corpus.jsonl"
MORE = DATA / "trec" / "corpus.jsonl"
QUERIES = DATA / "wiki_qa" / "queries.jsonl"
SMALL = ("--positives", 3, "--negative-ranks", "6:8")


def _run(*words: object) -> int:
    return cli.main(["mine", "lexical", *map(str, words)])


def _mine(out: Path, *words: object) -> LexicalSet:
    assert _run("--corpus", CORPUS, "--out", out, *SMALL, *words) == 0
    assert not (out / "work").exists()
    return LexicalSet.open(out)


def _refused(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    """The one line of the error."""
    capsys.readouterr()
    assert _run(*words) == code
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("jaxretr: error:")]
    return line


def _ranked(corpus: Corpus, queries: list[str], **settings) -> tuple[list[list[int]], list[dict[int, float]]]:
    """BM25 of the whole corpus by the other index: the rows that share a word, best first, equal scores by id."""
    index = Bm25Index.build(corpus, **settings)
    scores, rows = index.search(queries, len(corpus))
    of_row = [dict(zip(r.tolist(), s.tolist(), strict=True)) for r, s in zip(rows, scores, strict=True)]
    found = [[row for row in of if of[row] > 0] for of in of_row]
    return [sorted(r, key=lambda row: (-of[row], corpus.ids[row])) for r, of in zip(found, of_row, strict=True)], of_row


def _check_bm25(examples: LexicalSet, number: int, corpus: Corpus, **settings) -> None:
    """The ranks 1:3 and 6:8 by the other index; where its float32 scores tie up to rounding, either order."""
    teacher = examples.teachers[number]
    ranked, scores = _ranked(corpus, examples.queries[:], **settings)
    for query, (rows, of_row) in enumerate(zip(ranked, scores, strict=True)):
        expected = [*rows[:3], *rows[5:8]]
        found = [row for row in teacher.rows[query].tolist() if row >= 0]
        assert len(found) == len(expected)
        np.testing.assert_allclose([of_row[row] for row in found], [of_row[row] for row in expected], rtol=1e-5)
        np.testing.assert_allclose(teacher.scores[query][: len(found)], [of_row[row] for row in found], rtol=1e-5)


# ---- what is written -------------------------------------------------------------------------------------------------


def test_sentences_and_their_first_and_later_ranks(tmp_path: Path, capsys):
    examples = _mine(tmp_path / "set", "--sampling", "all")
    corpus = read_corpus(CORPUS)
    sentences = [(text, row) for row in range(len(corpus)) for text in split_sentences(corpus.texts[row])]
    written = list(zip(examples.queries, examples.sources.tolist(), strict=True))
    assert written == [pair for pair in sentences if pair in written], "in the order of the passages"
    assert len(written) + examples.counts["dropped"] == len(sentences)
    _check_bm25(examples, 0, corpus)
    # A sentence is found in its own passage first, except for rare ones of few words.
    assert np.mean(examples.teachers[0].positives[:, 0] == examples.sources) > 0.9
    assert examples.corpus_fingerprint == corpus.fingerprint() and examples.corpus_rows == len(corpus)
    assert examples.settings["sampled"]["sentences"] == len(sentences)
    line = capsys.readouterr().out
    assert line.startswith(f"{tmp_path / 'set'}: {len(examples)} queries, ") and " % dropped for lack of" in line


def test_the_paper_sampling_is_the_default_and_the_seed_changes_it(tmp_path: Path):
    corpus = read_corpus(CORPUS)
    expected, before, position = [], None, 0
    for row, (title, text) in enumerate(zip(corpus.titles, corpus.texts, strict=True)):
        position = position + 1 if title == before else 0
        before = title
        sentences = split_sentences(text)
        expected += [(sentences[number], row) for number in Sampling(seed=3).choose(len(sentences), position, row)]
    examples = _mine(tmp_path / "a", "--seed", 3)
    assert examples.settings["sampled"]["sampled"] == len(expected)
    written = list(zip(examples.queries, examples.sources.tolist(), strict=True))
    assert written == [pair for pair in expected if pair in written] and len(written) > 0.8 * len(expected)
    assert _mine(tmp_path / "b", "--seed", 4).queries[:] != examples.queries[:]


def test_uniform_sampling_and_documents_by_id(tmp_path: Path):
    examples = _mine(tmp_path / "a", "--sampling", "uniform", "--per-passage", 2, "--limit", 25)
    assert len(examples) + examples.counts["dropped"] == 25
    assert np.bincount(examples.sources).max() <= 2
    by_id = _mine(tmp_path / "b", "--documents", r"id:(.+?)[p:-].*\d+", "--base", 0.9)
    # The ids begin with nq, squad or tydidev: three documents.
    assert by_id.settings["sampled"]["documents"] == 3 and by_id.settings["documents"].startswith("id:")


def test_several_corpora_follow_each_other(tmp_path: Path):
    examples = _mine(tmp_path / "set", "--corpus", MORE, "--sampling", "uniform")
    corpus = read_corpus(CORPUS).followed_by(read_corpus(MORE), MORE)
    assert examples.corpus_fingerprint == corpus.fingerprint() and examples.corpus_rows == 52
    assert all(query in corpus.texts[row] for query, row in zip(examples.queries, examples.sources, strict=True))
    _check_bm25(examples, 0, corpus)


def test_settings_of_bm25_reach_it(tmp_path: Path):
    plain = _mine(tmp_path / "a", "--sampling", "uniform")
    examples = _mine(
        tmp_path / "b", "--sampling", "uniform", "--k1", 2, "--b", 1, "--stemmer", "none", "--quantise-lengths"
    )
    assert examples.settings["teachers"]["bm25"] == {
        **{"k1": 2.0, "b": 1.0, "stemmer": None, "method": "lucene", "quantise_lengths": True, "format": FORMAT_VERSION}
    }
    assert not np.array_equal(plain.teachers[0].rows[:20], examples.teachers[0].rows[:20])


def test_a_set_whose_words_were_split_otherwise_is_not_taken_for_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _mine(tmp_path / "a")
    meta = json.loads((tmp_path / "a/meta.json").read_text())
    del meta["settings"]["teachers"]["bm25"]["format"]  # as it was when there was but one way
    (tmp_path / "a/meta.json").write_text(json.dumps(meta))
    line = _refused(capsys, 1, "--corpus", CORPUS, "--out", tmp_path / "a", *SMALL)
    assert "was begun with another --teacher" in line and "give another folder as --out" in line


def test_shards_and_threads_change_nothing(tmp_path: Path):
    one = _mine(tmp_path / "a")
    two = _mine(tmp_path / "b", "--shard-passages", 7, "--threads", 2)
    np.testing.assert_array_equal(one.teachers[0].rows, two.teachers[0].rows)
    np.testing.assert_array_equal(one.teachers[0].scores, two.teachers[0].scores)


def test_python_makes_what_the_command_makes(tmp_path: Path):
    expected = _mine(tmp_path / "a", "--limit", 30, "--k1", 1.2)
    examples = jaxretr.mine_lexical(
        corpus=CORPUS,
        out=tmp_path / "b",
        positives=3,
        negative_ranks=(6, 8),
        limit=30,
        bm25=Bm25Settings(k1=1.2),
    )
    assert examples.settings == expected.settings
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    again = pickle.loads(pickle.dumps(examples))
    assert again.queries[:] == examples.queries[:] and "teachers: bm25" in repr(again)


# ---- held out --------------------------------------------------------------------------------------------------------


def test_dev_queries_are_not_trained_on(tmp_path: Path, capsys):
    everything = _mine(tmp_path / "all", "--sampling", "all")
    examples = _mine(tmp_path / "set", "--sampling", "all", "--dev", 12)
    dev = LexicalSet.open(tmp_path / "set" / "dev")
    assert len(dev) == 12 and len(examples) == len(everything) - 12
    rows = {
        (query, row): ids.tolist()
        for query, row, ids in zip(everything.queries, everything.sources, everything.teachers[0].rows, strict=True)
    }
    held_out, kept = (list(zip(part.queries, part.sources.tolist(), strict=True)) for part in (dev, examples))
    assert not set(held_out) & set(kept) and set(held_out) | set(kept) == set(rows)
    for part in (dev, examples):
        found = zip(part.queries, part.sources, part.teachers[0].rows, strict=True)
        assert all(rows[query, row] == ids.tolist() for query, row, ids in found)
    assert dev.corpus_fingerprint == examples.corpus_fingerprint and dev.counts["dropped"] == 0
    assert ", 12 more in dev, " in capsys.readouterr().out
    other = _mine(tmp_path / "other", "--sampling", "all", "--dev", 12, "--seed", 1)
    assert LexicalSet.open(tmp_path / "other" / "dev").queries[:] != dev.queries[:] and len(other) == len(examples)
    words = ("--corpus", CORPUS, "--out", tmp_path / "none", *SMALL, "--limit", 12, "--dev", 12)
    assert "leaves nothing to train on" in _refused(capsys, 1, *words)


# ---- teachers --------------------------------------------------------------------------------------------------------


def _write_run(path: Path) -> dict[str, list[tuple[int, float]]]:
    """A run of all questions but one; equal scores at ranks 2 to 4."""
    corpus = read_corpus(CORPUS)
    lines, expected = [], {}
    for number, question in enumerate(read_questions(QUERIES)[1:]):
        rows = np.random.default_rng(number).permutation(len(corpus))[:9].tolist()
        scores = [9.5, 7.25, 7.25, 7.25, 3, 2, 1, 0, -1]
        # trec_eval's order does not count, nor that of the lines.
        lines += [f"{question.id} Q0 {corpus.ids[row]} 1 {score} x" for row, score in zip(rows, scores, strict=True)][
            ::-1
        ]
        best = sorted(zip(rows, scores, strict=True), key=lambda hit: (-hit[1], corpus.ids[hit[0]]))
        expected[question.text] = best
    path.write_text("\n".join(lines) + "\n")
    return expected


def test_given_queries_and_two_teachers(tmp_path: Path, caplog):
    expected = _write_run(tmp_path / "run.trec")
    words = ("--teacher", f"run:{tmp_path / 'run.trec'}", "--teacher", "bm25")
    examples = _mine(tmp_path / "set", "--queries", QUERIES, *words)
    assert [teacher.name for teacher in examples.teachers] == [f"run:{tmp_path / 'run.trec'}", "bm25"]
    assert "no hits for 1 of 10 queries" in caplog.text
    assert examples.counts["dropped_by_teacher"][0] == 1 and set(examples.queries) <= set(expected)
    assert examples.sources.tolist() == [-1] * len(examples) and len(examples) > 5
    for number, query in enumerate(examples.queries):
        best = [*expected[query][:3], *expected[query][5:8]]
        assert examples.teachers[0].rows[number].tolist() == [row for row, _ in best]
        assert examples.teachers[0].scores[number].tolist() == [score for _, score in best]
    _check_bm25(examples, 1, read_corpus(CORPUS))


def test_a_dense_model_as_teacher(tmp_path: Path, tiny_models: Path, monkeypatch):
    monkeypatch.setattr(teachers, "_QUERIES", 4)
    examples = _mine(tmp_path / "set", "--queries", QUERIES, "--teacher", f"model:{tiny_models / 'encoder'}")
    encoder = DualEncoder.from_pretrained(tiny_models / "encoder")
    corpus = read_corpus(CORPUS)
    scores = encoder.encode_queries(examples.queries[:]).astype(np.float64) @ encoder.encode_passages(list(corpus)).T
    assert len(examples) == 10
    for number, teacher_rows in enumerate(examples.teachers[0].rows):
        in_order = np.sort(scores[number])[::-1][[0, 1, 2, 5, 6, 7]]
        np.testing.assert_allclose(scores[number][teacher_rows], in_order, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(examples.teachers[0].scores[number], in_order, rtol=1e-4, atol=1e-4)


# ---- restart ---------------------------------------------------------------------------------------------------------


def _killed(monkeypatch: pytest.MonkeyPatch, target: object, name: str, after: int) -> None:
    """The `after`-th call of a function ends the process, as far as the command can tell."""
    real, calls = getattr(target, name), []

    def dying(*words, **options):
        calls.append(name)
        if len(calls) > after:
            raise KeyboardInterrupt
        return real(*words, **options)

    monkeypatch.setattr(target, name, dying)


def test_a_killed_run_goes_on_and_another_command_is_refused(tmp_path: Path, capsys):
    words = ("--corpus", CORPUS, "--queries", QUERIES, *SMALL, "--dev", 2)
    words = (*words, "--teacher", "bm25", "--teacher", f"run:{tmp_path / 'run.trec'}")
    _write_run(tmp_path / "run.trec")
    assert _run(*words, "--out", tmp_path / "whole") == 0
    expected = {path.name: path.read_bytes() for path in sorted((tmp_path / "whole").rglob("*")) if path.is_file()}
    out = tmp_path / "set"
    for target, name, after in (
        (lexical, "write_texts", 0),
        (teachers, "rank", 0),
        (teachers, "read_run", 0),
        (LexicalSet, "write", 0),
        (LexicalSet, "write", 1),
    ):
        with pytest.MonkeyPatch.context() as patch:
            _killed(patch, target, name, after)
            assert _run(*words, "--out", out) == 130
        line = _refused(capsys, 1, *words, "--out", out, "--limit", 5)
        assert "was begun with another --limit (none) than 5; use that again, or give another folder as --out" in line
    with pytest.MonkeyPatch.context() as patch:
        # What was finished is not done again.
        for target, name in ((lexical, "write_texts"), (teachers, "read_run")):
            _killed(patch, target, name, 0)
        assert _run(*words, "--out", out) == 0
    assert {path.name: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()} == expected
    capsys.readouterr()
    assert _run(*words, "--out", out) == 0, "a finished one is left as it is"
    assert "2 more in dev" in capsys.readouterr().out
    assert "another --seed (0) than 1" in _refused(capsys, 1, *words, "--out", out, "--seed", 1)


def test_a_dense_teacher_goes_on_where_it_was(tmp_path: Path, tiny_models: Path, monkeypatch):
    monkeypatch.setattr(embedding_store, "_FEWEST_ROWS", {"cpu": 7})
    monkeypatch.setattr(teachers, "_QUERIES", 4)
    words = ("--queries", QUERIES, "--teacher", f"model:{tiny_models / 'encoder'}")
    whole = _mine(tmp_path / "whole", *words)
    out = tmp_path / "set"
    # Two of 3 shards of passages; then the last of them, and the first of 3 blocks of queries.
    for target, name, after, shards in ((EmbeddingStore, "write", 2, 2), (encoding, "encode_rows", 1, 3)):
        with pytest.MonkeyPatch.context() as patch:
            _killed(patch, target, name, after)
            assert _run("--corpus", CORPUS, "--out", out, *SMALL, *words) == 130
        assert len(list((out / "work" / "teacher-00" / "embeddings").glob("*.npy"))) == shards
    assert [path.name for path in (out / "work" / "teacher-00").glob("*.npys")] == ["queries-000000000000.npys"]
    with pytest.MonkeyPatch.context() as patch:
        _killed(patch, encoding, "encode_rows", 2)
        _killed(patch, EmbeddingStore, "write", 0)
        examples = _mine(out, *words)
    np.testing.assert_array_equal(examples.teachers[0].rows, whole.teachers[0].rows)
    # A corpus that the devices cannot hold is streamed through them.
    monkeypatch.setattr(teachers, "_device_bytes", lambda: 0)
    streamed = _mine(tmp_path / "streamed", *words)
    np.testing.assert_array_equal(streamed.teachers[0].rows, whole.teachers[0].rows)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (2, ("--teacher", "run:x.trec"), "give them as --queries"),
        (2, ("--teacher", "bm26"), "no such teacher; did you mean 'bm25'?; give bm25, run:FILE or model:MODEL"),
        (2, ("--teacher", "model:"), "no such teacher"),
        (2, ("--teacher", "bm25", "--teacher", "bm25"), "is given twice"),
        (2, ("--documents", "id:(x"), "is not a regular expression"),
        (2, ("--documents", "titel"), "does not name a rule for documents"),
        (2, ("--sampling", "all", "--base", "2"), "--base is for --sampling position, not for all"),
        (2, ("--per-passage", "2"), "--per-passage is for --sampling uniform, not for position"),
        (2, ("--queries", "q.tsv", "--sampling", "all"), "--sampling is for sentences"),
        (2, ("--base", "0"), "base must be a number above 0"),
        (2, ("--negative-ranks", "3:4"), "must come after the positive ones, 1:10"),
        (
            2,
            ("--teacher", "model:x", "--k1", "1"),
            "settings of BM25 (--k1, --b, ...) have no effect without --teacher bm25",
        ),
        (2, ("--b", "1.5"), "--b 1.5: must be between 0 and 1"),
        (2, ("--limt", "5"), "did you mean '--limit'?"),
        (1, ("--queries", "nowhere.tsv"), "nowhere.tsv: no such file"),
        (1, ("--documents", r"id:(squad):.*"), "does not match the id 'nq:p0'"),
        (1, (), "no query has both a positive and a passage at ranks 46:50"),
        (1, ("--corpus", CORPUS), "duplicate id 'nq:p0'"),
    ],
    ids=str,
)
def test_errors_are_one_line(tmp_path: Path, capsys, code: int, words: tuple, message: str):
    assert message in _refused(capsys, code, "--corpus", CORPUS, "--out", tmp_path / "out", *words)


def test_errors_of_files(tmp_path: Path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "no passages" in _refused(capsys, 1, "--corpus", empty, "--out", tmp_path / "a")
    run = tmp_path / "run.trec"
    words = ("--corpus", CORPUS, "--queries", QUERIES, "--teacher", f"run:{run}", *SMALL)
    run.write_text("stranger Q0 nq:p0 1 1.0 x\n")
    assert "has hits for none of the 10 queries" in _refused(capsys, 1, *words, "--out", tmp_path / "b")
    question = read_questions(QUERIES)[0].id
    run.write_text(f"{question} Q0 nowhere 1 1.0 x\n")
    line = _refused(capsys, 1, *words, "--out", tmp_path / "c", "--limit", 10)
    assert f"passage 'nowhere', found for query '{question}', is not in" in line
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert "something else than a lexical set (notes.txt)" in _refused(capsys, 1, "--corpus", CORPUS, "--out", other)
    assert "is a file" in _refused(capsys, 1, "--corpus", CORPUS, "--out", other / "notes.txt")
    assert [path.name for path in other.iterdir()] == ["notes.txt"]


def test_plain_mine_is_as_it_was(tmp_path: Path, capsys):
    words = ["mine", "--corpus", str(CORPUS), "--train", str(DATA / "wiki_qa"), "--out", str(tmp_path / "mined.jsonl")]
    assert cli.main(words) == 0 and (tmp_path / "mined.jsonl").is_file()
    assert cli.main(["mine", "lexicl"]) == 2
    assert "no such action of mine; did you mean 'lexical'?" in capsys.readouterr().err
    for words, text in ((["mine", "--help"], "jaxretr mine lexical"), (["mine", "lexical", "--help"], "--teacher")):
        assert cli.main(words) == 0
        assert text in capsys.readouterr().out


def test_a_file_that_changed_is_said_to_have_changed(tmp_path: Path) -> None:
    """The error does not tell anybody to use a file of the same name again."""
    begun = {"corpus": {"files": ["d.jsonl"], "sha256": "a"}, "seed": 0}
    assert not note_settings(tmp_path / "settings.json", tmp_path, begun)
    moved = {"corpus": {"files": ["e.jsonl"], "sha256": "a"}, "seed": 0}
    assert note_settings(tmp_path / "settings.json", tmp_path, moved), "a file may move"
    for corpus, words in (
        ({"files": ["d.jsonl"], "sha256": "b"}, r"corpus= \(d.jsonl\) has changed since it was begun"),
        ({"files": ["e.jsonl"], "sha256": "b"}, r"another corpus= \(d.jsonl\) than e.jsonl; use that again"),
    ):
        with pytest.raises(UserError, match=words):
            note_settings(tmp_path / "settings.json", tmp_path, {**begun, "corpus": corpus})
