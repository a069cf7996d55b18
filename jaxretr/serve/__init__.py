"""The HTTP service: embeddings, search, re-ranking and writing over indexes of one model."""
