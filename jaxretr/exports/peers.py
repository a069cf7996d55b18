"""The golden vectors as other libraries compute them from an export; needs torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxretr.config import SPLADE
from jaxretr.embeddings.golden import Golden, Vectors
from jaxretr.models.hub.encoder_params import MASKED_LM, names_of, shape_of
from jaxretr.models.hub.export_note import FORMAT, LIBRARIES, NOTE, ExportNote, read_note
from jaxretr.models.hub.hf_files import read_json
from jaxretr.models.hub.poolings import POOLINGS
from jaxretr.models.hub.sentence_transformers import MODULES, SETTINGS
from jaxretr.runtime.errors import UsageError, import_extra


def vectors(folder: Path, library: Literal["sentence-transformers", "transformers"], golden: Golden) -> Vectors:
    """Let a library embed the golden texts, on the CPU.

    Args:
      library: the library whose layout the folder must have.
      golden: the texts, passages as single texts.

    Raises:
      UserError: the library is not installed.
      UsageError: the folder is of another library's layout.
    """
    content = read_json(folder, NOTE)
    note = read_note(content, str(folder / NOTE)) if content.get("format") == FORMAT else None
    written_for = "jaxretr" if note is None else LIBRARIES[note.layout]
    if note is None or written_for != library:
        raise UsageError(f"{folder}: was exported for {written_for}, so {library} cannot read it; leave library= out")
    question, passage = note.folders(folder)
    questions = [golden.settings.get("query_prompt", "") + text for text in golden.questions]
    if library == "sentence-transformers":
        return _by_modules(folder, note, questions, golden.passages_as_text)
    return Vectors(
        _by_transformers(question, "DPRQuestionEncoder", note, questions, note.max_question_length),
        _by_transformers(passage, "DPRContextEncoder", note, golden.passages_as_text, note.max_passage_length),
    )


def _by_modules(folder: Path, note: ExportNote, questions: Sequence[str], passages: Sequence[str]) -> Vectors:
    library = import_extra("sentence_transformers", "dev")
    _hush()
    # Exports of earlier versions had no Router above the towers.
    places = (folder, folder) if (folder / MODULES).exists() else note.folders(folder)
    kind = read_json(places[0], SETTINGS).get("model_type", "SentenceTransformer")

    def embed(place: Path, method: str, texts: Sequence[str], length: int | None) -> np.ndarray:
        model = getattr(library, kind)(str(place), device="cpu", local_files_only=True)
        model.prompts = {}  # The texts contain them already.
        if length is not None and length < model.max_seq_length:  # The folder cannot state this length.
            model.max_seq_length = length
        how = {"convert_to_sparse_tensor": False} if kind == "SparseEncoder" else {"convert_to_numpy": True}
        return np.asarray(getattr(model, method)(list(texts), **how, show_progress_bar=False))

    return Vectors(
        embed(places[0], "encode_query", questions, note.max_question_length),
        embed(places[1], "encode_document", passages, note.max_passage_length),
    )


def _hush() -> None:
    """Silence transformers' progress bars, and its report that BERT's pooler, which no retriever has, is missing."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _by_transformers(folder: Path, dpr: str, note: ExportNote, texts: Sequence[str], length: int | None) -> np.ndarray:
    """Embed texts with transformers alone, as the model card tells its readers; float32 [n, D]."""
    torch = import_extra("torch", "torch")
    import transformers

    _hush()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, padding_side="right")
    inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=length, return_tensors="pt")
    if note.layout == "dpr":
        model = getattr(transformers, dpr).from_pretrained(folder, local_files_only=True)
    else:
        record = names_of(shape_of(read_json(folder, "config.json"), str(folder)))
        sparse = note.pooling in SPLADE
        no_pooler = {"add_pooling_layer": False} if record.pooler and not sparse else {}
        loaded_by = MASKED_LM if sparse else record.loaded_by
        model = getattr(transformers, loaded_by).from_pretrained(folder, local_files_only=True, **no_pooler)
    model.eval()
    with torch.inference_mode():
        outputs = model(**inputs)
        if note.layout == "dpr":
            pooled = outputs.pooler_output
        else:
            found = {"torch": torch, "inputs": inputs, "outputs": outputs}
            exec(POOLINGS[note.pooling or "cls"].torch, found)
            pooled = found["vectors"]
        pooled = pooled[:, : note.truncate_dim]
        if note.normalise:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
    return pooled.numpy()
