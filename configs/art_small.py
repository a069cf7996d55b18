"""ART on a CPU in a few minutes, on what ships with the package: what `jaxretr quickstart` runs."""

from jaxretr.quickstart_config import config

__all__ = ["config"]
