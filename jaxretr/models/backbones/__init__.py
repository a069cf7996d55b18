"""The towers' networks and their layers; `dtype` is everywhere the type of the operands of their matmuls."""
