"""The quality of runs: `answers` (Acc@k), `metrics` (trec_eval's measures), `runs` (files), `significance` (tests)."""

from jaxretr.data import run_reading as runs
from jaxretr.evaluate import answers, metrics, significance

__all__ = ["answers", "metrics", "runs", "significance"]
