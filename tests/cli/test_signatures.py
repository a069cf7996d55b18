"""The options that commands take from functions, and the errors of both."""

import importlib
import inspect
from pathlib import Path

import pytest

import jaxretr
from jaxretr import cli
from jaxretr.cli.parsing import given, spoken
from jaxretr.cli.signatures import REQUIRED, parameters
from jaxretr.runtime.errors import UsageError

COMMANDS = cli.build_parser()[1]
FUNCTIONS = sorted({function for parser in COMMANDS.values() for function in parser.get_default("taken")})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_source_says_what_the_function_takes(function: str):
    """Without the import, the parameters, defaults and descriptions are those that Python sees."""
    module, _, name = function.partition(":")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    real = {name: one for name, one in inspect.signature(found).parameters.items() if name != "cls"}
    read = parameters(function)
    assert list(read) == list(real)
    for name, parameter in real.items():
        if read[name].default is not None:
            default = inspect.Parameter.empty if read[name].default is REQUIRED else read[name].default
            assert default == parameter.default, name
    taken = {name for parser in COMMANDS.values() for name in parser.get_default("taken").get(function, ())}
    assert taken
    assert not [name for name in taken if not read[name].text], "each option is described in the docstring"


def test_only_what_the_user_gave_reaches_the_function():
    args = cli.parse(
        [
            "mine",
            "--corpus",
            "c",
            "--train",
            "t",
            "--out",
            "o",
            "--negatives",
            "7",
            "--ranks",
            "3:9",
            "--answers",
            "none",
            "--skip-bad",
        ]
    )
    expected = {"corpus": "c", "train": "t", "negatives": 7, "ranks": (3, 9), "answers": None, "skip_bad": True}
    assert given(args, "mine") == expected
    args = cli.parse(["fuse", "a", "b", "--normalise", "none", "--missing", "zero", "--missing", "lowest"])
    assert given(args) == {"runs": ["a", "b"], "normalise": "none", "missing": ["zero", "lowest"]}
    args = cli.parse(["evaluate", "m", "--beir", "d", "--typos", "--no-bm25", "--draws", "2"])
    assert given(args, "evaluate_typos") == {"beir": "d", "bm25": False, "draws": 2}


def test_an_option_is_described_typed_and_defaulted_by_the_function():
    text = " ".join(COMMANDS["mine"].format_help().split())
    assert "--depth N passages to rank, for the report; by default the last of --ranks" in text
    assert "--answers {string,regex,none}" in text
    assert "(default: 1:100)" in text
    with pytest.raises(UsageError, match=r"argument --negatives: '0' is not a whole number from 1"):
        cli.parse(["mine", "--corpus", "c", "--train", "t", "--out", "o", "--negatives", "0"])
    with pytest.raises(KeyError):
        COMMANDS["mine"].options_of("jaxretr.mining.mining:mine").add("negative")


@pytest.mark.parametrize(
    "name, given, in_python, words, typed",
    [
        ("mine", {"train": "t", "corpus": "c", "relative_margin": 1.5}, "relative_margin=1.5: must be a share",
         "mine --train t --corpus c --out {out} --relative-margin 1.5", "--relative-margin 1.5: must be a share"),
        ("mine", {"train": "t", "corpus": "c", "score_margin": 1.0}, "score_margin= is for the scores of a scorer: give scorer=",
         "mine --train t --corpus c --out {out} --score-margin 1", "--score-margin is for the scores of a scorer: give --scorer"),
        ("mine", {"train": "t", "corpus": "c", "depth": 3}, "depth=3 ends before the ranks 1:100",
         "mine --train t --corpus c --out {out} --depth 3", "--depth 3 ends before the ranks 1:100"),
        ("tune", {"models": ["a", "b"], "queries": "q"}, "give queries= with either qrels= or answers=, or give beir=",
         "tune a b --queries q", "give --queries with either --qrels or --answers, or give --beir"),
        ("fuse", {"runs": ["a", "b"], "method": "rrf", "weights": [1.0]}, "weights= belongs to method=interpolation",
         "fuse a b --method rrf -w 1 --out {out}", "--weight belongs to --method interpolation"),
        ("run_overlap", {"reference": "a", "others": ["b"], "p": 1.0}, "p=1.0: must be above 0 and below 1",
         "analyse overlap a b --p 1", "--p 1.0: must be above 0 and below 1"),
        ("convert_data", {"path": "train.tsv", "out": "o", "to": "tevatron", "format": "triples", "split": "dev"},
         "split=dev: is for BEIR folders", "data convert train.tsv {out} --to tevatron --from triples --split dev",
         "--split dev: is for BEIR folders"),
        ("mine_lexical", {"corpus": "c", "out": "o", "base": 2.0, "sampling": "all"}, "base= is for sampling=position",
         "mine lexical --corpus c --out {out} --base 2 --sampling all", "--base is for --sampling position"),
        ("adapt", {"model": "{model}", "corpus": "{beir}", "out": "o", "queries": "q"}, "queries= and qrels= go together",
         "adapt {model} --corpus {beir} --out {out} --queries q", "--queries and --qrels go together"),
        ("evaluate_typos", {"encoders": "m", "beir": "{beir}", "draws": 0}, "draws=0: must be at least 1",
         "evaluate m --beir {beir} --typos --draws 0", "--draws: '0' is not a whole number from 1"),
        ("write_typos", {"queries": "train.tsv", "out": "o", "profile": "spacing", "keyboard": "azerty"}, "keyboard",
         "typos train.tsv --out {out} --profile spacing --keyboard azerty", "keyboard"),
    ],
)  # fmt: skip
def test_an_error_names_the_parameter_in_python_and_the_option_on_the_command_line(
    name, given, in_python, words, typed, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.tsv").write_text("q\tp\tn\n")
    (tmp_path / "beir").mkdir()
    (tmp_path / "beir" / "corpus.jsonl").write_text('{"_id": "p", "title": "", "text": "words"}\n')
    places = {"model": "beir", "beir": "beir", "out": "o"}
    given = {key: value.format(**places) if isinstance(value, str) else value for key, value in given.items()}
    with pytest.raises(UsageError) as error:
        getattr(jaxretr, name)(**given)
    assert in_python in str(error.value) and "--" not in str(error.value)
    assert cli.main(words.format(**places).split()) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert typed in line and "= " not in line, line


def test_what_only_looks_like_a_parameter_stays():
    words = {"k": "-k", "table": "--table", "skip_bad": "--skip-bad", "out": "--out"}
    assert spoken("postgresql://h/d?table=x: leave k=5 out", words) == "postgresql://h/d?table=x: leave -k 5 out"
    assert spoken("a/out=b: rank=k; use skip_bad=True, k=", words) == "a/out=b: rank=k; use --skip-bad, -k"
    guessed = {"normalise": "--normalise", "bm25": "--no-bm25"}
    assert spoken("guessed: normalise=False, bm25=False", guessed) == "guessed: --no-normalise, --no-bm25"
    settings = ["train.steps", "data.train", "distillation.loss"]
    message = "train.steps=0: too few; set train.steps, or distillation.loss=none for data.train.jsonl"
    expected = "train.steps=0: too few; set --train.steps, or --distillation.loss none for data.train.jsonl"
    assert spoken(message, {}, settings) == expected
