"""One training step of every objective with encoders of other architectures than BERT, against PyTorch, on 1 device and on 8.

Dropout off, float32. The rows of token ids are taken from the run (how texts become rows is tested elsewhere); embedding,
loss, clipping and AdamW are computed again by transformers and torch. With AdamW's eps at 1e-3 a gradient that is
rounding alone, of about 1e-7, moves nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from peers import torch, transformers
from small_encoders import MAKES, write_encoder
from tiny import DATA, art_config, compiled_quickly, contrastive_config, few_padding_rows, lively, write_models

from jaxretr import DualEncoder, QuestionScorer
from jaxretr.config import AdapterShape
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.models.adapter import Adapter
from jaxretr.models.backbones.adapter_layers import init_adapter
from jaxretr.models.hub.encoder_params import export_encoder, names_of, read_checkpoint
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.contrastive import ContrastiveRun

KINDS = ("roberta", "modernbert", "qwen3", "gemma3_text")
OBJECTIVES = ("contrastive", "art", "lexical", "adapters", "typos")
RATE, EPS, DECAY, CLIP, TOP_K = 1e-3, 1e-3, 0.1, 1.0, 3
LORA = {"roberta": ("query", "ffn_out"), "modernbert": ("qkv", "ffn_in")}
WEIGHT = 0.7
"""Of the lexical encoder's scores."""


