"""Takes the pictures of the search page in docs/images: `python docs/screenshots.py [FOLDER]`.

The service runs as it does for users, on the quickstart's passages and the small encoder; their embeddings are made in
FOLDER (runs/screenshots by default) if they are not there.
"""

import gzip
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/serve")]

from browser import chromium, new_page  # noqa: E402
from PIL import Image  # noqa: E402
from running import running  # noqa: E402

from jaxretr.assets import ENCODER_SMALL, QUICKSTART  # noqa: E402
from jaxretr.embeddings.encoding import encode  # noqa: E402
from jaxretr.indexes.opening import open_index  # noqa: E402
from jaxretr.models.dual_encoder import DualEncoder  # noqa: E402
from jaxretr.serve.app import create_app  # noqa: E402
from jaxretr.serve.service import Service  # noqa: E402

IMAGES = ROOT / "docs/images"
LARGEST = 150_000
QUESTION = "who appoints the chairman of union public service commission"

# name -> size of the window, scheme, what the address asks for, and how many results are opened
PICTURES = {
    "search_page": ((1100, 820), "light", "index=wikipedia", 0),
    "search_page_dark": ((1100, 820), "dark", "index=wikipedia", 1),
    "search_page_side_by_side": ((1280, 820), "light", "index=wikipedia&compare=first-sentences", 0),
    "search_page_narrow": ((360, 760), "light", "index=wikipedia", 0),
}


def first_sentences(path: Path) -> Path:
    """The quickstart's passages with the first sentence of each text."""
    with gzip.open(QUICKSTART / "corpus.jsonl.gz", "rt", encoding="utf-8") as rows, open(path, "w") as file:
        for row in map(json.loads, rows):
            file.write(json.dumps({**row, "text": row["text"].split(" . ")[0]}) + "\n")
    return path


def make_service(folder: Path) -> Service:
    """A started service with two indexes of the same passages: as they are, and their first sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    found = DualEncoder.from_pretrained(ENCODER_SMALL)
    encoder = DualEncoder(replace(found.config, normalise=True), found.params, found.tokenizer)
    indexes = {}
    for name, corpus in {
        "wikipedia": QUICKSTART,
        "first-sentences": first_sentences(folder / "sentences.jsonl"),
    }.items():
        encode(encoder, corpus=corpus, out=folder / name)
        indexes[name] = open_index(str(folder / name), encoder, corpus, name=name)
    service = Service(encoder, indexes, name="encoder_small")
    service.start()
    return service


def take(browser: Any, address: str, name: str) -> None:
    """Takes one picture, as a PNG of 256 colours."""
    (width, height), scheme, asked, opened = PICTURES[name]
    tab, errors = new_page(browser, width=width, height=height, scheme=scheme)
    for _ in range(2):  # The second time is the search's own: nothing is read for the first time.
        tab.goto(f"{address}/#q={QUESTION.replace(' ', '+')}&{asked}")
        tab.reload()
        tab.wait_for_selector(".column:last-child .hit")
    for item in tab.locator(".open").all()[:opened]:
        item.click()
    tab.mouse.move(0, 0)
    picture = Image.open(io.BytesIO(tab.screenshot(animations="disabled")))
    path = IMAGES / f"{name}.png"
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if errors or size > LARGEST:
        raise SystemExit(f"{path}: {size:,} bytes, {errors or 'too many'}; make the window smaller")
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")


def main() -> None:
    """Takes all pictures."""
    IMAGES.mkdir(exist_ok=True)
    service = make_service(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "runs/screenshots")
    with running(create_app(service)) as address, chromium() as browser:
        for name in PICTURES:
            take(browser, address, name)
    service.close()


if __name__ == "__main__":
    main()
