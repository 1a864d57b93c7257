"""One answer of advise for all report tests: a GPT-2, whose vocabulary is odd, for two devices
and a trainer that does not pad it."""

from __future__ import annotations

import pytest

from sartor import api
from sartor.answers.advice import Advice


@pytest.fixture(scope="session")
def advice() -> Advice:
    return api.advise("examples/gpt2/config.json", ["a100", "h100"], framework="torchtitan")
