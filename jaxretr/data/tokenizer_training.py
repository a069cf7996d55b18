"""Small vocabularies for the encoders and scorers that are pretrained from scratch.

Both are uncased: questions are often typed in lower case, and a small scorer can recognise a question's word in a
passage only when the two are the same token.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal

from jaxretr.data.tokens import from_transformers

# Characters that a vocabulary knows: this number, or as many as make up this share of the text. For English these are
# the 400; Chinese, in which each character is a word, needs thousands.
_ALPHABET, _ALPHABET_SHARE = 400, 0.9995


def train_tokenizer(kind: Literal["bert", "t5"], texts: Iterable[str], vocab_size: int, folder: Path) -> None:
    """Train a tokenizer and write a folder that `transformers.AutoTokenizer` reads.

    Args:
      kind: "bert" = with [PAD] [UNK] [CLS] [SEP] [MASK]; "t5" = with <pad> </s> <unk>. Both are WordPiece: on
        passages of Wikipedia a Unigram vocabulary of the same 8,192 entries needs a sixth more tokens.
      texts: the texts to learn the vocabulary from.
      vocab_size: number of entries, special ones included.
      folder: created; receives tokenizer.json and tokenizer_config.json.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    fast_class = from_transformers("PreTrainedTokenizerFast")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] if kind == "bert" else ["<pad>", "</s>", "<unk>"]
    unknown = special[1] if kind == "bert" else special[2]
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    texts = list(texts)
    alphabet = max(_ALPHABET, min(_alphabet(texts), vocab_size - len(special)))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=special, limit_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if kind == "bert":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    else:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
        names = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
    fast = fast_class(
        tokenizer_object=tokenizer, model_max_length=512, **{f"{name}_token": token for name, token in names.items()}
    )
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)


def _alphabet(texts: Sequence[str]) -> int:
    """The number of most frequent characters that together make up _ALPHABET_SHARE of the texts."""
    counts = Counter(character for text in texts for character in text.lower() if not character.isspace())
    wanted = _ALPHABET_SHARE * counts.total()
    return sum(seen < wanted for seen in accumulate(sorted(counts.values(), reverse=True))) + 1
