"""The parts that exported encoders (ONNX, StableHLO) share: a folder per tower, each with a tokenizer, golden vectors.

A tower's folder is DIR/question or DIR/passage; of a combined model each part has one, DIR/part-0/question and so on,
whose vectors are weighted and then concatenated or added outside. The tokenizer.json cuts and pads as the tower needs,
so that its readers have nothing to set.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxretr.embeddings import golden
from jaxretr.embeddings.golden import Vectors
from jaxretr.exports.huggingface import tokenizer_for
from jaxretr.exports.verify_model import TOLERANCE, compare
from jaxretr.models.backbones.layers import Params
from jaxretr.models.combined_encoder import CombinedEncoder, mapped, parts_of
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import Side, tower
from jaxretr.models.onnx.int8 import Cosines
from jaxretr.runtime.errors import UserError, import_extra
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.storage import manifest
from jaxretr.runtime.storage.files import atomic_folder, atomic_write

TOKENIZER = "tokenizer.json"
VECTORS = "golden.npy"

QUESTION = "who wrote The Magic Flute?"
# Cosines of 8 bits differ by less between processors, whose float32 sums round differently.
_ROUNDING = 1e-3

PASSAGE = ("The Magic Flute", "An opera by Wolfgang Amadeus Mozart.")


@dataclass(frozen=True)
class Tower:
    """One encoder of an export.

    Attributes:
      folder: its folder in the export, for instance "question" or "part-0/passage".
      side: the side that it encodes.
      weight: the weight of its vectors.
      encoder: the dual encoder that it belongs to.
    """

    folder: str
    side: Side
    weight: float
    encoder: DualEncoder

    @property
    def params(self) -> Params:
        """The tower's parameters."""
        return tower(self.encoder.params, self.side)

    @property
    def max_length(self) -> int:
        """The most tokens that the tower reads."""
        return getattr(self.encoder.config, f"max_{self.side}_length")


