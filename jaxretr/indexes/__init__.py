"""Indexes over embeddings and words, a folder a kind; `searching.py` searches with a model."""
