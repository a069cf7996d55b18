"""FAISS folders as Pyserini reads them: `index`, and `docid` with one id a line; each states its recall.

The index is one of a few kinds by name, or whatever a string of FAISS's own index_factory describes.
"""

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.indexes import golden_hits
from jaxretr.indexes.golden_hits import Hits
from jaxretr.indexes.source import IndexSource, masked, silent
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.errors import UserError, import_extra
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.storage import manifest
from jaxretr.runtime.storage.files import atomic_folder, atomic_write

KIND = "faiss"
INDEX, DOCID = "index", "docid"
BINARY = "binary"

# Search parameters that are not part of the index, stated in the manifest: recall depends on them.
_EF_SEARCH = 128
_EF_CONSTRUCTION = 200
_PROBED_SHARE = 1 / 16

# FAISS needs 39 to 256 vectors for each centre of a cluster.
_TRAINING_ROWS_A_CENTRE = 64
_LEAST_TRAINING_ROWS = 39 * 256

_OWN_KINDS = ("flat", "hnsw", "ivfpq", "int8", BINARY)

# A program of its own: some factory strings end the process that tries them, HNSW0 and PQ4x0 among them.
_TRIAL = """
import sys
import faiss
import numpy as np

dim, factory = int(sys.argv[1]), sys.argv[2]
index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
rows = np.random.default_rng(0).standard_normal((600, dim)).astype(np.float32)
index.train(rows)
index.add(rows)
index.search(rows[:5], 5)
"""
_TRIAL_SECONDS = 60


def export(
    source: IndexSource,
    encoder: TextEncoder,
    out: str | Path,
    kind: str,
    *,
    questions: np.ndarray | None = None,
    k: int = 10,
    seed: int = 0,
    advance: Callable[[int], None] = silent,
) -> str:
    """Write the folder, which appears when it is complete and verified; return a summary of what was written.

    Args:
      source: the passages.
      encoder: the model that encoded them, for the golden questions.
      out: a new or empty folder.
      kind: "flat" (exact), "hnsw", "ivfpq", "int8", "binary" (signs alone, by Hamming distance), or a string of
        faiss.index_factory such as "IVF4096,PQ96".
      questions: vectors float32 [B, D] to measure the recall with; 200 of the passages by default, which are easier.
      k: the depth of recall@k.
      seed: the seed of the choice of passages to train on and to ask.
      advance: called with the number of rows that were added since the last call.

    Raises:
      UserError: FAISS is not installed or cannot make such an index, an id that a file of lines cannot hold, vectors
        that are not finite, or a folder that cannot be written.
    """
    faiss = import_extra("faiss", "export")
    out, meta = Path(out).expanduser(), source.store.meta
    source.check_ids_of_lines("FAISS's docid file")
    if kind not in _OWN_KINDS:
        _try_out(kind, meta.dim)
    index, recipe = _new_index(faiss, kind, meta.rows, meta.dim)
    training = min(meta.rows, recipe["training_rows"])
    size = int(meta.rows * recipe["bytes_a_row"])
    memory.announce(
        f"{meta.rows} passages for FAISS ({kind})",
        size + training * meta.dim * 4 + (64 << 20),
        disk=size + sum(len(name) + 1 for name in source.ids),
        folder=out,
    )
    rng = np.random.default_rng(seed)
    if not index.is_trained:
        _train(index, kind, _sample(source, training, rng))
    try:
        for piece in source.pieces(advance):
            index.add(_signs(piece) if kind == BINARY else piece)
    except RuntimeError as error:
        raise UserError(f"FAISS cannot add passages to '{kind}' ({_first_line(error)}); use another kind") from error
    question_source = "questions" if questions is not None else "passages of the index, which find themselves"
    if questions is None:
        questions = _sample(source, min(200, meta.rows), rng)
    true = golden_hits.exact(source.pieces(), source.ids, questions, k)
    try:
        hits = _search(faiss, index, source.ids, questions, k)
    except RuntimeError as error:
        raise UserError(f"FAISS cannot search '{kind}' ({_first_line(error)}); use another kind") from error
    golden = golden_hits.questions(encoder)
    with atomic_folder(out) as partial:
        try:
            (faiss.write_index_binary if kind == BINARY else faiss.write_index)(index, str(partial / INDEX))
        except RuntimeError as error:
            raise UserError(f"{out}: FAISS cannot write its index ({_first_line(error)}); free some space") from error
        with atomic_write(partial / DOCID) as file:
            file.writelines(f"{name}\n" for name in source.ids)
        golden_hits.write(partial, golden, _search(faiss, index, source.ids, golden, golden_hits.TOP))
        facts = {
            **source.facts(),
            "faiss_kind": kind,
            **{name: value for name, value in recipe.items() if name not in ("training_rows", "bytes_a_row")},
            "recall": _recall(hits, true),
            "recall_at": k,
            "asked": f"{len(questions)} {question_source}",
            "faiss": faiss.__version__,
        }
        # Verifying reads it again, and memory need not hold it twice.
        del index
        return manifest.finish(partial, out, KIND, facts, _readme(out.absolute().name, facts), verify)


