"""The options --rerank and --depth of commands that re-rank their hits."""

import argparse
from typing import Any

from jaxretr.runtime.errors import UsageError


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments rerank and depth for `jaxretr.search` and similar functions; empty without --rerank.

    Raises:
      UsageError: an option without --rerank, where it would be ignored.
    """
    if args.rerank is None:
        for name in ("depth", "rerank_kind", "rerank_max_length"):
            if getattr(args, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for --rerank SCORER: give that as well, or leave it out"
                )
        return {}

    def load() -> Any:
        from jaxretr.models.any_scorer import load_scorer

        return load_scorer(
            args.rerank, kind=args.rerank_kind or "auto", max_length=args.rerank_max_length, dtype=args.compute
        )

    return {"rerank": load, "depth": args.depth or 100}
