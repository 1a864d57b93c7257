"""CI notices a test that stopped running: every skip has a reason on one list."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
REASONS = {
    "because it was easier": True,
    "playwright is not installed": True,
    "no accelerator here: graphs and events are tried where there is one": False,
}
"""Why a test skips, and whether CI notices."""


def test_a_skip_for_an_unknown_reason_fails_a_run_of_ci(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(f"exec(open({str(REPO / 'tests' / 'conftest.py')!r}).read())\n")
    tests = (f"def test_{i}():\n    pytest.skip({reason!r})\n" for i, reason in enumerate(REASONS))
    (tmp_path / "test_it.py").write_text("\n\n".join(["import pytest\n", *tests]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(command, env={**os.environ, "SARTOR_CI": "1"}, capture_output=True, text=True)
    said = ran.stdout.partition("does not know:")[2].partition("====")[0]
    assert ran.returncode == 1
    assert {reason: reason in said for reason in REASONS} == REASONS
