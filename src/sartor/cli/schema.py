"""``sartor schema``: the JSON schema of a command's answer."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def schema(command: Annotated[str, typer.Argument(metavar="COMMAND", help="The command, such as plan.")]) -> None:
    """Print the JSON schema (draft 2020-12) that a command's `--json` validates against.

    Example: `sartor schema plan`
    """
    from sartor.answers.commands import command_schema

    print(json.dumps(command_schema(command), indent=2))
