"""`python -m jaxretr`, the same as the command `jaxretr`."""

from jaxretr.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
