"""The model of a joint run: a base encoder that is trained and a frozen lexical one beside it."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from jaxretr.config import Encoder, Joint
from jaxretr.data.tokens import tokenizer_fingerprint
from jaxretr.errors import UserError
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, JointConfig, joint_params
from jaxretr.models.formats.model_shapes import encoder_shape
from jaxretr.models.layers import Params
from jaxretr.recipes.encoder_start import encoder_config, load_encoder

_APART = "{}: trained jointly, both encoders read the same token ids, but this one has"


def joint_config(encoder: Encoder, joint: Joint) -> JointConfig:
    """The configuration of the `JointModel` of these settings, told without any weights."""
    assert joint.lexical is not None
    return _joined(encoder_config(encoder), encoder_shape(joint.lexical), joint.lexical)


def _joined(base: DualEncoderConfig, lexical: DualEncoderConfig, where: str) -> JointConfig:
    longest = max(base.max_question_length, base.max_passage_length)
    if longest > (positions := lexical.bert.max_position_embeddings):
        raise UserError(
            f"{_APART.format(where)} {positions} positions, the config asks for {longest}; lower encoder.max_*_length"
        )
    frozen = dataclasses.replace(
        lexical,
        bert=dataclasses.replace(lexical.bert, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        max_question_length=base.max_question_length,
        max_passage_length=base.max_passage_length,
    )
    return JointConfig(base, frozen)


class JointModel:
    """What a run needs of a model: its configuration, its first parameters, its tokenizer, and how it is saved."""

    def __init__(self, encoder: Encoder, joint: Joint, seed: int):
        """Loads both encoders.

        Args:
          encoder: the base that is trained.
          joint: the lexical one.
          seed: of a base that is drawn anew.

        Raises:
          UserError: the two read different rows of token ids, or the lexical one has too few positions.
        """
        base = load_encoder(encoder, seed)
        assert joint.lexical is not None
        lexical = DualEncoder.from_pretrained(joint.lexical)
        apart = _APART.format(joint.lexical)
        remedy = "train the base alone and put the two together with `jaxretr combine`"
        if tokenizer_fingerprint(base.tokenizer) != tokenizer_fingerprint(lexical.tokenizer):
            raise UserError(f"{apart} another tokenizer than {encoder.path}; {remedy}")
        if base.config.passage_template != lexical.config.passage_template:
            raise UserError(f"{apart} the template '{lexical.config.passage_template}' for passages; {remedy}")
        self.config = _joined(base.config, lexical.config, joint.lexical)
        self.params: Params = joint_params(base.params, lexical.params, joint.weight)
        self.tokenizer: Any = base.tokenizer

    def save(self, params: Params, folder: Path) -> None:
        """Writes both encoders and the weight as one model."""
        params = jax.device_get(params)
        parts = [
            DualEncoder(config, params[name], self.tokenizer)
            for name, config in (("base", self.config.base), ("lexical", self.config.lexical))
        ]
        if jax.process_index() == 0:
            CombinedEncoder(parts, [1.0, float(params["weight"])], "concatenate").save(folder)
