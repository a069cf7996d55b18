"""Hashes of what decides the numbers of a store of embeddings: the model and the texts."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from jaxretr.data.corpus import Corpus, content_fingerprint
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.questions import Question
from jaxretr.data.tokens import tokenizer_fingerprint
from jaxretr.models.backbones.backbone_config import TRAINING_ONLY, kind_of
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.partition import add_to_digest
from jaxretr.models.combined_encoder import CombinedEncoder, parts_of
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import Side

# Settings of BertConfig that are newer than the first stores.
_LATER = ("architecture", "pad_token_id", "relative_attention_num_buckets")


def model_fingerprint(encoder: DualEncoder | CombinedEncoder, side: Side = "passage") -> str:
    """A sha256 (hexadecimal) over everything that decides an encoder's embeddings of one side.

    A dual encoder without prompts has one for both sides, over both towers. A combined encoder's weights decide the
    vectors of questions alone, so passages encoded with some weights are those of the same parts with any others.
    """
    if isinstance(encoder, CombinedEncoder):
        parts = [model_fingerprint(part, side) for part in encoder.parts]
        weights = encoder.config.weights if side == "question" else None
        return hashlib.sha256(json.dumps([encoder.config.how, parts, weights]).encode()).hexdigest()
    config, shape = encoder.config.to_json(), encoder.config.backbone
    settings = config[kind_of(shape)]
    for name in TRAINING_ONLY:
        settings.pop(name)
    for field in dataclasses.fields(BertConfig) if isinstance(shape, BertConfig) else ():
        if field.name in _LATER and settings[field.name] == field.default:
            settings.pop(field.name)  # The fingerprints of older stores lack it.
    if encoder.config.embedding_size == encoder.config.full_size:
        config.pop("truncate_dim")  # Nothing is cut; older fingerprints lack it.
    config.pop("query_weights")  # The parameters tell it.
    if not encoder.config.ignored_tokens:
        config.pop("ignored_tokens")
    config.pop("prompts")  # They belong to other tasks.
    if not encoder.config.inner_dense:
        config.pop("inner_dense")
    if encoder.config.projection_activation == "identity":
        config.pop("projection_activation")
    # The other side's prompt does not change this side's vectors.
    prompts: dict[Side, str] = {"question": config.pop("query_prompt"), "passage": config.pop("passage_prompt")}
    if prompts[side]:
        config["prompt"] = prompts[side]
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    digest.update(tokenizer_fingerprint(encoder.tokenizer).encode())
    add_to_digest(digest, encoder.params)
    return digest.hexdigest()


def search_fingerprint(encoder: DualEncoder | CombinedEncoder) -> str:
    """A sha256 (hexadecimal) over everything that decides what an encoder finds: its embeddings of both sides.

    That of the questions alone does not know the prompt of the passages.
    """
    of_questions = model_fingerprint(encoder, "question")
    prompts = [part.config.passage_prompt for part in parts_of(encoder)]
    if not any(prompts):
        return of_questions
    return hashlib.sha256(json.dumps([of_questions, prompts]).encode()).hexdigest()


def texts_fingerprint(content: Corpus | CorpusStream | Sequence[Question]) -> str:
    """A sha256 (hexadecimal) over ids, titles and texts, in their order."""
    if isinstance(content, CorpusStream):
        return content.fingerprint
    if isinstance(content, Corpus):
        return content.fingerprint()
    return content_fingerprint([question.id for question in content], [question.text for question in content])
