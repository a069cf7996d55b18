"""The quality of runs: `answers` (Acc@k), `metrics` (trec_eval's measures), `significance` (tests), and reports."""
