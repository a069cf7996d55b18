"""The quality of runs: `answers` (Acc@k), `metrics` (trec_eval's measures), `runs` (files), `significance` (tests)."""

from jaxretr.evaluate import answers, metrics, runs, significance

__all__ = ["answers", "metrics", "runs", "significance"]
