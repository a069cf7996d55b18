"""Passages in a LanceDB table: built, searched and served."""
