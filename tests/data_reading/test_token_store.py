"""Rows are what the models expect, cutting long texts changes nothing, and a store is whole or absent."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxretr.data.readers import Corpus, Passage, read_corpus, read_questions
from jaxretr.data.token_store import TokenStore
from jaxretr.data.tokens import (
    Template,
    load_tokenizer,
    passage_joined,
    passage_pair,
    question_rows,
    scorer_passage,
    scorer_target,
    tokenizer_fingerprint,
    vocabulary_size,
)
from jaxretr.runtime.errors import UsageError, UserError

WIKI = Path(__file__).parents[1] / "data" / "wiki_qa"


class Words:
    """A tokenizer in a few lines: a word's id is its number, or its length; it counts what it is given to read."""

    cls_token_id, sep_token_id, eos_token_id = 1, 2, 3

    def __init__(self, vocabulary: int = 1000, seconds: float = 0.0, fail_after: int | None = None):
        self.vocabulary, self.seconds, self.fail_after = vocabulary, seconds, fail_after
        self.texts, self.longest = 0, 0

    def get_vocab(self):
        return {"last": self.vocabulary - 1}

    def __call__(self, texts, add_special_tokens):
        before, after = ([1], [2]) if add_special_tokens else ([], [])
        if texts != ["a"]:  # By which `frame_of` finds the special tokens.
            self.texts += len(texts)
        self.longest = max([self.longest, *map(len, texts)])
        if self.fail_after is not None and self.texts > self.fail_after:
            raise KeyboardInterrupt
        time.sleep(self.seconds)
        rows = [[int(w) if w.isdigit() else 10 + len(w) for w in text.split()] for text in texts]
        return {"input_ids": [[*before, *row, *after] for row in rows]}


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory) -> Path:
    """A BERT tokenizer as Hugging Face folders have it, its vocabulary learnt from the twenty passages."""
    from tokenizers import BertWordPieceTokenizer

    folder = tmp_path_factory.mktemp("bert")
    trained = BertWordPieceTokenizer()
    corpus = read_corpus(WIKI)
    trained.train_from_iterator([*corpus.titles, *corpus.texts], vocab_size=400, show_progress=False)
    trained.save_model(str(folder))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


@pytest.fixture(scope="module")
def t5_folder(tmp_path_factory) -> Path:
    import sentencepiece

    folder = tmp_path_factory.mktemp("t5")
    with open(folder / "spiece.model", "wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(read_corpus(WIKI).texts),
            model_writer=model,
            vocab_size=300,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            normalization_rule_name="nmt_nfkc",
            num_threads=1,
            minloglevel=2,
        )
    (folder / "config.json").write_text('{"model_type": "t5"}')
    return folder


@pytest.fixture(scope="module")
def bert(bert_folder):
    return load_tokenizer(bert_folder)


@pytest.fixture(scope="module")
def t5(t5_folder):
    return load_tokenizer(t5_folder)


