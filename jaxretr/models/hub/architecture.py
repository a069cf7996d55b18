"""The record of an architecture's Hugging Face folders, by which everything here reads and writes.

A new architecture is a new record in the file of its family (bert_family.py, rotary_names.py, t5_encoder.py); the list
of all is `ARCHITECTURES` in encoder_params.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from jaxretr.config import Pooling
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.layers import ACTIVATIONS, Params
from jaxretr.models.hub.hf_files import config_fields
from jaxretr.models.hub.name_table import NO_NAME, Row, rows_of
from jaxretr.models.hub.tensor_files import TensorFiles
from jaxretr.models.scorers.cross_encoder_shape import HeadShape
from jaxretr.runtime.errors import UserError

ACTIVATION_NAMES = {name: name for name in ACTIVATIONS} | {"gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_new"}
"""Our names of activations by Hugging Face's."""

DprKind = Literal["dpr-question", "dpr-context"]


@dataclass(frozen=True)
class EncoderCheckpoint:
    """Everything that was read from an encoder's checkpoint, of any architecture.

    Attributes:
      config: shape of the encoder.
      params: parameters of the encoder, nested dict of float32 numpy arrays.
      projection: DPR's linear layer on the [CLS] state, {"kernel": [D, P], "bias": [P]}, or None.
      mlm_head: head of masked language modelling, {"dense": {"kernel": [D, D], "bias": [D]}, "norm": {"scale": [D],
        "bias": [D]}, "bias": [V]}, whose decoder is the word embedding; without the biases that the architecture lacks;
        or None.
      kind: `Architecture.name`, or a tower of DPR.
    """

    config: Backbone
    params: Params
    projection: Params | None
    mlm_head: Params | None
    kind: str


@dataclass(frozen=True)
class HeadNames:
    """The classification head that transformers puts on an architecture, in its class ...ForSequenceClassification.

    Attributes:
      shape: shape of the head.
      out: name of its last layer.
      dense: name of the dense layer before that, if there is one; "{}" stands for `Architecture.prefix`.
      norm: name of its LayerNorm, if there is one.
    """

    shape: HeadShape
    out: str = "classifier"
    dense: str = ""
    norm: str = ""


