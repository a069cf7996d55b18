"""The documentation: what it names exists, its commands and code are read and run as they are printed, and links lead on."""

import ast
import itertools
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import test_notebooks
import tiny

import jaxretr
from jaxretr import cli, config
from jaxretr.runtime.errors import UserError
from jaxretr.training import experiment

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tpu/README.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if not {"_build", "_generated"} & {*path.parts}),
    *sorted((ROOT / "jaxretr/assets").rglob("*.md")),
]
# Made by the build.
PAGES = [
    path for path in PAGES if path not in [ROOT / f"docs/{name}.md" for name in ("tpu", "contributing", "changelog")]
]

# The commands that the pages show -> the file of tests/ that runs them at a small size. A command is its name and those of
# its options that make it another one. Those that stand on a page of RUN are run as they are printed as well.
RUN_BY = {
    "adapt": "cli/test_domain_commands.py",
    "adapt documents": "mining/test_document_adaptation.py",
    "analyse overlap": "cli/test_analyse.py",
    "analyse shuffle": "cli/test_analyse.py",
    "assemble": "cli/test_domain_commands.py",
    "bm25": "cli/test_cli.py",
    "combine": "cli/test_combined_commands.py",
    "completion": "cli/test_completion.py",
    "configs": "cli/test_cli.py",
    "data build": "data_reading/test_tfds_builder.py",
    "data convert": "cli/test_data_command.py",
    "data inspect": "cli/test_data_command.py",
    "data validate": "cli/test_data_command.py",
    "debug replay": "training/runs/test_loss_watch.py",
    "doctor": "cli/test_doctor.py",
    "encode": "cli/test_cli.py",
    "evaluate --answers": "cli/test_cli.py",
    "evaluate --beir": "cli/test_cli.py",
    "evaluate --rerank": "indexes/test_reranking.py",
    "evaluate --run": "cli/test_cli.py",
    "evaluate --suite": "cli/test_evaluate_suite.py",
    "evaluate --typos": "cli/test_evaluate_typos.py",
    "export --to huggingface": "exports/test_verify.py",
    "export --to live": "cli/test_live_commands.py",
    "export --to lance": "exports/test_export_engines.py",
    "export --to pgvector": "exports/test_export_engines.py",
    "export --to onnx": "exports/test_export_encoder.py",
    "export --to scann": "cli/test_scann_commands.py",
    "export --to sentence-transformers": "exports/test_verify.py",
    "export --to vertex": "exports/test_export_index.py",
    "fuse": "indexes/test_fusion.py",
    "generate": "mining/test_generated.py",
    "judge": "training/report/test_blind.py",
    "merge": "evaluate/test_merging.py",
    "mine": "mining/test_mining.py",
    "mine --scorer": "mining/test_scorer_filter.py",
    "mine lexical": "cli/test_mine_lexical.py",
    "mine scores": "training/runs/test_score_table_run.py",
    "publish": "cli/test_publish.py",
    "quickstart": "test_notebooks.py",
    "reindex": "cli/test_live_commands.py",
    "report": "training/report/test_run_report.py",
    "score": "data_reading/test_scoring.py",
    "search": "cli/test_cli.py",
    "search --rerank": "indexes/test_reranking.py",
    "search --format": "cli/test_cli.py",
    "search --where": "cli/test_search_command.py",
    "sweep": "training/test_sweep.py",
    "train": "cli/test_cli.py",
    "train --coordinator": "training/runs/test_hosts.py",
    "train --data": "test_docs.py",
    "train --help": "cli/test_cli.py",
    "train --plan": "training/plan/test_plan.py",
    "train --profile-steps": "training/test_profiling.py",
    "serve": "serve/test_server.py",
    "serve keys": "serve/test_keys.py",
    "tune": "cli/test_combined_commands.py",
    "typos": "cli/test_typos_command.py",
    "update": "cli/test_scann_commands.py",
    "verify": "exports/test_verify.py",
    "verify --with": "exports/test_verify.py",
}
# Of each of these commands the first option that is there.
KINDS = {
    "train": ("--help", "--plan", "--coordinator", "--profile-steps", "--data"),
    "evaluate": ("--typos", "--suite", "--rerank", "--answers", "--run", "--beir"),
    "search": ("--rerank", "--where", "--format"),
    "mine": ("--scorer",),
    "verify": ("--with",),
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, *languages: str) -> list[str]:
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def commands(path: Path) -> list[list[str]]:
    """The words behind `jaxretr` of every command in a page's code."""
    lines = [line for block in blocks(path, "bash", "text") for line in block.splitlines()]
    found = [re.match(r"(?:until )?jaxretr ([^;#]*)", line) for line in lines]
    return [shlex.split(each[1]) for each in found if each]


