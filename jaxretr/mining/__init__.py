"""Hard negatives and lexical sets."""
