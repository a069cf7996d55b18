"""Five supervised steps, read from DPR's JSON, against a plain loop with transformers' DPR towers and torch.optim.

Dropout off, the same batches. Tolerance: losses to 1e-5 relative, parameters to 5e-6 after five updates of at most 1e-3
each: both sides are float32 and sum in another order, and Adam's first updates divide each gradient by its own size, so
that the relative error of a small gradient (about 1e-6 of the largest) becomes that share of a whole update.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from peers import torch, transformers
from tiny import BERT, compiled_quickly, contrastive_config, few_padding_rows, write_models, write_supervised

from jaxretr.models.hub.encoder_params import export_encoder
from jaxretr.training.runs.contrastive import ContrastiveRun

STEPS, BATCH, MOST = 5, 8, 3
RATE, WARMUP, DECAY, CLIP = 1e-3, 0.4, 0.1, 10.0
# Some parameters have a gradient of rounding errors alone, about 1e-6 (the keys' biases): Adam would make full steps of it.
EPS = 1e-4


@dataclass
class Result:
    losses: list[float]
    norms: list[float]
    negatives: list[float]
    params: dict[str, np.ndarray]
    """Of both towers, by Hugging Face's names."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parity")
    write_models(folder, noise=0.3)
    return folder


def ours(folder: Path, mesh: jax.sharding.Mesh, final: float) -> tuple[Result, ContrastiveRun]:
    config = contrastive_config(
        folder,
        data={**write_supervised(folder / "data"), "corpus": None, "dev_questions": None},
        encoder={"max_passage_length": 32},
        negatives={"static": MOST},
        optimizer={
            **{"learning_rate": RATE, "warmup": WARMUP, "final": final},
            **{"eps": EPS, "weight_decay": DECAY, "clip": CLIP},
        },
        train={"steps": STEPS, "batch_size": BATCH},
    )
    with few_padding_rows():
        run = ContrastiveRun(config, mesh, folder / "run")
    run.programs.step = compiled_quickly(run.programs.step)
    state = run.init()
    metrics = []
    for number in range(STEPS):
        state, values = run.step(state, number, run.batch(number))
        metrics.append({name: float(value) for name, value in values.items()})
    params = {}
    for side in ("question", "passage"):
        bert = jax.device_get(state.train.params)[side]["bert"]
        _, tensors = export_encoder(dataclasses.replace(BERT), bert)
        params |= {f"{side}.{name}": np.asarray(value) for name, value in tensors.items()}
    return Result(*([each[name] for each in metrics] for name in ("loss", "gradient_norm", "negatives")), params), run


# ---- the loop in PyTorch ---------------------------------------------------------------------------------------------


def towers(folder: Path) -> tuple[Any, Any]:
    """DPR's question and context encoders, which both start from the same BERT."""
    bert = transformers.BertModel.from_pretrained(folder / "encoder", add_pooling_layer=False)
    config = transformers.DPRConfig(**{**bert.config.to_dict(), "projection_dim": 0})
    found = []
    for kind, name in (
        (transformers.DPRQuestionEncoder, "question_encoder"),
        (transformers.DPRContextEncoder, "ctx_encoder"),
    ):
        model = kind(config)
        getattr(model, name).bert_model.load_state_dict(bert.state_dict())
        found.append(model.eval())
    return found[0], found[1]


