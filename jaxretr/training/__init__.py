"""Training: `loop.py` is the program, read top to bottom; `runs/` are its objectives, `steps/` what is compiled."""
