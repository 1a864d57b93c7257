"""How often a test tries: a few times by default, many in the long run (``make long``, hours)."""

from __future__ import annotations

import os

LONG = bool(os.environ.get("SARTOR_LONG"))


def times(few: int, many: int) -> int:
    """``few``, or ``many`` in the long run."""
    return many if LONG else few
