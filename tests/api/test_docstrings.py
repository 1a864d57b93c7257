"""Every public function says its parameters, units, returns and errors, and its examples run."""

from __future__ import annotations

import doctest
import inspect
import re
from typing import Any

import pytest

import sartor
from sartor import api
from sartor.options import Unit
from sartor.run.fields import FIELDS

FUNCTIONS = [name for name in api.__all__ if inspect.isfunction(getattr(api, name))]


def sections_of(name: str) -> dict[str, str]:
    """The text of each section of a docstring, by its heading."""
    doc = inspect.getdoc(getattr(api, name)) or ""
    _, *parts = re.split(r"^(\w+)\n-+\n", doc, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def entries_of(section: str) -> dict[str, str]:
    """What a section says of each name: ``tp, pp : int`` begins an entry for both."""
    _, *parts = re.split(r"^(\S.*)\n", section, flags=re.MULTILINE)
    entries = zip(parts[::2], parts[1::2], strict=True)
    return {name: f"{head}\n{text}" for head, text in entries for name in head.partition(" : ")[0].split(", ")}


def test_every_public_function_of_the_package_is_one_of_the_api() -> None:
    functions = {name for name in sartor.__all__ if inspect.isfunction(getattr(sartor, name))}
    assert functions <= set(FUNCTIONS)
    assert {"compare", "diagnose", "estimate", "plan"} <= functions


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_has_parameters_with_units_returns_errors_and_an_example(name: str) -> None:
    sections = sections_of(name)
    assert list(sections) == ["Parameters", "Returns", "Raises", "Examples"]
    entries = entries_of(sections["Parameters"])
    parameters = inspect.signature(getattr(api, name)).parameters
    assert parameters.keys() <= entries.keys()
    assert entries.keys() - parameters.keys() <= {"**options"}
    for field, row in FIELDS.items():
        if field in parameters and row.unit is not Unit.NONE and f"{field} : " in entries[field]:
            assert f"[{row.unit.value}]" in entries[field]
    assert "--" not in sections["Parameters"]
    assert all(len(line) <= 120 for text in sections.values() for line in text.splitlines())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_examples_run(name: str, repo_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo_dir)
    function = getattr(api, name)
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={**function.__globals__})
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert result.attempted
    assert not result.failed, "".join(said)
