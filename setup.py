"""What pyproject.toml cannot say: configs/, beside the package, is installed in it, and PyPI's page has links to the repository."""

import re
from pathlib import Path

from setuptools import find_packages, setup

README = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
REPOSITORY = "https://github.com/jaxretr/jaxretr"

setup(
    packages=[*find_packages(include=["jaxretr*"]), "jaxretr.configs"],
    package_dir={"jaxretr.configs": "configs"},
    long_description=re.sub(
        r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)",
        lambda found: f"{found[1]}[{found[2]}]({REPOSITORY}/{'raw' if found[1] else 'blob'}/main/",
        README,
    ),
    long_description_content_type="text/markdown",
    # An editable install puts the clone on sys.path. The default, an import hook, comes after the working directory: there
    # a clone called jaxretr would be imported as an empty package.
    options={"editable_wheel": {"mode": "compat"}},
)
