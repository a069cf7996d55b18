"""Tiny random models, tokenizers and runs for tests."""

import dataclasses
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import numpy as np
import pytest

from jaxretr.assets import QUICKSTART
from jaxretr.config import (
    Art,
    ArtConfig,
    ArtData,
    Config,
    Contrastive,
    ContrastiveConfig,
    ContrastiveData,
    Encoder,
    LiveIndex,
    Negatives,
    Optimizer,
    Scorer,
    Train,
    Validation,
)
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokenizer_training import train_tokenizer
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.bert import BertEncoder
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params, initialise
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.models.backbones.t5 import T5Config, T5Model
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.hub.encoder_params import export_encoder
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.models.hub.t5_params import export_t5
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.models.scorers import cross_encoder
from jaxretr.models.scorers.cross_encoder_shape import CrossEncoderConfig
from jaxretr.models.scorers.pair_texts import of_tokenizer
from jaxretr.training.steps.batch_loss import ContrastiveProgram

DATA = Path(__file__).parent / "data/wiki_qa"

BERT = BertConfig(
    vocab_size=400,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
)
# A decoder used as an encoder: grouped queries, and a local layer before a global one.
DECODER = RotaryConfig(
    "qwen3", vocab_size=BERT.vocab_size, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, intermediate_size=24, max_position_embeddings=64, hidden_act="silu", norm="rms",
    norm_eps=1e-6, qk_norm=True, causal=True, window=3, local_layers=(True, False),
)  # fmt: skip
T5 = T5Config(vocab_size=400, d_model=16, d_kv=8, d_ff=24, num_heads=2, num_layers=2, num_decoder_layers=2)
# Rows that occur twice in the corpus of `write_supervised`: the passage of question 2, and one that is a negative.
COPIED = (0, 8)

AnyConfig = TypeVar("AnyConfig", bound=Config)


