"""`jaxretr.export` and `jaxretr.verify`: models, encoders and indexes for other libraries, and the check of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from jaxretr.config import EncodeDtype, EngineName
from jaxretr.data.readers import read_questions
from jaxretr.embeddings.embedding_store import EmbeddingStore, is_store
from jaxretr.embeddings.encoding import Encoder, Path_, encode_texts, loaded, name_of
from jaxretr.embeddings.opening import open_store
from jaxretr.embeddings.vector_files import is_sparse
from jaxretr.exports import folder as model_folder
from jaxretr.exports.folder import ModelTarget
from jaxretr.exports.verify_model import Library
from jaxretr.exports.verify_model import verify as verify_model
from jaxretr.indexes.certified.engines import engine_of
from jaxretr.indexes.certified.upkeep import Updated, read_ids
from jaxretr.indexes.certified.upkeep import update as update_scann
from jaxretr.indexes.checks import check_store
from jaxretr.indexes.live import build as live
from jaxretr.indexes.live.database import is_live
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.indexes.opening import KINDS, kind_of
from jaxretr.indexes.recall import Certificate, check_targets
from jaxretr.indexes.recall import table as certificate_table
from jaxretr.indexes.source import IndexSource
from jaxretr.runtime.errors import UsageError, UserError, check_choice, check_list, did_you_mean, path_text
from jaxretr.runtime.progress import Progress
from jaxretr.runtime.storage import manifest

EncoderTarget = Literal["onnx", "stablehlo"]
IndexTarget = Literal["scann", "vertex", "pyserini", "faiss", "live", "pgvector", "lance"]
Target = Literal[ModelTarget, EncoderTarget, IndexTarget]

MODELS, ENCODERS, INDEXES = get_args(ModelTarget), get_args(EncoderTarget), get_args(IndexTarget)
TARGETS = (*MODELS, *ENCODERS, *INDEXES)

# Databases, which hold the texts as well.
ENGINES = ("pgvector", "lance")

# The targets that each option belongs to.
_TARGETS: dict[str, tuple[str, ...]] = {
    "layout": ("huggingface",),
    "license": MODELS,
    "index": INDEXES,
    "corpus": ("vertex", "pyserini", "live", *ENGINES),
    "restricts": ("vertex",),
    "crowding": ("vertex",),
    "since": ("vertex",),
    "faiss_kind": ("faiss",),
    "queries": ("scann", "faiss", "live", *ENGINES),
    "k": ("scann", "faiss", *ENGINES),
    "seed": ("scann", "faiss", *ENGINES),
    "target_recall": ("scann", *ENGINES),
    "table": ("pgvector",),
    "hnsw_m": ENGINES,
    "ef_construction": ENGINES,
    "train_size": ("scann",),
    "engine": ("scann", "live"),
    "side": ENCODERS,
    "quantise": ("onnx",),
    "least_cosine": ("onnx",),
}


@dataclass(frozen=True)
class Exported:
    """The outcome of an export, which is written and verified.

    Attributes:
      folder: the export; for "pgvector" the table of the database, without a password.
      to: the target.
      summary: a line that says what it contains and what was verified.
      certificate: the measured recall; for "scann", "pgvector" and "lance" only.
    """

    folder: Path | str
    to: Target
    summary: str
    certificate: Certificate | None = None

    def __str__(self) -> str:
        table = "" if self.certificate is None else f"{certificate_table(self.certificate)}\n"
        return f"{table}{self.folder}: {self.summary}"


@dataclass(frozen=True)
class Verification:
    """A folder that is intact.

    Attributes:
      folder: the folder that was verified, as it was given.
      summary: a line that says what agrees.
    """

    folder: str
    summary: str

    def __str__(self) -> str:
        return f"{self.folder}: intact; {self.summary}"


def export(
    model: Encoder | Path_ | Callable[[], Encoder],
    *,
    to: Target,
    out: Path_,
    layout: Literal["bert", "dpr"] | None = None,
    license: str | None = None,
    side: Literal["question", "passage", "both"] | None = None,
    quantise: Literal["int8"] | None = None,
    least_cosine: float | None = None,
    index: EmbeddingStore | Path_ | None = None,
    corpus: Path_ | None = None,
    restricts: Sequence[str] | None = None,
    crowding: str | None = None,
    since: Path_ | None = None,
    faiss_kind: str | None = None,
    queries: Path_ | None = None,
    k: int | None = None,
    seed: int | None = None,
    target_recall: float | Sequence[float] | None = None,
    train_size: int | None = None,
    engine: EngineName | None = None,
    table: str | None = None,
    hnsw_m: int | None = None,
    ef_construction: int | None = None,
) -> Exported:
    """Write a new folder for another library, or tables of a database; they appear when complete and verified.

    Args:
      model: an encoder, what `load_encoder` takes, or a function that loads the encoder; it is called once all other
        arguments have been checked.
      to: a model (huggingface, sentence-transformers, jaxretr), its encoder as a program (onnx, stablehlo), or the
        embeddings of a corpus as an index (scann, vertex, pyserini, faiss, live, pgvector, lance); sentence-transformers
        also serves text-embeddings-inference and vLLM.
      out: a new or empty folder; for pgvector a database, postgresql://USER@HOST/DATABASE (password: ~/.pgpass). A folder
        of scann, and a table of pgvector, may hold an older export, which is replaced.
      layout: for huggingface: BertModel, or DPRQuestionEncoder and DPRContextEncoder; by default dpr for a model with a
        projection, which BertModel lacks, otherwise bert.
      license: for the model card, in the hub's spelling; by default unknown.
      side: towers to export; by default question.
      quantise: onnx: the layers' products in 8 bits, for ONNX Runtime; by default all is float32.
      least_cosine: the same: refuse vectors in 8 bits whose mean cosine to the model's is lower; by default 0.99.
      index: an embedding store, made with this model by `jaxretr.encode`.
      corpus: the encoded passages: for vertex the JSON lines with the fields, for pyserini the contents, for live, pgvector
        and lance what is stored and returned.
      restricts: vertex: fields of the corpus's rows or of their "metadata" to filter by, texts or numbers.
      crowding: vertex: the field of the crowding tag.
      since: vertex: export only the changes since that export, with a list of deleted ids.
      faiss_kind: faiss: flat, hnsw, ivfpq, int8, binary, or an index_factory string; by default flat.
      queries: scann, faiss, live, pgvector, lance: questions for measuring the recall; by default passages of the store.
      k: the same: k of recall@k; by default 10.
      seed: the same: seed of the samples; by default 0.
      target_recall: scann, pgvector, lance: recalls to tune settings for, one or several; by default 0.95.
      train_size: scann: passages to train on; by default a fifth.
      engine: scann, live: whose codes propose the candidates; by default scann; live: faiss where ScaNN does not work.
      table: pgvector: the table, after the schema and a dot if it has one; an older export's is replaced; by default
        passages.
      hnsw_m: pgvector, lance: edges of a passage in the HNSW graph; by default the target's own.
      ef_construction: pgvector, lance: candidates while the HNSW graph is built; by default the target's own.

    Raises:
      UsageError: an option that the target does not take, or one that it needs is missing.
      UserError: `out` is not free, another model encoded `index`, or the verification failed.
    """
    given = dict(locals())
    if to not in TARGETS:
        hint = did_you_mean(str(to), TARGETS) or f" (there are {', '.join(TARGETS)})"
        raise UsageError(f"to={to}: no such target{hint}")
    for name, targets in _TARGETS.items():
        if given[name] is not None and to not in targets:
            raise UsageError(f"{name}= is for to={' or '.join(targets)}, not for to={to}; leave it out")
    check_choice(("question", "passage", "both"), side=side)
    check_choice(("int8",), quantise=quantise)
    if to in INDEXES and index is None:
        raise UsageError(f"to={to} writes the vectors of a corpus: give index=, an embedding store")
    if engine is not None:
        engine_of(engine).require()
    if least_cosine is not None and (quantise is None or not 0 <= least_cosine <= 1):
        raise UsageError(f"least_cosine={least_cosine}: give a number from 0 to 1, together with quantise=int8")
    if to == "live" and corpus is None:
        raise UsageError("to=live holds the passages as well: give corpus=, the file from which the store was encoded")
    if to == "vertex" and (corpus is None) != (restricts is None and crowding is None):
        raise UsageError("restricts= and crowding= name fields of the rows of corpus=; give both, or neither")

    if to in ENGINES and corpus is None:
        raise UsageError(f"to={to} stores the texts as well: give the encoded passages as corpus=")
    if to in INDEXES:
        return _index(given)
    out = Path(path_text(out)).expanduser()
    model_folder.check_free(out)
    if to in MODELS:
        return _model(loaded(model), out, to, layout, license)
    encoder = loaded(model)
    how: dict[str, Any] = {"side": side or "question", "source": name_of(encoder)}
    if to == "onnx":
        from jaxretr.exports.onnx_encoder import export as write

        how |= {"quantise": quantise, "least_cosine": least_cosine}
    else:
        from jaxretr.exports.stablehlo import export as write
    return Exported(out, to, write(encoder, out, **how))


def _index(given: Mapping[str, Any]) -> Exported:
    """Write the embeddings of a corpus as an index; `given` are the arguments of `export`, checked."""
    to, corpus, queries = given["to"], given["corpus"], given["queries"]
    targets = check_targets(given["target_recall"] or 0.95)
    out: Any = Path(path_text(given["out"])).expanduser()
    if to == "pgvector":
        from jaxretr.indexes.pgvector.address import Address

        out = Address.parse(str(given["out"]), given["table"])
    elif to == "scann":
        from jaxretr.indexes.certified.layout import check_target

        out = check_target(out)
        engine_of(given["engine"] or "scann").require()
    else:
        model_folder.check_free(out)
    # Find every error of the input before the model is loaded.
    store = open_store(given["index"]) if isinstance(given["index"], str | Path) else given["index"]
    questions = None if queries is None else read_questions(queries)
    encoder = loaded(given["model"])
    check_store(store, encoder)
    if is_sparse(store.meta.dtype) and to != "pyserini":
        raise UserError(
            f"{given['index']}: holds sparse vectors, which --to {to} has no place for; search and serve the store itself"
        )
    asked = None if questions is None else encode_texts(encoder, questions, None)
    with Progress(store.meta.rows, "passage", "exported") as progress:
        measured: dict[str, Any] = {
            "questions": asked,
            "k": given["k"] or 10,
            "seed": given["seed"] or 0,
            "advance": progress.advance,
        }
        if to == "scann":
            from jaxretr.indexes.certified.index import ScannIndex

            workdir = out.absolute().parent  # On the file system of the result: the files are large.
            workdir.mkdir(parents=True, exist_ok=True)
            engine, train_size = given["engine"] or "scann", given["train_size"]
            how = {"target_recall": targets, "train_size": train_size, "engine": engine, "workdir": workdir}
            built = ScannIndex.build(store, **how, **measured)
            built.save(out)
            return Exported(out, to, f"{len(built)} passages", built.certificate)
        source = IndexSource.open(store)
        if given["corpus"] is not None and to != "vertex":  # Its rows may have fields alone.
            source.check_texts(corpus)
        if to in ENGINES:
            if to == "pgvector":
                from jaxretr.indexes.pgvector.build import export as load
            else:
                from jaxretr.indexes.lance.build import export as load
            from jaxretr.indexes.graph_width import GraphOptions

            options = GraphOptions(
                m=given["hnsw_m"],
                ef_construction=given["ef_construction"],
                questions=asked,
                targets=targets,
                k=measured["k"],
                seed=measured["seed"],
            )
            advance = progress.advance
            summary, certificate = load(source, encoder, out, corpus=corpus, options=options, advance=advance)
            return Exported(out.shown if to == "pgvector" else out, to, summary, certificate)
        if to == "vertex":
            from jaxretr.indexes.interchange import vertex
            from jaxretr.indexes.passage_fields import VertexFields

            fields = None if corpus is None else VertexFields(given["restricts"] or (), given["crowding"])
            since, advance = given["since"], progress.advance
            summary = vertex.export(source, encoder, out, corpus=corpus, fields=fields, since=since, advance=advance)
        elif to == "pyserini":
            from jaxretr.indexes.interchange import pyserini

            summary = pyserini.export(source, encoder, out, corpus=corpus, advance=progress.advance)
        elif to == "live":
            settings = LiveSettings(engine=given["engine"])
            summary = live.export(
                source, out, corpus=corpus, questions=asked, settings=settings, advance=progress.advance
            )
        else:
            from jaxretr.indexes.interchange import faiss_index

            summary = faiss_index.export(source, encoder, out, given["faiss_kind"] or "flat", **measured)
    return Exported(out, to, summary)


def _model(encoder: Encoder, out: Path, to: Any, layout: Any, license: str | None) -> Exported:
    report = model_folder.export(encoder, out, to, layout=layout, source=encoder.source, license=license)
    config = encoder.config
    return Exported(
        out,
        to,
        f"{config.embedding_size} dimensions, questions of {config.max_question_length} and passages of "
        f"{config.max_passage_length} tokens; {report.texts} golden vectors recomputed, largest difference "
        f"{report.difference:.1g}",
    )


# The module for each kind that manifest.json names, apart from indexes that jaxretr opens itself; its verify(folder) -> str
# recomputes what the folder promises.
_MODULES = {
    "vertex": "jaxretr.indexes.interchange.vertex",
    "pyserini": "jaxretr.indexes.interchange.pyserini",
    "faiss": "jaxretr.indexes.interchange.faiss_index",
    "onnx": "jaxretr.exports.onnx_encoder",
    "stablehlo": "jaxretr.exports.stablehlo",
}


def verify(folder: Path_, library: Library | None = None) -> Verification:
    """Recompute what an export or an embedding store promises from the files in its folder.

    Args:
      folder: an export, an index, a live index, or an embedding store, also in a bucket; or pgvector:ADDRESS of a
        database.
      library: also compute an exported model's vectors with this library.

    Raises:
      UserError: something differs (one line that names all of it), or the folder is none of these.
      UsageError: a library is named for a folder that contains no model.
    """
    kind, place = kind_of(folder)
    check = None if kind is None else kind.function("verify")
    if kind is None or check is None:
        return Verification(str(folder), _verify_export(Path(place), library))
    shown = kind.shown(str(folder))
    if library is not None:
        raise UsageError(f"{shown}: is {kind.what}, which {library} does not read; leave library= out")
    return Verification(shown, _checked(check, place))


def update(
    folder: str | Path,
    *,
    add: EmbeddingStore | str | Path | None = None,
    delete: Sequence[str] | Path | None = None,
    rebalance: bool = False,
    model: str | None = None,
    dtype: EncodeDtype | None = None,
    batch_size: int | None = None,
) -> Updated:
    """Delete passages of a certified or a live index by id, add others, and measure the recall again where it is due.

    Args:
      folder: a certified or live index, made by jaxretr export --to scann (or `ScannIndex.save`) or --to live. No service
        has the live one open.
      add: embedding store of the passages to add; of a live index their file, as for encode; a passage whose id exists
        replaces the old one.
      delete: ids of passages to delete, of a live index also of documents that files:PATH[words=N] cut; one that is added
        as well is replaced. A `Path` is a file with one per line.
      rebalance: retrain tree and codes, and tune again; automatic once many of the passages have changed.
      model: its encoder, if the name that the index has for it leads nowhere.
      dtype: precision of the encoder's matmuls; by default auto: bfloat16 where this machine runs it faster.
      batch_size: passages per batch; by default chosen for the device.

    Raises:
      UserError: the folder is neither or is in use, an id is not in the index, or another model encoded `add`.
      UsageError: `add` is not what this kind of index takes, or `model`, `dtype` or `batch_size` is for a certified index.
    """
    check_list("delete", () if delete is None or isinstance(delete, Path) else delete)
    if not is_live(folder):
        if (model, dtype, batch_size) != (None, None, None):
            raise UsageError(
                f"{folder}: only a live index encodes what is added; leave model=, dtype= and batch_size= out"
            )
        return update_scann(folder, add=add, delete=delete, rebalance=rebalance)
    if add is not None and (isinstance(add, EmbeddingStore) or is_store(add)):
        raise UsageError(
            f"{folder}: a live index keeps texts as well; give add= the file of the passages, not their store"
        )
    ids = read_ids(delete) if isinstance(delete, Path) else list(delete or ())
    return live.update(
        folder, add=add, delete=ids, rebalance=rebalance, model=model, dtype=dtype or "auto", batch_size=batch_size
    )


def _verify_export(folder: Path, library: Library | None) -> str:
    """Check an export of any target; return a summary of what agrees."""
    if manifest.is_export(folder):
        kind = manifest.read(folder).kind
        if library is not None:
            raise UsageError(f"{folder}: is an export --to {kind}, which {library} does not read; leave library= out")
        if kind not in _MODULES:
            hint = did_you_mean(kind, (*_MODULES, *KINDS)) or "; install a newer jaxretr"
            raise UserError(f"{folder / manifest.MANIFEST}: of an unknown kind '{kind}'{hint}")
        return _checked(import_module(_MODULES[kind]).verify, folder)
    return str(verify_model(folder, library))


def _checked(check: Callable[[Any], str], place: str | Path) -> str:
    """Verify an index or an export; return a summary of what agrees."""
    if not (isinstance(place, Path) or manifest.is_export(Path(place))):
        return check(place)
    try:
        return check(place)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        # No byte differs from the hashes, so the manifest was written over, with a hash of its own.
        raise UserError(
            f"{Path(place) / manifest.MANIFEST}: its facts are not those of an export --to "
            f"{manifest.read(Path(place)).kind} ({type(error).__name__}: {error}); export again"
        ) from error
