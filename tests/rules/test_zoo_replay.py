"""The findings over the model zoo, unchanged by a refactor."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_findings_over_the_zoo_are_those_on_file(repo_dir: Path) -> None:
    spec = importlib.util.spec_from_file_location("zoo_findings", repo_dir / "lab" / "zoo_findings.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    on_file = json.loads(tool.FILE.read_text("utf-8"))["findings"]
    now = tool.findings()
    changed = {q: (on_file.get(q), now.get(q)) for q in on_file | now if on_file.get(q) != now.get(q)}
    assert not changed, "rules or cost model have changed: run python lab/zoo_findings.py and show its diff"
