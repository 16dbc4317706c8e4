"""The environment of a Record: what is installed, as the installed packages say."""

from importlib import metadata

from dpexp.engine.environment import environment


def test_the_packages_are_those_that_importlib_finds() -> None:
    found = {entry.metadata["Name"]: entry.version for entry in metadata.distributions()}
    assert environment()["packages"] == found
    assert found["torch"].startswith("2.")
