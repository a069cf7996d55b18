"""Several dual encoders as one (SPAR, https://arxiv.org/abs/2110.06918, section 4.2), and `load_encoder`.

Only the question side has weights. The passages' vectors do not depend on them, so a corpus that is encoded once can be
searched with any weights.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from jaxretr.config import EncodeDtype, Pooling
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, Side
from jaxretr.models.hub import combined_folder
from jaxretr.models.hub.dual_encoder_folder import check_finished, model_folder
from jaxretr.models.hub.export_note import NOTE
from jaxretr.models.hub.hf_files import resolve
from jaxretr.models.text_encoder import Advance, TextEncoder
from jaxretr.runtime.errors import UserError, did_you_mean, is_number

How = Literal["concatenate", "sum"]


@dataclass(frozen=True)
class CombinedConfig:
    """Configuration of a combined encoder, without its parts' weights and tokenizers.

    Attributes:
      how: "concatenate" or "sum".
      weights: weight of each part's questions.
      parts: configurations of the dual encoders.
    """

    how: How
    weights: tuple[float, ...]
    parts: tuple[DualEncoderConfig, ...]

    @property
    def embedding_size(self) -> int:
        """D: the sum of the parts' sizes, or the size that all have."""
        sizes = [part.embedding_size for part in self.parts]
        return sum(sizes) if self.how == "concatenate" else sizes[0]

    @property
    def max_question_length(self) -> int:
        """Length in tokens of the longest question that no part cuts, each with its own tokenizer."""
        return min(part.max_question_length for part in self.parts)

    @property
    def max_passage_length(self) -> int:
        """Length in tokens of the longest passage that no part cuts."""
        return min(part.max_passage_length for part in self.parts)


class CombinedEncoder(TextEncoder[CombinedConfig]):
    """Several dual encoders whose embeddings are concatenated or added; used like a `DualEncoder`.

    With part i's embeddings Q_i(q) and P_i(p) and its weight w_i:

      concatenate: question [w_1 Q_1(q); w_2 Q_2(q); ...], passage [P_1(p); P_2(p); ...]. The inner product is
        sum_i w_i Q_i(q).P_i(p), the weighted sum of the parts' own scores.

      sum: question sum_i w_i Q_i(q), passage sum_i P_i(p), of the same size as the parts.

    Only the weights scale anything: a part's vectors of length 1 keep that length. By convention the first part is the
    base model and has the weight 1.

    Args:
      parts: at least two; they may differ in shape, tokenizer and maximum lengths.
      weights: weight of each part, from 0.
      how: "concatenate" or "sum".
      names: names of the parts in messages and model cards; "part-0", "part-1", ... by default.

    Attributes:
      truncated: number of texts that the last call cut, in the part that cut most.
      source: path or name that it was loaded from; None if it was not loaded.

    Raises:
      UserError: fewer than two parts, weights that do not fit them, or embeddings of different sizes for a sum.
    """

    def __init__(
        self,
        parts: Sequence[DualEncoder],
        weights: Sequence[float],
        how: How = "concatenate",
        *,
        names: Sequence[str] | None = None,
    ):
        if how not in get_args(How):
            hint = did_you_mean(str(how), get_args(How)) or "; use 'concatenate' or 'sum'"
            raise UserError(f"how={how!r}: no such combination{hint}")
        if len(parts) < 2:
            raise UserError(f"a combined encoder has at least two parts, not {len(parts)}; give two dual encoders")
        if inner := next((part for part in parts if not isinstance(part, DualEncoder)), None):
            raise UserError(
                f"a part is a {type(inner).__name__}, which is not a DualEncoder; give its parts one by one"
            )
        if any(part.config.sparse for part in parts):
            raise UserError(
                "a part is a sparse encoder, whose vectors are searched by an inverted index; search with each part, and "
                "fuse the runs (jaxretr fuse)"
            )
        if len(weights) != len(parts):
            raise UserError(f"{len(weights)} weights for {len(parts)} parts; give one for each, the first being 1")
        if not all(is_number(weight) and weight >= 0 for weight in weights) or not any(weights):
            raise UserError(f"the weights {list(weights)} must be finite numbers from 0, and not all 0; correct them")
        if names is not None and len(names) != len(parts):
            raise UserError(f"{len(names)} names for {len(parts)} parts; give one for each")
        sizes = [part.config.embedding_size for part in parts]
        if how == "sum" and len(set(sizes)) > 1:
            raise UserError(
                f"embeddings of {' and '.join(map(str, sizes))} dimensions cannot be added; use 'concatenate'"
            )
        self.parts = tuple(parts)
        self.names = tuple(names or (f"part-{number}" for number in range(len(parts))))
        self.config = CombinedConfig(
            how, tuple(float(weight) for weight in weights), tuple(part.config for part in parts)
        )
        self.truncated = 0
        self.source: str | None = None

    def __repr__(self) -> str:
        source = "" if self.source is None else f"{self.source!r}, "
        weights = ", ".join(f"{weight:g}" for weight in self.config.weights)
        parts = ", ".join(map(repr, self.parts))
        how = "concatenated" if self.config.how == "concatenate" else "added"
        return (
            f"CombinedEncoder({source}{self.config.embedding_size} dimensions, {how} with weights {weights}: {parts})"
        )

    @classmethod
    def from_pretrained(cls, path_or_name: str | Path, *, dtype: EncodeDtype = "float32") -> "CombinedEncoder":
        """Load a combined encoder.

        Args:
          path_or_name: a folder that `save` or `jaxretr combine` wrote, a run directory that holds one, or the hub's
            name of such a folder.
          dtype: type of the matmuls' operands when encoding: "float32", "bfloat16" or "auto".

        Raises:
          UserError: no such folder, a single model's folder, or a file that is missing or broken.
        """
        found = combined_folder.read(path_or_name)
        parts = [DualEncoder.from_pretrained(folder, dtype=dtype) for folder in found.folders]
        try:
            encoder = cls(parts, found.weights, found.how, names=found.names)  # pyright: ignore[reportArgumentType]
        except UserError as error:
            raise UserError(f"{model_folder(resolve(path_or_name)) / NOTE}: {error}") from None
        encoder.source = str(path_or_name)
        return encoder

    def save(self, folder: str | Path) -> None:
        """Write jaxretr.json and each part's own folder, part-0, part-1, ...; all of it appears at once.

        Args:
          folder: a new or empty folder, or an older combined model, which is replaced.

        Raises:
          UserError: the folder holds something else, or cannot be written.
        """
        config = self.config
        saves = [part.save for part in self.parts]
        combined_folder.write(Path(folder).expanduser(), config.how, config.weights, self.names, saves)

    def with_weights(self, weights: Sequence[float]) -> "CombinedEncoder":
        """Return the same parts (not copies of them) with other weights, one per part."""
        return CombinedEncoder(self.parts, weights, self.config.how, names=self.names)

    def _encode_pieces(
        self, side: Side, pieces: Iterable[Sequence[Any]], batch_size: int | None, total: int | None, advance: Advance
    ) -> Iterator[tuple[np.ndarray, int]]:
        done = 0

        def count(rows: int) -> None:
            # Each text is embedded once by every part.
            nonlocal done
            before, done = done, done + rows
            if new := done // len(self.parts) - before // len(self.parts):
                advance(new)

        streams = [
            part.encode_pieces(side, copy, batch_size=batch_size, total=total, advance=count)
            for part, copy in zip(self.parts, tee(pieces, len(self.parts)), strict=True)
        ]
        for found in zip(*streams, strict=True):
            yield self._combined(side, [embeddings for embeddings, _ in found]), max(cut for _, cut in found)

    def _encode(self, side: Side, texts: Any, batch_size: int | None, progress: bool | None) -> np.ndarray:
        texts = list(texts) if isinstance(texts, Iterator) else texts  # Each part reads them.
        found = [part._encode(side, texts, batch_size, progress) for part in self.parts]
        self.truncated = max(part.truncated for part in self.parts)
        return self._combined(side, found)

    def _combined(self, side: Side, embeddings: list[np.ndarray]) -> np.ndarray:
        if side == "question":
            weights = self.config.weights
            embeddings = [np.float32(weight) * one for weight, one in zip(weights, embeddings, strict=True)]
        if self.config.how == "concatenate":
            return np.concatenate(embeddings, axis=1)
        return np.sum(embeddings, axis=0)


