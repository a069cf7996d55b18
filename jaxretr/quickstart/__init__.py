"""The quickstart: `run` learns a retriever from questions alone, `serving` serves it, `configs` are its settings."""
