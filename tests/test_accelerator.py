"""benchmarks/accelerator.py runs unattended on a machine that few have: no part may fail there for another reason than the
card's, and nothing that was measured may be lost."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import define
from jaxretr.models.backbones.t5 import T5Config, T5Model
from jaxretr.models.embed import DualEncoderConfig, abstract_params, embed, init_params
from jaxretr.models.scorers.t5_scorer import Prompt, score_pairs
from jaxretr.runtime.parallel.matmul_flops import matmul_flops

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
BERT = BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48)
T5 = T5Config(vocab_size=300, d_model=16, d_kv=12, d_ff=24, num_heads=2, num_layers=2, num_decoder_layers=3)

# Installed with jax, flax and optax, which flax imports, are some of these; none is needed.
ABSENT = (
    "bm25s datasets faiss grain huggingface_hub numba orbax pandas regex safetensors scann scipy sentence_transformers "
    "sentencepiece sentencex tensorstore tokenizers torch tqdm transformers"
)
ALL_PARTS = """
import argparse, importlib.abc, sys
from pathlib import Path

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[2].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import accelerator, jax
jax.config.update("jax_disable_most_optimizations", True)
for name in sys.argv[3:]:
    report = Path(sys.argv[1]) / name
    accelerator.child(argparse.Namespace(part=name, report=report, seconds=0.2, size=1.0, toy=True, no_torch=False, profile=False, compile_only=False))
