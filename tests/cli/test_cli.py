"""The commands, run in this process as a user would type them; one tiny trained run serves all tests."""

import importlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny

from jaxretr import cli
from jaxretr.cli.process import set_up
from jaxretr.data.readers import read_corpus, read_qrels, read_questions
from jaxretr.data.run_reading import read_trec
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.evaluate import metrics
from jaxretr.indexes.exact import ExactIndex
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime import progress
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.hosts import AskedToStop
from jaxretr.training.loop import TrainResult

CORPUS = tiny.DATA / "corpus.jsonl"
QUERIES = tiny.DATA / "queries.jsonl"
QRELS = tiny.DATA / "qrels/train.tsv"
# Where `python -m jaxretr` finds the package, installed or not.
REPOSITORY = Path(__file__).parents[2]
COMMANDS = (
    "quickstart",
    "doctor",
    "completion",
    "train",
    "sweep",
    "encode",
    "search",
    "evaluate",
    "report",
    "judge",
    "bm25",
    "export",
    "publish",
    "verify",
    "update",
    "analyse",
    "combine",
    "tune",
    "merge",
    "fuse",
    "typos",
)


# ---- shared with test_bad_input.py -----------------------------------------------------------------------------------


def write_config(folder: Path) -> Path:
    """A CONFIG.py of a tiny ART run with the models in `folder`."""
    path = folder / "tiny_art.py"
    path.write_text(
        "import sys\nfrom pathlib import Path\n\n"
        f"sys.path.insert(0, {str(Path(tiny.__file__).parent)!r})\n"
        "from tiny import art_config\n\n\n"
        f"def config():\n    return art_config(Path({str(folder)!r}), train=dict(steps=2, save_every=1, eval_every=2))\n"
    )
    return path


def train_once(base: Path) -> Path:
    """A folder with tiny_art.py, the models encoder and scorer, and the finished run `run`; one a test session."""
    folder = base / "tiny_run"
    if not (folder / "run/model").exists():
        folder.mkdir(exist_ok=True)
        tiny.write_models(folder)
        words = ["train", str(write_config(folder)), "--workdir", str(folder / "run")]
        assert cli.main(words) == 0
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_once(tmp_path_factory.getbasetemp())


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


# ---- help and start-up -----------------------------------------------------------------------------------------------


