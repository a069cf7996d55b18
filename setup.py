"""What pyproject.toml cannot say: configs/ stands beside the package, and is installed in it as jaxretr/configs."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["jaxretr*"]), "jaxretr.configs"],
    package_dir={"jaxretr.configs": "configs"},
)
