"""Trainers' own packages, from the package index: skipped where there is none, failing where it lacks the version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROBE = "packaging==25.0"
"""A small package that every index has."""


def fetched(folder: Path, *what: str, verb: str = "install", needs: bool = False) -> None:
    """``pip install`` (or ``download``) into a folder, without what the package needs unless ``needs``."""
    where = "--target" if verb == "install" else "--dest"
    deps = [] if needs else ["--no-deps"]
    got = _pip(verb, "-q", *deps, where, str(folder), *what)
    if not got.returncode:
        return
    if _pip("download", "-q", "--no-deps", "--dest", str(folder / "probe"), PROBE).returncode:
        pytest.skip(f"{what[0]} cannot be fetched here: no package index")
    pytest.fail(f"{what[0]} is not in the package index that is there: {got.stderr[-500:]}")


def _pip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
