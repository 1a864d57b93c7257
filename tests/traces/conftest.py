"""The command line of tests/cli, for this room too."""

from cli.conftest import sartor

__all__ = ["sartor"]