"""


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in [name for name in sys.modules if name.split(".")[0] in ("accelerator", "as_user", "machine", "on_gpu")]:
        del sys.modules[name]


@pytest.mark.slow
def test_every_part_runs_with_jax_and_flax_alone(tmp_path: Path) -> None:
    variables = {
        "PYTHONPATH": os.pathsep.join([str(BENCHMARKS.parent), str(BENCHMARKS)]),
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    import accelerator

    # Of those that differ in a number alone, one.
    few = {"options-tuned-4", "layers-unrolled", "threads-2"}
    rows = {name for group in ("options", "layers", "threads") for name in accelerator.GROUPS[group]} - few
    names = [name for name, plan in accelerator.PLANS.items() if not plan.peer_of and name not in rows]
    command = [sys.executable, "-c", ALL_PARTS, str(tmp_path), ABSENT, *names]
    answer = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    found = {}
    for name in names:
        lines = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert not any("error" in line or "torch_error" in line for line in lines), lines
        found[name] = {line["case"]: line for line in lines}
        assert all(
            line["ours"]["min"] > 0 and line["ours"]["runs"] >= (1 if name == "threads-2" else 3)
            for line in found[name].values()
        )
    assert [*found["machine"]] == ["copy", "matmul"]
    assert len(found["search"]) == 5 and len(found["contrastive"]) == len(found["contrastive-kept"]) == 2
    assert len(found["attention"]) == len(found["attention-alone"]) == 2
    machine = {"device": "toy", "nvidia_smi": None, "host": "h", "python": "3", "versions": {}}
    parts = {
        name: {"status": "done", "attempts": [], "cases": {case: {**line, "size": 1} for case, line in cases.items()}}
        for name, cases in found.items()
    }
    table = accelerator.table({"machine": machine, "peak": {"tflops": 1.0, "gbs": 1.0}, "parts": parts})
    assert table.count("\n|") == 2 + sum(map(len, found.values())) and " FLOP / " in table


# ---- formulas --------------------------------------------------------------------------------------------------------


def test_the_formulas_count_the_products_that_the_programs_make() -> None:
    from on_gpu import formulas

    b, length, targets = 3, 24, 8
    config = DualEncoderConfig(BERT, shared=True)
    ids = jax.ShapeDtypeStruct((b, length), jnp.int32), jax.ShapeDtypeStruct((b,), jnp.int32)
    program = jax.jit(lambda params, *rows: embed(config, params["shared"], *rows, dtype="float32"))
    counted = matmul_flops(program.trace(abstract_params(config), *ids))
    assert formulas.bert_flops(BERT, np.full(b, length)) == counted

    prompt = Prompt((1,), (2, 3))
    params = define(lambda rngs: T5Model(T5, rngs=rngs))[1]
    asked = jax.ShapeDtypeStruct((b, targets), jnp.int32), jax.ShapeDtypeStruct((b,), jnp.int32)
    scoring = jax.jit(lambda params, *pairs: score_pairs(T5, prompt, params, *pairs))
    counted = matmul_flops(scoring.trace(params, *ids, *asked))
    assert formulas.t5_flops(T5, np.full(b, length + prompt.size), np.full(b, targets)) == counted


def test_a_card_is_known_by_its_name() -> None:
    from on_gpu.formulas import peak_of

    names = {"NVIDIA H100 80GB HBM3": 3350, "NVIDIA H200": 4800, "NVIDIA H100 PCIe": 2000, "NVIDIA GH200 480GB": 4000}
    assert {name: peak_of(name).gbs for name in names} == names
    assert peak_of("cpu") is None


# ---- the peers -------------------------------------------------------------------------------------------------------


def test_the_peers_compute_what_they_are_compared_with() -> None:
    torch = pytest.importorskip("torch", reason="it is what accelerator.py compares with")
    from on_gpu import torch_peers
    from on_gpu.inputs import mesh_of_one, random_rows

    rng = np.random.default_rng(0)
    config = DualEncoderConfig(BERT)
    params = init_params(config, 0)
    lengths = np.array([9, 3, 12, 5], np.int32)
    tokens = np.where(np.arange(12) < lengths[:, None], rng.integers(5, 300, (4, 12)), 0)
    ours = np.asarray(embed(config, params["passage"], tokens, lengths, dtype="float32"))
    model = torch_peers.make_bert(BERT, params["passage"]["bert"]).eval()
    theirs = model(torch.from_numpy(tokens), torch.from_numpy(lengths))[:, 0].detach().numpy()
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    # bfloat16 keeps 8 bits.
    ids = [row[:length].astype(np.int32) for row, length in zip(tokens, lengths, strict=True)]
    np.testing.assert_allclose(torch_peers.encoding(BERT, params["passage"]["bert"], ids, 24)(), ours, atol=0.1)
    index = torch_peers.refresh(BERT, params["passage"]["bert"], tokens, lengths, 2)()
    np.testing.assert_allclose(index.float().numpy(), ours, atol=0.1)

    rows = random_rows(mesh_of_one(), 2048, 16)
    questions = rng.standard_normal((3, 16), np.float32)
    torch_peers.SEARCH_BLOCK, whole = 700, torch_peers.SEARCH_BLOCK
    try:
        scores, found = torch_peers.search(rows, questions, 5)()
    finally:
        torch_peers.SEARCH_BLOCK = whole
    exact = questions @ np.asarray(rows, np.float32).T
    np.testing.assert_allclose(scores.float(), np.sort(exact, 1)[:, :-6:-1], rtol=0.02)
    np.testing.assert_allclose(np.take_along_axis(exact, found.numpy(), 1), scores.float(), rtol=0.02)


def test_the_peers_learn() -> None:
    pytest.importorskip("torch", reason="it is what accelerator.py compares with")
    from on_gpu import torch_peers

    from jaxretr.training.steps.mlm import mask

    rng = np.random.default_rng(0)
    params: Any = init_params(DualEncoderConfig(BERT), 0)
    lengths = np.full(8, 12, np.int32)
    tokens = rng.integers(5, 300, (8, 12))
    step = torch_peers.contrastive(BERT, params, (tokens[:4], lengths[:4]), (tokens, lengths))
    losses = [step() for _ in range(4)]
    # Towers of random weights find all 8 passages about equally good.
    assert 0.5 * np.log(8) < losses[0] < 4 * np.log(8) and losses[-1] != losses[0]
    batch = mask(rng, tokens, lengths, rate=0.15, mask_id=4, special=np.arange(5), vocab_size=300)
    whole, in_chunks = (torch_peers.mlm(BERT, params["passage"]["bert"], batch, chunk)() for chunk in (8, 2))
    assert 0.8 * np.log(300) < whole < 1.2 * np.log(300)
    assert in_chunks == pytest.approx(whole, rel=0.1)  # dropout, another head


def test_the_peer_of_art_takes_the_papers_step(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="it is what accelerator.py compares with")
    pytest.importorskip("transformers", reason="its T5 is the peer's teacher")
    from on_gpu import torch_peers
    from on_gpu.art_peer import random_t5
    from torch_art import ArtStep, Batch, FirstToken, Settings, Tokens

    from jaxretr.losses.art import art_losses
    from jaxretr.models.hub import t5_params

    rng = np.random.default_rng(0)
    n, b, k, prompt = 40, 3, 4, Prompt((7, 8), (9, 1))
    config = DualEncoderConfig(BERT)
    params: Any = init_params(config, 0)
    scorer = random_t5(T5, torch.float32)
    scorer.save_pretrained(tmp_path)

    def texts(count: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = rng.integers(1, longest + 1, count).astype(np.int32)
        return np.where(np.arange(longest) < lengths[:, None], rng.integers(5, 300, (count, longest)), 0), lengths

    passages, scorer_passages, questions, targets = texts(n, 12), texts(n, 9), texts(b, 6), texts(b, 5)
    index = rng.standard_normal((n, 16)).astype(np.float32)
    steps = [
        ArtStep(
            tuple(FirstToken(torch_peers.make_bert(BERT, params[side]["bert"])) for side in ("question", "passage")),
            scorer,
            *(Tokens(*map(torch.from_numpy, rows)) for rows in (passages, scorer_passages)),
            torch.from_numpy(index.copy()),
            Settings(
                *(k, 2.0, prompt.prefix, prompt.suffix, torch.float32),
                questions_at_once=at_once,
                passage_chunk=5,
                teacher_chunk=7,
            ),
        )
        for at_once in (b, 2)
    ]
    batch = Batch(*(Tokens(*map(torch.from_numpy, rows)) for rows in (questions, targets)))
    for step in steps:
        for tower in step.towers:
            tower.eval()  # dropout off
    rows = steps[0].search(steps[0].questions(batch)).numpy()
    teacher = steps[0].teach(batch, torch.from_numpy(rows)).numpy()
    (loss, norm), (in_parts, norm_in_parts) = (step(batch) for step in steps)
    assert in_parts == pytest.approx(loss, rel=1e-5) and norm_in_parts == pytest.approx(norm, rel=1e-4)

    q = np.asarray(embed(config, params["question"], *questions, dtype="float32"))
    assert (rows == np.argsort(-(q @ index.T), 1)[:, :k]).all()
    flat = rows.reshape(-1)
    pairs = *(x[flat] for x in scorer_passages), *(np.repeat(x, k, 0) for x in targets)
    scored = score_pairs(T5, prompt, t5_params.read(tmp_path)[1], *pairs).reshape(b, k)
    np.testing.assert_allclose(teacher, scored, rtol=1e-4)
    p = np.asarray(embed(config, params["passage"], *(x[flat] for x in passages), dtype="float32")).reshape(b, k, -1)
    expected = art_losses(np.einsum("bd,bkd->bk", q, p) / 2.0, scored).mean()
    assert loss == pytest.approx(float(expected), rel=1e-4)
    np.testing.assert_allclose(steps[0].index[flat].numpy().reshape(p.shape), p, atol=1e-5)


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def arguments(out: Path) -> argparse.Namespace:
    return argparse.Namespace(
        out=out, toy=True, no_torch=False, profile=False, pace=1.0, python=[sys.executable], side_by_side=False
    )


@pytest.mark.parametrize(
    ("codes", "status", "sizes", "with_torch"),
    [
        ([0], "done", [1], [True]),
        ([3, 3, 0], "done", [1, 0.5, 0.25], [True, True, True]),
        ([-6, 0], "done", [1, 0.5], [True, False]),
        ([1], "failed", [1], [True]),
        ([3] * 5, "failed", [1, 0.5, 0.25, 0.125, 0.0625], [True] * 5),
        ([None], "out of time", [1], [True]),
    ],
)
def test_a_part_that_does_not_fit_is_tried_at_half_the_size(
    codes: list[int | None],
    status: str,
    sizes: list[float],
    with_torch: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    import accelerator

    tried = []

    def run_child(name: str, args: Any, size: float, torch: bool, *_: float) -> tuple[int | None, list[dict]]:
        tried.append((size, torch))
        code = codes[len(tried) - 1]
        measured = {"case": f"at {size}", "ours": {"median": 1.0}}
        return code, [measured] if code == 0 else [measured, {"case": "", "error": f"stopped by {code}"}]

    monkeypatch.setattr(accelerator, "run_child", run_child)
    found = accelerator.run_part("search", arguments(tmp_path), time.monotonic() + 1000)
    assert found["status"] == status and tried == [*zip(sizes, with_torch, strict=True)]
    # What was measured before an attempt ended stays.
    assert [*found["cases"]] == [f"at {size}" for size in map(float, sizes)]
    assert len(found["attempts"]) == len([code for code in codes if code != 0])


def test_a_part_that_hangs_is_stopped_and_what_it_measured_is_kept(tmp_path: Path) -> None:
    import accelerator

    hangs = "import sys, time; i = sys.argv.index('--report'); open(sys.argv[i + 1], 'w').write('{\"case\": \"a\"}\\n{\"ca'); time.sleep(60)"
    args = arguments(tmp_path)
    args.python = [sys.executable, "-c", hangs]
    began = time.monotonic()
    assert accelerator.run_child("mlm", args, 1.0, True, 1.5, 0) == (None, [{"case": "a"}])
    assert time.monotonic() - began < 20 and not [*tmp_path.iterdir()]


def test_what_compiled_is_told_where_the_time_ran_out_before_it_was_timed(tmp_path: Path) -> None:
    import accelerator
    from on_gpu.measuring import Part

    part = Part(tmp_path / "report", 100.0, size=1.0, toy=True, torch=None)
    part.compiled("small", jax.jit(lambda x: x + 1), jnp.ones(3))

    class NeverDone:
        def lower(self, *_: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        part.compiled("large", NeverDone())
    cases = {
        line["case"]: {**line, "size": 1} for line in map(json.loads, (tmp_path / "report").read_text().splitlines())
    }
    assert cases["small"]["compile"] > 0
    machine = {"device": "toy", "nvidia_smi": None, "host": "h", "python": "3", "versions": {}}
    parts = {"contrastive": {"status": "out of time", "attempts": [], "cases": cases}}
    lines = accelerator.table({"machine": machine, "peak": None, "parts": parts}).splitlines()[-3:]
    assert lines[0].startswith("| small | | not timed |") and lines[0].endswith("| 0 |")
    assert lines[1].endswith("| > 100 |") and lines[2].startswith("| contrastive: out of time |")
    assert len({line.count("|") for line in lines}) == 1


def test_a_part_that_is_done_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import accelerator

    done = {"status": "done", "cases": {}, "attempts": [], "seconds": 1}
    ran: list[str] = []
    states = {"refresh": "failed"}

    def run_part(name: str, *_: Any) -> dict[str, Any]:
        ran.append(name)
        return {**done, "status": states.get(name, "done")}

    facts = {"device": "d", "nvidia_smi": None, "host": "h", "python": "3", "versions": {}}
    monkeypatch.setattr(accelerator, "facts_of_machine", lambda args: facts)
    monkeypatch.setattr(accelerator, "run_part", run_part)

    def run(*words: str) -> list[str]:
        ran.clear()
        monkeypatch.setattr(sys, "argv", ["accelerator.py", "--out", str(tmp_path), "--toy", *words])
        accelerator.main()
        return list(ran)

    # A part that failed does not keep those behind it from running.
    with pytest.raises(SystemExit, match="not all parts"):
        run("--parts", "refresh", "mlm")
    assert ran == ["refresh", "mlm"]
    states.clear()
    assert run("--parts", "refresh", "mlm") == ["refresh"]
    assert run("--parts", "mlm", "--again") == ["mlm"]
    # PyTorch's own parts come last and get what is left, where none is named.
    own = [not plan.peer_of for plan in accelerator.PLANS.values() if not plan.extra]
    assert own == sorted(own, reverse=True)
    always = [plan for plan in accelerator.PLANS.values() if not plan.extra and not plan.peer_of]
    assert sum(plan.seconds for plan in always) <= 9.5 * 60
    assert set(json.loads((tmp_path / "results.json").read_text())["parts"]) == {"refresh", "mlm"}
    assert (tmp_path / "table.md").read_text().startswith("d (no nvidia-smi)")
    facts["device"] = "another"
    with pytest.raises(SystemExit, match="results of d; give another folder"):
        run()


# ---- as a user -------------------------------------------------------------------------------------------------------


def test_the_log_of_a_command_says_where_its_time_went(caplog: pytest.LogCaptureFixture) -> None:
    """Of the library's own words, so that a change of them is noticed."""
    import as_user

    from jaxretr.runtime.parallel.programs import Programs
    from jaxretr.training.profiling import Stopwatch

    clock = Stopwatch()
    clock._seconds = {"first step": 7.0, "steps": 2.5, "evaluation": 4.0, "input": 1.0}
    clock._began -= 16
    lines = [
        (9.5, f"12:00:00 {Programs(3, 1, 4.2)} {as_user.FIRST_STEP}"),
        (20.0, f"12:00:10 {clock.summary()}"),
        (21.0, f"{Programs(1, 12, 5.5)} in all"),
    ]
    found = as_user.told(lines)
    assert found["first step"] == 9.5 and found["steps"] == 2.5 and found["evaluation"] == 4.0
    assert (found["compiled"], found["cached"], found["programs"]) == (1, 12, 5.5)
    rows = {
        "train, packed, cold": {**found, "seconds": 22.0, "code": 0},
        "evaluate, padded, cold": {"seconds": 40.0, "code": -9, "last": "what | it said"},
    }
    text = as_user.table({"machine": "m", "model": "e", "teacher": "t", "dtype": "float32", "rows": rows})
    assert "| train, packed, cold | 22.0 | 9.5 | 2.5 | 4.0 | 1 | 12 | 5.5 |  |" in text and "out of time" in text


def test_every_row_has_the_words_of_a_command(tmp_path: Path) -> None:
    """Settings that a config does not have are noticed here, not on the card."""
    import as_user

    from jaxretr.training.experiment import load

    args = argparse.Namespace(tiny=False, model=Path("m"), teacher=Path("t"), dtype="bfloat16", out=tmp_path)
    steps = set()
    for place, row in enumerate(as_user.ROWS):
        command, *words = map(str, as_user.words_of(row, tmp_path, args, tmp_path / "run"))
        assert not row.warm or as_user.ROWS.index(row._replace(warm=False)) < place
        if command == "train":
            steps.add(
                load(
                    words[0], [word for word in words[1:] if word not in ("--workdir", str(tmp_path / "run"))]
                ).train.steps
            )
    assert steps == {150, 300} and len({row.name for row in as_user.ROWS}) == len(as_user.ROWS)
