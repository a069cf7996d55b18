"""An encoder for the package `mteb` (version 2): its EncoderProtocol for every task, its SearchProtocol for retrieval.

    import mteb, jaxretr
    mteb.evaluate(jaxretr.mteb_model("runs/dpr"), mteb.get_task("SciFact"))

For a retrieval task mteb takes the SearchProtocol of a model that has both: texts are encoded in batches that suit the
device and searched exactly on it. The EncoderProtocol serves the other tasks, and mteb's own search:
`mteb.models.SearchEncoderWrapper(model)`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from jaxretr.config import EncodeDtype
from jaxretr.embeddings.fingerprints import search_fingerprint
from jaxretr.indexes.exact import ExactIndex
from jaxretr.models.combined_encoder import CombinedEncoder, load_encoder, parts_of
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError, import_extra


def mteb_model(
    path_or_encoder: str | Path | DualEncoder | CombinedEncoder,
    *,
    name: str | None = None,
    batch_size: int | None = None,
    dtype: EncodeDtype = "float32",
    **metadata: Any,
) -> "MtebModel":
    """Make a model that `mteb.evaluate` takes.

    Args:
      path_or_encoder: an encoder, or the path or name that `jaxretr.load_encoder` reads.
      name: "organisation/model", under which mteb files the results; by default "jaxretr/" and the folder's name, or
        the hub's name.
      batch_size: rows per batch; None: chosen for the device. mteb's own batch size, 32 by default, is only the number
        of texts that it hands over at a time.
      dtype: the dtype of the matmuls' operands, "float32", "bfloat16" or "auto"; for a path only.
      **metadata: fields of mteb's `ModelMeta`, for instance license, languages or training_datasets, which the weights
        do not tell.

    Raises:
      UserError: mteb is not installed, the model cannot be read, or mteb does not take the metadata.
    """
    if isinstance(path_or_encoder, DualEncoder | CombinedEncoder):
        return MtebModel(name or "jaxretr/encoder", encoder=path_or_encoder, batch_size=batch_size, metadata=metadata)
    path = str(path_or_encoder)
    place = Path(path).expanduser()
    default = path if path.count("/") == 1 and not place.exists() else f"jaxretr/{place.resolve().name}"
    return MtebModel(name or default, path=path, batch_size=batch_size, dtype=dtype, metadata=metadata)


class MtebModel:
    """An encoder behind mteb's two protocols; `mteb_model` is the shorter way to one.

    Attributes:
      encoder: the model.
      mteb_model_meta: the metadata that mteb writes into its results; the revision is the fingerprint of the weights, the
        prompts and the precision, so that a result that mteb has kept is never taken for that of others.
    """

    def __init__(
        self,
        model_name: str,
        revision: str | None = None,
        *,
        device: str | None = None,
        path: str | None = None,
        encoder: DualEncoder | CombinedEncoder | None = None,
        batch_size: int | None = None,
        dtype: EncodeDtype = "float32",
        metadata: Mapping[str, Any] | None = None,
    ):
        """Load the model, unless it is given.

        Args:
          model_name: see `mteb_model`; also the path or hub name, where neither `path` nor `encoder` is given.
          revision: the revision that the weights must have; None: any.
          device: "cpu", "cuda" or "tpu", which must be what JAX computes on; mteb passes it.
          path: the model's path.
          encoder: the model itself.
          batch_size, dtype, metadata: see `mteb_model`.

        Raises:
          UserError: as for `mteb_model`, or the weights are not of that revision.
          UsageError: JAX computes on another device.
        """
        _check_device(device)
        self.encoder = load_encoder(path or model_name, dtype=dtype) if encoder is None else encoder
        self.batch_size = batch_size
        digest = _revision(self.encoder)
        if revision not in (None, digest):
            raise UserError(f"{path or model_name}: its weights are revision {digest}, not {revision}; leave it out")
        loading = {} if encoder is not None else {"path": path or model_name, "batch_size": batch_size, "dtype": dtype}
        self.mteb_model_meta = _metadata(self.encoder, model_name, digest, loading, metadata or {})
        self._passages: np.ndarray | None = None
        self._ids: list[str] = []

    # ---- EncoderProtocol ---------------------------------------------------------------------------------------------

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        precision: str | None = None,
        show_progress_bar: bool | None = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Embed the texts of a data loader, float32 [n, D].

        Args:
          inputs: batches with the column "text"; of documents also "body" and, where there are titles, "title".
          task_metadata, hf_split, hf_subset: the task; encoders have no prompts of their own for tasks.
          prompt_type: queries go through the question tower, and everything else (documents, and texts of tasks without
            roles) through the passage tower.
          precision: None or "float32".
          show_progress_bar: whether to show progress; None: on a terminal, if it takes long.
          **kwargs: mteb's batch size, which the loader has applied already.

        Raises:
          UserError: the task is not of texts, or asks for another precision.
        """
        if precision not in (None, "float32"):
            raise UserError(f"precision={precision!r}: embeddings are float32 here; leave it out")
        columns = _columns(inputs)
        if "text" not in columns:
            raise UserError(f"{task_metadata.name}: gives no texts, and this model reads nothing else; leave it out")
        settings: Any = {"batch_size": self.batch_size, "progress": show_progress_bar}
        if prompt_type == "query":
            return self.encoder.encode_queries(columns["text"], **settings)
        bodies = columns.get("body", columns["text"])
        titles = columns.get("title", [""] * len(bodies))
        passages = [{"title": title or "", "text": body} for title, body in zip(titles, bodies, strict=True)]
        return self.encoder.encode_passages(passages, **settings)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compute the inner products of all pairs, a float32 tensor [n, m]."""
        return _similarities().dot_score(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compute the inner products row by row, a float32 tensor [n]."""
        return _similarities().pairwise_dot_score(embeddings1, embeddings2)

    # ---- SearchProtocol ----------------------------------------------------------------------------------------------

    def index(
        self,
        corpus: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Mapping[str, Any],
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Encode a corpus and keep it until the next one.

        Args:
          corpus: a data set with the columns id, text and, where there are titles, title.
        """
        task = {"task_metadata": task_metadata, "hf_split": hf_split, "hf_subset": hf_subset}
        self._passages = self._encode_rows(corpus, "document", task, encode_kwargs, num_proc)
        self._ids = list(corpus["id"])

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Mapping[str, Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Search exactly, or rank the given candidates.

        Args:
          queries: a data set with the columns id and text.
          top_ranked: {query id: candidates}, for re-ranking tasks.

        Returns:
          {query id: {passage id: score}}, at most `top_k` passages per query.

        Raises:
          UserError: no corpus was indexed, or a candidate is not in it.
        """
        if self._passages is None:
            raise UserError("search was called before index: there is no corpus yet; index one first")
        task = {"task_metadata": task_metadata, "hf_split": hf_split, "hf_subset": hf_subset}
        embeddings = self._encode_rows(queries, "query", task, encode_kwargs, num_proc)
        query_ids = list(queries["id"])
        if top_ranked is not None:
            return self._rerank(query_ids, embeddings, top_ranked, top_k)
        scores, ids = ExactIndex(self._passages, self._ids).search(embeddings, top_k)
        hits = zip(query_ids, ids, scores.tolist(), strict=True)
        return {query_id: dict(zip(names, values, strict=True)) for query_id, names, values in hits}

    def _encode_rows(
        self,
        rows: Any,
        prompt_type: str,
        task: Mapping[str, Any],
        encode_kwargs: Mapping[str, Any],
        num_proc: int | None,
    ) -> np.ndarray:
        # mteb's own searchers read their texts through it as well: it joins instructions and conversations to a text.
        loaders = import_extra("mteb._create_dataloaders", "mteb")
        role = import_extra("mteb.types", "mteb").PromptType(prompt_type)
        loader = loaders.create_dataloader(
            rows,
            task_metadata=task["task_metadata"],
            prompt_type=role,
            num_proc=num_proc,
            batch_size=encode_kwargs.get("batch_size", 32),
        )
        return self.encode(loader, prompt_type=role, **task, **encode_kwargs)

    def _rerank(
        self, query_ids: Sequence[str], embeddings: np.ndarray, candidates: Mapping[str, Sequence[str]], top_k: int
    ) -> dict[str, dict[str, float]]:
        assert self._passages is not None
        row_of = {id: row for row, id in enumerate(self._ids)}
        run = {}
        for query_id, embedding in zip(query_ids, embeddings, strict=True):
            ids = list(candidates.get(query_id, ()))
            if unknown := next((id for id in ids if id not in row_of), None):
                raise UserError(
                    f"candidate '{unknown}' of query '{query_id}' is not in the corpus; check the task's data"
                )
            scores = self._passages[[row_of[id] for id in ids]] @ embedding
            best = np.argsort(-scores, kind="stable")[:top_k]
            run[query_id] = {ids[place]: float(scores[place]) for place in best}
        return run


def _columns(batches: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for batch in batches:
        for name, values in batch.items():
            columns.setdefault(name, []).extend(values)
    return columns


def _similarities() -> Any:
    return import_extra("mteb.similarity_functions", "mteb")


def _check_device(device: str | None) -> None:
    if device is None:
        return
    kind = device.partition(":")[0]
    backend = jax.default_backend()
    if {"cuda": "gpu"}.get(kind, kind) != backend:
        raise UsageError(
            f"device={device!r}: JAX computes on {backend} here; leave it out, or set JAX_PLATFORMS before the start"
        )


def _revision(encoder: DualEncoder | CombinedEncoder) -> str:
    found, dtypes = search_fingerprint(encoder), [part.dtype for part in parts_of(encoder)]
    if any(dtype != "float32" for dtype in dtypes):
        found = hashlib.sha256(json.dumps([found, dtypes]).encode()).hexdigest()
    return found[:16]


def _metadata(
    encoder: DualEncoder | CombinedEncoder,
    name: str,
    revision: str,
    loading: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> Any:
    """Make mteb's ModelMeta of an encoder, from the weights and the fields that the user adds."""
    mteb = import_extra("mteb.models.model_meta", "mteb")
    sizes: dict[str, int] = {}
    for number, part in enumerate(parts_of(encoder)):
        leaves: dict[str, Any] = flatten_dict(part.params, sep=".")  # pyright: ignore[reportAssignmentType]
        sizes |= {f"{number}.{path}": int(np.prod(array.shape)) for path, array in leaves.items()}
    total = sum(sizes.values())
    cosine = isinstance(encoder, DualEncoder) and encoder.config.normalise
    fields = {
        "loader": MtebModel if loading else None,
        "loader_kwargs": {**loading, "metadata": dict(extra)} if loading else {},
        "name": name,
        "revision": revision,
        "release_date": None,
        "languages": None,
        "n_parameters": total,
        "n_embedding_parameters": sum(size for path, size in sizes.items() if "embedding" in path),
        "memory_usage_mb": round(total * 4 / 1024**2, 1),
        "max_tokens": encoder.config.max_passage_length,
        "embed_dim": encoder.config.embedding_size,
        "license": None,
        "open_weights": None,
        "public_training_code": None,
        "public_training_data": None,
        "framework": ["JAX"],
        "similarity_fn_name": "cosine" if cosine else "dot",
        "use_instructions": False,
        "training_datasets": None,
    }
    try:
        return mteb.ModelMeta(**{**fields, **extra})
    except ValueError as error:  # pydantic's error, of several lines
        problems = getattr(error, "errors", list)()
        where = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in problems) or str(error)
        raise UserError(f"mteb does not take this metadata ({where}); correct or leave out what was given") from None