def verify(folder: Path) -> str:
    """Check hashes, and let the golden questions search the index; return a summary of what agrees.

    Raises:
      UserError: something differs (the message names it file by file), or FAISS is not installed.
    """
    record = manifest.read(folder)
    facts = record.facts
    # FAISS trusts what it reads, down to the sizes that it allocates: a changed index is not given to it.
    manifest.refuse(folder, manifest.changed_files(folder, record))
    faiss = import_extra("faiss", "export")
    try:
        read = faiss.read_index_binary if facts["faiss_kind"] == BINARY else faiss.read_index
        index = read(str(folder / INDEX))
        ids = (folder / DOCID).read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"{folder / INDEX} or {DOCID}: cannot be read ({_first_line(error)}); export again") from error
    if not len(ids) == index.ntotal == facts.get("rows"):
        manifest.refuse(folder, [f"{INDEX} holds {index.ntotal} rows, {DOCID} {len(ids)} ids, not {facts.get('rows')}"])
    vectors, expected = golden_hits.read(folder)
    difference = golden_hits.difference(_search(faiss, index, ids, vectors, golden_hits.TOP), expected)
    manifest.refuse(folder, [difference] if difference else [])
    return (
        f"{index.ntotal} rows in a FAISS index ({facts['faiss_kind']}), recall@{facts['recall_at']} "
        f"{facts['recall']:.3f} when it was made ({facts['asked']}); {len(expected.ids)} golden questions find their "
        "passages"
    )


