"""CI notices a test that stopped running: every skip has a reason on one list."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SKIPS = {
    "because it was easier": 1,
    "playwright is not installed": 1,
    "no accelerator here: graphs and events are tried where there is one": 0,
}


@pytest.mark.parametrize("reason", SKIPS)
def test_a_skip_for_an_unknown_reason_fails_a_run_of_ci_alone(reason: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(f"exec(open({str(REPO / 'tests' / 'conftest.py')!r}).read())\n")
    (tmp_path / "test_it.py").write_text(f"import pytest\n\n\ndef test_it():\n    pytest.skip({reason!r})\n")
    codes = [
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
            env={**os.environ, "SARTOR_CI": ci},
            capture_output=True,
        ).returncode
        for ci in ("", "1")
    ]
    assert codes == [0, SKIPS[reason]]
