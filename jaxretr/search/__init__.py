"""Search over embeddings and words; `jaxretr.search(...)`, the function, is in searching.py."""
