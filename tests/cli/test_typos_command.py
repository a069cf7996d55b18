"""`jaxretr typos`, as a user types it."""

import json
from pathlib import Path

import pytest
from command_errors import the_error

from jaxretr import cli
from jaxretr.data.readers import read_questions
from jaxretr.data.typos import TypoGenerator
from jaxretr.runtime.errors import UserError

QUERIES = [
    {"_id": "a 1", "text": "Who wrote the Lusiads?", "metadata": {"answers": ["Camões", "Luís de Camões"]}},
    {"_id": "b", "text": "7"},
    {"_id": "c", "text": "größte Stadt  der Schweiz", "answer": "Zürich"},
]


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    path = tmp_path / "queries.jsonl"
    path.write_text("".join(json.dumps(query) + "\n" for query in QUERIES))
    return path


def run(*words: object) -> int:
    return cli.main(["typos", *(str(word) for word in words)])


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_draws_are_files_of_queries_with_their_answers(
    queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new/typos"
    assert run(queries, "--out", out, "--draws", 3, "--seed", 4, "--keyboard", "qwertz") == 0
    assert sorted(content(out)) == [*(f"dictionary-0{draw}.jsonl" for draw in range(3)), "typos.json"]
    clean = read_questions(queries)
    generator = TypoGenerator(keyboard="qwertz", seed=4)
    summary = json.loads((out / "typos.json").read_text())["dictionary"]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["draw", "questions", "unchanged", "changes", *sorted(operations_of(summary))]
    for draw in range(3):
        path = out / f"dictionary-0{draw}.jsonl"
        typos = read_questions(path)
        assert [(one.id, one.answers) for one in typos] == [(one.id, one.answers) for one in clean]
        expected = [generator.typo(one.text, draw, row) for row, one in enumerate(clean)]
        assert [one.text for one in typos] == [one.text for one in expected]
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert [row["metadata"]["clean"] for row in rows] == [query["text"] for query in QUERIES]
        figures = summary["draws"][draw]
        assert figures["unchanged"] == sum(not one.operations for one in expected) >= 1  # "7"
        assert figures["changes"] == sum(len(one.operations) for one in expected)
        assert sum(figures["shares"].values()) == pytest.approx(1, abs=0.001)
        assert printed[1 + draw].split()[:4] == [str(draw), "3", str(figures["unchanged"]), str(figures["changes"])]
    assert summary["questions"] == 3 and summary["settings"]["keyboard"] == "qwertz"


def operations_of(summary: dict) -> set[str]:
    return {name for draw in summary["draws"] for name in draw["shares"]}


def test_again_gives_the_same_files_and_another_profile_stands_beside_them(queries: Path, tmp_path: Path) -> None:
    out = tmp_path / "typos"
    assert run(queries, "--out", out, "--draws", 2) == 0
    before = content(out)
    assert run(queries, "--out", out, "--draws", 2) == 0
    assert content(out) == before
    assert run(queries, "--out", out, "--profile", "spacing", "--draws", 1) == 0
    after = content(out)
    assert set(after) - set(before) == {"spacing-00.jsonl"}
    assert all(after[name] == before[name] for name in before if name != "typos.json")
    assert set(json.loads(after["typos.json"])) == {"dictionary", "spacing"}


@pytest.mark.parametrize(
    ("other", "named"),
    [(["--seed", 1], "seed"), (["--draws", 3], "draws"), (["--keyboard", "azerty"], "keyboard"), ([], "queries")],
)
def test_files_of_other_settings_are_not_overwritten(
    queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], other: list[object], named: str
) -> None:
    out = tmp_path / "typos"
    assert run(queries, "--out", out, "--draws", 2) == 0
    before = content(out)
    if not other:
        queries.write_text(json.dumps(QUERIES[0]))
    capsys.readouterr()
    assert run(queries, "--out", out, *(other if "--draws" in other else ["--draws", 2, *other])) == 1
    assert f"typos of dictionary with other {named};" in the_error(capsys)
    assert content(out) == before


def test_an_interrupted_run_can_be_repeated(
    queries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jaxretr.data.typos import writing

    out = tmp_path / "typos"
    write = writing.write_draw

    def fail_at_the_second(path: Path, *rest: object) -> None:
        if path.name.endswith("01.jsonl"):
            raise UserError("no space")
        write(path, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(writing, "write_draw", fail_at_the_second)
    assert run(queries, "--out", out, "--draws", 2) == 1
    monkeypatch.undo()
    assert sorted(content(out)) == ["dictionary-00.jsonl", "typos.json"]
    assert run(queries, "--out", out, "--draws", 2, "--seed", 1) == 1
    assert run(queries, "--out", out, "--draws", 2) == 0
    assert len(json.loads((out / "typos.json").read_text())["dictionary"]["draws"]) == 2


def test_a_list_of_ones_own_is_a_setting(queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = tmp_path / "words.txt"
    words.write_text("wroote->wrote\nlussiads->lusiads\n")
    out = tmp_path / "typos"
    assert run(queries, "--out", out, "--misspellings", words) == 0
    texts = {question.text for path in out.glob("*.jsonl") for question in read_questions(path)}
    assert {"Who wroote the Lusiads?", "Who wrote the Lussiads?"} <= texts
    words.write_text("wroat->wrote\n")
    capsys.readouterr()
    assert run(queries, "--out", out, "--misspellings", words) == 1
    assert "other misspellings;" in the_error(capsys)
    words.write_text("wroat->wrote\nwroat=wrote\n")
    assert run(queries, "--out", out, "--misspellings", words) == 1
    assert the_error(capsys) == f"{words}:2: no '->' in it; write misspelling->word"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["--profile", "spacing", "--keyboard", "qwertz"],
            2,
            "keyboard is for the typos of dictionary and single_word",
        ),
        (["--profile", "single_word", "--misspellings", "x"], 2, "misspellings is for the typos of dictionary"),
        (["--profile", "words"], 2, "invalid choice: 'words'"),
        (["--keybord", "qwertz"], 2, "did you mean '--keyboard'?"),
        (["--draws", "0"], 2, "not a whole number from 1"),
        (["--misspellings", "missing.json"], 1, "missing.json: no such file"),
    ],
)
def test_wrong_use_is_one_line(
    queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    assert run(queries, "--out", tmp_path / "typos", *words) == code
    assert message in the_error(capsys)
    assert not (tmp_path / "typos").exists()


def test_what_is_in_the_way_is_left(queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(queries, "--out", queries) == 1
    assert "is a file; give a folder" in the_error(capsys)
    (tmp_path / "typos.json").write_text('{"dictionary": 3}')
    assert run(queries, "--out", tmp_path) == 1
    assert "is not what jaxretr typos wrote" in the_error(capsys)
    (tmp_path / "typos.json").unlink()
    (tmp_path / "dictionary-00.jsonl").write_text("precious")
    assert run(queries, "--out", tmp_path) == 1
    assert "dictionary-00.jsonl: is there" in the_error(capsys)
    assert (tmp_path / "dictionary-00.jsonl").read_text() == "precious"


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["typos", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "example:\n  jaxretr typos " in printed and "single_word" in printed
