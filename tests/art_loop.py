"""The first steps of an ART run, and the same in a plain PyTorch loop that is written from the paper: dropout off."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from peers import torch, transformers
from tiny import DATA, art_config, compiled_quickly, few_padding_rows

from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.hub.encoder_params import read_checkpoint
from jaxretr.training.runs.art import ArtRun

STEPS, REFRESH_EVERY, TOP_K = 50, 20, 4
RATE, WARMUP, FINAL = 2e-3, 0.1, 0.02
# Some parameters have a gradient of rounding errors alone: the keys' biases, and the passage tower's last bias, for the
# loss sees only differences between passages. Adam makes full steps of these, unless eps is above them (about 1e-9). It also makes the gradient's size count.
EPS = 1e-5


@dataclass
class History:
    """What a run did, step by step, and what it left."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    """Of the gradients, before they are clipped."""
    teacher_scores: list[float] = field(default_factory=list)
    """The mean over the batch's questions and their passages."""
    rows: list[np.ndarray] = field(default_factory=list)
    """The retrieved rows [B, K]."""
    gaps: list[float] = field(default_factory=list)
    """The smallest distance between two neighbours among the first K + 1 scores of any question of a step."""
    moved_by_refresh: list[bool] = field(default_factory=list)
    """Whether the old index would have given other rows, for each refresh."""
    embeddings: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """The corpus's, at the end."""
    params: dict[str, Any] = field(default_factory=dict)
    """The towers' parameters at the end, by their paths."""


def ours(
    models: Path,
    workdir: Path,
    mesh: jax.sharding.Mesh,
    steps: int,
    *,
    write_back: bool = False,
    seed: int = 6,
    teacher_temperature: float = 1.0,
    scorer: dict[str, Any] | None = None,
) -> tuple[History, ArtRun]:
    """A run's first steps.

    Args:
      models: the folder of `tiny.write_models`.
      workdir: the run's.
      mesh: the devices.
      steps: how many are made of the STEPS that the learning rate is planned for.
      write_back: as `LiveIndex.write_back`.
      seed: of the batches: one that keeps the ranks of all steps apart.
      teacher_temperature: as `Art.teacher_temperature`.
      scorer: settings of another teacher than the T5 of `models`.
    """
    config = art_config(
        models,
        art={"top_k": TOP_K, "teacher_temperature": teacher_temperature},
        scorer=scorer or {},
        index={"refresh_every": REFRESH_EVERY, "write_back": write_back},
        optimizer={"learning_rate": RATE, "warmup": WARMUP, "final": FINAL, "eps": EPS},
        train={"steps": STEPS, "batch_size": 8, "seed": seed},
    )
    with few_padding_rows():
        run = ArtRun(config, mesh, workdir)
    history = History()
    compiled = compiled_quickly(run.programs.step)

    def recording(*arguments: Any) -> Any:
        result = compiled(*arguments)
        history.losses.append(float(result[3]["loss"]))
        history.norms.append(float(result[3]["gradient_norm"]))
        history.teacher_scores.append(float(result[3]["teacher_score"]))
        history.rows.append(np.asarray(result[4]))
        return result

    run.programs.step = recording
    state = run.init()
    for number in range(steps):
        state, _ = run.step(state, number, run.batch(number))
    passages = [json.loads(line) for line in (DATA / "corpus.jsonl").read_text().splitlines()]
    history.params = flatten_dict(jax.device_get(state.train.params), sep="/")
    trained = DualEncoder(run.model.config, jax.device_get(state.train.params), run.model.tokenizer)
    history.embeddings = trained.encode_passages(passages, batch_size=20)
    return history, run


# ---- the loop in PyTorch ---------------------------------------------------------------------------------------------


class Texts:
    """The questions and passages as rows of ids, padded, with masks."""

    def __init__(self, models: Path):
        bert = transformers.AutoTokenizer.from_pretrained(models / "encoder")
        t5 = transformers.AutoTokenizer.from_pretrained(models / "scorer")
        passages = [json.loads(line) for line in (DATA / "corpus.jsonl").read_text().splitlines()]
        self.questions = [json.loads(line)["text"] for line in (DATA / "queries.jsonl").read_text().splitlines()]

        def ids(tokenizer: Any, text: str) -> list[int]:
            return tokenizer(text, add_special_tokens=False)["input_ids"]

        cls, sep = bert.cls_token_id, bert.sep_token_id
        self.question_rows = pad([[cls, *ids(bert, q)[:14], sep] for q in self.questions])
        self.passage_rows = pad(
            [[*[cls, *ids(bert, p["title"]), sep, *ids(bert, p["text"])][:47], sep] for p in passages]
        )
        before, after = ids(t5, "Passage: "), ids(t5, " . Please write a question based on this passage.")
        room = 64 - len(before) - len(after) - 1
        self.scorer_rows = pad(
            [before + (ids(t5, p["title"]) + ids(t5, p["text"]))[:room] + [*after, 1] for p in passages]
        )
        self.targets = [[*ids(t5, f"Question: {q}")[:23], 1] for q in self.questions]