def test_help_needs_no_heavy_import():
    """`jaxretr --help` in half a second, on a slow disk too: so nothing heavy may be imported on the way."""
    program = (
        "import sys\nfrom jaxretr import cli\ncli.build_parser()\nassert cli.main([]) == cli.main(['train', '--help']) == 0\n"
        "heavy = {'jax', 'numpy', 'transformers', 'torch', 'flax', 'orbax', 'tqdm', 'scipy'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_that_parses(command: str, capsys: pytest.CaptureFixture[str]):
    assert run(command, "--help") == 0
    printed = capsys.readouterr().out
    examples = printed.split("example:\n")[1].splitlines()
    assert examples
    for example in examples:
        words = example.split()
        assert words[:2] == ["jaxretr", command]
        args = cli.parse(words[1:])
        assert args.command == command
        assert getattr(args, "plan", False) == ("--plan" in words)
    for name in cli.build_parser()[1][command]._option_string_actions:
        assert name in printed


def test_help_on_a_config_lists_its_settings_with_the_values_that_would_be_used(capsys: pytest.CaptureFixture[str]):
    """Without importing JAX, as the configs that ship with the library do not."""
    program = (
        "import sys\nfrom jaxretr import cli\ncode = cli.main(['train', 'art_small', '--train.steps', '7', '--help'])\n"
    )
    program += "print(code, {'jax', 'transformers'} & set(sys.modules))\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.startswith("usage: jaxretr train CONFIG")
    assert "  --train.steps INT  (7)\n      Updates of the whole run" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 set()"
    assert run("train", "no_such_config", "--help") == 2
    assert "no_such_config: no such config file, nor a config of that name" in capsys.readouterr().err


def test_configs_lists_each_with_a_line(capsys: pytest.CaptureFixture[str]):
    assert run("configs") == 0
    lines = capsys.readouterr().out.splitlines()
    configs = {path.stem for path in (REPOSITORY / "configs").glob("*.py")}
    assert {line.split()[0] for line in lines[: len(configs)]} == configs
    assert all(len(line.split()) > 4 for line in lines[: len(configs)])


def test_help_lists_the_commands_and_the_module_runs(capsys: pytest.CaptureFixture[str]):
    assert run("--help") == 0
    printed = capsys.readouterr().out
    assert all(f"\n    {command}" in printed for command in COMMANDS)
    done = subprocess.run(
        [sys.executable, "-m", "jaxretr", "--help"], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.startswith("usage: jaxretr ")


def test_without_words_the_first_steps_are_shown_and_each_can_be_typed(capsys: pytest.CaptureFixture[str]):
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [line.split("#")[0].split()[1:] for line in lines if line.startswith("  jaxretr ")]
    assert len(lines) < 25 and max(map(len, lines)) < 120 and commands[0] == ["quickstart"]
    for words in commands:
        cli.parse(words)


def test_version(capsys: pytest.CaptureFixture[str]):
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("jaxretr 0.")


# ---- wrong use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, message",
    [
        ("trian config.py", "trian: no such command; did you mean 'train'?"),
        ("xyzzy", "xyzzy: no such command (there are quickstart, train, "),
        ("--verson", "--verson: no such option; did you mean '--version'?"),
        ("encode m --corpsu c --out o", "--corpsu: no such option of encode; did you mean '--corpus'?"),
        ("encode m --corpus c --out o --dytpe=float16", "--dytpe: no such option of encode; did you mean '--dtype'?"),
        ("encode m --corpus c --out o --dtype int4", "argument --dtype: invalid choice: 'int4'"),
        ("encode m --corpus c --out o --shard-rows 0", "argument --shard-rows: '0' is not a whole number from 1"),
        ("encode m --corpus c --out o more", "more: not expected here; see: jaxretr encode --help"),
        ("encode m", "the following arguments are required: --corpus, --out; see: jaxretr encode --help"),
        (
            "train c.py --learning-rate 1",
            "--learning-rate: no such option of train; did you mean '--optimizer.learning-rate'?",
        ),
        ("encode m --shelf 2", "--shelf: no such option of encode; see: jaxretr encode --help"),
        ("search m --heap 2", "--heap: no such option of search; see: jaxretr search --help"),
        ("--held", "--held: no such option; see: jaxretr --help"),
        ("init", "init: no such command (there are quickstart, train"),
        ("train c.py --workdri w", "--workdri: no such option of train; did you mean '--workdir'?"),
        ("train c.py --optimzer w", "--optimzer: no such option of train; did you mean '--optimizer'?"),
        ("search m --index i --queries q --out o -k many", "argument -k: 'many' is not a whole number from 1"),
        (
            f"search m --index i --queries q --out o -k {10**20}",
            f"argument -k: '{10**20}' is not a whole number from 1 to 2147483647",
        ),
        ("search m --index i --queries q --out o -k ²", "argument -k: '²' is not a whole number from 1"),
        (
            f"mine lexical --corpus c --out o --shard-passages {10**20}",
            f"argument --shard-passages: '{10**20}' is not a whole number",
        ),
        (
            "export m --to scann --index i --out o --seed -1",
            "argument --seed: '-1' is not a whole number from 0 to 2147483647",
        ),
        ("search m --index i --queries q --out o --format dpr", "--format dpr writes the passages' titles: give --cor"),
        ("evaluate --run r", "--run needs either --qrels FILE or --answers FILE"),
        ("evaluate --run r --qrels q --answers a", "--run needs either --qrels FILE or --answers FILE"),
        ("evaluate --run r --answers a", "--answers are matched in the texts of the passages: give --corpus FILE"),
        ("evaluate", "give either --run RUN with --qrels or --answers, or MODEL with --beir DIR or --suite DIR"),
        ("evaluate m", "MODEL needs --beir DIR"),
        ("evaluate m --beir d --qrels q", "--qrels belongs to --run"),
        ("evaluate --run r --qrels q --beir d", "--beir needs MODEL"),
        ("evaluate --run r --qrels q --metrics ,", "argument --metrics: no metric is named"),
        (
            "train dpr_small --data-folder a --data-folder b --workdir w",
            "--data-folder: given twice, and train takes one",
        ),
        ("encode m --corpus c --out o --normalise --no-normalise", "--no-normalise: given twice (as --normalise too)"),
        ("train dpr_small --train.steps 1 --workdir w --train.steps 2", "--train.steps: given twice"),
        ("train --train.steps 3 dpr_small --workdir w", "CONFIG is missing; it comes before the settings"),
        ("train dpr_small --train.steps 3 --workdir w more", "more: not expected here"),
        ("train dpr_small --workdi w", "--workdi: no such option of train; did you mean '--workdir'?"),
        ("search m --index i --queries q --out o -k 3 -k5", "-k: given twice, and search takes one"),
        (
            "fuse a b --out o --weight 1 -w 2",
            "2 weights for 1 runs besides the first; give one for each of them as --weight",
        ),
        ("--workdir w train dpr_small", "--workdir: no such option"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(words: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert run(*words.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"jaxretr: error: {message}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


# They may be repeated: every value is used.
REPEATABLE = {
    "serve": {"--index", "--corpus", "--allow-origin"},
    "encode": {"--corpus"},
    "search": {"--where"},
    "train": {"--data", "--beir"},
    "sweep": {"--data", "--beir", "--grid"},
    "merge": {"--weight", "-w"},
    "evaluate": {"--baseline", "--typo-queries", "--and-model"},
    "mine lexical": {"--corpus", "--teacher"},
    "combine": {"--weight", "-w"},
    "fuse": {"--weight", "-w", "--missing"},
}


@pytest.mark.parametrize("command", cli.build_parser()[1])
def test_an_option_that_is_taken_once_is_refused_when_it_is_given_twice(command: str):
    parser = cli.build_parser()[1][command]
    repeatable = REPEATABLE.get(command, set())
    for action in parser._actions:
        for first, second in itertools.product(action.option_strings, repeat=2):
            words = [*command.split(), first, f"{second}=1" if second.startswith("--") else f"{second}1"]
            with pytest.raises((UsageError, SystemExit)) as error:
                cli.parse(words)
            once = f"{second}: given twice" in str(error.value)
            assert once == (action.dest != "help" and second not in repeatable), (first, second)


# ---- what ends a command ---------------------------------------------------------------------------------------------


def ended_by(error: BaseException, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command whose work raises `error`."""
    from jaxretr.cli import bm25

    def fail(args: object) -> None:
        raise error

    monkeypatch.setattr(bm25, "run", fail)
    return run("bm25", "--corpus", "c", "--queries", "q", "--out", "o", *words)


@pytest.mark.parametrize(
    "error, code, message",
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (AskedToStop(), 75, "it was asked to stop (SIGTERM); run the command again"),
        (PermissionError(13, "Permission denied", "/some/file"), 1, "error: /some/file: Permission denied; check the"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device; check the path, its rights and"),
        (ValueError("NO_DATA: line 1\nno space\nNo space left on device"), 1, "error: the disk is full (ValueError: "),
        (ZeroDivisionError("division\nby zero"), 1, "error: ZeroDivisionError: division by zero; run again with --deb"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_any_error_is_one_line(error, code, message, monkeypatch, capsys):
    assert ended_by(error, monkeypatch) == code
    printed = capsys.readouterr().err
    assert printed.startswith(f"jaxretr: {message}")
    assert printed.count("\n") == 1


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert ended_by(ValueError("x"), monkeypatch, "--debug") == 1
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback")
    assert printed.endswith("jaxretr: error: ValueError: x; run again with --debug for the traceback\n")


def test_a_training_run_that_was_asked_to_stop_exits_0(monkeypatch: pytest.MonkeyPatch):
    assert ended_by(SystemExit(0), monkeypatch) == 0


def test_a_reader_that_has_gone_is_no_error(bm25: Path):
    """`jaxretr ... | true`: nothing on stderr."""
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "jaxretr", "evaluate", "--run", bm25, "--qrels", QRELS]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, cwd=REPOSITORY)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_logs_are_plain_lines(capsys: pytest.CaptureFixture[str]):
    set_up()
    set_up()  # The second time changes nothing: each line once.
    logging.getLogger("jaxretr.some").info("encoded %d\nof 3", 2)
    logging.getLogger("jaxretr.some").debug("not shown")
    logging.getLogger("other").info("not shown")
    logging.getLogger("other").warning("shown")
    logging.getLogger("absl").error("raised as well")
    logging.getLogger("jax._src.xla_bridge").warning("Unable to initialize backend 'tpu'")
    logging.getLogger("jax._src.xla_bridge").warning("An NVIDIA GPU may be present")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        set_up()
        warnings.warn("an answer matches nothing", UserWarning, stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == [
        "jaxretr: encoded 2 of 3",
        "jaxretr: warning: shown",
        "jaxretr: warning: An NVIDIA GPU may be present",
        "jaxretr: warning: an answer matches nothing",
    ]


def test_a_command_warns_once_of_the_same(capsys: pytest.CaptureFixture[str]):
    log = logging.getLogger("jaxretr.some")
    for _ in range(2):
        set_up()
        for length in (96, 96, 82):
            log.warning("cut at %d tokens", length)
            log.info("searching")
    said = ["jaxretr: warning: cut at 96 tokens", *["jaxretr: searching"] * 2, "jaxretr: warning: cut at 82 tokens"]
    assert capsys.readouterr().err.splitlines() == [*said, "jaxretr: searching"] * 2


def test_progress_is_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    clock = iter([0.0, 1.0, 4.0, 5.0, 9.0, 16.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with caplog.at_level(logging.INFO, "jaxretr"), progress.Progress(1000, "passage", "encoded") as shown:
        shown.skip(100)
        for _ in range(5):
            shown.advance(100)
    # Nothing in the first two seconds, then a line every five at most; the rate is of this run's passages alone.
    assert [record.getMessage() for record in caplog.records] == [
        "100 of 1000 passages are encoded from an earlier run",
        "encoded 300 of 1000 passages, 50/s, 0:14 left",
        "encoded 500 of 1000 passages, 44/s, 0:11 left",
        "encoded 600 of 1000 passages, 31/s, 0:12 left",
    ]


def test_progress_of_a_slow_machine_is_told_every_five_seconds_in_hours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A batch of 8 takes 3 seconds: the rate has a digit after the point, and what is left may be a day."""
    clock = iter(3.0 * number for number in range(7))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with caplog.at_level(logging.INFO, "jaxretr"), progress.Progress(100_000, "passage", "encoded") as shown:
        for _ in range(6):
            shown.advance(8)
    assert [record.getMessage() for record in caplog.records] == [
        f"encoded {done} of 100000 passages, 2.7/s, {left} left"
        for done, left in ((8, "10:24:57"), (24, "10:24:51"), (40, "10:24:45"))
    ]


def test_compiled_programs_are_kept_where_that_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    variable = "JAX_COMPILATION_CACHE_DIR"
    monkeypatch.delitem(sys.modules, "jax")  # No command has imported it by then.
    monkeypatch.setenv(variable, "/users/own")
    monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path / "cache"))
    set_up()
    assert os.environ[variable] == "/users/own"
    monkeypatch.delenv(variable)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path / "file"))
    set_up()
    assert variable not in os.environ
    monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path / "cache"))
    set_up()
    assert Path(os.environ[variable]).is_dir()
    assert Path(os.environ[variable]).parent == tmp_path / "cache/xla"
    monkeypatch.delenv(variable)


# ---- train -----------------------------------------------------------------------------------------------------------


def test_train_leaves_a_run_and_a_second_call_says_that_it_is_done(trained: Path, capsys: pytest.CaptureFixture[str]):
    model = (trained / "run/model/model.safetensors").read_bytes()
    lines = (trained / "run/metrics.jsonl").read_text()
    assert run("train", trained / "tiny_art.py", "--workdir", trained / "run") == 0
    captured = capsys.readouterr()
    assert captured.err == f"jaxretr: {trained / 'run'}: all 2 steps are done; nothing is left to train\n"
    best = json.loads((trained / "run/best.json").read_text())["figures"]
    assert captured.out.splitlines()[:-1] == [f"{name:<16} {value:.4f}" for name, value in best.items()]
    assert captured.out.splitlines()[-1] == f"model: {trained / 'run/model'}"
    assert (trained / "run/model/model.safetensors").read_bytes() == model
    assert (trained / "run/metrics.jsonl").read_text() == lines
    # There is no model to print the place of.
    (trained / "run/model").rename(trained / "taken")
    try:
        assert run("train", trained / "tiny_art.py", "--workdir", trained / "run") == 1
    finally:
        (trained / "taken").rename(trained / "run/model")
    assert f"{trained / 'run/model'}: is gone" in capsys.readouterr().err


def test_train_passes_overrides_on(monkeypatch: pytest.MonkeyPatch, trained: Path, tmp_path: Path):
    module = importlib.import_module("jaxretr.training.loop")
    seen = []

    def train(*given: Any, profile_steps: Any) -> TrainResult:
        seen.append((*given, profile_steps))
        return TrainResult({}, None, tmp_path / "model")

    monkeypatch.setattr(module, "train", train)
    words = ["--train.steps", "9", "--index.no-write-back", "--workdir", tmp_path, "--optimizer.clip=0.5"]
    assert run("train", trained / "tiny_art.py", *words, "--profile-steps", "3:4") == 0
    ((config, workdir, profile_steps),) = seen
    assert profile_steps == (3, 4)
    assert (config.train.steps, config.index.write_back, config.optimizer.clip) == (9, False, 0.5)
    assert Path(workdir) == tmp_path


def test_a_folder_begun_with_other_settings_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]):
    words = ["train", trained / "tiny_art.py", "--workdir", trained / "run", "--art.top-k", "5"]
    assert run(*words) == 2
    assert "this folder was started with other settings (art.top_k); use the same ones" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (
            "--train.batch-size 12",
            "train.batch_size=12 does not divide over 8 devices; set --train.batch-size to a mul",
        ),
        ("--train.batch-size 0", "train.batch_size=0: must be at least 1; set --train.batch-size"),
        ("--train.log-every 0", "train.log_every=0: must be at least 1"),
        ("--train.seed -1", "train.seed=-1: must be at least 0"),
    ],
)
def test_numbers_that_no_run_can_have(trained: Path, tmp_path: Path, capsys, words: str, message: str):
    assert run("train", trained / "tiny_art.py", "--workdir", tmp_path / "run", *words.split()) == 2
    assert capsys.readouterr().err.startswith(f"jaxretr: error: {message}")
    assert not (tmp_path / "run").exists()