@dataclass
class Step:
    """What a step did: the loss, the gradient's norm, and the trained parameters after it by their paths."""

    loss: float
    norm: float
    params: dict[str, np.ndarray]


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder and the scorer, and the encoder with other weights as a frozen lexical one and with LoRA."""
    folder = tmp_path_factory.mktemp(request.param)
    write_models(folder)
    write_encoder(request.param, folder / "encoder", noise=0.3)
    model = DualEncoder.from_pretrained(folder / "encoder", pooling=_pooling(request.param))
    other = model.replaced(model.config, lively(model.params, 3, 0.2))
    other.save(folder / "lexical")
    shape = AdapterShape(
        lora_rank=2, lora_alpha=3.0, bottleneck=0, lora_targets=LORA.get(request.param, ("key", "ffn_gate"))
    )
    modules = lively(init_adapter(shape, model.config.backbone, 0), 5, 0.2)
    Adapter(shape, {"shared": modules}).put_into(model).save(folder / "adapted")
    return folder


def _pooling(kind: str) -> Any:
    return MAKES[kind].pooling


def _kind(folder: Path) -> str:
    return folder.name[:-1]


def _run(folder: Path, objective: str, devices: int, workdir: Path) -> Any:
    encoder: dict[str, Any] = {
        "pooling": _pooling(_kind(folder)),
        "shared": objective in ("adapters", "lexical"),
        "max_passage_length": 16,  # Of one padded length, which is compiled sooner.
    }
    common: dict[str, Any] = {
        "optimizer": {"learning_rate": RATE, "eps": EPS, "weight_decay": DECAY, "clip": CLIP, "warmup": 0.0},
        "train": {"steps": 10, "batch_size": 8},
    }
    mesh = make_mesh(jax.devices()[:devices])
    with few_padding_rows():
        if objective == "art":
            return ArtRun(art_config(folder, encoder=encoder, art={"top_k": TOP_K}, **common), mesh, workdir)
        more: dict[str, Any] = {"data": {"dev_questions": None}}
        if objective == "typos":
            more["typos"] = {"contrast_weight": 0.5, "profile": "single_word"}
        if objective == "lexical":
            more["joint"] = {"lexical": str(folder / "lexical"), "weight": WEIGHT}
        if objective == "adapters":
            shape = DualEncoder.from_pretrained(folder / "adapted").config.adapter
            encoder |= {"path": str(folder / "adapted"), "adapter": shape}
        return ContrastiveRun(contrastive_config(folder, encoder=encoder, **more, **common), mesh, workdir)


def ours(run: Any) -> Step:
    run.programs.step = compiled_quickly(run.programs.step)
    state, values = run.step(run.init(), 0, run.batch(0))
    params = flatten_dict(jax.device_get(state.train.params), sep="/")
    return Step(float(values["loss"]), float(values["gradient_norm"]), {k: np.asarray(v) for k, v in params.items()})


# ---- in PyTorch ------------------------------------------------------------------------------------------------------


def _embed(model: Any, ids: np.ndarray, lengths: np.ndarray, pooling: str) -> Any:
    mask = torch.tensor((np.arange(ids.shape[1]) < lengths[:, None]).astype(int))
    # RoBERTa counts positions from what is not padding.
    ids = np.where(mask.numpy() > 0, ids, model.config.pad_token_id)
    states = model(input_ids=torch.tensor(ids.astype(np.int64)), attention_mask=mask).last_hidden_state
    if pooling == "cls":
        return states[:, 0]
    if pooling == "lasttoken":
        return states[torch.arange(len(ids)), torch.tensor(lengths.astype(np.int64)) - 1]
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def _rows(run: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = [run.store.row(int(row)) for row in rows]
    width = max(map(len, found))
    return np.array([[*row, *[0] * (width - len(row))] for row in found]), np.array([len(row) for row in found])


def theirs(run: Any, folder: Path, objective: str, tmp_path: Path) -> Step:
    pooling, load = _pooling(_kind(folder)), transformers.AutoModel.from_pretrained
    plain = {"add_pooling_layer": False} if _kind(folder) == "roberta" else {}
    first = load(folder / "encoder", **plain).eval()
    towers = {
        "question": first,
        "passage": first if run.config.encoder.shared else load(folder / "encoder", **plain).eval(),
    }
    weight = torch.tensor(WEIGHT, requires_grad=True)
    named = [pair for model in dict.fromkeys(towers.values()) for pair in model.named_parameters()]
    if objective == "adapters":
        merged = _with_lora(first, folder)
        named = merged
    trained = [parameter for _, parameter in named]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if objective == "lexical":
        groups[1]["params"] = [*groups[1]["params"], weight]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=EPS)

    batch = jax.device_get(run.batch(0))
    questions = np.asarray(batch.tokens), np.asarray(batch.lengths)
    q = _embed(towers["question"], *questions, pooling)
    if objective == "art":
        loss = _art_loss(run, folder, towers, q, pooling)
    else:
        rows = np.asarray(batch.rows)[:, 0]
        passages = _rows(run, rows)
        scores = q @ _embed(towers["passage"], *passages, pooling).T
        if objective == "lexical":
            frozen = _lexical(folder, tmp_path / "lexical", plain)
            with torch.no_grad():
                found = _embed(frozen, *questions, pooling) @ _embed(frozen, *passages, pooling).T
            scores = scores + weight * found
        # Another question's passage is no negative if it answers this one as well.
        known = np.asarray(batch.known)
        contents = np.asarray(run.contents)[rows]
        other = torch.tensor((contents[None, :, None] == known[:, None, :]).any(-1) & ~np.eye(8, dtype=bool))
        scores = scores.masked_fill(other, -torch.inf)
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(8))
        if objective == "typos":
            forms = np.asarray(batch.forms.tokens)[:, 0], np.asarray(batch.forms.lengths)[:, 0]
            to_forms = q @ _embed(towers["question"], *forms, pooling).T
            same = (questions[0][:, None] == questions[0][None]).all(-1) & ~np.eye(8, dtype=bool)
            to_forms = to_forms.masked_fill(torch.tensor(same), -torch.inf)
            loss = loss + 0.5 * torch.nn.functional.cross_entropy(to_forms, torch.arange(8))
    loss.backward()
    everything = [p for group in groups for p in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(everything, CLIP))
    optimizer.step()
    return Step(loss.item(), norm, _after(towers, named, weight, objective, folder, tmp_path))


def _art_loss(run: Any, folder: Path, towers: dict[str, Any], q: Any, pooling: str) -> Any:
    corpus = _rows(run, np.arange(len(read_corpus(DATA))))
    with torch.no_grad():
        order = torch.argsort(q @ _embed(towers["passage"], *corpus, pooling).T, dim=-1, descending=True)[:, :TOP_K]
    p = _embed(towers["passage"], *_rows(run, order.reshape(-1).numpy()), pooling).reshape(8, TOP_K, -1)
    texts, passages = read_questions(DATA), read_corpus(DATA)
    chosen = run.batches.indices(0)
    pairs = [(texts[int(i)].text, passages[int(row)]) for i, rows in zip(chosen, order, strict=True) for row in rows]
    scorer = QuestionScorer.from_pretrained(folder / "scorer", max_length=64, max_question_length=24)
    teacher = scorer.score([text for text, _ in pairs], [{"title": p.title, "text": p.text} for _, p in pairs])
    target = torch.softmax(torch.tensor(np.array(teacher)).reshape(8, TOP_K), -1)
    student = torch.log_softmax((q[:, None] * p).sum(-1) / q.shape[-1] ** 0.5, -1)
    return (target * (target.log() - student)).sum(-1).mean()


def _lexical(folder: Path, tmp_path: Path, plain: dict[str, Any]) -> Any:
    encoder = DualEncoder.from_pretrained(folder / "lexical")
    write_folder(
        tmp_path, *export_encoder(encoder.config.backbone, encoder.params["shared"]["bert"]), encoder.tokenizer
    )
    return transformers.AutoModel.from_pretrained(tmp_path, **plain).eval()


def _with_lora(model: Any, folder: Path) -> list[tuple[str, Any]]:
    """Adds LoRA to the modules by hooks; returns its matrices, named by our paths, one of each layer."""
    adapted = DualEncoder.from_pretrained(folder / "adapted")
    shape, names = adapted.config.adapter, names_of(adapted.config.backbone)
    assert shape is not None
    modules = dict(model.named_modules())
    for parameter in model.parameters():
        parameter.requires_grad = False
    found = []
    for target, parts in adapted.params["shared"]["adapter"]["lora"].items():
        for number in range(adapted.config.backbone.num_hidden_layers):
            down, up = (
                torch.tensor(np.array(parts[part]["kernel"][number]), requires_grad=True) for part in ("down", "up")
            )

            def hook(_: Any, inputs: Any, output: Any, down: Any = down, up: Any = up) -> Any:
                return output + shape.lora_factor * (inputs[0] @ down) @ up

            modules[names.layer.format(number) + names.modules[target]].register_forward_hook(hook)
            found += [(f"{target}/down/{number}", down), (f"{target}/up/{number}", up)]
    return found


def _after(
    towers: dict[str, Any], named: list[tuple[str, Any]], weight: Any, objective: str, folder: Path, tmp_path: Path
) -> dict[str, np.ndarray]:
    """The parameters after the step under the paths of ours."""
    if objective == "adapters":
        stacked: dict[str, list[np.ndarray]] = {}
        for name, matrix in named:
            target, part, _ = name.split("/")
            stacked.setdefault(f"shared/adapter/lora/{target}/{part}/kernel", []).append(matrix.detach().numpy())
        return {path: np.stack(matrices) for path, matrices in stacked.items()}
    found = {}
    shared = towers["question"] is towers["passage"]
    for side, model in [("shared", towers["question"])] if shared else towers.items():
        model.save_pretrained(tmp_path / side)
        start = "base/" if objective == "lexical" else ""
        params = flatten_dict(read_checkpoint(tmp_path / side).params, sep="/")
        found |= {f"{start}{side}/bert/{path}": array for path, array in params.items()}
    return found | ({"weight": weight.detach().numpy()} if objective == "lexical" else {})


# ---- the comparison --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_step_equals_pytorchs_on_one_device_and_on_eight(folder: Path, objective: str, tmp_path: Path) -> None:
    run = _run(folder, objective, 8, tmp_path / "eight")
    steps = {"8 devices": ours(run), "1 device": ours(_run(folder, objective, 1, tmp_path / "one"))}
    expected = theirs(run, folder, objective, tmp_path)
    assert expected.loss > 1e-3 and expected.norm > 1e-3
    start = flatten_dict(jax.device_get(run.model.params), sep="/")
    for where, step in steps.items():
        np.testing.assert_allclose(step.loss, expected.loss, rtol=2e-5, err_msg=where)
        np.testing.assert_allclose(step.norm, expected.norm, rtol=1e-4, err_msg=where)
        assert step.params.keys() == expected.params.keys()
        for path, array in step.params.items():
            theirs_ = expected.params[path]
            if _kind(folder) == "modernbert" and "layers/attention_norm" in path:  # The first layer has none.
                array, theirs_ = array[1:], theirs_[1:]
            np.testing.assert_allclose(array, theirs_, atol=5e-6, rtol=1e-5, err_msg=f"{where}: {path}")
    moved = {path: np.abs(array - np.asarray(start[path])).max() for path, array in expected.params.items()}
    assert np.median(list(moved.values())) > 1e-5
