"""DDR's baseline DR on a CPU: the small encoder trained as a whole, otherwise as ddr_small_rem.py.

--encoder.path names the encoder (default: the small one, which has learnt no domain).
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.assets import ENCODER_SMALL
from jaxretr.config import ContrastiveConfig

REM = run_path(str(Path(__file__).with_name("ddr_small_rem.py")))


def config() -> ContrastiveConfig:
    rem: ContrastiveConfig = REM["config"]()
    return dataclasses.replace(
        rem,
        name="ddr_small_dr",
        encoder=dataclasses.replace(rem.encoder, path=str(ENCODER_SMALL), adapter=None),
        # As everywhere where the whole small encoder is trained.
        optimizer=dataclasses.replace(rem.optimizer, learning_rate=3e-4),
    )
