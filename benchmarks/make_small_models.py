"""Puts the small models into the package, as float16, when their three configs have been trained.

    jaxretr train pretrain_encoder_small --workdir runs/encoder
    jaxretr train pretrain_scorer_small --workdir runs/scorer
    jaxretr train rank_scorer_small --workdir runs/ranker
    python benchmarks/make_small_models.py --encoder runs/encoder --scorer runs/ranker

The encoder gets a head of masked language modelling, which `jaxretr adapt` goes on with: it is trained for `--head-steps`
steps on the texts of the encoder's own run, with the encoder frozen. Their model cards are not touched.
"""

import argparse
import dataclasses
import logging
from pathlib import Path
from typing import Any

import jax

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
        tensors = export_encoder(encoder.config.backbone, params["bert"], mlm_head=params["head"])
        write_folder(args.out / ENCODER_SMALL.name, *tensors, encoder.tokenizer, dtype="float16")
        # Without the lengths of its training: it reads longer passages better whole than cut.
        unlimited = {"max_question_length": None, "max_passage_length": None}
        dataclasses.replace(use_note(encoder.config), **unlimited).write(args.out / ENCODER_SMALL.name)
    if args.scorer:
        scorer = QuestionScorer.from_pretrained(str(RunFiles.read(args.scorer).model))
        tensors = export_t5(scorer.config, jax.device_get(scorer.params))
        write_folder(args.out / SCORER_SMALL.name, *tensors, scorer.tokenizer, dtype="float16")


if __name__ == "__main__":
    main()
