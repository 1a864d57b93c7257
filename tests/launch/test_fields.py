"""The launch table is a law: what a row writes for a value, the same row reads as that value, for every trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.fields import Row, argument_names, row_of, rows, written_fields
from sartor.launch.plan import LaunchKind
from sartor.launch.stated import Flags, Stated, StatedDocument, parse_flags
from sartor.model.training import Recipe, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.step.stage_table import waterfall

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
    return StatedDocument(raw=document)


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_what_a_row_writes_is_what_it_reads(table: LaunchKind | str, row: Row) -> None:
    for value in values_of(row):
        launch = stated(row, value)
        assert row.read(launch) == value, (table, row.argument)
        assert not launch.left()
        assert not launch.open


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_row_that_nobody_states_is_its_default(table: LaunchKind | str, row: Row) -> None:
    empty: tuple[Stated, ...] = (Flags(given={}), StatedDocument(raw={}))
    assert {row.read(launch) for launch in empty} == {row.default}, table


@pytest.mark.parametrize(("table", "row"), [each for each in ROWS if each.values[1].older])
def test_older_names_of_a_row_are_read(table: LaunchKind | str, row: Row) -> None:
    value = values_of(row)[0]
    for name in row.older:
        launch = parse_flags([name] if row.flag is not None else [name, str(row.spelled(value)).lower()])
        if name.startswith("--"):
            assert row.read(launch) == value, table


NOT_DATED = (
    *("--cpu-offloading-num-layers", "--exp-avg-dtype", "--exp-avg-sq-dtype", "--main-grads-dtype"),
    *("--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag", "--main-params-dtype"),
)
"""Arguments whose first release nobody looked up: they are taken for every version's."""


def test_every_flag_of_megatron_is_its_own_and_has_its_release() -> None:
    for row in rows(LaunchKind.MEGATRON):
        assert not row.argument or row.argument in argument_names()
        assert not row.argument or row.since or row.bytes_of or row.argument in NOT_DATED
        assert row.argument or row.only
        assert row_of(LaunchKind.MEGATRON, row.argument) or not row.argument


def test_an_argument_without_a_price_says_what_it_may_change() -> None:
    names = {part for shown in waterfall_parts() for part in shown}
    for table in (LaunchKind.MEGATRON, LaunchKind.DEEPSPEED, LaunchKind.MAXTEXT):
        unpriced = rows(table, "unpriced")
        priced = {row.argument for row in rows(table) if not row.bytes_of}
        assert unpriced
        assert len({row.argument for row in unpriced}) == len(unpriced)
        assert not priced & {row.argument for row in unpriced}, "a price now: delete the row"
        for row in unpriced:
            assert row.bytes_of, row.argument
            assert set(row.bytes_of) <= names, row.argument
            assert row.sign in (-1, 0, 1)
            assert row.share > 0
            assert row.sign > 0 or row.share <= 1


def waterfall_parts() -> Iterator[list[str]]:
    """Names of the parts of memory of plans that between them have all that a row may name."""
    job = TrainingJob(shape=load_model("llama-2-7b"), seq_len=4096, global_batch_size=64, recipe=Recipe.FP8_DELAYED)
    for zero, pp in ((1, 1), (3, 1), (1, 2)):
        plan = TrainingPlan(dims=ParallelDims(dp=8 // pp, pp=pp), num_microbatches=8 * pp, zero_stage=zero)
        for stage in waterfall(job, plan, load_cluster("dgx-h100")).stages:
            yield [part.name for part in stage.parts]


def test_rows_of_a_release_are_those_that_it_has() -> None:
    values: dict[str, Any] = {"tp_overlap": True}
    before = written_fields(LaunchKind.TORCHTITAN, "config", values, set(), {}, (0, 2, 2))
    after = written_fields(LaunchKind.TORCHTITAN, "config", values, set(), {}, (0, 3))
    assert "enable_async_tensor_parallel" in before["parallelism"]
    assert "enable_async_tensor_parallel" in after["compile"]
    assert "enable_async_tensor_parallel" not in after.get("parallelism", {})
