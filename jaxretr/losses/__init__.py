"""The losses: arrays in, arrays out."""
