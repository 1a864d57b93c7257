"""Several hundred answers stay as they are recorded in tests/golden/replay.json.

A refactoring leaves that file alone. A change of a price on purpose records anew with
``python tests/house/replay.py --record`` and tells its summary in the commit.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from house.replay import Answer, ask, change, differences, load, make_files
from house.replay_questions import questions

ASKED = [(section, question) for section, lines in questions().items() for question in lines]


@cache
def recorded() -> dict[str, dict[str, Answer]]:
    return load()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("replay")
    make_files(made)
    return made


SLOW = ("design", "validate", "shared")


@pytest.mark.parametrize(
    ("section", "question"),
    [pytest.param(*row, id=row[1], marks=[pytest.mark.slow] if row[0] in SLOW else []) for row in ASKED],
)
def test_the_answer_is_as_recorded(section: str, question: str, folder: Path, request: pytest.FixtureRequest) -> None:
    if section == "shared":
        request.getfixturevalue("shared_dir")
    before = recorded().get(section, {}).get(question)
    assert before is not None, "no answer on file: python tests/house/replay.py --record"
    found = differences(before, ask(question, folder))
    assert not found, "\n".join([f"sartor {question}", *(f"{path}: {change(*pair)}" for path, pair in found.items())])


def test_every_recorded_answer_is_asked_for_and_there_are_enough() -> None:
    assert {section: list(answers) for section, answers in recorded().items()} == questions()
    assert len(ASKED) == len(set(ASKED)) >= 300
