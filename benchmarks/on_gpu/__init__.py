"""What benchmarks/accelerator.py measures, and with what; jax, flax and numpy are all that it needs."""