def mapped(
    encoder: DualEncoder | CombinedEncoder, function: Callable[[DualEncoder], DualEncoder]
) -> DualEncoder | CombinedEncoder:
    """Apply `function` to an encoder, or to each part of a combined one."""
    if isinstance(encoder, DualEncoder):
        return function(encoder)
    parts = [function(part) for part in encoder.parts]
    return CombinedEncoder(parts, encoder.config.weights, encoder.config.how, names=encoder.names)


def parts_of(encoder: DualEncoder | CombinedEncoder) -> tuple[DualEncoder, ...]:
    """Return the dual encoders that an encoder consists of: its parts, or itself."""
    return encoder.parts if isinstance(encoder, CombinedEncoder) else (encoder,)


def load_encoder(
    path_or_name: str | Path,
    *,
    dtype: EncodeDtype = "float32",
    passage_path: str | Path | None = None,
    tokenizer: str | Path | None = None,
    pooling: Pooling | None = None,
    normalise: bool | None = None,
    passage_template: Literal["pair", "joined"] | None = None,
    query_prompt: str | None = None,
    passage_prompt: str | None = None,
    truncate_dim: int | None = None,
) -> DualEncoder | CombinedEncoder:
    """Load any encoder: a `DualEncoder`, or a `CombinedEncoder` if the folder holds one.

    Args:
      path_or_name: a folder or name, as for `DualEncoder.from_pretrained` and `CombinedEncoder.from_pretrained`.
      dtype: type of the matmuls' operands when encoding: "float32", "bfloat16" or "auto".
      passage_path, tokenizer, pooling, normalise, passage_template, query_prompt, passage_prompt, truncate_dim:
        settings of a dual encoder, see `DualEncoder.from_pretrained`.

    Raises:
      UserError: as for those two; or a setting of a dual encoder is given for a combined one.
    """
    check_finished(path_or_name)
    settings: dict[str, Any] = {
        "passage_path": passage_path,
        "tokenizer": tokenizer,
        "pooling": pooling,
        "normalise": normalise,
        "passage_template": passage_template,
        "query_prompt": query_prompt,
        "passage_prompt": passage_prompt,
        "truncate_dim": truncate_dim,
    }
    is_file = Path(path_or_name).expanduser().is_file()  # a .cp file of the original DPR
    path = Path(path_or_name) if is_file else resolve(path_or_name)
    if is_file or not combined_folder.is_combined(model_folder(path)):
        encoder = DualEncoder.from_pretrained(path, dtype=dtype, **settings)
    elif truncate_dim is not None:
        raise UserError(
            f"{path_or_name}: a combined model is not cut, its parts are; combine them again with "
            f"`jaxretr combine ... --truncate-dim`, one number a part"
        )
    elif superfluous := next((name for name, value in settings.items() if value is not None), None):
        raise UserError(f"{path_or_name}: a combined model has all that its parts need; leave {superfluous} out")
    else:
        encoder = CombinedEncoder.from_pretrained(path, dtype=dtype)
    encoder.source = str(path_or_name)
    return encoder
