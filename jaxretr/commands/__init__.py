"""The work of each command, one module per command, with `run(args)`; cli.py parses the command line."""