def kind_of(words: list[str]) -> str:
    two = " ".join(words[:2])
    name = two if two in cli.build_parser()[1] else words[0]
    if name == "export":
        return f"export --to {words[words.index('--to') + 1]}"
    option = next((option for option in KINDS.get(name, ()) if option in words), None)
    return name if option is None else f"{name} {option}"


pages = pytest.mark.parametrize("path", PAGES, ids=name_of)


def test_readme_is_short_and_names_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 200
    assert {"make quickstart", "make test"} <= {line.split("#")[0].strip() for line in lines}


@pages
def test_commands_parse_and_are_run_by_a_test(path: Path) -> None:
    for words in commands(path):
        assert kind_of(words) in RUN_BY, f"{name_of(path)}: no test is named in RUN_BY for: jaxretr {' '.join(words)}"
        if "--help" in words:
            continue
        args = cli.parse(words)
        if args.command == "train" and args.config != "CONFIG":
            place = ROOT / args.config if args.config.startswith("configs/") else args.config
            experiment.load(place, args.overrides)


def test_every_command_is_on_a_page_and_run_by_a_file_that_exists() -> None:
    shown = {kind_of(words).split(" --")[0] for path in PAGES for words in commands(path)}
    names = [name for name in cli.build_parser()[1] if name not in ("data", "analyse", "debug")]
    assert shown == {*names}
    assert not [file for file in RUN_BY.values() if not (ROOT / "tests" / file).is_file()]


@pages
def test_named_files_of_tests_exist(path: Path) -> None:
    for file in re.findall(r"[\w/]*test_\w+\.py", path.read_text()):
        assert (ROOT / file).is_file(), f"{name_of(path)} names {file}; write its path from the top, tests/..."


def test_every_guarantee_names_files_of_tests() -> None:
    tables = r"^\| guarantee \| tests \|\n\|---\|---\|\n((?:\|.+\n)+)"
    rows = [
        row for path in PAGES for rows in re.findall(tables, path.read_text(), re.MULTILINE) for row in rows.split("\n")
    ]
    rows = [row for row in rows if row]
    assert len(rows) > 90
    assert not [row for row in rows if not re.fullmatch(r"\| .+ \| `tests/[\w/.]+`(, `tests/[\w/.]+`)* \|", row)]


