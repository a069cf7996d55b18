"""Reads a sentence-transformers folder: its modules, and their settings."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

import numpy as np

from jaxretr.config import SPLADE, Pooling, QueryWeights
from jaxretr.models.backbones.layers import Params
from jaxretr.models.hub.hf_files import read_json
from jaxretr.models.hub.poolings import POOLINGS
from jaxretr.models.hub.tensor_files import TensorFiles
from jaxretr.runtime.errors import UserError, did_you_mean, some_names
from jaxretr.runtime.notes import note

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
ROUTER = "router_config.json"
LIMITS = "sentence_bert_config.json"

# The order that is supported; the last two may be absent, and there may be several Dense modules.
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")

_SPARSE = {"MLMTransformer": "Transformer", "SpladePooling": "Pooling"}
"""Modules of sparse encoders, in place of those of dense ones; newer releases have the same Transformer in both."""

STATIC = "SparseStaticEmbedding"
"""Module of a Router's query route that gives each word of a question a weight of its own."""

Activation = Literal["identity", "tanh"]
ACTIVATIONS: dict[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
}
"""Activations that may follow a Dense module, with torch's names."""

QUERY, PASSAGE = "query", "document"
"""Names of the prompts for the two sides."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StaticQueries:
    """The SparseStaticEmbedding of a Router's query route.

    Attributes:
      folder: its folder, with a tokenizer.
      kind: whether sentence-transformers trains the weights on.
    """

    folder: Path
    kind: QueryWeights

    def read(self, tokenizer: Any) -> np.ndarray:
        """Return the weight of each entry of the tokenizer's vocabulary, float32 [V]; those below 0 count as 0 here.

        Raises:
          UserError: no vector of weights, or those of unknown words.
        """
        if (path := read_json(self.folder, "config.json").get("path")) is not None:
            stated = read_json(self.folder, str(path))
            known = tokenizer.get_vocab()
            if unknown := [word for word, weight in stated.items() if word not in known or not _is_number(weight)]:
                raise UserError(f"{self.folder / path}: no weights of the tokenizer's entries: {some_names(unknown)}")
            weights = np.zeros(len(known), np.float32)
            weights[[known[word] for word in stated]] = list(stated.values())
        else:
            tensors = TensorFiles.open(self.folder)
            if tensors.names != ["weight"] or len(tensors.shape("weight")) != 1:
                raise UserError(
                    f"{self.folder}: a {STATIC} has one vector, weight, but here is {some_names(tensors.names)}"
                )
            weights = tensors.read("weight").astype(np.float32)
        if below := int((weights < 0).sum()):
            note(_log.warning, "%s: %d query weights are below 0, and count as 0 here", self.folder, below)
        return weights


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Modules:
    """Content of a sentence-transformers folder.

    Attributes:
      transformer: folder of the encoder and its tokenizer.
      pooling: pooling of token states to one vector.
      dense: parameters of each Dense module, {"kernel": [D, P], "bias": [P]} float32, and the activation after it.
      normalise: whether vectors are divided by their length.
      truncate_dim: number of dimensions of the result that are kept; None: all.
      cut_by_module: whether a Dense module that does nothing else makes this cut, before the division by the length.
      max_length: largest number of tokens, special ones included; None: the tokenizer's own limit.
      lower_case: whether texts are lower-cased before the tokenizer reads them.
      query_prompt: text that `encode_query` puts before a question, "" for none.
      passage_prompt: text that `encode_document` puts before a passage.
      prompts: all stated prompts, by name.
      guessed: names of the settings above that no file states, because modules.json is missing.
      queries: the query route of a Router, whose document route is all that is above; None without one.
    """

    transformer: Path
    pooling: Pooling
    dense: tuple[tuple[Params, Activation], ...]
    normalise: bool
    truncate_dim: int | None
    cut_by_module: bool
    max_length: int | None
    lower_case: bool
    query_prompt: str
    passage_prompt: str
    prompts: dict[str, str]
    guessed: tuple[str, ...]
    queries: StaticQueries | None = None


def wrote(folder: Path) -> bool:
    """Whether a folder belongs to sentence-transformers' dual encoders, also if modules.json is lost."""
    if any((folder / name).exists() for name in (MODULES, LIMITS, "1_Pooling/config.json")):
        return True
    return (folder / SETTINGS).exists() and _settings(folder).get("model_type") != "CrossEncoder"


