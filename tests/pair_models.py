"""Tiny cross-encoders and causal language models of many architectures, made by transformers with random weights; and a
generator of questions that quotes."""

from pathlib import Path
from typing import Any

import numpy as np
from encoder_parity import SEED, randomised
from peers import torch, transformers
from rotary_models import MODELS
from small_encoders import HEADS, PASSAGES, PIECES, SIZES, VOCABULARY

from jaxretr.models.generation.decoding import Generated
from jaxretr.models.question_generator import QuestionGenerator

PAIRS = [
    ("who lives there?", PASSAGES[0][:120]),
    ("what is it", PASSAGES[1][:60]),
    ("when", PASSAGES[2][:200]),
    ("how many people were in the town in that year, and why?", PASSAGES[3][:90]),
    ("is it", "It is."),
    (" what <pad> is", "<pad> it? <pad>"),
]

# The class's name in transformers without its ending, its settings, and what its tokenizer puts around two texts.
_BERT = ["<bos>", "$A", "<eos>", "$B:1", "<eos>:1"]
_ROBERTA = ["<bos>", "$A", "<eos>", "<eos>", "$B", "<eos>"]
_MODERN = SIZES | {"local_attention": 8, "bos_token_id": 1, "eos_token_id": 2}
_MAKES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "bert": ("Bert", SIZES, _BERT),
    "xlm-roberta": ("XLMRoberta", SIZES | {"type_vocab_size": 1, "max_position_embeddings": 70}, _ROBERTA),
    "distilbert": ("DistilBert", {"vocab_size": 500, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24}, _BERT),
    "mpnet": ("MPNet", SIZES | {"pad_token_id": 1, "max_position_embeddings": 70}, _ROBERTA),
    "modernbert": ("ModernBert", _MODERN, _BERT),
    "modernbert, mean": (
        "ModernBert",
        _MODERN | {"classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True},
        _BERT,
    ),
    "nomic_bert": ("NomicBert", SIZES, _BERT),
    "gte": ("Gte", SIZES, _ROBERTA),
    "qwen3": ("Qwen3", HEADS, ["$A", "$B"]),
    "qwen3, answers": ("Qwen3", HEADS | {"max_position_embeddings": 256}, ["$A", "$B"]),
    "qwen3_lm": ("Qwen3", HEADS | {"max_position_embeddings": 128}, ["$A", "$B"]),
}
KINDS = [kind for kind in _MAKES if kind != "qwen3_lm"]

# Short, and like Qwen3-Reranker's.
TEMPLATE = (
    "<|im_start|>Answer yes or no.\n<Query>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | "
    "first }}\n<Document>: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    "<|im_end|>\n"
)


# Models that generate, by the id of the token that ends a text: with grouped heads, norms of queries and keys, windows shorter
# than the prompts, and relative positions beyond the last bucket.
GENERATORS = {"llama": 2, "qwen3": 2, "gemma3_text, causal": 2, "t5": 1}
LM_VOCABULARY = 96


def random_lm(case: str) -> Any:
    """A model of transformers that generates, with every parameter drawn at random."""
    torch.manual_seed(SEED)
    sizes = {"vocab_size": LM_VOCABULARY, "eos_token_id": GENERATORS[case], "pad_token_id": 0}
    if case == "t5":
        sizes |= {"d_model": 16, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
        sizes |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 8}
        return randomised(transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)))
    name, settings = MODELS[case]
    config = getattr(transformers, f"{name}Config")(**(settings | sizes | {"max_position_embeddings": 64}))
    return randomised(getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config))


def make_model(kind: str, folder: Path, *, labels: int = 1, tied: bool = False) -> Path:
    """Writes a Hugging Face folder with random weights, norms and biases too; returns it."""
    name, settings, around = _MAKES[kind]
    settings = settings | {"vocab_size": VOCABULARY + 20}
    torch.manual_seed(11)
    if kind in ("qwen3, answers", "qwen3_lm"):
        config = transformers.Qwen3Config(**settings, tie_word_embeddings=tied)
        model = transformers.Qwen3ForCausalLM(config)
    else:
        config = getattr(transformers, f"{name}Config")(**settings, num_labels=labels)
        model = getattr(transformers, f"{name}ForSequenceClassification")(config)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    model.save_pretrained(folder)
    # MPNet's padding has the id 1, whatever config.json says.
    tokenizer = _pair_tokenizer(around, ["<bos>", "<pad>", *PIECES[2:]] if name == "MPNet" else PIECES)
    tokenizer.padding_side = "left" if name == "Qwen3" else "right"
    if kind == "qwen3, answers":
        tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def _pair_tokenizer(around: list[str], pieces: list[str]) -> Any:
    """Pairs of bytes, as in small_encoders.py, and special tokens around two texts."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    learnt = Tokenizer(models.BPE())
    # As Qwen's: a space goes with the word behind it, a line break with the full stop before it.
    words = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    learnt.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    learnt.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [*PASSAGES, "yes no?\n.\n why?\n Query Document"] * 3
    learnt.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=pieces, initial_alphabet=alphabet)
    )
    learnt.add_tokens(["yes", "no"])
    learnt.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    special = [(piece, number) for number, piece in enumerate(pieces)]
    single = [piece for piece in around[: around.index("$A") + 2] if not piece.startswith("$B")]
    learnt.post_processor = processors.TemplateProcessing(single=single, pair=around, special_tokens=special)
    names = {"cls_token": "<bos>", "sep_token": "<eos>"} if "<bos>" in around else {}
    types = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if "$B:1" in around else {}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=learnt, pad_token="<pad>", eos_token="<eos>", **names, **types
    )


class Quoting(QuestionGenerator):
    """Asks about each passage with words of it, which depend on the number of the passage."""

    def generate_tokens(self, passages: Any, *, numbers: Any = None, **settings: Any) -> Generated:
        width = settings["sampling"].max_new_tokens
        tokens, counts = np.zeros((len(passages), width), np.int32), np.zeros(len(passages), np.int32)
        for row, (passage, number) in enumerate(zip(passages, numbers, strict=True)):
            words = passage["text"].split()[int(number) % 5 :][:4]
            ids = self.tokenizer(" ".join(words), add_special_tokens=False)["input_ids"][:width]
            tokens[row, : len(ids)], counts[row] = ids, len(ids)
        return Generated(tokens, counts, np.full(len(passages), -1.0, np.float32), np.ones(len(passages), bool))