# ---- encode and search -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoded(trained: Path) -> Path:
    """The test corpus, encoded with the run's model in shards of 8 rows."""
    folder = trained / "embeddings"
    words = ["encode", trained / "run", "--corpus", CORPUS, "--out", folder, "--shard-rows", 8]
    assert run(*words) == 0
    return folder


def test_encode_writes_the_models_embeddings(trained: Path, encoded: Path):
    store = EmbeddingStore.open(encoded)
    corpus = read_corpus(CORPUS)
    assert store.read_ids() == corpus.ids
    assert store.meta.shards == -(-len(corpus) // 8)
    wanted = DualEncoder.from_pretrained(trained / "run").encode_passages(list(corpus))
    # Other batches, hence other padding: equal up to rounding.
    np.testing.assert_allclose(np.concatenate(list(store.blocks())), wanted, atol=1e-5)


def test_encode_goes_on_after_a_kill_and_reports_cut_texts(
    trained: Path, encoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    words = ["encode", trained / "run", "--corpus", CORPUS, "--out", tmp_path / "e", "--shard-rows", 8]
    write, written = EmbeddingStore.write, []

    def killed_at_the_second(store: EmbeddingStore, shard: int, *rest: object) -> None:
        if written:
            raise KeyboardInterrupt
        written.append(shard)
        write(store, shard, *rest)  # pyright: ignore[reportArgumentType]

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddingStore, "write", killed_at_the_second)
        assert run(*words) == 130
    first = (tmp_path / "e" / "embeddings-00000-of-00003.npy").stat().st_mtime_ns
    capsys.readouterr()
    assert run(*words) == 0
    captured = capsys.readouterr()
    rows = len(read_corpus(CORPUS))
    assert f"jaxretr: 8 of {rows} passages are encoded from an earlier run" in captured.err
    assert (tmp_path / "e" / "embeddings-00000-of-00003.npy").stat().st_mtime_ns == first
    for one, other in zip(
        EmbeddingStore.open(tmp_path / "e").blocks(), EmbeddingStore.open(encoded).blocks(), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    encoder = DualEncoder.from_pretrained(trained / "run")
    encoder.encode_passages(list(read_corpus(CORPUS)))
    assert encoder.truncated > 0
    assert (
        f"{rows} passages, 16 dimensions, float32, 1.2 KiB in 3 shards; {encoder.truncated} texts (100%) were cut"
        in captured.out
    )


def test_encode_questions_in_float16(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "questions"
    words = ["--corpus", QUERIES, "--out", out, "--side", "question", "--dtype", "float16", "--batch-size", 8]
    assert run("encode", trained / "run", *words) == 0
    store = EmbeddingStore.open(out)
    questions = read_questions(QUERIES)
    assert store.read_ids() == [question.id for question in questions]
    wanted = DualEncoder.from_pretrained(trained / "run").encode_queries([question.text for question in questions])
    (stored,) = store.blocks()
    assert stored.dtype == np.float16
    np.testing.assert_allclose(stored, wanted, atol=2e-3)  # float16 keeps 11 bits of numbers around 1
    capsys.readouterr()
    assert run("search", trained / "run", "--index", out, "--queries", QUERIES, "--out", tmp_path / "r") == 1
    assert "contains embeddings of questions; encode the corpus instead" in capsys.readouterr().err


def exact_hits(trained: Path, k: int) -> tuple[np.ndarray, list[list[str]]]:
    encoder, corpus = DualEncoder.from_pretrained(trained / "run"), read_corpus(CORPUS)
    index = ExactIndex(encoder.encode_passages(list(corpus)), corpus.ids)
    return index.search(encoder.encode_queries([question.text for question in read_questions(QUERIES)]), k)


def test_search_finds_what_the_exact_index_finds(trained: Path, encoded: Path, tmp_path: Path):
    out = tmp_path / "run.trec"
    assert run("search", trained / "run", "--index", encoded, "--queries", QUERIES, "-k", 5, "--out", out) == 0
    found = read_trec(out)
    scores, ids = exact_hits(trained, 5)
    questions = read_questions(QUERIES)
    assert list(found) == [question.id for question in questions]
    assert [list(hits) for hits in found.values()] == ids
    np.testing.assert_allclose([list(hits.values()) for hits in found.values()], scores, atol=1e-4)


def test_search_over_a_saved_exact_index_in_every_format(trained: Path, tmp_path: Path):
    encoder, corpus = DualEncoder.from_pretrained(trained / "run"), read_corpus(CORPUS)
    ExactIndex(encoder.encode_passages(list(corpus)), corpus.ids).save(tmp_path / "index")
    words = ["search", trained / "run", "--index", tmp_path / "index", "--queries", QUERIES, "-k", 3]
    assert run(*words, "--out", tmp_path / "a.trec") == 0
    assert run(*words, "--out", tmp_path / "a.json", "--format", "dpr", "--corpus", CORPUS) == 0
    assert run(*words, "--out", tmp_path / "a.jsonl", "--format", "jsonl", "--corpus", CORPUS) == 0
    _, ids = exact_hits(trained, 3)
    assert [list(hits) for hits in read_trec(tmp_path / "a.trec").values()] == ids
    dpr = json.loads((tmp_path / "a.json").read_text())
    assert [[context["id"] for context in one["ctxs"]] for one in dpr] == ids
    assert dpr[0]["ctxs"][0]["text"] == corpus.texts[corpus.row(ids[0][0])]
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [[hit["id"] for hit in line["hits"]] for line in lines] == ids


def test_search_with_another_model_is_refused(trained: Path, encoded: Path, tmp_path: Path, capsys):
    words = ["--index", encoded, "--queries", QUERIES, "--out", tmp_path / "r"]
    assert run("search", trained / "encoder", *words) == 1
    error = capsys.readouterr().err
    assert f"was encoded with another model ({trained / 'run'}) than {trained / 'encoder'}, or with another" in error
    assert not (tmp_path / "r").exists()


# ---- bm25 and evaluate -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bm25(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bm25") / "bm25.trec"
    assert run("bm25", "--corpus", CORPUS, "--queries", QUERIES, "-k", 7, "--out", path) == 0
    return path


def test_bm25_takes_its_parameters(bm25: Path, tmp_path: Path):
    found = read_trec(bm25)
    assert [question.id for question in read_questions(QUERIES)] == list(found)
    assert {len(hits) for hits in found.values()} == {7}
    words = ["bm25", "--corpus", CORPUS, "--queries", QUERIES, "-k", 7]
    for name, options in (("k1", ["--k1", 2.0]), ("b", ["--b", 1.0]), ("stemmer", ["--stemmer", "none"])):
        assert run(*words, "--out", tmp_path / name, *options) == 0
        assert read_trec(tmp_path / name) != found, name


def test_evaluate_prints_the_librarys_figures(bm25: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    per_query = tmp_path / "values.tsv"
    words = ["evaluate", "--run", bm25, "--qrels", QRELS, "--metrics", "ndcg@10,recall@1,mrr"]
    assert run(*words, "--json", "--per-query", per_query) == 0
    printed = json.loads(capsys.readouterr().out)
    means, values = metrics.evaluate(read_qrels(QRELS), read_trec(bm25), ["ndcg@10", "recall@1", "mrr"], True)
    assert printed["questions"] == len(read_qrels(QRELS))
    assert printed["metrics"] == pytest.approx(means, abs=1e-12)
    rows = [line.split("\t") for line in per_query.read_text().splitlines()]
    assert rows[0] == ["question-id", "ndcg@10", "recall@1", "mrr"]
    assert {row[0]: float(row[2]) for row in rows[1:]} == pytest.approx(values["recall@1"], rel=1e-5)
    assert run(*words) == 0
    assert f"{'ndcg@10':<16}{means['ndcg@10']:>10.4f}" in capsys.readouterr().out.splitlines()


def test_evaluate_compares_with_a_baseline(bm25: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run_of = read_trec(bm25)
    worse = tmp_path / "worse.trec"
    # The best passage of each question goes last.
    lines = [f"{q} Q0 {p} 1 {-rank if rank else -99} x\n" for q, hits in run_of.items() for rank, p in enumerate(hits)]
    worse.write_text("".join(lines))
    words = ["evaluate", "--run", bm25, "--qrels", QRELS, "--metrics", "mrr@10", "--baseline", worse]
    assert run(*words, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    compared = printed["baseline"]["mrr@10"]
    assert printed["baselines"][0]["metrics"]["mrr@10"] == compared
    measured = [metrics.evaluate(read_qrels(QRELS), each, ["mrr@10"])["mrr@10"] for each in (run_of, read_trec(worse))]
    assert [compared["mean_a"], compared["mean_b"]] == pytest.approx(measured)
    assert compared["difference"] > 0 and 0 < compared["p_value"] < 0.2
    assert run(*words) == 0
    table = capsys.readouterr().out
    assert "p (t-test)" in table and f"{compared['difference']:+.4f}" in table


def test_evaluate_finds_answers(bm25: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["evaluate", "--run", bm25, "--answers", QUERIES, "--corpus", CORPUS, "--json"]
    assert run(*words) == 0
    figures = json.loads(capsys.readouterr().out)["metrics"]
    assert list(figures) == ["acc@1", "acc@5", "acc@20", "acc@100"]
    assert 0 < figures["acc@1"] <= figures["acc@5"] <= figures["acc@20"] == figures["acc@100"]
    # A question without hits is a miss of all questions, not left out.
    lines = bm25.read_text().splitlines(keepends=True)
    first = lines[0].split()[0]
    shorter = tmp_path / "shorter.trec"
    shorter.write_text("".join(line for line in lines if line.split()[0] != first))
    assert run("evaluate", "--run", shorter, *words[3:]) == 0
    captured = capsys.readouterr()
    questions = len(read_questions(QUERIES))
    assert f"lacks 1 of {questions} questions ({first}, ...): they count as 0" in captured.err
    assert json.loads(captured.out)["questions"] == questions
    assert run(*words, "--metrics", "acc@2,ndcg@10") == 2
    assert "ndcg@10: answers are measured with acc@1" in capsys.readouterr().err


def test_evaluate_a_model_on_a_beir_folder(trained: Path, capsys: pytest.CaptureFixture[str]):
    words = ["evaluate", trained / "run", "--beir", tiny.DATA, "--split", "train", "--metrics", "mrr@10,recall@5"]
    assert run(*words, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    scores, ids = exact_hits(trained, 20)
    hits = zip(read_questions(QUERIES), ids, scores.tolist(), strict=True)
    found = {question.id: dict(zip(names, values, strict=True)) for question, names, values in hits}
    assert printed["metrics"] == pytest.approx(metrics.evaluate(read_qrels(QRELS), found, ["mrr@10", "recall@5"]))


def test_a_passage_that_is_the_question_itself_does_not_count(trained: Path, tmp_path: Path, capsys):
    """As BEIR measures ArguAna: the questions stand in the corpus under their own ids."""
    passages = [{"_id": f"p{n}", "title": "", "text": f"passage number {n}"} for n in range(3)]
    (tmp_path / "queries.jsonl").write_text('{"_id": "p0", "text": "passage number 0"}\n')
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(passage) + "\n" for passage in passages))
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\np0\tp1\t1\np0\tp2\t1\n")
    assert run("evaluate", trained / "run", "--beir", tmp_path, "--metrics", "precision@2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["precision@2"] == 1.0


# ---- quickstart ------------------------------------------------------------------------------------------------------


def test_quickstart_gets_its_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from jaxretr.quickstart import run as quickstart

    seen = []
    monkeypatch.setattr(quickstart, "main", lambda **arguments: seen.append(arguments))
    assert run("quickstart", "--workdir", tmp_path, "--seed", 3, "--steps", 7) == 0
    assert run("quickstart") == 0
    assert seen == [{"workdir": tmp_path, "seed": 3, "steps": 7}, {"workdir": Path("runs/quickstart")}]


# ---- signals ---------------------------------------------------------------------------------------------------------


def test_interrupting_a_command_exits_130(tmp_path: Path):
    """Ctrl-C in a real process, while it waits for its input."""
    pipe = tmp_path / "corpus.jsonl"
    os.mkfifo(pipe)
    words = ["bm25", "--corpus", str(pipe), "--queries", str(QUERIES), "--out", str(tmp_path / "r")]
    # A shell that runs the tests in the background has its children ignore Ctrl-C.
    listening = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", listening, sys.executable, "-m", "jaxretr", *words],
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    with open(pipe, "w"):  # Opens once the process reads.
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1]
    assert (process.returncode, error) == (130, "jaxretr: interrupted\n")
