"""Indexes for other systems: FAISS, Vertex AI and Pyserini."""
