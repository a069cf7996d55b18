"""What each command does: one module a command, with `run(args)`; cli.py says what can be typed."""
