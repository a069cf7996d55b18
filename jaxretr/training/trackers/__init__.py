"""Trackers of a run's metrics besides metrics.jsonl: TensorBoard's files, Weights & Biases, MLflow."""
