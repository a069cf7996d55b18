"""The live index of `make serve`: the quickstart's passages, encoded by the quickstart's model once it is trained.

    python -m jaxretr.quickstart.serving runs/serve runs/quickstart

prints MODEL and --index for `jaxretr serve`. The index is created once for each model, in half a minute on one core.
"""

import sys
from pathlib import Path

from jaxretr.assets import ENCODER_SMALL, QUICKSTART
from jaxretr.embeddings.encoding import encode
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.exports.exporting import export
from jaxretr.models.combined_encoder import load_encoder

LIVE = "live"


def prepare(folder: Path, run: Path, corpus: Path = QUICKSTART) -> tuple[Path, Path]:
    """Create the live index, unless it exists; return the model's folder and the index's.

    Args:
      folder: folder of the indexes, one for each model.
      run: folder of the quickstart's run; if it is finished, its model is used, otherwise the small encoder that it
        starts from.

    Raises:
      UserError: a folder cannot be written.
    """
    trained = (run / "results.json").exists()
    model = run / "art" if trained else ENCODER_SMALL
    encoder = load_encoder(model)
    index = folder / model_fingerprint(encoder, "passage")[:16]
    if not (index / LIVE).exists():
        store = encode(encoder, corpus=corpus, out=index / "embeddings")
        export(encoder, to="live", index=store, corpus=corpus, out=index / LIVE)
    return model, index / LIVE


if __name__ == "__main__":
    found, live = prepare(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{found} --index quickstart={live}")
