"""ART's step in plain PyTorch 2, as one would write it today without a library: what ours is compared with.

Towers and T5 are modules of Hugging Face transformers or of torch.nn with scaled_dot_product_attention. The corpus's tokens
and its index lie in memory, the search is a matrix product and topk, texts are sorted by length and padded to the longest of
their micro-batch, the frozen T5 runs under inference_mode in bfloat16 where that is faster, the towers train under autocast
with a fused AdamW.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

SEARCH_BLOCK = 1 << 20


class Tokens(NamedTuple):
    """Rows of token ids, padded on the right with 0."""

    ids: torch.Tensor
    """[n, L]."""
    lengths: torch.Tensor
    """[n]."""

    def of(self, rows: torch.Tensor, width: int) -> "Tokens":
        """Some of the rows, cut to `width` columns, int64."""
        return Tokens(self.ids[rows, :width].long(), self.lengths[rows].long())

    def by_length(self, rows: torch.Tensor, chunk: int) -> list[tuple[torch.Tensor, int]]:
        """Places in `rows`, shortest texts first, `chunk` at once, and the longest text of each chunk. Waits once."""
        order = self.lengths[rows].argsort(stable=True)
        lengths = self.lengths[rows][order].tolist()
        places = order.split(chunk)
        return [(some, lengths[min(len(lengths), (number + 1) * chunk) - 1]) for number, some in enumerate(places)]


class Batch(NamedTuple):
    """The questions of one step."""

    questions: Tokens
    """As the towers read them, B rows."""
    targets: Tokens
    """As the T5 predicts them: "Question: {q}</s>", B rows."""


@dataclass(frozen=True)
class Settings:
    """What an ART step needs to know besides its models and its corpus."""

    top_k: int
    temperature: float
    """Divides the student's scores."""
    prefix: Sequence[int] = ()
    """Token ids before a passage in the T5's input."""
    suffix: Sequence[int] = ()
    """After it; ends with </s>."""
    dtype: torch.dtype = torch.bfloat16
    """Of the towers' matrix products; their weights and the optimizer's state are float32."""
    learning_rate: Callable[[int], float] = lambda step: 2e-5
    """Of a step, counted from 0."""
    weight_decay: float = 0.1
    """None is applied to biases and LayerNorms."""
    clip: float = 1.0
    questions_at_once: int = 1 << 20
    """Questions whose passages' activations are in memory together; their gradients add up."""
    passage_chunk: int = 32
    """Passages of about equal length that go through the tower together."""
    teacher_chunk: int = 32
    """Pairs of about equal length that go through the T5 together."""


