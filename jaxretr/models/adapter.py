"""`Adapter`: a dual encoder's adapters without the encoder, as DDR's relevance module is kept and exchanged."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, get_args

import jax
import numpy as np

from jaxretr.data.tokens import tokenizer_fingerprint
from jaxretr.models.backbones.adapter_layers import count
from jaxretr.models.backbones.backbone_config import TRAINING_ONLY, Backbone
from jaxretr.models.backbones.layers import Params
from jaxretr.models.embed import DualEncoderConfig, Side
from jaxretr.models.hub import adapter_folder, adapter_formats
from jaxretr.models.hub.adapter_folder import AdapterParts
from jaxretr.runtime.errors import UserError, check_choice


class Adaptable(Protocol):
    """Interface of a model that adapters are put into, which `DualEncoder` has."""

    config: DualEncoderConfig
    params: Params
    tokenizer: Any

    def without_adapters(self) -> Self:
        """Return the model without its adapters."""
        ...

    def replaced(self, config: DualEncoderConfig, params: Params) -> Self:
        """Return a model of another configuration and other parameters."""
        ...


M = TypeVar("M", bound=Adaptable)


@dataclass(frozen=True, repr=False)
class Adapter(AdapterParts):
    """A relevance module: small modules that make a retriever of any encoder of their shape.

    Attributes:
      shape: shape of the modules.
      params: {"shared": modules} or {"question": modules, "passage": modules}, laid out as by `init_adapter`, float32.
      encoder: the dual encoder that they were trained in, for its pooling, lengths and sizes; None where the file does
        not tell (PEFT, adapter-transformers).
      tokenizer: that encoder's `tokenizer_fingerprint`, or None.
    """

    def __repr__(self) -> str:
        shape = self.shape
        kinds = [f"LoRA of rank {shape.lora_rank}"] if shape.lora_rank else []
        kinds += [f"parallel adapters of {shape.bottleneck}"] if shape.bottleneck else []
        return f"Adapter({' and '.join(kinds)}, for {' and '.join(self.params)}, {self.size:,} parameters)"

    @property
    def size(self) -> int:
        """Number of parameters."""
        return count(self.params)

    @staticmethod
    def of(model: Adaptable) -> "Adapter":
        """Return the adapters of a model.

        Raises:
          UserError: the model has no adapters.
        """
        if model.config.adapter is None:
            raise UserError("this model has no adapters; train it with encoder.adapter set")
        params = {name: tower["adapter"] for name, tower in model.params.items()}
        encoder = dataclasses.replace(model.config, lora_merged=False)
        return Adapter(model.config.adapter, params, encoder, tokenizer_fingerprint(model.tokenizer))

    @staticmethod
    def from_pretrained(path: str | Path, *, backbone: Backbone | None = None) -> "Adapter":
        """Load adapters.

        Args:
          path: a folder that `save` wrote, a model or run directory with adapters, a folder of PEFT (LoRA) or of
            adapter-transformers (LoRA and parallel adapters), or a hub name of such a folder.
          backbone: shape of the encoder that they are for, which the layouts of other libraries do not state.

        Raises:
          UserError: there are no adapters, or they cannot be represented.
        """
        return Adapter(**vars(adapter_folder.load(path, backbone)))

    def save(self, folder: str | Path) -> None:
        """Write adapter.json and adapter.safetensors (float32); both appear at once.

        Args:
          folder: a new or empty folder, or an older adapter, which is replaced.

        Raises:
          UserError: the folder holds something else, or cannot be written.
        """
        adapter_folder.save(Path(folder).expanduser(), self)

    def save_peft(self, folder: str | Path, base_model: str, *, side: Side = "passage") -> None:
        """Write LoRA in the layout of PEFT, for `peft.PeftModel.from_pretrained(encoder, folder)`.

        Args:
          folder: a new or empty folder, or an older one of this kind, which is replaced.
          base_model: path or hub name of the encoder, for the file.
          side: tower whose adapters are written, if there are two; a folder of PEFT has one.

        Raises:
          UserError: there is a parallel adapter, no LoRA, or the folder holds something else.
        """
        check_choice(get_args(Side), side=side)
        if self.encoder is None:
            raise UserError("these adapters were read from another library's folder; use that one")
        modules = self.params["shared"] if "shared" in self.params else self.params[side]
        adapter_formats.write_peft(folder, self.shape, modules, self.encoder.backbone, base_model)

    def put_into(self, model: M) -> M:
        """Return the model with these adapters in place of its own.

        Args:
          model: the model, whose encoder, projection and tokenizer stay. If the adapters know the dual encoder that
            they were trained in, the model takes over its pooling, normalisation, template, lengths and number of
            towers.

        Raises:
          UserError: the encoder has another shape, or reads another vocabulary than they were trained with.
        """
        model = model.without_adapters()
        if self.encoder is not None:
            _check_shape(self.encoder, model.config)
        if self.tokenizer is not None and self.tokenizer != tokenizer_fingerprint(model.tokenizer):
            raise UserError(
                "the adapters were trained with another tokenizer than this encoder has; give an encoder that was "
                "adapted from the same one"
            )
        settings = model.config if self.encoder is None else self.encoder
        config = dataclasses.replace(settings, backbone=model.config.backbone, adapter=self.shape, lora_merged=False)
        backbones = model.params if model.config.shared == config.shared else _with_towers(model, config.shared)
        modules = self.params if set(self.params) == set(backbones) else dict.fromkeys(backbones, self.params["shared"])
        params = {name: {**backbones[name], "adapter": modules[name]} for name in backbones}
        return model.replaced(config, params)


def _with_towers(model: Adaptable, shared: bool) -> Params:
    if not shared:
        return {side: jax.tree.map(np.array, model.params["shared"]) for side in ("question", "passage")}
    if not same_towers(model.params):
        raise UserError(
            "the adapters are for one shared tower, but this encoder's two towers differ; give an encoder of one tower"
        )
    return {"shared": model.params["question"]}


def same_towers(params: Params) -> bool:
    """Whether all towers have the same encoder, bit for bit."""
    first, *others = ({**tower, "adapter": {}} for tower in params.values())
    return all(
        jax.tree.structure(first) == jax.tree.structure(other)
        and all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(other)))
        for other in others
    )


def _check_shape(trained: DualEncoderConfig, given: DualEncoderConfig) -> None:
    one, other = (dataclasses.asdict(config.backbone) for config in (trained, given))
    names = [name for name in one | other if name not in TRAINING_ONLY]
    different = next((name for name in names if one.get(name) != other.get(name)), None)
    if different is not None:
        raise UserError(
            f"the adapters were trained in an encoder with {different} {one.get(different)}, and this one has "
            f"{other.get(different)}; give an encoder of the same shape"
        )