WITH_POOLER = HeadNames(HeadShape(), dense="{}pooler.dense")
"""BERT's pooler, which the encoder's name precedes, and a linear layer."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The record of an architecture. Subclasses, one per family, know the dialects of config.json.

    Attributes:
      name: our name.
      model_type: its name in config.json; empty: the same.
      cls: begin of the names of its classes in transformers, or in the code on the hub.
      classes: classes with the same encoder besides `encoder` and `masked_lm`; everything else in them is not read.
      prefixes: prefixes of the encoder's tensors in all of these: that of `encoder`'s own folder, that of the classes
        which have more than the encoder, and older ones.
      words: name of the word embeddings' module.
      outer: our names of other modules outside the layers -> theirs.
      modules: our names of a layer's dense parts -> the modules' in the class, within a layer, as PEFT names them.
      layer: prefix of these names, with "{}" for the layer's number.
      norms: our names of a layer's norms -> theirs.
      stored: names of the dense parts in the folder's tensors, where they are not those of `modules`.
      stored_layer: their prefix, where it is not `layer`.
      fused: their names of tensors that hold several of our kernels -> ours, in order; in transformers' modules these
        kernels are separate.
      mlm_modules: our names of the modules of the head of masked language modelling -> theirs; empty: it is not read.
      decoder: second names of the word embedding, and of that head's bias -> the first ones.
      head: the classification head; None: there is none.
      defaults: values that transformers assumes where a config.json is silent.
      settings: our names of settings -> theirs, in the newest dialect first.
      constants: values that config.json must state, or leave out.
      pooler: whether `encoder` has one, which no retriever here uses.
      loaded_by: class of transformers that loads the encoder's folder.
      pooling: pooling of folders that state none, unless tokens see only what came before them.
      length: length in tokens of texts where a folder states none; None: the encoder's positions.
      title: usual name; empty: it follows from `cls`.
    """

    name: str
    model_type: str = ""
    cls: str
    classes: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    words: str
    outer: Mapping[str, str]
    modules: Mapping[str, str]
    layer: str
    norms: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    stored_layer: str = ""
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mlm_modules: Mapping[str, str] = field(default_factory=dict)
    decoder: Mapping[str, str] = field(default_factory=dict)
    head: HeadNames | None = None
    defaults: Any
    settings: Mapping[str, tuple[str, ...]]
    constants: Mapping[str, Any] = field(default_factory=dict)
    pooler: bool = False
    loaded_by: str = "AutoModel"
    pooling: Pooling = "cls"
    length: int | None = None
    title: str = ""

    ignored: ClassVar[re.Pattern[str]] = NO_NAME
    """Pattern for the names of tensors that may exist and are not needed."""

    @property
    def encoder(self) -> str:
        """Class of the encoder."""
        return f"{self.cls}Model"

    @property
    def masked_lm(self) -> str:
        """Class that also has the head of masked language modelling; empty: such a head is not read or written."""
        return f"{self.cls}ForMaskedLM" if self.mlm_modules else ""

    @property
    def classifier(self) -> str:
        """Class that has the classification head; empty: there is none."""
        return "" if self.head is None else f"{self.cls}ForSequenceClassification"

    @property
    def prefix(self) -> str:
        """Prefix of the encoder's tensors in a class that has more than the encoder."""
        return self.prefixes[1] if len(self.prefixes) > 1 else ""

    @property
    def display_name(self) -> str:
        """Usual name of such an encoder."""
        name = self.cls.removesuffix("Text").replace("Bert", "BERT")
        return self.title or name.replace("berta", "BERTa").replace("bert", "BERT")

    @property
    def all_classes(self) -> tuple[str, ...]:
        """Classes whose folders can be read."""
        return tuple(filter(None, (self.encoder, self.masked_lm, *self.classes)))

    # ---- config.json -------------------------------------------------------------------------------------------------

    def reads(self, stated: str, model_type: Any) -> bool:
        """Whether a config.json belongs to this architecture, by the class and the type of model that it states."""
        by_type = model_type == (self.model_type or self.name)
        return stated in self.all_classes and (by_type or not model_type) if stated else by_type

    def shape(self, config: Mapping[str, Any], where: str) -> Any:
        """Return the shape that a config.json states; raises UserError, which names `where`."""
        raise NotImplementedError

    def projection(self, config: Mapping[str, Any], where: str) -> int:
        """Return the size of DPR's projection that a config.json states, 0 without one."""
        return 0

    def values(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the settings that a config.json states or leaves to their defaults, under our names."""
        for key, supported in self.constants.items():
            if config.get(key, supported) not in (supported, None):
                raise UserError(f"{where}: config.json has {key} {config[key]!r}; only {supported!r} is supported")
        values = {}
        for ours, theirs in self.settings.items():
            name = next((name for name in theirs if config.get(name) is not None), theirs[0])
            found = config_fields(config, {name: getattr(self.defaults, ours)}, f"{where}/config.json")[name]
            if ours == "hidden_act":
                found = "silu" if found == "swiglu" else found
                if found not in ACTIVATION_NAMES:
                    raise UserError(
                        f"{where}: config.json has {name} '{found}'; supported: {', '.join(ACTIVATION_NAMES)}"
                    )
                found = ACTIVATION_NAMES[found]
            values[ours] = found
        return values

    def content(self, shape: Any, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of config.json, with `identity` (class and type of the model) among it."""
        return {theirs[0]: getattr(shape, ours) for ours, theirs in self.settings.items()} | dict(identity)

    def check(self, shape: Any, where: str, *, bag_of_words: bool = False) -> None:
        """Raise UserError, which names `where`, for sizes that no encoder has; a `bag_of_words` may have no layers."""
        least = {"num_hidden_layers": 0} if bag_of_words else {}
        if wrong := next((name for name, size in shape.sizes().items() if size < least.get(name, 1)), None):
            raise UserError(f"{where}: {wrong} is {getattr(shape, wrong)}, but must be at least 1; correct it")

    # ---- tensors -----------------------------------------------------------------------------------------------------

    def prepared(self, tensors: TensorFiles) -> TensorFiles:
        """Return a checkpoint's tensors under the names that `rows` has."""
        return tensors

    def rows(self, shape: Any, params: Params) -> list[Row]:
        """Return the table of names for the encoder's parameters or their shapes, without a prefix."""
        inner = {ours: (theirs, (0, 1)) for ours, theirs in {**(self.stored or self.modules), **self.norms}.items()}
        for theirs, parts in self.fused.items():
            inner |= {ours: (theirs, (number, len(parts))) for number, ours in enumerate(parts)}
        modules = {f"layers/{ours}": (self.stored_layer or self.layer) + theirs for ours, (theirs, _) in inner.items()}
        rows = rows_of(params, {"word_embedding": self.words, **self.outer, **modules})
        parts = {f"layers/{ours}": part for ours, (_, part) in inner.items()}
        return [replace(row, part=parts.get(row.ours.rsplit("/", 1)[0], (0, 1))) for row in rows]

    def head_rows(self, params: Params) -> list[Row]:
        """Return the table of names for the classification head's parameters or their shapes, {"head": ...}."""
        assert self.head is not None
        dense = self.head.dense.format(self.prefix)
        return rows_of(params, {"head/out": self.head.out, "head/dense": dense, "head/norm": self.head.norm})

    def finish(self, shape: Any, params: Params, tensors: TensorFiles, prefix: str) -> None:
        """Change parameters in place after they were read, where a tensor has more to say than its own parameter."""
