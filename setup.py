"""What pyproject.toml cannot say: the wheel carries data/ as labkernels/data, for commands without a checkout."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["labkernels*"]), "labkernels.data"],
    package_dir={"labkernels.data": "data"},
    package_data={
        "labkernels": ["**/*.ptx", "**/*.cu", "**/*.h"],
        "labkernels.data": ["**/*.csv", "datapackage.json", "SHA256SUMS"],
    },
)
