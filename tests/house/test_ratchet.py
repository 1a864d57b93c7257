"""The ratchet of tools/house.py counts what it says; `make lint` holds the house against it."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path

HOUSE = run_path(str(Path(__file__).resolve().parents[2] / "tools" / "house.py"))

SAMPLE = '''
"""A module."""

class Pair:
    """Two numbers."""

def total(found, weight):
    """Their sum."""

    # a comment
    return found + weight

def _own(*each):
    at = each
    return at
'''


def test_it_counts_code_functions_and_names_that_name_nothing(tmp_path: Path) -> None:
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "sums.py").write_text(SAMPLE.lstrip())
    many = ", ".join(f"p{i}" for i in range(13))
    (tmp_path / "api" / "wide.py").write_text(f"class Pair: ...\n\ndef ask({many}): ...\n")
    figures = HOUSE["figures"](tmp_path)
    assert figures["modules"] == 2
    assert figures["code_lines"] == 6 + 2
    assert figures["class_names_used_twice"] == 1
    assert figures["public_functions_and_classes"] == 4
    assert figures["entrances_over_12_parameters"] == 1
    assert figures["empty_names_percent"] == round(100 * 3 / 17, 1)


def test_a_figure_may_improve_but_not_worsen() -> None:
    assert HOUSE["worse"]({"lines": 9.0, "modules": 2.0}, {"lines": 10.0, "modules": 2.0}) == {}
    assert HOUSE["worse"]({"lines": 11.0, "modules": 2.0}, {"lines": 10.0, "modules": 2.0}) == {"lines": (10.0, 11.0)}


def test_no_test_asserts_seconds_of_a_clock(repo_dir: Path) -> None:
    """A busy machine is no failure: counts, processor time or ratios (CONTRIBUTING.md); a deadline may end a hang."""
    clock = re.compile(r"assert [^\n]*\b(perf_counter|monotonic|time\.time)\(\) - ")
    tests = sorted((repo_dir / "tests").rglob("*.py"))
    assert [path.name for path in tests if clock.search(path.read_text("utf-8"))] == []
