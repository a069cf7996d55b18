"""ART on a CPU in a few minutes, on what ships with the package: what `jaxretr quickstart` runs."""

from jaxretr.quickstart.configs import config

__all__ = ["config"]