def pad(rows: list[list[int]]) -> tuple[Any, Any]:
    """Returns (ids [n, L], mask [n, L])."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])


def cls_state(model: Any, rows: tuple[Any, Any], chosen: Any = slice(None)) -> Any:
    ids, mask = rows[0][chosen], rows[1][chosen]
    return model(input_ids=ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids)).last_hidden_state[:, 0]


def t5_scores(models: Path) -> Any:
    """The mean log-probability of every question given every passage, [questions, N]."""
    texts = Texts(models)
    model = transformers.T5ForConditionalGeneration.from_pretrained(models / "scorer").eval()
    ids, mask = texts.scorer_rows
    scores = []
    with torch.no_grad():
        for target in texts.targets:
            labels = torch.tensor([target] * len(ids))
            logits = model(input_ids=ids, attention_mask=mask, labels=labels).logits.float()
            log_probs = torch.log_softmax(logits, -1).gather(-1, labels[..., None])[..., 0]
            scores.append(log_probs.mean(-1))
    return torch.stack(scores)


def reference(
    models: Path,
    teacher: Any,
    batches: list[np.ndarray],
    folder: Path,
    *,
    write_back: bool = False,
    teacher_temperature: float = 1.0,
) -> History:
    """ART, section 2.4: search, re-embed, KL(teacher || student), AdamW; the corpus encoded again every R steps.

    Args:
      models: the folder of `tiny.write_models`.
      teacher: scores of every question and every passage, [questions, N].
      batches: each step's questions.
      folder: where the trained towers are written.
      write_back: the retrieved passages' fresh embeddings take their places in the index.
      teacher_temperature: divides the teacher's scores.
    """
    texts = Texts(models)
    towers = [transformers.BertModel.from_pretrained(models / "encoder", add_pooling_layer=False) for _ in range(2)]
    question_tower, passage_tower = (tower.eval() for tower in towers)
    named = [pair for tower in towers for pair in tower.named_parameters()]
    undecayed = [p for name, p in named if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, p in named if not (name.endswith("bias") or "LayerNorm" in name)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": undecayed, "weight_decay": 0.0}], eps=EPS
    )
    tau = question_tower.config.hidden_size**0.5

    def encode_corpus() -> Any:
        with torch.no_grad():
            return cls_state(passage_tower, texts.passage_rows)

    history = History()
    index = encode_corpus()
    for number, batch in enumerate(batches):
        q = cls_state(question_tower, texts.question_rows, torch.tensor(batch))
        if number and number % REFRESH_EVERY == 0:
            before = torch.argsort(q @ index.T, dim=-1, descending=True, stable=True)[:, :TOP_K]
            index = encode_corpus()
            after = torch.argsort(q @ index.T, dim=-1, descending=True, stable=True)[:, :TOP_K]
            history.moved_by_refresh.append(not torch.equal(before, after))
        # A stable sort: the lower row first among equal scores.
        scores, order = torch.sort((q @ index.T).detach(), dim=-1, descending=True, stable=True)
        history.gaps.append(float((scores[:, :TOP_K] - scores[:, 1 : TOP_K + 1]).min()))
        rows = order[:, :TOP_K]
        p = cls_state(passage_tower, texts.passage_rows, rows.reshape(-1)).reshape(len(batch), TOP_K, -1)
        student = torch.log_softmax((q[:, None] * p).sum(-1) / tau, dim=-1)
        scored = teacher[torch.tensor(batch)[:, None], rows]
        target = torch.softmax(scored / teacher_temperature, dim=-1)
        loss = (target * (target.log() - student)).sum(-1).mean()

        optimizer.zero_grad()
        loss.backward()
        history.norms.append(float(torch.nn.utils.clip_grad_norm_(decayed + undecayed, 1.0)))
        history.teacher_scores.append(float(scored.mean()))
        warmup = WARMUP * STEPS
        for group in optimizer.param_groups:
            group["lr"] = RATE * float(np.interp(number + 1, [0, warmup, STEPS], [0, 1, FINAL]))
        optimizer.step()
        if write_back:
            index[rows.reshape(-1)] = p.detach().reshape(-1, p.shape[-1])
        history.losses.append(loss.item())
        history.rows.append(rows.numpy())
    history.embeddings = encode_corpus().numpy()
    for side, tower in zip(("question", "passage"), towers, strict=True):
        tower.save_pretrained(folder / side)
        of_tower = flatten_dict(read_checkpoint(folder / side).params, sep="/")
        history.params |= {f"{side}/bert/{path}": array for path, array in of_tower.items()}
    return history
