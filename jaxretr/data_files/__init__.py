"""Data files of any format: converted, described and checked."""
