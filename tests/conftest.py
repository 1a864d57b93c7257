"""Fixtures every room shares."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "tests"))  # so that every room can say: from strategies import shapes


# How long an example takes tells of the machine's other work; no test is judged by seconds.
settings.register_profile("house", deadline=None)
settings.load_profile("house")


@pytest.fixture(scope="session")
def repo_dir() -> Path:
    return REPO


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The reference designs and data beside the checkout; tests that compare with them skip where they are absent."""
    shared = REPO.parent / "shared"
    if not (shared / "README.md").exists():
        pytest.skip("the shared reference data is not beside this checkout")
    return shared
