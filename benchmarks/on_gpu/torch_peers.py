"""The same work in plain PyTorch: a BERT of torch.nn with scaled_dot_product_attention, its training, blocked search.

Written as one would write it today without a library: bfloat16 weights where nothing is trained, autocast and fused AdamW
where something is, batches padded to their longest row.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params

SEARCH_BLOCK = 1 << 20


def device() -> torch.device:
    """The card, or the processor for toy sizes."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait() -> None:
    """Until the card is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Layer(nn.Module):
    """BERT's layer: attention and feed-forward, each followed by residual and LayerNorm."""

    def __init__(self, bert: BertConfig):
        super().__init__()
        d, f = bert.hidden_size, bert.intermediate_size
        self.query, self.key, self.value, self.attention_out = (nn.Linear(d, d) for _ in range(4))
        self.ffn_in, self.ffn_out = nn.Linear(d, f), nn.Linear(f, d)
        self.attention_norm, self.ffn_norm = (nn.LayerNorm(d, eps=bert.layer_norm_eps) for _ in range(2))
        self.heads, self.rate = bert.num_attention_heads, bert.hidden_dropout_prob

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, length, d = x.shape
        q, k, v = (
            dense(x).view(b, length, self.heads, -1).transpose(1, 2) for dense in (self.query, self.key, self.value)
        )
        rate = self.rate if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=rate)
        mixed = self.attention_out(mixed.transpose(1, 2).reshape(b, length, d))
        x = self.attention_norm(x + functional.dropout(mixed, rate))
        inner = self.ffn_out(functional.gelu(self.ffn_in(x)))
        return self.ffn_norm(x + functional.dropout(inner, rate))


class Bert(nn.Module):
    """Token ids to the last layer's states."""

    def __init__(self, bert: BertConfig):
        super().__init__()
        d = bert.hidden_size
        self.word_embedding = nn.Embedding(bert.vocab_size, d)
        self.position_embedding = nn.Embedding(bert.max_position_embeddings, d)
        self.type_embedding = nn.Embedding(bert.type_vocab_size, d)
        self.norm = nn.LayerNorm(d, eps=bert.layer_norm_eps)
        self.layers = nn.ModuleList(Layer(bert) for _ in range(bert.num_hidden_layers))
        self.rate = bert.hidden_dropout_prob

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        place = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.word_embedding(tokens) + self.position_embedding(place) + self.type_embedding.weight[0]
        x = functional.dropout(self.norm(x), self.rate if self.training else 0.0)
        mask = (place < lengths[:, None])[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        return x

    def load(self, params: Params) -> "Bert":
        """Takes the weights of one of our encoders, whose layers are stacked."""
        with torch.no_grad():
            for name in ("word_embedding", "position_embedding", "type_embedding"):
                getattr(self, name).weight.copy_(_tensor(params[name]["table"]))
            _load_norm(self.norm, params["norm"])
            for number, layer in enumerate(self.layers):
                for name, of_layers in params["layers"].items():
                    one = {key: value[number] for key, value in of_layers.items()}
                    module = getattr(layer, name)
                    if "kernel" in one:
                        module.weight.copy_(_tensor(one["kernel"]).T)
                        module.bias.copy_(_tensor(one["bias"]))
                    else:
                        _load_norm(module, one)
        return self


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, np.float32))


def _load_norm(module: nn.Module, params: Params) -> None:
    module.weight.copy_(_tensor(params["scale"]))
    module.bias.copy_(_tensor(params["bias"]))


def make_bert(bert: BertConfig, params: Params, dtype: torch.dtype = torch.float32) -> Bert:
    """Our encoder as a torch module on the card."""
    return Bert(bert).load(jax.device_get(params)).to(device(), dtype)


# ---- encoding --------------------------------------------------------------------------------------------------------


