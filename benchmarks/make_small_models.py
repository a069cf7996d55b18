"""Puts the small models into the package, as float16, when their three configs have been trained.

    jaxretr train pretrain_encoder_small --workdir runs/encoder
    jaxretr train pretrain_scorer_small --workdir runs/scorer
    jaxretr train rank_scorer_small --workdir runs/ranker
    python benchmarks/make_small_models.py --encoder runs/encoder --scorer runs/ranker

The encoder gets a head of masked language modelling, which `jaxretr adapt` goes on with: it is trained for `--head-steps`
steps on the texts of the encoder's own run, with the encoder frozen. Weights keep 5 or 6 of float16's 10 bits of the
mantissa, those of the pieces 4, since the bits that are 0 take no room in a wheel. Their model cards are not touched.
"""

import argparse
import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxretr.assets import ENCODER_SMALL, SCORER_SMALL
from jaxretr.config import MlmConfig, Optimizer, Train
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.hub.dual_encoder_folder import use_note
from jaxretr.models.hub.encoder_params import export_encoder
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.models.hub.t5_params import export_t5
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.report.run_files import RunFiles
from jaxretr.training.runs.mlm import MlmRun

# Bits of the mantissa that the weights of the pieces keep, which are more than half of a small model.
PIECE_BITS = 4
PIECES = ("bert.embeddings.word_embeddings.weight", "shared.weight")


def rounded(tensors: Mapping[str, np.ndarray], bits: int) -> dict[str, np.ndarray]:
    """The tensors as float16, rounded to `bits` bits of the mantissa, and those of the pieces to `PIECE_BITS`."""
    return {name: _rounded(tensor, PIECE_BITS if name in PIECES else bits) for name, tensor in tensors.items()}


def _rounded(tensor: np.ndarray, bits: int) -> np.ndarray:
    """To the nearest, and to the even one of two; carries run into the exponent, as they should."""
    dropped = 10 - bits
    numbers = tensor.astype(np.float16).view(np.uint16).astype(np.uint32)
    half = (1 << (dropped - 1)) - 1 + (numbers >> dropped & 1)
    return ((numbers + half) >> dropped << dropped).astype(np.uint16).view(np.float16)


def with_head(run: RunFiles, steps: int) -> Any:
    """The parameters {"bert", "head"} of a run's encoder and of a new head that fits it."""
    config = MlmConfig(
        name="head",
        data=run.config.data,  # pyright: ignore[reportAttributeAccessIssue]
        start=str(run.model),
        head_warmup=steps,
        dtype="bfloat16",
        optimizer=Optimizer(),
        train=Train(steps=1, batch_size=32, log_every=50),
    )
    return jax.device_get(MlmRun(config, make_mesh(jax.devices()[:1]), run.folder / "head").init().params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, help="run of configs/pretrain_encoder_small.py")
    parser.add_argument("--scorer", type=Path, help="run of configs/rank_scorer_small.py")
    parser.add_argument("--head-steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=ENCODER_SMALL.parent, help="default: the package's assets")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.encoder:
        run = RunFiles.read(args.encoder)
        encoder = DualEncoder.from_pretrained(str(run.model))
        params = with_head(run, args.head_steps)
        config, tensors = export_encoder(encoder.config.backbone, params["bert"], mlm_head=params["head"])
        write_folder(args.out / ENCODER_SMALL.name, config, rounded(tensors, 6), encoder.tokenizer, dtype="float16")
        # Without the lengths of its training: it reads longer passages better whole than cut.
        unlimited = {"max_question_length": None, "max_passage_length": None}
        dataclasses.replace(use_note(encoder.config), **unlimited).write(args.out / ENCODER_SMALL.name)
    if args.scorer:
        scorer = QuestionScorer.from_pretrained(str(RunFiles.read(args.scorer).model))
        config, tensors = export_t5(scorer.config, jax.device_get(scorer.params))
        write_folder(args.out / SCORER_SMALL.name, config, rounded(tensors, 5), scorer.tokenizer, dtype="float16")


if __name__ == "__main__":
    main()