def read(folder: Path) -> Modules:
    """Read modules.json and the files that it names; without it, the modules whose folders exist.

    Raises:
      UserError: a file is missing or broken, or a module, or a setting of one, is not supported.
    """
    modules, queries = _modules(folder)
    prompts = read_prompts(folder)
    dense = tuple(_dense(place) for place in modules.get("Dense", ()))
    truncate_dim = _truncate_dim(folder)
    cut_by_module = truncate_dim is not None and any(
        activation == "identity" and _only_cuts(params, truncate_dim) for params, activation in dense[-1:]
    )
    transformer = modules["Transformer"][0]
    settings = read_json(transformer, LIMITS) if (transformer / LIMITS).exists() else {}
    max_length = settings.get("max_seq_length")
    if max_length is not None and (not isinstance(max_length, int) or max_length < 4):
        raise UserError(
            f"{transformer / LIMITS}: 'max_seq_length' is {max_length!r}; it must be a number of tokens, at least 4"
        )
    return Modules(
        transformer=transformer,
        pooling=_pooling(modules["Pooling"][0]) if "Pooling" in modules else "mean",
        dense=dense[:-1] if cut_by_module else dense,
        normalise="Normalize" in modules,
        truncate_dim=truncate_dim,
        cut_by_module=cut_by_module,
        max_length=max_length,
        lower_case=bool(settings.get("do_lower_case", False)),
        query_prompt=prompts.get(QUERY, ""),
        passage_prompt=_passage_prompt(folder, prompts),
        prompts=prompts,
        guessed=()
        if (folder / MODULES).exists()
        else tuple(
            name for name, module in (("pooling", "Pooling"), ("normalise", "Normalize")) if module not in modules
        ),
        queries=queries,
    )


def has_static_queries(folder: Path) -> bool:
    """Whether a folder has a Router with a SparseStaticEmbedding."""
    kinds = read_json(folder, ROUTER).get("types") if (folder / ROUTER).exists() else None
    return isinstance(kinds, dict) and STATIC in map(_name, kinds.values())


def _modules(folder: Path) -> tuple[dict[str, list[Path]], StaticQueries | None]:
    """Return the folders of each kind of module, of a Router those of its document route, and its query route."""
    path = folder / MODULES
    stated = path.exists()
    try:
        entries = json.loads(path.read_text(encoding="utf-8")) if stated else _modules_there(folder)
        queries = None
        if [_name(entry["type"]) for entry in entries] == ["Router"]:
            entries, queries = _routes(folder, str(entries[0]["path"]))
        # The type is a dotted path that differs between releases; its last part does not.
        names = [_SPARSE.get(name, name) for name in (_name(entry["type"]) for entry in entries)]
        places = [_place(folder, str(entry["path"])) for entry in entries]
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON ({error.msg}); copy it again") from error
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise UserError(f"{path}: no list of modules with 'type' and 'path'; copy it again") from error
    for name in names:
        if name not in _ORDER:
            raise UserError(
                f"{path}: the module {name} is not supported{did_you_mean(name, _ORDER)}; "
                f"supported: {', '.join(_ORDER)}, in this order"
            )
    repeated = [name for name in _ORDER if name != "Dense" and names.count(name) > 1]
    if repeated or names != sorted(names, key=_ORDER.index):
        raise UserError(
            f"{path}: the modules {', '.join(names)} are not supported together; supported: {', '.join(_ORDER)}, of Dense "
            "any number"
        )
    if stated and not {"Transformer", "Pooling"} <= set(names):
        listed = f"only {', '.join(names)}" if names else "no module"
        raise UserError(f"{path}: a Transformer and a Pooling are needed, but it lists {listed}; copy it again")
    found = {name: [place for own, place in zip(names, places, strict=True) if own == name] for name in names}
    return found, queries


def _name(kind: Any) -> str:
    return str(kind).rsplit(".", 1)[-1]


def _routes(model: Path, path: str) -> tuple[list[dict[str, str]], StaticQueries]:
    """Return the modules of the document route of a Router in a model's folder, as in modules.json, and its query route.

    Raises:
      UserError: other routes, or modules in them.
    """
    folder = _place(model, path)
    config = read_json(folder, ROUTER)
    where, kinds, structure = folder / ROUTER, config.get("types") or {}, config.get("structure") or {}
    try:
        routes = {route: [(_name(kinds[each]), each) for each in modules] for route, modules in structure.items()}
    except (AttributeError, TypeError, KeyError) as error:
        raise UserError(f"{where}: no routes with the types of their modules; copy it again") from error
    query, document = routes.get(QUERY, []), routes.get(PASSAGE, [])
    if routes.keys() != {QUERY, PASSAGE} or [name for name, _ in query] != [STATIC]:
        listed = "; ".join(f"{route}: {', '.join(name for name, _ in found)}" for route, found in routes.items())
        raise UserError(
            f"{where}: a Router with the routes {listed} is not supported; supported: {QUERY}: {STATIC}, and {PASSAGE}: a "
            "sparse encoder's modules"
        )
    place = _place(model, str(PurePath(path, query[0][1])))
    kind: QueryWeights = "frozen" if read_json(place, "config.json").get("frozen") else "learnt"
    return [{"type": name, "path": str(PurePath(path, each))} for name, each in document], StaticQueries(place, kind)


def _modules_there(folder: Path) -> list[dict[str, str]]:
    """Return the entries of modules.json by the names of the folders: 1_Pooling, 2_Dense."""
    entries = [{"type": place.name[2:], "path": place.name} for place in sorted(folder.glob("[0-9]_*"))]
    first = [] if any(entry["type"] == "Transformer" for entry in entries) else [{"type": "Transformer", "path": ""}]
    return [*first, *entries]


