"""The findings over the model zoo, unchanged by a refactor."""

from __future__ import annotations

import importlib.util
import json
import re
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
    changed = {q: (on_file.get(q), now.get(q)) for q in on_file | now if not _alike(on_file.get(q), now.get(q))}
    assert not changed, "rules or cost model have changed: run python lab/zoo_findings.py and show its diff"


def _alike(recorded: list[str] | None, answered: list[str] | None) -> bool:
    """The same findings, whose gains differ by no more than a last digit: another machine's BLAS rounds otherwise."""
    if recorded is None or answered is None or len(recorded) != len(answered):
        return False
    words = [GAIN.sub("gain", line) for line in recorded] == [GAIN.sub("gain", line) for line in answered]
    pairs = zip(GAIN.findall(" ".join(recorded)), GAIN.findall(" ".join(answered)), strict=True) if words else ()
    return words and all(abs(float(one) - float(two)) < 0.0015 for one, two in pairs)


GAIN = re.compile(r"gain (-?[\d.]+)")


def test_a_gain_may_round_otherwise_and_no_more() -> None:
    line = "warn ragged_vocab vocab_size=50257 gain {} fix vocab_size=50304"
    assert _alike([line.format("0.012")], [line.format("0.013")])
    assert not _alike([line.format("0.012")], [line.format("0.014")])
    assert not _alike([line.format("0.012")], [line.format("0.012").replace("warn", "info")])
    assert not _alike([line.format("cannot run")], [line.format("0.012")])
