"""Tiny encoders of many architectures as sentence-transformers folders, with tokenizers that put their own special tokens."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import sentence_transformers as peer
from peers import torch, transformers
from tiny import DATA

from jaxretr.data.readers import read_corpus

PASSAGES = [passage.text for passage in read_corpus(DATA)][:6]
VOCABULARY, LENGTH = 400, 48
PIECES = ["<pad>", "<bos>", "<eos>", "<unk>", "<|endoftext|>"]
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
HEADS = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
PROMPTS = {"query": "Instruct: find it\nQuery: ", "document": "", "STS": "as similar: "}
BOTH = ["<bos>", "$A", "<eos>"]


@dataclass(frozen=True)
class Make:
    """How a folder is made.

    Attributes:
      name: of the classes in transformers.
      settings: of its config.
      around: special tokens, and "$A" for the text.
      side: of the padding.
      pooling: by sentence-transformers' name.
      dense: sizes and torch's activations of Dense layers; that of 12 has no bias.
      prompts: by name.
      cls: whether the tokenizer calls the two <bos> and <eos> [CLS] and [SEP].
    """

    name: str
    settings: dict[str, Any]
    around: list[str] = field(default_factory=lambda: BOTH)
    side: str = "right"
    pooling: str = "mean"
    dense: tuple[tuple[int, str], ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    cls: bool = False


MAKES = {
    # As Qwen3-Embedding: an appended end token, padding on the left, the last token.
    "qwen3": Make("Qwen3", HEADS, ["$A", "<|endoftext|>"], "left", "lasttoken", prompts=PROMPTS),
    # As e5-mistral: both ends.
    "mistral": Make("Mistral", HEADS | {"sliding_window": 6}, pooling="lasttoken", prompts=PROMPTS),
    # No special tokens at all.
    "qwen2": Make("Qwen2", HEADS | {"head_dim": 4}, ["$A"], "left"),
    "llama": Make("Llama", HEADS, ["<bos>", "$A"], "left", "weightedmean", ((6, "Tanh"),)),
    # As EmbeddingGemma: both directions, the mean, two Dense layers.
    "gemma3_text": Make(
        "Gemma3Text",
        HEADS | {"use_bidirectional_attention": True, "sliding_window": 8, "query_pre_attn_scalar": 8},
        dense=((24, "Identity"), (12, "Identity")),
        prompts=PROMPTS,
    ),
    "modernbert": Make(
        "ModernBert",
        SIZES | {"local_attention": 8, "bos_token_id": 1, "eos_token_id": 2},
        pooling="cls",
        prompts={"query": "search_query: ", "document": "search_document: "},
        cls=True,
    ),
    "nomic_bert": Make("NomicBert", SIZES, prompts=PROMPTS, cls=True),
    "gte": Make("Gte", SIZES, pooling="cls", cls=True),
    "roberta": Make("Roberta", SIZES, cls=True),
}


def make_tokenizer(around: list[str], side: str, *, cls: bool) -> Any:
    """Pairs of bytes, and special tokens put around a text by the tokenizer itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learnt.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learnt.train_from_iterator(
        PASSAGES, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=PIECES, initial_alphabet=alphabet)
    )
    special = [(piece, PIECES.index(piece)) for piece in around if piece != "$A"]
    if special:
        learnt.post_processor = processors.TemplateProcessing(single=around, special_tokens=special)
    names = {"cls_token": "<bos>", "sep_token": "<eos>"} if cls else {}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=learnt, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side=side, **names
    )


def write_encoder(kind: str, folder: Path, noise: float = 0.1) -> None:
    """Writes a Hugging Face folder with random weights, norms and biases too."""
    make = MAKES[kind]
    torch.manual_seed(7)
    encoder = getattr(transformers, f"{make.name}Model")(getattr(transformers, f"{make.name}Config")(**make.settings))
    for parameter in encoder.parameters():
        parameter.data += noise * torch.randn(parameter.shape)
    encoder.save_pretrained(folder)
    make_tokenizer(make.around, make.side, cls=make.cls).save_pretrained(folder)


def write_modules(kind: str, folder: Path) -> None:
    """Writes what sentence-transformers does with that encoder in it."""
    from sentence_transformers import models

    make, inputs = MAKES[kind], 16
    write_encoder(kind, folder / "encoder")
    modules = [
        models.Transformer(str(folder / "encoder"), max_seq_length=LENGTH),
        models.Pooling(inputs, pooling_mode=make.pooling),
    ]
    for size, activation in make.dense:
        modules.append(models.Dense(inputs, size, bias=size != 12, activation_function=getattr(torch.nn, activation)()))
        inputs = size
    modules.append(models.Normalize())
    peer.SentenceTransformer(modules=modules, device="cpu", prompts=make.prompts).save(str(folder / "model"))