@dataclass(frozen=True)
class Program:
    """A format of programs that embed texts.

    Attributes:
      kind: its name in manifest.json.
      library: the library that runs such programs, for messages.
      packages: packages that writing needs, of the extra "export".
      prepare: a function that makes an encoder one that the format can hold.
      write: a function that writes the program of a tower into its folder.
      load: reads a tower's folder and gives (input_ids [B, L], attention_mask [B, L]) -> float32 [B, D].
      readme: a function (name of the folder, facts) -> README.md.
    """

    kind: str
    library: str
    packages: tuple[str, ...]
    prepare: Callable[[DualEncoder], DualEncoder]
    write: Callable[[Path, Tower], None]
    load: Callable[[Path], Callable[[np.ndarray, np.ndarray], np.ndarray]]
    readme: Callable[[str, dict[str, Any]], str]

    def export(
        self,
        encoder: DualEncoder | CombinedEncoder,
        out: str | Path,
        *,
        side: Literal["question", "passage", "both"] = "question",
        source: str = "a model",
        least_cosine: float | None = None,
    ) -> str:
        """Write program and tokenizer of each tower, which appear when they are complete and verified.

        Args:
          encoder: the model to export; LoRA's products become part of the kernels.
          out: a new or empty folder.
          source: the model as the user named it.
          least_cosine: for programs that round: the least mean cosine of their golden vectors to the model's. None: the vectors
            are equal to `TOLERANCE`.

        Returns:
          A summary of what was verified, for people.

        Raises:
          UserError: a package is not installed; a parallel adapter, for which ONNX has no place; the parts of a combined
            model read passages in different ways; a tokenizer that other libraries read differently; a mean
            cosine below the least; or a folder that cannot be written.
        """
        for package in self.packages:
            import_extra(package, "export")
        encoder = mapped(encoder, self.prepare)
        out = Path(out).expanduser()
        sides: tuple[Side, ...] = ("question", "passage") if side == "both" else (side,)
        questions, passages, texts_of_parts = golden.texts(encoder)
        asked = [[golden.question_as_text(part, question) for question in questions] for part in parts_of(encoder)]
        for name, of_parts, remedy in (("passage", texts_of_parts, "question"), ("question", asked, "passage")):
            if name in sides and any(texts != of_parts[0] for texts in of_parts):
                raise UserError(
                    f"the parts of this model write a {name} in different ways (title and text, or a prompt), so no single "
                    f"text suits them all; export the parts one by one, or with side={remedy}"
                )
        towers = _towers(encoder, sides)
        size = sum(_bytes(one.params) for one in towers)
        most = max(_bytes(one.params) for one in towers)
        memory.announce(f"{len(towers)} encoders as {self.kind}", 3 * most, disk=size, folder=out)
        texts = {"question": asked[0], "passage": texts_of_parts[0]}
        vectors = golden.compute(encoder, questions, passages)
        with atomic_folder(out) as partial:
            for one in towers:
                (partial / one.folder).mkdir(parents=True)
                _write_tokenizer(partial / one.folder, one)
                self.write(partial / one.folder, one)
            with atomic_write(partial / VECTORS, "wb") as file:
                kept = [getattr(vectors, f"{name}s") for name in sides]
                np.save(file, np.concatenate(kept), allow_pickle=False)
            facts = {
                "model": source,
                "settings": golden.settings_of(encoder.config),
                "how": encoder.config.how if isinstance(encoder, CombinedEncoder) else "single",
                "towers": [{"folder": one.folder, "side": one.side, "weight": one.weight} for one in towers],
                "texts": {name: texts[name] for name in sides},
                "example": golden.passage_as_text(parts_of(encoder)[0], *PASSAGE),
                "example_question": golden.question_as_text(parts_of(encoder)[0], QUESTION),
            }
            if least_cosine is not None:
                cosines = Cosines.of(self._vectors(partial, facts), np.concatenate(kept))
                if not cosines.mean >= least_cosine:
                    raise UserError(
                        f"{out}: nothing was written: the cosine of its golden vectors to the model's is {cosines}, where "
                        f"{least_cosine} on average is the least; lower least_cosine=, or leave quantise= out"
                    )
                facts["cosine"] = cosines._asdict()
            text = self.readme(out.absolute().name, facts)
            return manifest.finish(partial, out, self.kind, facts, text, self.verify)

    def verify(self, folder: Path) -> str:
        """Check hashes, and let the exported towers embed the golden texts; return a summary of what agrees.

        Raises:
          UserError: something differs; the message names it file by file.
        """
        stated = manifest.read(folder)
        manifest.refuse(folder, manifest.changed_files(folder, stated))
        facts = stated.facts
        # A folder that the manifest names for a tower, but whose files it does not, lies elsewhere.
        strange = [place for one in facts["towers"] if f"{(place := one['folder'])}/{TOKENIZER}" not in stated.files]
        manifest.refuse(folder, [f"{place!r} is not a tower's folder" for place in strange])
        expected = np.load(folder / VECTORS, allow_pickle=False)
        found = self._vectors(folder, facts)
        what = f"{len(expected)} golden vectors of {' and '.join(f'{side}s' for side in facts['texts'])}, computed by {self.library}, "
        if "cosine" in facts:
            of_export, cosines = Cosines(**facts["cosine"]), Cosines.of(found, expected)
            worse = any(now < then - _ROUNDING for now, then in zip(cosines, of_export, strict=True))
            problem = f"the cosine to the model's vectors is {cosines}, and was {of_export}" if worse else ""
            manifest.refuse(folder, [f"computed by {self.library}, {problem}"] if problem else [])
            return f"{what}have a cosine to the float32 model's of {cosines}"
        count = len(facts["texts"].get("question", ()))
        problem, difference = compare(
            Vectors(found[:count], found[count:]), Vectors(expected[:count], expected[count:])
        )
        manifest.refuse(folder, [f"computed by {self.library}, {problem}"] if problem else [])
        return f"{what}agree to {difference:.1g} of their length (allowed: {TOLERANCE:.0e})"

    def _vectors(self, folder: Path, facts: dict[str, Any]) -> np.ndarray:
        """Embed the golden texts with the exported towers: float32 [n, D], questions first."""
        from tokenizers import Tokenizer

        found = []
        for side, texts in facts["texts"].items():
            vectors = []
            for one in facts["towers"]:
                if one["side"] != side:
                    continue
                tokenizer = Tokenizer.from_file(str(folder / one["folder"] / TOKENIZER))
                rows = tokenizer.encode_batch(texts)
                ids, masks = (np.array([getattr(row, name) for row in rows]) for name in ("ids", "attention_mask"))
                vectors.append(np.float32(one["weight"]) * self.load(folder / one["folder"])(ids, masks))
            found.append(np.concatenate(vectors, axis=1) if facts["how"] != "sum" else np.sum(vectors, axis=0))
        return np.concatenate(found)