Tower = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class ArtStep:
    """A training step of ART on a corpus in memory.

    Args:
      towers: of questions and of passages, modules of (ids [n, L], lengths [n]) -> vectors [n, D].
      t5: a T5ForConditionalGeneration.
      passages: the corpus as the towers read it, N rows.
      scorer_passages: the corpus as the T5 reads it, without the instruction, N rows.
      index: the passages' vectors, [N, D]; fresh ones are written into it.
      settings: the rest.
    """

    def __init__(
        self,
        towers: tuple[nn.Module, nn.Module],
        t5: nn.Module,
        passages: Tokens,
        scorer_passages: Tokens,
        index: torch.Tensor,
        settings: Settings,
    ):
        self.towers, self.t5 = towers, t5.eval().requires_grad_(False)
        self.passages, self.scorer_passages, self.index, self.settings = passages, scorer_passages, index, settings
        self.device = index.device
        self.prefix, self.suffix = (torch.tensor(ids, device=self.device) for ids in (settings.prefix, settings.suffix))
        weights = [weight for tower in towers for weight in tower.train().parameters()]
        groups = [
            {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [weight for weight in weights if weight.ndim == 1], "weight_decay": 0.0},
        ]
        self.weights, self.count = weights, 0
        self.optimizer = torch.optim.AdamW(groups, lr=2e-5, fused=True)

    def __call__(self, batch: Batch, rows: torch.Tensor | None = None) -> tuple[float, float]:
        """One step.

        Args:
          batch: its questions.
          rows: the corpus rows to learn from in place of those that the search finds, [B, K].

        Returns:
          The loss in nats, and the gradient's norm before it is clipped.
        """
        if rows is None:
            rows = self.search(self.questions(batch))
        teacher = self.teach(batch, rows)
        self.optimizer.zero_grad(set_to_none=True)
        b, total = len(rows), torch.zeros((), device=self.device)
        for start in range(0, b, self.settings.questions_at_once):
            some = torch.arange(start, min(b, start + self.settings.questions_at_once), device=self.device)
            loss = self.loss(batch, rows[some], teacher[some], some) * (len(some) / b)
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.weights, self.settings.clip, foreach=True)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate(self.count)
        self.optimizer.step()
        self.count += 1
        return float(total), float(norm)  # waits

    # ---- search ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def questions(self, batch: Batch) -> torch.Tensor:
        """The questions' vectors as the search takes them, [B, D]."""
        everyone = torch.arange(len(batch.questions.lengths), device=self.device)
        return self.embed(self.towers[0], batch.questions, everyone).to(self.index.dtype)

    @torch.inference_mode()
    def search(self, vectors: torch.Tensor) -> torch.Tensor:
        """The rows with the greatest inner products, [B, K]."""
        k, scores, found = self.settings.top_k, [], []
        for start in range(0, len(self.index), SEARCH_BLOCK):
            block = vectors @ self.index[start : start + SEARCH_BLOCK].T
            best, place = block.topk(min(k, block.shape[1]))
            scores.append(best)
            found.append(place + start)
        if len(found) == 1:
            return found[0]
        return torch.cat(found, 1).gather(1, torch.cat(scores, 1).topk(k).indices)

    # ---- teacher -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def teach(self, batch: Batch, rows: torch.Tensor) -> torch.Tensor:
        """mean log p(question token | passage) of each question and its passages, float32 [B, K]."""
        flat, k = rows.reshape(-1), rows.shape[1]
        longest = int(batch.targets.lengths.max())
        scores = torch.empty(len(flat), device=self.device)
        for places, width in self.scorer_passages.by_length(flat, self.settings.teacher_chunk):
            targets = batch.targets.of(places // k, longest)
            ids, mask = self.prompted(self.scorer_passages.of(flat[places], width))
            start = torch.full_like(targets.ids[:, :1], self.t5.config.decoder_start_token_id)
            read = torch.cat([start, targets.ids[:, :-1]], 1)
            logits = self.t5(input_ids=ids, attention_mask=mask, decoder_input_ids=read, use_cache=False).logits
            logs = -functional.cross_entropy(logits.float().flatten(0, 1), targets.ids.flatten(), reduction="none")
            real = torch.arange(longest, device=self.device) < targets.lengths[:, None]
            scores[places] = (logs.view(real.shape) * real).sum(1) / targets.lengths
        return scores.view(rows.shape)

    def prompted(self, passages: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """The T5's input: the instruction around each passage; ids and mask [n, L']."""
        n, width = passages.ids.shape
        before, after = len(self.prefix), len(self.suffix)
        ids = torch.zeros((n, before + width + after), dtype=torch.int64, device=self.device)
        ids[:, :before] = self.prefix
        ids[:, before : before + width] = passages.ids
        ends = before + passages.lengths[:, None]
        ids.scatter_(1, ends + torch.arange(after, device=self.device), self.suffix.expand(n, -1))
        return ids, (torch.arange(ids.shape[1], device=self.device) < ends + after).long()

    # ---- student -----------------------------------------------------------------------------------------------------

    def loss(self, batch: Batch, rows: torch.Tensor, teacher: torch.Tensor, some: torch.Tensor) -> torch.Tensor:
        """KL(teacher || student), the mean over `some` questions of the batch; writes the fresh vectors back."""
        q = self.embed(self.towers[0], batch.questions, some)
        flat = rows.reshape(-1)
        p = self.embed(self.towers[1], self.passages, flat)
        with torch.no_grad():
            self.index[flat] = p.detach().to(self.index.dtype)
        student = torch.einsum("bd,bkd->bk", q, p.view(*rows.shape, -1)) / self.settings.temperature
        wanted = teacher.clone().log_softmax(1)
        return functional.kl_div(student.log_softmax(1), wanted, reduction="batchmean", log_target=True)

    def embed(self, tower: Tower, texts: Tokens, rows: torch.Tensor) -> torch.Tensor:
        """Vectors float32 [n, D] of rows of `texts`, in their order."""
        chunks = texts.by_length(rows, self.settings.passage_chunk)
        with torch.autocast(self.device.type, self.settings.dtype, enabled=self.settings.dtype != torch.float32):
            parts = [tower(*texts.of(rows[places], width)).float() for places, width in chunks]
        return torch.cat(parts)[torch.cat([places for places, _ in chunks]).argsort()]


class MeanPooled(nn.Module):
    """A Hugging Face encoder with the mean of its token vectors, of length 1."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        states = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
        mean = (states * mask[..., None]).sum(1) / lengths[:, None]
        return functional.normalize(mean, dim=-1)


class FirstToken(nn.Module):
    """An encoder of (ids, lengths) -> states [n, L, D] with the state of [CLS]."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.encoder(ids, lengths)[:, 0]