def encoding(
    bert: BertConfig, params: Params, ids: Sequence[np.ndarray], batch_tokens: int
) -> Callable[[], np.ndarray]:
    """Rows of token ids to [CLS] vectors float32 [n, D] on the host, sorted by length, about so many tokens a batch."""
    model = make_bert(bert, params, torch.bfloat16).eval()
    order = np.argsort([-len(row) for row in ids], kind="stable")

    @torch.inference_mode()
    def run() -> np.ndarray:
        result = torch.empty((len(ids), bert.hidden_size), dtype=torch.float32)
        done, parts = 0, []
        while done < len(order):
            width = len(ids[order[done]])
            chosen = order[done : done + max(1, batch_tokens // width)]
            tokens = np.zeros((len(chosen), width), np.int32)
            lengths = np.array([len(ids[place]) for place in chosen], np.int32)
            for row, place in enumerate(chosen):
                tokens[row, : lengths[row]] = ids[place]
            put = [torch.from_numpy(x).to(device(), non_blocking=True) for x in (tokens, lengths)]
            parts.append((chosen, model(*put)[:, 0].float()))
            done += len(chosen)
        for chosen, vectors in parts:
            result[torch.from_numpy(chosen)] = vectors.cpu()
        return result.numpy()

    return run


def refresh(bert: BertConfig, params: Params, tokens: np.ndarray, lengths: np.ndarray, block: int) -> Callable[[], Any]:
    """Rows on the card to an index bfloat16 [n, D] on the card, shortest first, `block` rows at once."""
    model = make_bert(bert, params, torch.bfloat16).eval()
    order = np.argsort(lengths, kind="stable")
    on_card = torch.from_numpy(tokens.astype(np.int32)).to(device())
    all_lengths = torch.from_numpy(lengths).to(device())
    places = torch.from_numpy(order).to(device())
    index = torch.empty((len(tokens), bert.hidden_size), dtype=torch.bfloat16, device=device())

    @torch.inference_mode()
    def run() -> torch.Tensor:
        for start in range(0, len(order), block):
            chosen = places[start : start + block]
            width = int(lengths[order[start : start + block]].max())
            index[chosen] = model(on_card[chosen, :width], all_lengths[chosen])[:, 0]
        wait()
        return index

    return run


# ---- search ----------------------------------------------------------------------------------------------------------


def search(rows: jax.Array, questions: np.ndarray, k: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Matrix product and topk over blocks of a million rows, in bfloat16; `rows` are shared with JAX, not copied."""
    table = torch.from_dlpack(rows)
    q = torch.from_numpy(questions).to(table.device, torch.bfloat16)

    @torch.inference_mode()
    def run() -> tuple[torch.Tensor, torch.Tensor]:
        scores, found = [], []
        for start in range(0, len(table), SEARCH_BLOCK):
            block = q @ table[start : start + SEARCH_BLOCK].T
            best, place = block.topk(min(k, block.shape[1]))
            scores.append(best)
            found.append(place + start)
        best, place = torch.cat(scores, 1).topk(k)
        result = best, torch.cat(found, 1).gather(1, place)
        wait()
        return result

    return run


# ---- training --------------------------------------------------------------------------------------------------------


def _trainer(modules: Sequence[nn.Module], clip: float, losses: Sequence[Callable[[], torch.Tensor]]) -> Callable:
    """A step that adds up the gradients of some losses, one after the other; returns their sum."""
    weights = [weight for module in modules for weight in module.train().parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-6, weight_decay=0.0, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device())
        for loss in losses:
            with torch.autocast(device().type, dtype=torch.bfloat16):
                value = loss()
            value.backward()
            total += value.detach()
        nn.utils.clip_grad_norm_(weights, clip)
        optimizer.step()
        return float(total)  # waits

    return step


def _put(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(np.asarray(x).astype(np.int64)).to(device()) for x in arrays]


def contrastive(
    bert: BertConfig,
    params: dict[str, Params],
    questions: tuple[np.ndarray, np.ndarray],
    passages: tuple[np.ndarray, np.ndarray],
) -> Callable[[], float]:
    """One DPR step: each question's passage against all of the batch; passages [B C, L], of each question the first."""
    towers = [make_bert(bert, params[side]["bert"]) for side in ("question", "passage")]
    put = [_put(tokens[:, : lengths.max()], lengths) for tokens, lengths in (questions, passages)]
    own = torch.arange(len(questions[0]), device=device()) * (len(passages[0]) // len(questions[0]))

    def loss() -> torch.Tensor:
        q, p = (tower(*rows)[:, 0].float() for tower, rows in zip(towers, put, strict=True))
        return functional.cross_entropy(q @ p.T, own)

    return _trainer(towers, 2.0, [loss])


class Head(nn.Module):
    """BERT's head of masked language modelling, whose output matrix is the word embedding."""

    def __init__(self, bert: BertConfig):
        super().__init__()
        self.dense, self.norm = nn.Linear(bert.hidden_size, bert.hidden_size), nn.LayerNorm(bert.hidden_size, 1e-12)
        self.bias = nn.Parameter(torch.zeros(bert.vocab_size))

    def forward(self, states: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.norm(functional.gelu(self.dense(states))), table, self.bias)


def mlm(bert: BertConfig, params: Params, batch: Any, chunk: int) -> Callable[[], float]:
    """One step of masked language modelling over a MaskedBatch, `chunk` rows at once."""
    model, head = make_bert(bert, params), Head(bert).to(device())
    tokens, lengths, positions, labels, weights = _put(*batch)
    count = weights.sum()

    def loss(part: slice) -> torch.Tensor:
        states = model(tokens[part], lengths[part])
        used = weights[part].bool()
        row = torch.arange(len(used), device=used.device)[:, None].expand(used.shape)[used]
        scores = head(states[row, positions[part][used]], model.word_embedding.weight)
        return functional.cross_entropy(scores.float(), labels[part][used], reduction="sum") / count

    parts = [slice(start, start + chunk) for start in range(0, len(tokens), chunk)]
    return _trainer((model, head), 1.0, [partial(loss, part) for part in parts])