def _place(folder: Path, path: str) -> Path:
    """Return a module's folder; nothing outside of the model is read because a file says so."""
    parts = PurePath(path).parts
    if "\0" in path or PurePath(path).is_absolute() or ".." in parts:
        raise UserError(f"{folder / MODULES}: the path {path!r} leads out of the folder; correct it")
    return folder / path


def _pooling(folder: Path) -> Pooling:
    config = read_json(folder, "config.json")
    if "pooling_strategy" in config:
        return _splade(folder / "config.json", config)
    modes: Any = config.get("pooling_mode")
    if modes is None:
        # sentence-transformers before 6.0; there, too, the mean is used if nothing is chosen.
        modes = [mode for mode, names in POOLINGS.items() if names.key and config.get(names.key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in POOLINGS or not POOLINGS[modes[0]].key:
        raise UserError(
            f"{folder / 'config.json'}: pooling {' + '.join(map(str, modes))} is not supported; supported: "
            f"{' or '.join(mode for mode in get_args(Pooling) if POOLINGS[mode].key)}"
        )
    if config.get("include_prompt") is False:
        raise UserError(
            f"{folder / 'config.json'}: 'include_prompt' is false, but prompts are part of the pooling here; only models "
            "that pool them are supported"
        )
    return modes[0]


def _splade(path: Path, config: Mapping[str, Any]) -> Pooling:
    """Return the pooling of a SpladePooling module's settings."""
    how = config["pooling_strategy"], config.get("activation_function", "relu")
    for pooling, stated in SPLADE.items():
        if stated == how:
            return pooling
    raise UserError(
        f"{path}: pooling_strategy {how[0]!r} with {how[1]!r} is not supported; supported: 'max' and 'sum' with 'relu' and "
        "'log1p_relu'"
    )


def _dense(folder: Path) -> tuple[Params, Activation]:
    config = read_json(folder, "config.json")
    where = folder / "config.json"
    # sentence-transformers falls back to tanh where the file is silent.
    stated = str(config.get("activation_function", "Tanh"))
    by_class: dict[str, Activation] = {path.rsplit(".", 1)[-1]: name for name, path in ACTIVATIONS.items()}
    activation = by_class.get(stated.rsplit(".", 1)[-1])
    if activation is None:
        raise UserError(f"{where}: the Dense module has activation {stated}; supported: Identity and Tanh")
    if config.get("use_residual") or config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise UserError(f"{where}: only a plain Dense module of the sentence embedding is supported")
    tensors = TensorFiles.open(folder)
    known = ["linear.bias", "linear.weight"]
    if "linear.weight" not in tensors.names or (strange := [name for name in tensors.names if name not in known]):
        found = tensors.names if "linear.weight" not in tensors.names else strange
        raise UserError(f"{folder}: a Dense module has linear.weight and linear.bias, but here is {some_names(found)}")
    kernel = np.ascontiguousarray(tensors.read("linear.weight").T, np.float32)
    has_bias = "linear.bias" in tensors.names
    bias = tensors.read("linear.bias").astype(np.float32) if has_bias else np.zeros(kernel.shape[1], np.float32)
    return {"kernel": kernel, "bias": bias}, activation


def _truncate_dim(folder: Path) -> int | None:
    size = _settings(folder).get("truncate_dim")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise UserError(
            f"{folder / SETTINGS}: 'truncate_dim' is {size!r}; it must be a number of dimensions, at least 1, or null"
        )
    return size


def cutting_projection(inputs: int, size: int) -> Params:
    """Return the linear layer that keeps the first `size` of `inputs` dimensions, a cut for every reader of Dense."""
    return {"kernel": np.eye(inputs, size, dtype=np.float32), "bias": np.zeros(size, np.float32)}


def _only_cuts(projection: Params, size: int) -> bool:
    kernel, bias = projection["kernel"], projection["bias"]
    return kernel.shape[1] == size < len(kernel) and not bias.any() and np.array_equal(kernel, np.eye(*kernel.shape))


def _settings(folder: Path) -> dict[str, Any]:
    return read_json(folder, SETTINGS) if (folder / SETTINGS).exists() else {}


def read_prompts(folder: Path) -> dict[str, str]:
    """Return the prompts that a sentence-transformers folder states, without empty ones."""
    prompts = _settings(folder).get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise UserError(f"{folder / SETTINGS}: 'prompts' is not an object of texts; correct it")
    return {key: prompt for key, prompt in prompts.items() if prompt}


def _passage_prompt(folder: Path, prompts: Mapping[str, str]) -> str:
    """Return the prompt of `encode_document`, which since sentence-transformers 6 is always the one named document."""
    if PASSAGE not in prompts and (other := next((name for name in ("passage", "corpus") if name in prompts), None)):
        note(
            _log.warning,
            "%s: its prompt '%s' (%r) is not put before passages, as it is not by sentence-transformers' encode_document, "
            "which takes the one named 'document'; passage_prompt='%s' applies it",
            folder,
            other,
            prompts[other],
            other,
        )
    return prompts.get(PASSAGE, "")
