"""Search over embeddings and words. `jaxretr.search(...)`, the function, is in jaxretr/searching.py."""
