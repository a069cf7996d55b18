"""Pages without a network: `jaxretr report` about training runs, `jaxretr judge` about two systems without their names."""

from pathlib import Path
from typing import Any


def rendered(template: Path, **values: Any) -> str:
    """Return a page: a template of this folder, filled with values, which are escaped."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template.read_text(encoding="utf-8")).render(**values)
