"""What pyproject.toml cannot say: configs/ stands beside the package, and is installed in it as jaxretr/configs."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["jaxretr*"]), "jaxretr.configs"],
    package_dir={"jaxretr.configs": "configs"},
    # An editable install puts the clone on sys.path. The default, an import hook, comes after the working directory: there
    # a clone called jaxretr would be imported as an empty package.
    options={"editable_wheel": {"mode": "compat"}},
)
