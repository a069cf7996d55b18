"""A whole ART run against a plain PyTorch loop that is written from the paper: dropout off, the same batches.

Tolerance: losses to 1e-4 relative, for both sides are float32 and sum in another order: over 50 updates that grows to
some 1e-5. The retrieved passages must be the very same, which rounding cannot change as long as the scores
of neighbouring ranks are further apart than it: `test_ranks_are_apart` makes sure of that.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from peers import torch, transformers
from tiny import DATA, art_config, few_padding_rows, write_models

from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.recipes.art import ArtRun

STEPS, REFRESH_EVERY, TOP_K = 50, 20, 4
SEED = 6  # Of the batches: one that keeps the ranks of all steps apart.
RATE, WARMUP, FINAL = 2e-3, 0.1, 0.02
# Some parameters have a gradient of rounding errors alone: the keys' biases, and the passage tower's last bias, for the
# loss sees only differences between passages. Adam makes full steps of these, unless eps is above them (about 1e-9). It also makes the gradient's size count.
EPS = 1e-5


@dataclass
class History:
    """What a run did: the loss and the retrieved rows [B, K] of each step, and the corpus's embeddings at its end."""

    losses: list[float] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """The smallest distance between two neighbours among the first K + 1 scores of any question of a step."""
    moved_by_refresh: list[bool] = field(default_factory=list)
    """Whether the old index would have given other rows, for each refresh."""
    embeddings: np.ndarray = field(default_factory=lambda: np.zeros(0))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parity")
    write_models(folder, noise=0.3)
    return folder


def ours(models: Path, workdir: Path, mesh: jax.sharding.Mesh, steps: int, write_back: bool) -> tuple[History, ArtRun]:
    config = art_config(
        models,
        art={"top_k": TOP_K},
        index={"refresh_every": REFRESH_EVERY, "write_back": write_back},
        optimizer={"learning_rate": RATE, "warmup": WARMUP, "final": FINAL, "eps": EPS},
        train={"steps": STEPS, "batch_size": 8, "seed": SEED},
    )
    with few_padding_rows():
        run = ArtRun(config, mesh, workdir)
    history = History()
    compiled = run.train_step

    def recording(*arguments: Any) -> Any:
        result = compiled(*arguments)
        history.losses.append(float(result[2]["loss"]))
        history.rows.append(np.asarray(result[3]))
        return result

    run.train_step = recording
    state = run.init()
    for number in range(steps):
        state, _ = run.step(state, number, run.batch(number))
    passages = [json.loads(line) for line in (DATA / "corpus.jsonl").read_text().splitlines()]
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


def teacher_scores(models: Path, texts: Texts) -> Any:
    """The mean log-probability of every question given every passage, [questions, N]."""
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


def reference(models: Path, batches: list[np.ndarray], write_back: bool) -> History:
    """ART, section 2.4: search, re-embed, KL(teacher || student), AdamW; the corpus encoded again every R steps."""
    texts = Texts(models)
    teacher = teacher_scores(models, texts)
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
        target = torch.softmax(teacher[torch.tensor(batch)[:, None], rows], dim=-1)
        loss = (target * (target.log() - student)).sum(-1).mean()

        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decayed + undecayed, 1.0)
        warmup = WARMUP * STEPS
        for group in optimizer.param_groups:
            group["lr"] = RATE * float(np.interp(number + 1, [0, warmup, STEPS], [0, 1, FINAL]))
        optimizer.step()
        if write_back:
            index[rows.reshape(-1)] = p.detach().reshape(-1, p.shape[-1])
        history.losses.append(loss.item())
        history.rows.append(rows.numpy())
    history.embeddings = encode_corpus().numpy()
    return history


# ---- the comparison --------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    ours: History
    theirs: History
    run: ArtRun


@pytest.fixture(scope="module", params=["paper", "write-back"])
def pair(
    request: pytest.FixtureRequest, models: Path, mesh8: jax.sharding.Mesh, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    write_back = request.param == "write-back"
    steps = 25 if write_back else STEPS
    history, run = ours(models, tmp_path_factory.mktemp("run"), mesh8, steps, write_back)
    batches = [run.batches.indices(number) for number in range(steps)]
    yield Pair(history, reference(models, batches, write_back), run)


def test_ranks_are_apart(pair: Pair) -> None:
    """Both sides' embeddings differ by 2e-5 at most: neighbours further apart than 1e-4 keep their order."""
    assert min(pair.theirs.gaps) > 1e-4


def test_every_step_retrieves_the_same_passages(pair: Pair) -> None:
    for number, (ours, theirs) in enumerate(zip(pair.ours.rows, pair.theirs.rows, strict=True)):
        np.testing.assert_array_equal(ours, theirs, err_msg=f"step {number}")
    assert len({row for rows in pair.ours.rows for row in rows.flat}) > 2 * TOP_K  # Not the same few throughout.


def test_every_loss_is_equal(pair: Pair) -> None:
    assert min(pair.theirs.losses) > 1e-3  # No loss is rounding alone.
    np.testing.assert_allclose(pair.ours.losses, pair.theirs.losses, rtol=1e-4)


def test_the_trained_tower_embeds_alike(pair: Pair) -> None:
    np.testing.assert_allclose(pair.ours.embeddings, pair.theirs.embeddings, atol=1e-4)


@pytest.mark.parametrize("pair", ["paper"], indirect=True)
def test_without_a_temperature_scores_are_divided_by_the_root_of_the_size(pair: Pair) -> None:
    assert pair.run.config.art.temperature is None
    assert pair.run.program.temperature == 4.0  # of D = 16; the loop above divides by it too


@pytest.mark.parametrize("pair", ["paper"], indirect=True)
def test_the_refreshes_matter(pair: Pair) -> None:
    """With the old index other passages would be found: a run that never refreshes cannot pass."""
    assert pair.theirs.moved_by_refresh == [True, True]
