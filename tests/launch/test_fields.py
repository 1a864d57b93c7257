"""The launch table is a law: what a row writes for a value, the same row reads as that value, for every trainer."""

from __future__ import annotations

from typing import Any

import pytest

from sartor.launch.fields import Row, argument_names, row_of, rows, written_fields
from sartor.launch.plan import LaunchKind
from sartor.launch.stated import Document, Flags, Stated, parse_flags

TABLES: tuple[LaunchKind | str, ...] = (
    LaunchKind.MEGATRON,
    LaunchKind.TORCHTITAN,
    LaunchKind.DEEPSPEED,
    LaunchKind.ACCELERATE,
    "huggingface",
)
ROWS = [
    pytest.param(table, row, id=f"{getattr(table, 'value', table)}-{row.field}-{row.argument}")
    for table in TABLES
    for row in rows(table)
    if row.argument and row.field and not row.by_code
]


def values_of(row: Row) -> list[Any]:
    """Values that a row can say."""
    if row.flag is not None:
        return [row.flag, row.default]
    if row.words is not None:
        first: dict[object, Any] = {}
        for text, word in row.words.items():
            first.setdefault(word, {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text))
        return [value for word, value in first.items() if word != ""]
    if isinstance(row.default, bool):
        return [True, False]
    if isinstance(row.default, float) and not row.whole:
        return [0.125, row.default]
    if isinstance(row.default, str):
        return [row.default]
    return [2, 3] if row.default is None else [2, row.default]


def stated(row: Row, value: Any) -> Stated:
    """A launch that says one value by one row."""
    if row.argument.startswith("--"):
        return parse_flags(word for argument in row.arguments(value) for word in argument)
    document: dict[str, Any] = {}
    if (said := row.spelled(value)) is not None:
        *sections, key = row.argument.split(".")
        table = document
        for section in sections:
            table = table.setdefault(section, {})
        table[key] = said
    return Document(raw=document)


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_what_a_row_writes_is_what_it_reads(table: LaunchKind | str, row: Row) -> None:
    for value in values_of(row):
        launch = stated(row, value)
        assert row.read(launch) == value, (table, row.argument)
        assert not launch.left()
        assert not launch.open


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_row_that_nobody_states_is_its_default(table: LaunchKind | str, row: Row) -> None:
    empty: tuple[Stated, ...] = (Flags(given={}), Document(raw={}))
    assert {row.read(launch) for launch in empty} == {row.default}, table


@pytest.mark.parametrize(("table", "row"), [each for each in ROWS if each.values[1].older])
def test_older_names_of_a_row_are_read(table: LaunchKind | str, row: Row) -> None:
    value = values_of(row)[0]
    for name in row.older:
        launch = parse_flags([name] if row.flag is not None else [name, str(row.spelled(value)).lower()])
        if name.startswith("--"):
            assert row.read(launch) == value, table


NOT_DATED = ("--cpu-offloading-num-layers", "--exp-avg-dtype", "--exp-avg-sq-dtype", "--main-grads-dtype")
"""Arguments whose first release nobody looked up: they are taken for every version's."""


def test_every_flag_of_megatron_is_its_own_and_has_its_release() -> None:
    for row in rows(LaunchKind.MEGATRON):
        assert not row.argument or row.argument in argument_names()
        assert not row.argument or row.since or row.argument in NOT_DATED
        assert row.argument or row.only
        assert row_of(LaunchKind.MEGATRON, row.argument) or not row.argument


def test_rows_of_a_release_are_those_that_it_has() -> None:
    values: dict[str, Any] = {"tp_overlap": True}
    before = written_fields(LaunchKind.TORCHTITAN, "config", values, set(), {}, (0, 2, 2))
    after = written_fields(LaunchKind.TORCHTITAN, "config", values, set(), {}, (0, 3))
    assert "enable_async_tensor_parallel" in before["parallelism"]
    assert "enable_async_tensor_parallel" in after["compile"]
    assert "enable_async_tensor_parallel" not in after.get("parallelism", {})