@pages
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    for target in re.findall(r"\]\(([^)\s]+)", text) + re.findall(r'src="([^"]+)"', text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        found = (path.parent / name) if name else path
        assert found.exists(), f"{name_of(path)} links to {target}"
        if heading:
            assert heading in anchors(found), f"{name_of(path)} links to {target}, where there is no such heading"


def anchors(path: Path) -> set[str]:
    """GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pages
def test_named_configs_and_settings_exist(path: Path) -> None:
    configs = experiment.configs()
    from jaxretr.config import KINDS as kinds
    from jaxretr.config import all_settings

    settings = {name.replace("-", "_") for name in all_settings()}
    sections = {name.split(".")[0] for name in settings if "." in name}
    assert kinds
    for code in re.findall(r"`([^`\n]+)`", text_without_blocks(path)):
        if re.fullmatch(r"(art|dpr|spar|ddr|typos)(_\w+)+", code):
            assert code in configs, f"{name_of(path)}: no config {code}"
        setting = re.fullmatch(r"(?:--)?([a-z_]+)\.([a-z_-]+)(?: .*)?", code)
        if setting and setting[1] in sections and setting[2] not in ("py", "json", "jsonl", "md", "save"):
            assert known(f"{setting[1]}.{setting[2].replace('-', '_')}", settings), (
                f"{name_of(path)}: no setting {code}"
            )


def known(name: str, settings: set[str]) -> bool:
    """Whether there is such a setting or section, or a public method of an encoder."""
    of_encoder = name.startswith("encoder.") and hasattr(jaxretr.DualEncoder, name.removeprefix("encoder."))
    return of_encoder or any(each == name or each.startswith(f"{name}.") for each in settings)


def test_reference_pages_say_in_a_clone_how_to_print_what_they_include() -> None:
    for path in (ROOT / "docs/reference").glob("*.md"):
        text = path.read_text()
        assert "_generated/" in text and "`make docs`" in text, path.name
        for command in re.findall(r"`(jaxretr [^`]*--help)`", text):
            cli_words = command.replace("COMMAND", "encode").replace("CONFIG", "dpr_small").split()[1:]
            assert cli.main(cli_words) == 0
        for code in re.findall(r"`(?:help|dir)\(([\w.]+)\)`", text):
            assert code == "jaxretr" or callable(getattr(jaxretr, code.removeprefix("jaxretr.")))


@pytest.mark.parametrize("name", ["sentence_transformers", "tevatron", "flagembedding"])
def test_the_command_trains_with_the_settings_of_the_python_beside_it(name: str) -> None:
    path = ROOT / f"docs/coming_from/{name}.md"
    calls = [
        node for block in blocks(path, "python") for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)
    ]
    (call,) = [node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "load_config"]
    written = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    (line,) = [
        line for block in blocks(path, "bash") for line in block.splitlines() if line.startswith("jaxretr train")
    ]
    args = cli.parse(line.split()[1:])
    assert args.config == ast.literal_eval(call.args[0])
    typed = config.settings_of(config.load(experiment.find(args.config)), args.overrides)
    assert (args.data, typed) == ([written.get("data") or written["beir"]], written[None])


def text_without_blocks(path: Path) -> str:
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


@pages
def test_python_compiles(path: Path) -> None:
    for block in blocks(path, "python"):
        ast.parse(block, name_of(path))


@pages
def test_nothing_is_said_of_places_outside_of_the_project(path: Path) -> None:
    assert not re.search(r"/work/|/tmp/|/root/", path.read_text())


# ---- code that runs --------------------------------------------------------------------------------------------------

# Pages whose code is run in the order in which it is printed, each in a folder of its own.
RUN = ["README.md", "docs/get_started.md", "docs/own_data.md", *(f"docs/coming_from/{name}.md" for name in (
    "sentence_transformers", "tevatron", "flagembedding", "splade_pylate", "dpr",
))]  # fmt: skip
RUN_PYTHON = [
    *RUN,
    "docs/search_and_export.md",
    "docs/evaluation.md",
    "docs/own_parts.md",
    "docs/guides/spar.md",
    "docs/guides/typos.md",
    "docs/guides/rerankers.md",
]

SMALL = {
    "train.steps": 2,
    "train.batch_size": 8,
    "train.eval_every": 2,
    "encoder.path": "encoder",
    "encoder.max_passage_length": 32,
    "index.refresh_every": 2,
}


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages name, small: a BEIR folder, training files, models, a run, a store and an index."""
    folder = tmp_path_factory.mktemp("docs")
    tiny.write_models(folder)
    tiny.write_cross_encoder(folder / "cross_encoder")
    test_notebooks.write_subset(folder / "scifact")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # With negatives, which the folder's judgements do not name.
        assert cli.main(["mine", "--corpus", "scifact", "--train", "scifact", "--out", "mined.jsonl"]) == 0
        for name, to in (("train.jsonl", "tevatron"), ("train.json", "dpr"), ("biencoder-nq-train.json", "dpr")):
            assert cli.main(["data", "convert", "mined.jsonl", name, "--to", to, "--corpus", "scifact"]) == 0
        encoder = jaxretr.DualEncoder.from_pretrained("encoder")
        for run in ("runs/dpr", "runs/art", "runs/lambda"):
            encoder.save(Path(run) / "model")
        store = jaxretr.encode(encoder, corpus="scifact", out="runs/dpr/embeddings")
        jaxretr.ScannIndex.build(store, target_recall=0.95).save("index")
    return folder


@pytest.fixture
def page_folder(
    request: pytest.FixtureRequest, laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    shutil.copytree(laid_out, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if request.node.callspec.params["name"] in RUN:  # They make these themselves.
        shutil.rmtree("runs")
    return tmp_path


# On the other pages of RUN the commands do what the Python does.
@pytest.mark.parametrize("name", ["README.md", "docs/get_started.md", "docs/own_data.md", "docs/coming_from/dpr.md"])
def test_commands_and_python_write_to_different_folders(name: str) -> None:
    """A reader who follows a page in its order is not refused because a folder is another run's, or is not empty."""
    calls = [
        node
        for block in blocks(ROOT / name, "python")
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call)
    ]
    written = {
        each.value.value
        for call in calls
        for each in call.keywords
        if each.arg in ("workdir", "out") and isinstance(each.value, ast.Constant)
    }
    pairs = [pair for words in commands(ROOT / name) for pair in itertools.pairwise(words)]
    typed = {value for option, value in pairs if option in ("--workdir", "--out")}
    assert written and typed and not written & typed


def small(text: str) -> str:
    """The same code with the tiny models in place of published ones."""
    models = {
        "sentence-transformers/all-MiniLM-L6-v2": "encoder",
        "cross-encoder/ms-marco-MiniLM-L6-v2": "cross_encoder",
        "google/t5-v1_1-base": "scorer",
    }
    for name, folder in models.items():
        text = text.replace(name, folder)
    return text


@pytest.mark.parametrize("name", RUN_PYTHON)
def test_python_runs_as_it_is_printed(name: str, page_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = jaxretr.load_config

    def load_small(config: str, *, data: Any = None, beir: Any = None, **settings: Any) -> Any:
        return load(config, data=data, beir=beir, **{**settings, **SMALL})

    monkeypatch.setitem(vars(jaxretr), "load_config", load_small)
    names: dict[str, Any] = {}
    for block in blocks(ROOT / name, "python"):
        exec(compile(small(block), name, "exec"), names)


@pytest.mark.parametrize("name", [name for name in RUN if name != "docs/coming_from/dpr.md"])
def test_commands_run_as_they_are_printed(name: str, page_folder: Path) -> None:
    scorer = {"scorer.path": "scorer", "index.refresh_every": 2}
    for words in commands(ROOT / name):
        words = [small(word) for word in words]
        if words[0] in ("quickstart", "serve") or "--help" in words:  # Those have tests of their own.
            continue
        if words[0] == "train":
            settings = {**SMALL, **(scorer if words[1] == "art_small" else {})}
            if words[1] not in ("dpr_small", "art_small"):
                settings = {key: value for key, value in settings.items() if not key.startswith("index.")}
            ours = {f"--{key.replace('_', '-')}": value for key, value in settings.items()}
            words = [word for at, word in enumerate(words) if not {word, words[at - 1]} & set(ours)]
            words += [f"{option}={value}" for option, value in ours.items()]
        if words[:2] == ["mine", "lexical"]:
            words = [{"2000": "40", "200": "8"}.get(word, word) for word in words] + ["--negative-ranks", "12:14"]
        assert cli.main(words) == 0, f"jaxretr {' '.join(words)}"


def test_errors_of_users_are_public() -> None:
    assert issubclass(jaxretr.UserError, Exception) and jaxretr.UserError is UserError
    assert os.environ["JAX_PLATFORMS"] == "cpu"
