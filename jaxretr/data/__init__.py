"""Texts, training sets and judgements: read, checked, converted and turned into batches."""

from jaxretr.data.named import documents, hub, ir_collections, tfds_collections
from jaxretr.data.source import OPENERS

# Here, not in source.py: the named sets are read with the readers of files, which resolve paths with it.
OPENERS.update(
    ir_datasets=ir_collections.open_collection,
    tfds=tfds_collections.open_collection,
    hf=hub.open_collection,
    files=documents.open_collection,
)
