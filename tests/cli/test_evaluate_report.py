"""`jaxretr evaluate --run`: comparisons with several baselines, all forms of the tables, curves, and what it refuses."""

import gzip
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from command_errors import the_error

from jaxretr import cli
from jaxretr.data.readers import read_qrels
from jaxretr.data.run_reading import read_trec, write_trec
from jaxretr.data.runs import ranked_ids
from jaxretr.evaluate import metrics
from jaxretr.evaluate.plots import band, cuts_to
from jaxretr.evaluate.rank_overlap import find_shared, rank_biased_overlap
from jaxretr.evaluate.significance import bootstrap_interval, compare, holm
from jaxretr.evaluate.tables import Cell, Grid, Row, as_latex, as_markdown, as_text, latex_escaped

PASSAGES = [f"d{number}" for number in range(40)]


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs of 60 questions: good/run.trec is better than bad/run.trec, and 50%_of-it.trec nearly the same."""
    rng = random.Random(8)
    qrels, runs = [], {"good/run.trec": {}, "bad/run.trec": {}, "50%_of-it.trec": {}}
    for number in range(60):
        question = f"q{number}"
        relevant = rng.sample(PASSAGES, 3)
        qrels += [f"{question}\t{passage}\t{grade}\n" for grade, passage in enumerate(relevant, start=1)]
        noise = {passage: rng.random() for passage in PASSAGES[:30]}
        for name, boost in (("good/run.trec", 0.7), ("bad/run.trec", 0.0), ("50%_of-it.trec", 0.7)):
            jitter = 0.05 if name.startswith("50") else 0.0
            scores = {p: noise[p] + boost * (p in relevant) + jitter * rng.random() for p in noise}
            runs[name][question] = dict(sorted(scores.items(), key=lambda item: -item[1]))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(qrels))
    for name, found in runs.items():
        write_trec(tmp_path / name, found)
    monkeypatch.chdir(tmp_path)
    return tmp_path


WORDS = ["evaluate", "--run", "good/run.trec", "--qrels", "qrels.tsv", "--metrics", "ndcg@10,mrr,holes@5"]
AGAINST = [*WORDS, "--baseline", "bad/run.trec", "--baseline", "50%_of-it.trec"]


def test_comparisons_with_several_baselines(folder, capsys):
    assert run(*AGAINST, "--json", "--per-query", "values.tsv") == 0
    printed = json.loads(capsys.readouterr().out)
    names = ["ndcg@10", "mrr", "holes@5"]
    runs = [read_trec(name) for name in ("good/run.trec", "bad/run.trec", "50%_of-it.trec")]
    measured = [metrics.evaluate(read_qrels("qrels.tsv"), each, names, per_query=True) for each in runs]
    assert printed["metrics"] == pytest.approx(measured[0][0])
    assert [each["run"] for each in printed["baselines"]] == ["bad/run.trec", "50%_of-it.trec"]
    compared = [compare(measured[0][1][name], values[name]) for _, values in measured[1:] for name in names]
    # The family: every metric with every baseline, six comparisons.
    corrected = holm([each.p_value for each in compared])
    t_corrected = holm([each.t_test_p_value for each in compared])
    found = [each["metrics"][name] for each in printed["baselines"] for name in names]
    assert [each["difference"] for each in found] == pytest.approx([each.difference for each in compared])
    assert [each["p_value_holm"] for each in found] == pytest.approx(corrected)
    assert [each["t_test_p_value_holm"] for each in found] == pytest.approx(t_corrected)
    assert corrected[0] == pytest.approx(6 * compared[0].p_value) and corrected[0] < 0.05 < corrected[3]
    ids = list(runs[0])
    for place, each in enumerate(printed["baselines"], start=1):
        rankings = ([ranked_ids(of[id], 100) for id in ids] for of in (runs[0], runs[place]))
        expected = rank_biased_overlap(find_shared(*rankings)).extrapolated.mean()
        assert each["rbo"] == pytest.approx(expected)
    lines = [line.split("\t") for line in Path("values.tsv").read_text().splitlines()]
    assert lines[0][1:6] == [*names, "ndcg@10 [bad/run.trec]", "mrr [bad/run.trec]"]
    assert lines[0][7:] == [f"{name} [50%_of-it.trec]" for name in names]
    assert len(lines) == 61
    assert [float(line[4]) for line in lines[1:]] == pytest.approx(list(measured[1][1]["ndcg@10"].values()), rel=1e-5)


def test_overlap_is_that_of_the_analysis(folder, capsys):
    assert run(*WORDS, "--baseline", "bad/run.trec", "--json") == 0
    mine = json.loads(capsys.readouterr().out)["baselines"][0]["rbo"]
    assert run("analyse", "overlap", "good/run.trec", "bad/run.trec", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["extrapolated"] == pytest.approx(mine)


def test_the_table_for_people(folder, capsys):
    assert run(*AGAINST) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "60 questions"
    assert lines[1].split() == ["run", "ndcg@10", "mrr", "holes@5", "RBO"]
    means = metrics.evaluate(read_qrels("qrels.tsv"), read_trec("bad/run.trec"), ["ndcg@10", "mrr"])
    row = next(line for line in lines if line.startswith("bad/run.trec")).split()
    # The difference is significant and gets its mark, which is explained.
    assert row[1:3] == [f"{means['ndcg@10']:.4f}†", f"{means['mrr']:.4f}†"]
    assert any("Holm's correction for all 6 comparisons" in line and line.startswith("†") for line in lines)
    assert "†" not in next(line for line in lines if line.startswith("50%_of-it.trec"))
    # Columns stand below each other, marks or not.
    table = lines[2:5]
    assert len({line.replace("†", " ").index(".", len("50%_of-it.trec")) for line in table}) == 1


def test_latex_is_a_table_that_compiles(folder, capsys):
    assert run(*AGAINST, "--format", "latex") == 0
    printed = capsys.readouterr().out
    tables = printed.strip().split("\n\n")
    assert len(tables) == 2
    for table in tables:
        lines = table.splitlines()
        rules = [line for line in lines if line in ("\\toprule", "\\midrule", "\\bottomrule")]
        assert rules == ["\\toprule", "\\midrule", "\\bottomrule"]
        assert lines[1] == "\\begin{table}" and lines[-1] == "\\end{table}" and lines[-2] == "\\end{tabular}"
        columns = len(re.fullmatch(r"\\begin\{tabular\}\{(l[r]+)\}", lines[4])[1])  # type: ignore[index]
        rows = [line for line in lines if line.endswith(" \\\\")]
        assert {line.count(" & ") + 1 for line in rows} == {columns} and len(rows) >= 4
        # Every brace has its partner, and no sign that LaTeX would take for its own is bare.
        bare = re.sub(r"\\[\\&%$#_{}]", "", table.replace("$-$", ""))
        assert bare.count("{") == bare.count("}")
        body = "\n".join(line for line in bare.splitlines() if not line.startswith("%"))
        assert not set("%$#_^~<>|") & set(body)
    first = tables[0]
    # Bold is the best: the highest, but the lowest of the hole rate.
    values = [
        metrics.evaluate(read_qrels("qrels.tsv"), read_trec(name), ["ndcg@10", "mrr", "holes@5"])
        for name in ("good/run.trec", "bad/run.trec", "50%_of-it.trec")
    ]
    lowest = min(f"{each['holes@5']:.4f}" for each in values)
    assert f"\\textbf{{{lowest}}}" in first
    assert f" & \\textbf{{{max(each['ndcg@10'] for each in values):.4f}}}" in first
    assert "50\\%\\_of-it.trec & " in first
    assert "Bold: the best of its column." in first and "\\textsuperscript{\\dag}: differs from good/run.trec" in first
    assert re.search(r"bad/run\.trec & [\d.]+\\textsuperscript\{\\dag\} &", first)


def compact(markdown: str) -> list[str]:
    """The lines of a Markdown table without the spaces and dashes that align it."""
    lines = [re.sub(r" *(?<!\\)\| *", "|", line) for line in markdown.splitlines()]
    return [re.sub(r"(?<=[|:])-+|-+(?=:)", "-", line) if set(line) <= set("|:-") else line for line in lines]


def test_escapes():
    everything = '\\ { } ~ ^ & % $ # _ < > | " †'
    assert latex_escaped(everything) == (
        r"\textbackslash{} \{ \} \textasciitilde{} \textasciicircum{} \& \% \$ \# \_ \textless{} \textgreater{} "
        r"\textbar{} \textquotedbl{} \textsuperscript{\dag}"
    )
    assert latex_escaped("two\nlines") == "two lines"
    grid = Grid("a_b", "head|", ["x*y"], [Row("r|s\n", [Cell("-1", best=True, marked=True)], ruled=True)], ["See [1]."])
    assert as_latex(grid).splitlines()[-5:] == [
        "\\midrule",
        "r\\textbar{}s & \\textbf{$-$1}\\textsuperscript{\\dag} \\\\",
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    assert compact(as_markdown(grid)) == [
        "**a\\_b**",
        "",
        "|head\\||x\\*y|",
        "|:-|-:|",
        "|r\\|s|**-1**†|",
        "",
        "Bold: the best of its column. See \\[1\\].",
    ]
    assert as_latex(Grid("t", "h", ["c"], [Row("-3", [Cell("[-0.5, 1]")])])).count("-3 & {[$-$0.5, 1]} \\\\") == 1
    title, head, rule, row, note = as_text(grid).splitlines()
    assert (title, head.split(), row.split(), note) == ("a_b", ["head|", "x*y"], ["r|s", "-1†"], "See [1].") and set(
        rule
    ) == {"-"}


def test_markdown(folder, capsys):
    assert run(*AGAINST, "--format", "markdown") == 0
    rows = [line for line in compact(capsys.readouterr().out) if line.startswith("|")]
    assert rows[1] == "|:-|-:|-:|-:|-:|"
    assert {line.count("|") for line in rows[:5]} == {6}
    assert rows[2].startswith("|good/run.trec|") and rows[4].startswith("|50%\\_of-it.trec|")
    # The best of each column is bold, and of the worst run nothing.
    assert "**" not in rows[3] and sum(row.count("**") for row in rows[2:5]) >= 6
    assert run(*WORDS, "--format", "markdown") == 0
    assert "|run.trec|0." in "".join(compact(capsys.readouterr().out))


def test_levels_of_relevance_and_new_metrics(folder, capsys):
    words = ["evaluate", "--run", "good/run.trec", "--qrels", "qrels.tsv", "--metrics", "mrr,rprec,bpref,recall_cap@2"]
    assert run(*words, "--relevance-level", "3", "--json") == 0
    printed = json.loads(capsys.readouterr().out)["metrics"]
    names = ["mrr", "rprec", "bpref", "recall_cap@2"]
    expected = metrics.evaluate(read_qrels("qrels.tsv"), read_trec("good/run.trec"), names, relevance_level=3)
    assert printed == pytest.approx(expected)
    assert expected != metrics.evaluate(read_qrels("qrels.tsv"), read_trec("good/run.trec"), names)


# ---- curves ----------------------------------------------------------------------------------------------------------


def test_cuts_and_bands():
    assert cuts_to(1) == [1] and cuts_to(5) == [1, 2, 3, 4, 5]
    assert cuts_to(100)[0] == 1 and cuts_to(100)[-1] == 100 and len(cuts_to(100)) <= 24
    rng = np.random.default_rng(0)
    values = rng.random((50, 2))
    of_cuts = {f"recall@{k}": dict(enumerate(values[:, k].tolist())) for k in (0, 1)}
    mean, low, high = band(of_cuts)  # type: ignore[arg-type]
    np.testing.assert_allclose(mean, values.mean(axis=0))
    for k in (0, 1):
        # Each end wavers by a few percent of the interval, in 2,000 draws as in 10,000.
        expected = bootstrap_interval(values[:, k])
        assert [low[k], high[k]] == pytest.approx(expected, abs=0.1 * (expected[1] - expected[0]))


def test_curves_are_drawn(folder, capsys):
    import matplotlib.image

    for name in ("a.png", "b.PNG", "c.svg", "d.svg", "e.pdf"):
        assert run(*AGAINST, "--plot", name) == 0
    capsys.readouterr()
    pixels = matplotlib.image.imread("a.png")
    colours = {tuple((pixel * 255).round().astype(int)) for row in pixels[:, :, :3] for pixel in row}
    assert {(31, 119, 180), (255, 127, 14), (44, 160, 44)} <= colours  # a line for each of the three systems
    drawing = Path("c.svg").read_text()
    assert drawing == Path("d.svg").read_text()  # the same figures, the same bytes
    for text in ("ndcg@k", "holes@k", "good/run.trec", "50%_of-it.trec"):
        assert f"<!-- {text} -->" in drawing, text
    assert "mrr@k" not in drawing  # mrr has no cut
    assert Path("e.pdf").read_bytes().startswith(b"%PDF")
    assert run(*WORDS[:-1], "mrr", "--plot", "f.png") == 2
    assert "a plot draws metrics against their cut, and mrr has none" in the_error(capsys)
    assert run(*WORDS, "--plot", "f.gif") == 2
    assert "give a name that ends in .png, .pdf, .svg" in the_error(capsys)


def test_a_curve_of_one_passage_is_refused(folder, capsys):
    Path("one.trec").write_text("q1 Q0 d1 1 1.0 t\n")
    assert run("evaluate", "--run", "one.trec", "--qrels", "qrels.tsv", "--plot", "a.png") == 1
    assert "one passage per question makes no curve" in capsys.readouterr().err.splitlines()[-1]


# ---- fused runs ------------------------------------------------------------------------------------------------------


def test_a_fused_run_is_measured_like_any_other(folder, capsys):
    assert run("fuse", "--method", "rrf", "good/run.trec", "bad/run.trec", "--out", "fused.trec") == 0
    assert run("evaluate", "--run", "fused.trec", "--qrels", "qrels.tsv", "--baseline", "good/run.trec") == 0
    assert "fused.trec" in capsys.readouterr().out


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--run r --qrels q --format xml", "argument --format: invalid choice: 'xml'"),
        ("--run r --qrels q --json --format latex", "--format: given twice (as --json too)"),
        ("--run r --qrels q --relevance-level 0", "argument --relevance-level: '0' is not a whole number from 1"),
        ("--run r --answers a --corpus c --relevance-level 2", "the relevance level is for judgements"),
        ("--run r --qrels q --baseline b --baseline b", "a system is named twice"),
        (
            "--run r --qrels q --metrics recall@5 --per-query x.png --plot ./x.png",
            "--per-query x.png is --plot as well",
        ),
        ("--run r --qrels q --index i", "--index belongs to --beir"),
        ("--run r --qrels q --out o", "--out belongs to --suite"),
        ("--run r --qrels q --suite s", "--suite needs MODEL"),
        ("m --beir d --suite s", "MODEL needs --beir DIR, a folder with corpus, queries and qrels, or --suite DIR"),
        ("m --suite s --baseline b", "--baseline belongs to --run or --beir, not to --suite; leave it out"),
        ("m --suite s --plot p.png", "--plot belongs to --run or --beir or --typos"),
        ("m --suite s --index i", "--index belongs to --beir"),
        ("--run r --qrels q --metrics holes", "measure 'holes' needs a cut of at least 1: write for instance holes@10"),
    ],
)
def test_wrong_use(words, message, capsys):
    assert run("evaluate", *words.split()) == 2
    assert message in the_error(capsys)


RUNS = {
    "latin": (b"q1 Q0 caf\xe9 1 1.0 t\n", "run:1: an id is not UTF-8; convert the file to UTF-8"),
    "utf-16": ("q1 Q0 a 1 1.0 t\n".encode("utf-16"), "run:1: an id is not UTF-8; convert the file to UTF-8"),
    "nan": (b"q1 Q0 a 1 1.0 t\nq1 Q0 b 1 nan t\n", "run:2: the score 'nan' is not a number; correct the line"),
    "space": (b"q1 Q0 new york 1 1.0 t\n", "found 7; an id with white space is not allowed in a TREC run"),
    "five": (b"q1 Q0 a 1 1.0\n", "run:1: expected 6 columns, 'question-id Q0 passage-id rank score tag', found 5"),
    "twice": (b"q1 Q0 a 1 1 t\nq1 Q0 a 2 .5 t\n", "run:2: passage 'a' occurs twice for question 'q1'; remove one"),
    "empty": (b"", "run: the run is empty; expected lines of"),
    "others": (b"q9 Q0 a 1 1.0 t\n", "run and the judgements have no question in common, for instance 'q9' and 'q1'"),
    "cut": (gzip.compress(b"q1 Q0 a 1 1.0 t\n" * 9)[:-9], "the gzip stream is cut short or damaged"),
}
JUDGEMENTS = {
    "latin": (b"q1 0 caf\xe9 1\n", "qrels:1: not valid UTF-8"),
    "utf-16": ("q1 0 a 1\n".encode("utf-16"), "qrels:1: not valid UTF-8"),
    "space": (b"q1 0 new york 1\n", "qrels:1: 5 columns; judgements are query-id, corpus-id, score or query 0 id grade, "
        "separated by tabs if an id has spaces"),
    "grade": (b"q1 0 a 1\nq1 0 b one\n", "qrels:2: the grade 'one' is not a whole number"),
    "twice": (b"q1 0 a 1\nq1 0 a 2\n", "qrels:2: 'q1' and 'a' have another grade on line 1; keep one"),
    "empty": (b"query-id\tcorpus-id\tscore\n", "qrels: no judgements; give a file with at least one row"),
    "columns": (b"q1\ta\t1\nq1\tb\n", "qrels:2: 2 columns, the first row has 3; check its tabs"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["run", "baseline"])
@pytest.mark.parametrize("name", RUNS)
def test_bad_runs(kind, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content, message = RUNS[name]
    Path("bad_run").write_bytes(content)
    Path("good").write_text("q1 Q0 a 1 1.0 t\n")
    Path("qrels").write_text("q1 0 a 1\n")
    words = ["--run", "bad_run"] if kind == "run" else ["--run", "good", "--baseline", "bad_run"]
    assert run("evaluate", *words, "--qrels", "qrels") == 1
    assert f"bad_{message}" in (error := the_error(capsys)) or message in error


@pytest.mark.parametrize("name", JUDGEMENTS)
def test_bad_judgements(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content, message = JUDGEMENTS[name]
    Path("qrels").write_bytes(content)
    Path("run").write_text("q1 Q0 a 1 1.0 t\n")
    assert run("evaluate", "--run", "run", "--qrels", "qrels") == 1
    assert message in the_error(capsys)


def test_gzipped_runs_of_trec_are_read(folder, capsys):
    Path("zipped").write_bytes(gzip.compress(Path("good/run.trec").read_bytes()))
    assert read_trec("zipped") == read_trec("good/run.trec")
    assert run("evaluate", "--run", "zipped", *WORDS[3:]) == 0