def lively(params: Params, seed: int, noise: float = 0.1) -> Params:
    """Parameters with every bias and scale drawn at random too, so that none can be dropped unnoticed."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: np.asarray(x) + noise * rng.normal(size=x.shape).astype(np.float32), params)


def write_tokenizer(kind: Literal["bert", "t5"], texts: Sequence[str], folder: Path, size: int = 400) -> None:
    """Writes a tokenizer whose vocabulary is the same in every run: all letters, and the most frequent words.

    The one that `train_tokenizer` learns is not: the library breaks ties by the order of a randomly seeded hash map.
    """
    train_tokenizer(kind, texts, size, folder)
    backend = load_tokenizer(folder).backend_tokenizer
    words = Counter(
        word
        for text in texts
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
    )
    content = json.loads((folder / "tokenizer.json").read_text())
    special = [token["content"] for token in content["added_tokens"]]
    letters = sorted({letter for word in words for letter in word})
    frequent = sorted(words.keys() - set(letters), key=lambda word: (-words[word], word))
    vocabulary = [*special, *letters, *(f"##{letter}" for letter in letters), *frequent][:size]
    content["model"]["vocab"] = {token: number for number, token in enumerate(vocabulary)}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def write_models(folder: Path, noise: float = 0.1, *, bert: BertConfig = BERT, t5: T5Config = T5) -> None:
    """Writes `encoder` and `scorer`, Hugging Face folders with vocabularies learnt from the test passages.

    The larger the noise in the encoder's weights, the further apart are the passages' scores.
    """
    texts = [f"{passage.title} {passage.text}" for passage in read_corpus(DATA)]
    for kind, name in (("bert", "encoder"), ("t5", "scorer")):
        write_tokenizer(kind, texts, folder / f"{name}_tokenizer")
    encoder = lively(initialise(lambda rngs: BertEncoder(bert, rngs=rngs), 0), 1, noise)
    write_folder(folder / "encoder", *export_encoder(bert, encoder), load_tokenizer(folder / "encoder_tokenizer"))
    scorer = lively(initialise(lambda rngs: T5Model(t5, rngs=rngs), 0), 2)
    write_folder(folder / "scorer", *export_t5(t5, scorer), load_tokenizer(folder / "scorer_tokenizer"))


def write_cross_encoder(folder: Path) -> Path:
    """Writes a cross-encoder whose scores of the test passages differ, with the tokenizer of `write_models`; returns it."""
    config = CrossEncoderConfig(BERT)
    drawn = {
        BACKBONE: initialise(lambda rngs: BertEncoder(BERT, rngs=rngs), 0),
        cross_encoder.HEAD: cross_encoder.init_head(config, 0),
    }
    params = lively(drawn, 3, 0.3)
    tokenizer = load_tokenizer(folder.parent / "encoder_tokenizer")
    CrossEncoder(config, params, tokenizer, of_tokenizer(tokenizer, 48)).save(folder)
    return folder


def art_config(folder: Path, **changes: dict[str, object]) -> ArtConfig:
    """An ART run on the test passages with the models of `write_models(folder)`.

    `changes` replace fields of sections: art_config(folder, train=dict(steps=3)).
    """
    config = ArtConfig(
        name="tiny",
        data=ArtData(
            corpus=str(DATA), questions=str(DATA), dev_questions=str(DATA), token_cache=str(folder / "tokens")
        ),
        encoder=_encoder(folder),
        scorer=Scorer(path=str(folder / "scorer"), max_length=64, max_question_length=24, chunk=16),
        art=Art(top_k=4),
        index=LiveIndex(refresh_every=20, write_back=True, dtype="float32", block_rows=8, encode_rows=64),
        optimizer=Optimizer(learning_rate=1e-3),
        train=Train(steps=6, batch_size=8, log_every=1, save_every=2, eval_every=3, best_metric="acc@5"),
    )
    return _changed(config, changes)


def contrastive_config(folder: Path, **changes: dict[str, object]) -> ContrastiveConfig:
    """A supervised run on the test questions and judgements, with the encoder of `write_models(folder)`.

    They come without hard negatives; `write_supervised` makes a training file that has some.
    """
    config = ContrastiveConfig(
        name="tiny",
        data=ContrastiveData(train=str(DATA), dev_questions=str(DATA), token_cache=str(folder / "tokens")),
        encoder=_encoder(folder),
        negatives=Negatives(static=0, last_rank=8),
        contrastive=Contrastive(chunk=4),
        index=LiveIndex(refresh_every=20, dtype="float32", block_rows=8, encode_rows=64),
        validation=Validation(batch_size=4),
        optimizer=Optimizer(learning_rate=1e-3),
        train=Train(steps=6, batch_size=8, log_every=1, save_every=2, eval_every=3, best_metric="acc@5"),
    )
    return _changed(config, changes)


def _encoder(folder: Path) -> Encoder:
    return Encoder(path=str(folder / "encoder"), dropout=0.0, max_question_length=16, max_passage_length=48)


def _changed(config: AnyConfig, changes: dict[str, dict[str, object]]) -> AnyConfig:
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **fields) for name, fields in changes.items()}
    )


def contrastive_program(**changes: object) -> ContrastiveProgram:
    """The plainest supervised program, for tests of parts of the step: embeddings of BERT's size, no encoder needed.

    `changes` are its fields, or fields of its sections: contrastive_program(chunk=1, retrieved=3).
    """
    plain = ContrastiveProgram(
        encoder=DualEncoderConfig(BERT),
        encoder_dtype="float32",
        corpus_rows=20,
        index=LiveIndex(block_rows=3, encode_rows=8),
        positives=1,
        sizes=(BERT.hidden_size,),
        negatives=Negatives(last_rank=8),
        chunk=8,
        activation_bytes=0,
    )
    return changed_program(plain, **changes)


def changed_program(program: ContrastiveProgram, **changes: object) -> ContrastiveProgram:
    """A program with other values of its fields, or of the fields of its sections."""
    for name, value in changes.items():
        if not hasattr(program, name):
            sections = ("contrastive", "negatives", "index")
            section = next(each for each in sections if hasattr(getattr(program, each), name))
            name, value = section, dataclasses.replace(getattr(program, section), **{name: value})
        program = dataclasses.replace(program, **{name: value})
    return program


def write_supervised(folder: Path) -> dict[str, str]:
    """Writes a corpus with two copies (22 passages) and DPR's JSON of 10 questions; returns fields of ContrastiveData.

    Question i has i % 4 hard negatives (questions 0 and 8: `negative_ctxs` alone, question 4: none at all), the first
    of them cut so short that it is not a passage of the corpus. Question 1 has a second positive, a negative of question
    0; question 5 has the one of question 4 as well and a third one; and 6 shares its only one with 7.
    """
    corpus = [json.loads(line) for line in (DATA / "corpus.jsonl").read_text().splitlines()]
    passages = {row["_id"]: {name: row[name] for name in ("title", "text")} for row in corpus}
    questions = [json.loads(line) for line in (DATA / "queries.jsonl").read_text().splitlines()]
    judged = dict(
        line.split("\t")[:2]
        for split in ("train", "tydi")
        for line in (DATA / f"qrels/{split}.tsv").read_text().splitlines()[1:]
    )
    gold = [judged[question["_id"]] for question in questions]
    rest = [id for id in passages if id not in gold]
    gold[6] = gold[7]
    further = {1: [rest[3]], 5: [gold[4], rest[0]]}
    rows = []
    for i, question in enumerate(questions):
        others = [passages[rest[(3 * i + j) % len(rest)]] for j in range(6)]
        hard = others[: i % 4]
        if hard:
            hard[0] = {"title": "", "text": " ".join(hard[0]["text"].split()[: 3 + i])}
        rows.append(
            {
                "question": question["text"],
                "answers": [],
                "positive_ctxs": [passages[id] for id in (gold[i], *further.get(i, ()))],
                "hard_negative_ctxs": hard,
                "negative_ctxs": [] if i == 4 else others[3:4],
            }
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.json").write_text(json.dumps(rows))
    corpus += [{**corpus[row], "_id": f"copy of {row}"} for row in COPIED]
    (folder / "corpus.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in corpus))
    return {"train": str(folder / "train.json"), "corpus": str(folder / "corpus.jsonl")}


def compiled_quickly(program: Any) -> Callable[..., Any]:
    """A jitted program that LLVM does not optimise, which halves the time to compile it; for arguments of one form."""
    compiled: list[Any] = []

    def call(*arguments: Any) -> Any:
        if not compiled:
            compiled.append(program.lower(*arguments).compile({"xla_backend_optimization_level": 0}))
        return compiled[0](*arguments)

    return call


@contextmanager
def few_padding_rows() -> Iterator[None]:
    """Runs built inside pad the corpus to a multiple of 8 rows, not 1024: the 20 passages lie on 7 of 8 devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxretr.runtime.parallel.mesh.ROW_MULTIPLE", 8)
        yield


def write_subset(folder: Path, source: Path = QUICKSTART, questions_a_split: int = 16) -> None:
    """Writes a BEIR folder of a few questions of each split of an embedded one, and of their passages."""
    (folder / "qrels").mkdir(parents=True)
    questions, passages = set(), set()
    for split in ("train", "dev", "test"):
        lines = (source / f"qrels/{split}.tsv").read_text().splitlines()[: questions_a_split + 1]
        (folder / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n")
        for line in lines[1:]:
            question, passage, _ = line.split("\t")
            questions.add(question)
            passages.add(passage)
    for name, kept in (("corpus", passages), ("queries", questions)):
        with gzip.open(source / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [line for line in lines if json.loads(line)["_id"] in kept]
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