def rows_of(tokenizer: Any, texts: list[str] | list[tuple[str, str]], longest: int) -> dict[str, Any]:
    """[CLS] q [SEP] or [CLS] title [SEP] text [SEP], the last [SEP] kept where a text is cut; token types all 0."""
    rows = []
    for text in texts:
        parts = [text] if isinstance(text, str) else list(text)
        ids = [tokenizer.cls_token_id]
        for part in parts:
            ids += [*tokenizer(part, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
        rows.append([*ids[:-1][: longest - 1], tokenizer.sep_token_id])
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def reference(folder: Path, batches: list[list[tuple[int, tuple[str, str]]]], final: float) -> Result:
    """DPR's loop over batches of (example, its positive of this step)."""
    examples = json.loads((folder / "data/train.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "encoder")
    question_tower, passage_tower = towers(folder)
    named = [*question_tower.named_parameters(), *passage_tower.named_parameters()]
    plain = [p for name, p in named if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, p in named if not (name.endswith("bias") or "LayerNorm" in name)]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, eps=EPS)
    result = Result([], [], [], {})
    for number, batch in enumerate(batches):
        passages, targets, judged = [], [], []
        for i, positive in batch:
            texts = {
                name: [(c["title"], c["text"]) for c in examples[i][name]] for name in examples[i] if "ctxs" in name
            }
            targets.append(len(passages))
            judged.append(texts["positive_ctxs"])
            passages += [positive, *(texts["hard_negative_ctxs"] or texts["negative_ctxs"])]
        q = question_tower(**rows_of(tokenizer, [examples[i]["question"] for i, _ in batch], 16)).pooler_output
        p = passage_tower(**rows_of(tokenizer, passages, 32)).pooler_output
        scores = q @ p.T
        relevant = torch.tensor([[text in texts for text in passages] for texts in judged])
        relevant[range(BATCH), targets] = False
        loss = torch.nn.functional.cross_entropy(scores.masked_fill(relevant, -torch.inf), torch.tensor(targets))
        optimizer.zero_grad()
        loss.backward()
        result.norms.append(float(torch.nn.utils.clip_grad_norm_(decayed + plain, CLIP)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * float(np.interp(number + 1, [0, WARMUP * STEPS, STEPS], [0, 1, final]))
        optimizer.step()
        result.losses.append(loss.item())
        result.negatives.append(float((~relevant).sum(dim=1).float().mean()) - 1)
    for side, tower in (("question", question_tower.question_encoder), ("passage", passage_tower.ctx_encoder)):
        result.params |= {f"{side}.{name}": value.numpy() for name, value in tower.bert_model.state_dict().items()}
    return result


# ---- the comparison --------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    ours: Result
    theirs: Result
    start: dict[str, np.ndarray]


@pytest.fixture(scope="module", params=[0.0, 0.02], ids=["linear to 0", "linear to 2%"])
def pair(request: pytest.FixtureRequest, folder: Path, all_devices: jax.sharding.Mesh) -> Pair:
    result, run = ours(folder, all_devices, request.param)
    passages = run.examples.passages
    batches = []
    for number in range(STEPS):
        first = np.asarray(run.batch(number).rows)[:, 0].tolist()
        drawn = [(passages.titles[row], passages.texts[row]) for row in first]
        batches.append(list(zip(run.batches.indices(number).tolist(), drawn, strict=True)))
    bert = transformers.BertModel.from_pretrained(folder / "encoder", add_pooling_layer=False).state_dict()
    start = {f"{side}.{name}": bert[name].numpy() for side in ("question", "passage") for name in bert}
    return Pair(result, reference(folder, batches, request.param), start)


def test_every_loss_and_gradient_norm_is_equal(pair: Pair) -> None:
    assert min(pair.theirs.losses) > 1e-2
    np.testing.assert_allclose(pair.ours.losses, pair.theirs.losses, rtol=1e-5)
    np.testing.assert_allclose(pair.ours.norms, pair.theirs.norms, rtol=1e-4)
    assert min(pair.theirs.norms) < CLIP < max(pair.theirs.norms)  # some steps are clipped


def test_every_question_meets_the_same_number_of_negatives(pair: Pair) -> None:
    """Hard negatives of 0 to 3, some of them from `negative_ctxs`; false ones left out."""
    np.testing.assert_allclose(pair.ours.negatives, pair.theirs.negatives, rtol=1e-6)


def test_every_parameter_is_equal(pair: Pair) -> None:
    names = {name for name in pair.theirs.params if "position_ids" not in name and "pooler" not in name}
    assert names == pair.ours.params.keys()
    # Without gradient are the keys' biases, and the passages' last bias: the loss sees only differences between them.
    # Rounding gives them some, along which Adam takes steps of any size up to the learning rate.
    idle = {name for name in names if "key.bias" in name} | {"passage.encoder.layer.1.output.LayerNorm.bias"}
    for name in names:
        atol = 1e-4 if name in idle else 5e-6
        np.testing.assert_allclose(pair.ours.params[name], pair.theirs.params[name], atol=atol, err_msg=name)
    moved = {name: np.abs(pair.theirs.params[name] - pair.start[name]).max() for name in names}
    assert min(moved[name] for name in names - idle) > 1e-4
