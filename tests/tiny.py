"""Tiny random models, tokenizers and ART runs for tests."""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from jaxretr.config import Art, ArtConfig, ArtData, Encoder, Optimizer, Scorer, Train
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokenizer_training import train_tokenizer
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.bert import BertConfig, BertEncoder
from jaxretr.models.bert_params import export_bert
from jaxretr.models.hf_folder import write_folder
from jaxretr.models.layers import Params, initialise
from jaxretr.models.t5 import T5Config, T5Model
from jaxretr.models.t5_params import export_t5

DATA = Path(__file__).parent / "data/wiki_qa"

BERT = BertConfig(
    vocab_size=400,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
)
T5 = T5Config(vocab_size=400, d_model=16, d_kv=8, d_ff=24, num_heads=2, num_layers=2, num_decoder_layers=2)


def lively(params: Params, seed: int) -> Params:
    """Parameters with every bias and scale drawn at random too, so that none can be dropped unnoticed."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: np.asarray(x) + 0.1 * rng.normal(size=x.shape).astype(np.float32), params)


def write_models(folder: Path) -> None:
    """Writes `encoder` and `scorer`, Hugging Face folders with vocabularies learnt from the test passages."""
    texts = [f"{passage.title} {passage.text}" for passage in read_corpus(DATA)]
    for kind, name in (("bert", "encoder"), ("t5", "scorer")):
        train_tokenizer(kind, texts, 400, folder / f"{name}_tokenizer")
    bert = lively(initialise(lambda rngs: BertEncoder(BERT, rngs=rngs), 0), 1)
    write_folder(folder / "encoder", *export_bert(BERT, bert), load_tokenizer(folder / "encoder_tokenizer"))
    t5 = lively(initialise(lambda rngs: T5Model(T5, rngs=rngs), 0), 2)
    write_folder(folder / "scorer", *export_t5(T5, t5), load_tokenizer(folder / "scorer_tokenizer"))


def art_config(folder: Path, **changes: object) -> ArtConfig:
    """An ART run on the test passages with the models of `write_models(folder)`.

    `changes` replace fields of sections: art_config(folder, train=dict(steps=3)).
    """
    config = ArtConfig(
        name="tiny",
        data=ArtData(
            corpus=str(DATA), questions=str(DATA), dev_questions=str(DATA), token_cache=str(folder / "tokens")
        ),
        encoder=Encoder(path=str(folder / "encoder"), dropout=0.0, max_question_length=16, max_passage_length=48),
        scorer=Scorer(path=str(folder / "scorer"), max_length=64, max_question_length=24, chunk=16),
        art=Art(top_k=4, refresh_every=20, index_dtype="float32", block_rows=8, encode_rows=64),
        optimizer=Optimizer(learning_rate=1e-3),
        train=Train(steps=6, batch_size=8, log_every=1, save_every=2, eval_every=3, best_metric="acc@5"),
    )
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **fields) for name, fields in changes.items()}
    )