def _new_index(faiss: Any, kind: str, rows: int, dim: int) -> tuple[Any, dict[str, Any]]:
    """Make an empty index; return it with its settings: factory, search settings, training_rows, bytes_a_row."""
    if kind == BINARY:
        if dim % 8:
            raise UserError(f"FAISS packs 8 signs into a byte, but the vectors have {dim} dimensions; use int8")
        return faiss.IndexBinaryFlat(dim), {"factory": "BFlat", "training_rows": 0, "bytes_a_row": dim / 8}
    centres = 1 << max(0, round(math.log2(4 * math.sqrt(rows))))
    parts = next(size for size in range(max(1, dim // 8), 0, -1) if dim % size == 0)
    factory, bytes_a_row, training = {
        "flat": ("Flat", 4 * dim, 0),
        "hnsw": ("HNSW32,Flat", 4 * dim + 280, 0),
        "ivfpq": (f"IVF{centres},PQ{parts}x8", parts + 8, max(centres, 256) * _TRAINING_ROWS_A_CENTRE),
        "int8": ("SQ8", dim, 65536),
    }.get(kind, (kind, 4 * dim, 1 << 18))
    if kind == "ivfpq" and rows < _LEAST_TRAINING_ROWS:
        raise UserError(
            f"{rows} passages are too few to train ivfpq on, which needs {_LEAST_TRAINING_ROWS}; use flat, hnsw or int8"
        )
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UserError(
            f"FAISS cannot make an index '{kind}' of {dim} dimensions ({_first_line(error)}); give flat, hnsw, ivfpq, "
            "int8, binary or a string of faiss.index_factory"
        ) from error
    settings: dict[str, Any] = {}
    searched = _searched(faiss, index)
    if hasattr(searched, "hnsw"):
        searched.hnsw.efConstruction, searched.hnsw.efSearch = _EF_CONSTRUCTION, _EF_SEARCH
        settings["ef_search"] = _EF_SEARCH
    if hasattr(searched, "nprobe"):
        searched.nprobe = settings["nprobe"] = max(1, round(searched.nlist * _PROBED_SHARE))
    return index, {"factory": factory, **settings, "training_rows": training, "bytes_a_row": bytes_a_row}


def _searched(faiss: Any, index: Any) -> Any:
    """The index inside those that only transform its vectors (PCA64, OPQ16) or score its hits again (RFlat)."""
    while (inner := getattr(index, "index", None) or getattr(index, "base_index", None)) is not None:
        index = faiss.downcast_index(inner)
    return index


def _try_out(kind: str, dim: int) -> None:
    """Refuse a factory string with which FAISS ends the process; what it merely refuses is left to it."""
    words = [sys.executable, "-c", _TRIAL, str(dim), kind]
    try:
        code = subprocess.run(words, capture_output=True, timeout=_TRIAL_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        return  # Slow is not an error.
    if code < 0:
        raise UserError(
            f"FAISS crashes on an index '{kind}' of {dim} dimensions ({signal.Signals(-code).name}); check its numbers, "
            f"or give {', '.join(_OWN_KINDS)}"
        )


def _train(index: Any, kind: str, sample: np.ndarray) -> None:
    try:
        index.train(sample)
    except RuntimeError as error:
        raise UserError(
            f"FAISS cannot train '{kind}' on {len(sample)} passages ({_first_line(error)}); use a smaller one, or flat"
        ) from error


def _sample(source: IndexSource, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw some rows, float32 [count, D], without holding the others."""
    mask = np.zeros(len(source.ids), bool)
    mask[rng.choice(len(source.ids), count, replace=False)] = True
    return np.concatenate(list(masked(source.pieces(), mask)))


def _signs(vectors: np.ndarray) -> np.ndarray:
    return np.packbits(vectors > 0, axis=1)


def _search(faiss: Any, index: Any, ids: list[str], questions: np.ndarray, k: int) -> Hits:
    """Search an index; the scores of a binary one are the negatives of the distances."""
    binary = isinstance(index, faiss.IndexBinary)
    scores, rows = index.search(_signs(questions) if binary else np.ascontiguousarray(questions), min(k, index.ntotal))
    hit_rows = [[row for row in one if row >= 0] for one in rows.tolist()]  # -1 where an index gave up
    values = (-scores if binary else scores).tolist()
    return Hits(
        [[ids[row] for row in one] for one in hit_rows],
        [list(map(float, one[: len(rows)])) for one, rows in zip(values, hit_rows, strict=True)],
    )


def _recall(hits: Hits, true: Hits) -> float:
    shares = [len(set(ids) & set(best)) / len(best) for ids, best in zip(hits.ids, true.ids, strict=True)]
    return round(float(np.mean(shares)), 6)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]


def _readme(name: str, facts: dict[str, Any]) -> str:
    if facts["faiss_kind"] == BINARY:
        code = (
            f'import faiss\nimport numpy as np\n\nindex = faiss.read_index_binary("{name}/index")\n'
            f'ids = open("{name}/docid", encoding="utf-8").read().split("\\n")[:-1]\n'
            "# questions: float32 [B, D] of the same model; the fewer signs differ, the better\n"
            "distances, rows = index.search(np.packbits(questions > 0, axis=1), 10)"
        )
    else:
        code = (
            f'import faiss\n\nindex = faiss.read_index("{name}/index")\n'
            f'ids = open("{name}/docid", encoding="utf-8").read().split("\\n")[:-1]\n'
            "# questions: float32 [B, D] of the same model\n"
            "scores, rows = index.search(questions, 10)"
        )
    return (
        f"# {name}: a FAISS index ({facts['faiss_kind']}, `{facts['factory']}`)\n\n"
        f"{facts['rows']} passages, {facts['dim']} dimensions, encoded by `{facts['model']}`. recall@{facts['recall_at']} "
        f"against exact search: {facts['recall']:.3f}, asked with {facts['asked']}.\n\n"
        f"```python\n{code}\n```\n\n"
        + ("" if facts["faiss_kind"] == BINARY else "Pyserini's FaissSearcher reads this folder as it is.\n\n")
        + f"`jaxretr verify {name}` checks every file here against its hash, and that golden questions find in the index "
        "what they found when it was made.\n"
    )