def example(facts: dict[str, Any], name: str) -> str:
    """The last lines of README's code: the towers of each side, with their weights, and a text for each."""
    lines = []
    for side in facts["texts"]:
        towers = ", ".join(
            f'("{name}/{one["folder"]}", {one["weight"]!r})' for one in facts["towers"] if one["side"] == side
        )
        text = facts["example_question"] if side == "question" else facts["example"]
        lines.append(f"{side}s = encode([{towers}], {json.dumps([text], ensure_ascii=False)})")
        lines.append(f"print({side}s.shape)")
    return "\n".join(lines)


def joined(facts: dict[str, Any]) -> str:
    """The expression in README.md that makes one vector of all towers' vectors."""
    return {"single": "found[0]", "concatenate": "np.concatenate(found, axis=1)", "sum": "np.sum(found, axis=0)"}[
        facts["how"]
    ]


def readme(name: str, facts: dict[str, Any], what: str, code: str, notes: Sequence[str]) -> str:
    """Write the text of README.md for an exported encoder.

    Args:
      what: the heading behind the name.
      code: code that embeds an example; a test runs it.
      notes: paragraphs below the code.
    """
    settings = facts["settings"]
    lengths = " and ".join(f"{side}s of {settings[f'max_{side}_length']} tokens" for side in facts["texts"])
    parts = [f"# {name}: {what}", f"Made from `{facts['model']}`; at most {lengths}."]
    if facts["how"] != "single":
        parts.append("A combined model: each part is an encoder of its own, and the weights below join their vectors.")
    parts += ["The paths are this folder's.", f"```python\n{code}\n```", *notes]
    if "passage" in facts["texts"]:
        parts.append(f"A passage is one text: `{facts['example']}` is that of a title and a text.")
    parts.append(
        f"`jaxretr verify {name}` computes the vectors in golden.npy anew, and checks every file here against its hash."
    )
    return "\n\n".join(parts) + "\n"


def _towers(encoder: DualEncoder | CombinedEncoder, sides: Sequence[Side]) -> list[Tower]:
    if isinstance(encoder, DualEncoder):
        return [Tower(side, side, 1.0, encoder) for side in sides]
    weights = encoder.config.weights
    return [
        Tower(f"part-{number}/{side}", side, weight if side == "question" else 1.0, part)
        for side in sides
        for number, (part, weight) in enumerate(zip(encoder.parts, weights, strict=True))
    ]


def _write_tokenizer(folder: Path, one: Tower) -> None:
    tokenizer = tokenizer_for(one.encoder, one.max_length)
    backend = tokenizer.backend_tokenizer
    # A multiple of 16 means few shapes, each of which a compiling library pays for; where the positions suffice.
    multiple = 16 if -(-one.max_length // 16) * 16 <= one.encoder.config.backbone.max_position_embeddings else None
    backend.enable_truncation(one.max_length)
    backend.enable_padding(
        pad_id=tokenizer.pad_token_id or 0, pad_token=tokenizer.pad_token or "[PAD]", pad_to_multiple_of=multiple
    )
    with atomic_write(folder / TOKENIZER) as file:
        file.write(backend.to_str(pretty=True))


def _bytes(params: Any) -> int:
    import jax

    return sum(leaf.size * 4 for leaf in jax.tree.leaves(params))
