"""Passages in PostgreSQL with pgvector: the tables, searching them, and writing to them."""
