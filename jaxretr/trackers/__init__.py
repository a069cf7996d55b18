"""Where a run's metrics go besides metrics.jsonl: TensorBoard's files, Weights & Biases, MLflow."""
