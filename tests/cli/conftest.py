"""Running the command line in this process: words in; exit code, stdout and stderr out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sartor.cli import run


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.out, parse_constant=_refuse)

    def refusal(self) -> str:
        """The one sentence on stderr of a command with ``--json`` that could not be answered."""
        assert self.code == 2
        assert self.err.count("\n") == 1, self.err
        assert self.body["error"]["message"] in self.err
        return self.err


def _refuse(word: str) -> None:
    raise AssertionError(f"JSON may not hold {word}")


@pytest.fixture
def sartor(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def call(*words: object) -> Ran:
        capsys.readouterr()
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call
