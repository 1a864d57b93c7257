"""Fixtures every room shares."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from importlib.util import find_spec
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``-m shared``: what reads ../shared."""
    for item in items:
        if "shared_dir" in getattr(item, "fixturenames", ()):
            item.add_marker("shared")


def pytest_collection_finish() -> None:
    """What thousands of collected tests hold is looked through once, not at every full collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # else cycles are looked for 4% of the time


MAY_SKIP = {
    r"such a file of .+ does not say \w+": True,
    "the superuser may read every file": True,
    "an encoder does not decode": True,
    "no accelerator here": True,
    "a part of `make long`": True,
    "needs llm-analysis from the package index": True,
    "torch": find_spec("torch") is None,
    "torchtitan": find_spec("torchtitan") is None,
    "shared": not (REPO.parent / "shared" / "README.md").exists(),
}
"""Reasons for which CI lets a test skip, and whether they hold here; with ``SARTOR_CI`` another one fails the run."""


def unknown_skips(reasons: list[str]) -> list[str]:
    """The reasons that no row of `MAY_SKIP` allows here."""
    allowed = [reason for reason, holds in MAY_SKIP.items() if holds]
    return sorted({reason for reason in reasons if not any(re.search(known, reason) for known in allowed)})


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> object:
    """A test that silently stops running is noticed: every skip of a run in CI has a reason of `MAY_SKIP`."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("SARTOR_CI") and reporter and not hasattr(session.config, "workerinput"):
        skipped = reporter.stats.get("skipped", [])
        unknown = unknown_skips([str(report.longrepr[-1]) for report in skipped if isinstance(report.longrepr, tuple)])
        if unknown:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            print("\nskipped for a reason that tests/conftest.py does not know:", *unknown, sep="\n  ")
    return (yield)


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
