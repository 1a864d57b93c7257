"""Fixtures every room shares."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

# Before numpy is loaded: on the two cores that two workers share, a thread that waits for another one spins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Parts that don't add up between two stages of pricing end a test (sartor.step.results).
os.environ.setdefault("SARTOR_DEBUG", "1")

import pytest
from hypothesis import settings

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "tests"))  # so that every room can say: from strategies import shapes


# How long an example takes tells of the machine's other work; no test is judged by seconds.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

# A worker of pytest-xdist is told a width of its own, which piped output would honour.
os.environ.pop("COLUMNS", None)


def pytest_collection_finish() -> None:
    """What thousands of collected tests hold is looked through once, not at every full collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def hears_ctrl_c() -> None:
    """Every test hears Ctrl-C, and so do the commands it starts.

    A job in the background of a script is started deaf to it, and a command that ends in this process leaves it deaf.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