def whole_ids(tokenizer, text: str) -> list[int]:
    """The ids of all of a text by the tokenizer's own call, to compare with."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def test_templates_of_real_passages_equal_the_tokenizers_own_rows(bert):
    corpus = read_corpus(WIKI)
    rows, truncated = passage_pair(bert, corpus.titles, corpus.texts, 512)
    assert rows == bert(corpus.titles, corpus.texts)["input_ids"]
    assert truncated == 0
    joined = [f"{title} {text}" for title, text in zip(corpus.titles, corpus.texts, strict=True)]
    assert passage_joined(bert, corpus.titles, corpus.texts, 64) == (
        bert(joined, truncation=True, max_length=64)["input_ids"],
        20,
    )
    questions = [question.text for question in read_questions(WIKI)]
    assert question_rows(bert, questions, 512).ids == bert(questions)["input_ids"]


@settings(max_examples=60, deadline=None)
@given(title=st.integers(0, 9), text=st.integers(0, 9), max_length=st.integers(4, 24))
def test_right_truncation_keeps_the_end_and_counts(title, text, max_length):
    title_words = " ".join(str(100 + i) for i in range(title))
    text_words = " ".join(str(200 + i) for i in range(text))
    titles, texts = list(range(100, 100 + title)), list(range(200, 200 + text))

    def check(rows, body, end):
        keep = max_length - len(end)
        assert rows.ids == [body[:keep] + end]
        assert rows.truncated == (len(body) > keep)

    words = Words()
    check(passage_pair(words, [title_words], [text_words], max_length), [1, *titles, 2, *texts], [2])
    check(passage_joined(words, [title_words], [text_words], max_length), [1, *titles, *texts], [2])
    check(question_rows(words, [text_words], max_length), [1, *texts], [2])
    check(scorer_passage(words, [title_words], [text_words], max_length), titles + texts, [])
    check(scorer_target(words, [text_words], max_length), [10 + len("Question:"), *texts], [3])


def test_scorer_segments_are_tokenised_apart(t5):
    corpus = read_corpus(WIKI)
    rows = scorer_passage(t5, ["", *corpus.titles], ["", *corpus.texts], 4096).ids
    assert rows[0] == []
    assert rows[1:] == [
        whole_ids(t5, title) + whole_ids(t5, text) for title, text in zip(corpus.titles, corpus.texts, strict=True)
    ]
    assert scorer_target(t5, ["who?"], 64).ids == [t5("Question: who?")["input_ids"]]
    assert scorer_target(t5, ["who?"], 64).ids[0][-1] == 1


# What a long text may be made of: ordinary words, words longer than WordPiece takes (100 characters) that a cut can
# shorten below that, long white space, marks that combine with what is before them, and no spaces at all.
PIECES = [
    "oil crisis ",
    "x" * 99,
    "y" * 101,
    "embargo" * 30,
    " " * 900,
    "\n",
    "\u0301",
    "漢字",
    "[SEP]",
    "</s>",
    ".",
    "ﬁ",
]


@settings(max_examples=40, deadline=None)
@given(
    runs=st.lists(st.tuples(st.sampled_from(PIECES), st.integers(1, 8)), min_size=1, max_size=5),
    pad=st.integers(0, 120),
    max_length=st.sampled_from([8, 40]),
)
def test_cutting_characters_first_changes_no_id(bert, t5, runs, pad, max_length):
    text = "a" * pad + "".join(piece * times for piece, times in runs)
    texts = [text, text[::-1], text * 5]
    wanted = [[2, *whole_ids(bert, t)[: max_length - 2], 3] for t in texts]
    rows = question_rows(bert, texts, max_length)
    assert [bert.cls_token_id, bert.sep_token_id] == [2, 3]
    assert rows.ids == wanted
    assert rows.truncated == sum(len(whole_ids(bert, t)) > max_length - 2 for t in texts)
    scored = scorer_passage(t5, ["oil"] * 3, texts, max_length)
    assert scored.ids == [(whole_ids(t5, "oil") + whole_ids(t5, t))[:max_length] for t in texts]


def test_a_huge_text_is_not_read_to_its_end():
    words = Words()
    book = "word " * 2_000_000
    rows = passage_pair(words, ["title"], [book], 128)
    assert rows.ids == [[1, 15, 2, *[14] * 124, 2]] and rows.truncated == 1
    assert words.longest < 5_000
    # Where the beginning is blank the rest must be read, or the row would be empty.
    assert question_rows(words, [" " * 500_000 + "7"], 16).ids == [[1, 7, 2]]
    assert words.longest == 500_001


def test_settings_left_on_a_tokenizer_do_not_cut_or_pad_rows(bert_folder):
    bert = load_tokenizer(bert_folder)
    key = tokenizer_fingerprint(bert)
    text = read_corpus(WIKI).texts[0]
    wanted = bert(text)["input_ids"]
    bert([text, "a"], truncation=True, max_length=6, padding="max_length")
    assert tokenizer_fingerprint(bert) == key
    assert question_rows(bert, [text, ""], 512).ids == [wanted, [2, 3]]


def test_too_short_a_length_and_missing_special_ids_are_errors(t5):
    with pytest.raises(UsageError, match="leaves no room"):
        passage_pair(Words(), ["a"], ["b"], 3)
    with pytest.raises(UserError, match="no cls_token"):
        passage_pair(t5, ["a"], ["b"], 16)
    # One text has what T5's tokenizer puts around it.
    assert question_rows(t5, ["a"], 16).ids == [t5("a")["input_ids"]]


def test_loading_a_tokenizer_that_is_not_there(bert_folder, tmp_path):
    def message(path) -> str:
        with pytest.raises(UserError) as caught:
            load_tokenizer(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "did you mean 'bert'" in message(_made(tmp_path / "bert").with_name("brt"))
    assert "give the folder" in message(bert_folder / "vocab.txt")
    # AutoTokenizer would make one in which every word is [UNK].
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    assert "no tokenizer in this folder" in message(tmp_path / "bert")
    (_made(tmp_path / "bare") / "vocab.txt").write_text("[UNK]\n")
    assert "put config.json next to it" in message(tmp_path / "bare")
    (_made(tmp_path / "broken") / "tokenizer.json").write_text("{")
    assert "cannot load the tokenizer" in message(tmp_path / "broken")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_reading_and_tokenising_code_imports_nothing_heavy():
    code = "import sys, jaxretr.data.readers, jaxretr.data.token_store; print({'torch', 'transformers', 'jax'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "set()"


def test_a_tokenizer_is_loaded_without_advice_to_install_pytorch(bert_folder):
    """In Python too, and transformers' advice to the user's own code is as it was."""
    code = "import os, sys; sys.modules['torch'] = None\nfrom jaxretr.data.tokens import load_tokenizer\n"
    code += "load_tokenizer(sys.argv[1]); print('TRANSFORMERS_NO_ADVISORY_WARNINGS' in os.environ)"
    environment = {name: value for name, value in os.environ.items() if name != "TRANSFORMERS_NO_ADVISORY_WARNINGS"}
    words = [sys.executable, "-c", code, str(bert_folder)]
    run = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=environment)
    assert (run.stdout, run.stderr) == ("False\n", "")


def test_store_of_real_passages(bert, tmp_path):
    corpus = read_corpus(WIKI)
    store = TokenStore.build(tmp_path, corpus, bert, Template.PASSAGE_PAIR, 64, chunk_rows=7)
    rows, truncated = passage_pair(bert, corpus.titles, corpus.texts, 64)
    assert (store.num_rows, store.truncated, store.max_row_length) == (20, truncated, 64)
    assert store.dtype == np.uint16 and store.lengths.dtype == np.int32
    assert [store.row(i).tolist() for i in range(20)] == rows
    assert [path.name for path in tmp_path.iterdir()] == [store.folder.name]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 70_000), max_size=7), max_size=12),
    vocabulary=st.sampled_from([65_535, 65_536, 70_001]),
    chunk_rows=st.integers(1, 13),
    data=st.data(),
)
def test_rows_come_back_as_they_went_in(tmp_path_factory, rows, vocabulary, chunk_rows, data):
    rows = [[min(id, vocabulary - 1) for id in row] for row in rows]
    corpus = Corpus([str(i) for i in range(len(rows))], [""] * len(rows), [" ".join(map(str, row)) for row in rows])
    store = TokenStore.build(
        tmp_path_factory.mktemp("store"),
        corpus,
        Words(vocabulary),
        Template.SCORER_PASSAGE,
        5,
        chunk_rows=chunk_rows,
    )
    assert store.dtype == (np.uint16 if vocabulary == 65_535 else np.int32)
    assert store.truncated == sum(len(row) > 5 for row in rows)
    kept = [row[:5] for row in rows]
    assert store.lengths.tolist() == [len(row) for row in kept]
    start = data.draw(st.integers(0, len(rows) + 3))
    stop = data.draw(st.integers(start, len(rows) + 6))
    tokens, lengths = store.padded(start, stop, 6, pad_id=9)
    wanted = (kept + [[]] * 6)[start:stop] if start <= len(rows) else [[]] * (stop - start)
    wanted += [[]] * (stop - start - len(wanted))
    assert tokens.dtype == store.dtype and tokens.shape == (stop - start, 6)
    assert tokens.tolist() == [row + [9] * (6 - len(row)) for row in wanted]
    assert lengths.dtype == np.int32 and lengths.tolist() == [len(row) for row in wanted]


def test_padded_refuses_to_lose_ids(tmp_path):
    store = TokenStore.build(tmp_path, ["5 6 7", "8"], Words(), Template.QUESTION_ROWS, 16)
    assert store.padded(1, 2, 3)[0].tolist() == [[1, 8, 2]]
    with pytest.raises(ValueError, match="row 0 has 5 ids"):
        store.padded(0, 2, 4)
    for wrong in (-1, 2):
        with pytest.raises(IndexError):
            store.row(wrong)


def test_the_key_changes_with_all_that_decides_the_rows(bert, t5, tmp_path):
    def folder(content, tokenizer, template, max_length):
        return TokenStore.build(tmp_path, content, tokenizer, template, max_length).folder

    one = Corpus.from_passages([Passage("1", "T", "oil")])
    other = Corpus.from_passages([Passage("1", "", "T oil")])
    first = folder(one, bert, Template.PASSAGE_PAIR, 16)
    folders = {
        first,
        folder(one, bert, Template.PASSAGE_PAIR, 17),
        folder(one, bert, Template.PASSAGE_JOINED, 16),
        folder(other, bert, Template.PASSAGE_PAIR, 16),
        folder(one, bert, Template.SCORER_PASSAGE, 16),
        folder(one, t5, Template.SCORER_PASSAGE, 16),
        folder(["T oil"], bert, Template.QUESTION_ROWS, 16),
        folder(["T", "oil"], bert, Template.QUESTION_ROWS, 16),
    }
    assert len(folders) == 8
    assert folder(one, bert, Template.PASSAGE_PAIR, 16) == first
    cased = bert.backend_tokenizer.normalizer
    try:
        from tokenizers.normalizers import BertNormalizer

        bert.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
        assert folder(one, bert, Template.PASSAGE_PAIR, 16) not in folders
    finally:
        bert.backend_tokenizer.normalizer = cased
    assert vocabulary_size(bert) == len(bert)


def test_content_of_the_wrong_kind_is_refused(tmp_path):
    for content, template in (
        (["a"], Template.PASSAGE_PAIR),
        (read_corpus(WIKI), Template.QUESTION_ROWS),
        ("a text", Template.QUESTION_ROWS),
    ):
        with pytest.raises(TypeError):
            TokenStore.build(tmp_path, content, Words(), template, 16)
    assert not list(tmp_path.iterdir())


TEXTS = [str(i) for i in range(100)]


def build(root: Path, tokenizer, **options) -> TokenStore:
    return TokenStore.build(root, TEXTS, tokenizer, Template.QUESTION_ROWS, 8, chunk_rows=10, **options)


def check_texts(store: TokenStore) -> None:
    assert [store.row(i).tolist() for i in range(store.num_rows)] == [[1, i, 2] for i in range(100)]
    assert [path.name for path in store.folder.parent.iterdir()] == [store.folder.name], "something was left behind"


def test_built_once(tmp_path):
    words = Words()
    check_texts(build(tmp_path, words))
    assert words.texts == 100
    check_texts(build(tmp_path, words))
    assert words.texts == 100


def test_an_interrupted_build_goes_on_behind_its_finished_chunks(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, Words(fail_after=45), workers=1)
    words = Words()
    check_texts(build(tmp_path, words))
    assert words.texts == 60


KILLED = """
import sys
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/.."]
from pathlib import Path
from test_token_store import Words, build
build(Path(sys.argv[1]), Words(seconds=0.1), workers=1)
"""


def test_a_killed_build_leaves_no_half_store(tmp_path):
    arguments = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent)]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("*.parts/*.npys"))) < 2 and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = len(list(tmp_path.glob("*.parts/*.npys")))
    assert 2 <= done < 10
    words = Words()
    check_texts(build(tmp_path, words))
    assert words.texts == 100 - 10 * done


def test_builds_at_the_same_time_make_one_whole_store(tmp_path):
    errors = []

    def run():
        try:
            check = build(tmp_path, Words(seconds=0.005))
            assert check.row(99).tolist() == [1, 99, 2]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    check_texts(build(tmp_path, Words(fail_after=0)))


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def _shift(path: Path) -> None:
    offsets = np.load(path)
    np.save(path, np.append(offsets[:-1], offsets[-1] + 1))


DAMAGE = {
    "ids.bin is missing": lambda folder: (folder / "ids.bin").unlink(),
    "ids.bin is short": lambda folder: _truncate(folder / "ids.bin"),
    "offsets.npy is missing": lambda folder: (folder / "offsets.npy").unlink(),
    "offsets.npy is short": lambda folder: _truncate(folder / "offsets.npy"),
    "offsets.npy is no array": lambda folder: (folder / "offsets.npy").write_bytes(b"x"),
    "offsets.npy has a broken head": lambda folder: (folder / "offsets.npy").write_bytes(
        (folder / "offsets.npy").read_bytes().replace(b"{", b"z", 1)
    ),
    "offsets.npy is of another store": lambda folder: _shift(folder / "offsets.npy"),
    "meta.json is empty": lambda folder: (folder / "meta.json").write_text(""),
    "meta.json is another thing": lambda folder: (folder / "meta.json").write_text("[]"),
    "meta.json is of another version": lambda folder: (folder / "meta.json").write_text(
        json.dumps(json.loads((folder / "meta.json").read_text()) | {"format": 999})
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_store_is_built_again(tmp_path, caplog, damage):
    DAMAGE[damage](build(tmp_path, Words()).folder)
    with caplog.at_level(logging.WARNING):
        check_texts(build(tmp_path, Words()))
    assert "making it again" in caplog.text


def test_a_damaged_chunk_is_tokenised_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, Words(fail_after=45), workers=1)
    _truncate(next(tmp_path.glob("*.parts/*.npys")))
    words = Words()
    check_texts(build(tmp_path, words))
    assert words.texts == 70


def test_opening_what_is_no_store(tmp_path):
    with pytest.raises(UserError, match=r"meta.json: .* made again"):
        TokenStore(tmp_path)


def test_a_root_that_is_a_file_is_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        build(tmp_path / "file", Words())
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


FULL = """
import resource, sys
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/.."]
from pathlib import Path
from test_token_store import Words, build
from jaxretr.runtime.errors import UserError
# As a disk that is full after so many bytes: the chunks fit, the store that is put together of them does not.
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    build(Path(sys.argv[1]), Words())
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [300, 590])
def test_a_full_disk_is_a_one_line_error_and_leaves_nothing_half_written(tmp_path, limit):
    arguments = [sys.executable, "-c", FULL, str(tmp_path), str(Path(__file__).parent), str(limit)]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
    assert run.stdout.count("\n") == 1 and "cannot be written" in run.stdout
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".part"]
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".parts"]
    words = Words()
    check_texts(build(tmp_path, words))
    assert words.texts == (100 if limit == 300 else 0)


def test_progress_is_said_in_the_log_where_there_is_no_terminal(tmp_path, caplog, monkeypatch):
    from jaxretr.runtime import progress

    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with caplog.at_level(logging.INFO):
        TokenStore.build(tmp_path, TEXTS, Words(), Template.QUESTION_ROWS, 8, chunk_rows=10)
    assert "tokenised 10 of 100 rows" in caplog.text
