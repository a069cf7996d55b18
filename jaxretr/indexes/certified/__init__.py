"""Approximate search for serving, certified: `index.ScannIndex`. The worker process imports this folder without JAX."""
