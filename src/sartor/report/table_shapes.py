"""``sartor operators`` for the terminal, from its JSON body."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sartor.json_types import JsonMap
from sartor.report.table_estimate import notes
from sartor.report.words import count_text, interval_text, printable
from sartor.units import format_seconds

SHOWN = 40
"""Most rows of a kind that are printed; a file may have a million."""

MOST_COLUMNS = 3
"""Most columns of a shape that fit beside its times; more are written into one."""


def shapes_view(body: JsonMap, kinds: Sequence[JsonMap]) -> RenderableType:
    """Times by kind of operator, of the first rows at least, and the rows without one. ``kinds`` are those of all rows
    (``kinds_of``); columns that hold the same in all are said once."""
    where = f" ({printable(body['file'])})" if body["file"] else ""
    head = Text(f"{body['expressed']:,} of {count_text(body['num_rows'], 'operator')} priced{where}", style="bold")
    parts: list[RenderableType] = [head] if body["file"] else []
    for kind in kinds:
        parts += _of_kind(kind, [row for row in body["operators"] if row["table"] == kind["table"]])
    refused = [f"{_named(each)}: {each['reason']}" for each in body["refused"]]
    return Group(*parts, *notes("Not priced", refused), *notes("Assumed", body["assumptions"]))


def _of_kind(of: JsonMap, rows: Sequence[JsonMap]) -> list[RenderableType]:
    kind, count, columns = of["table"], of["count"], of["columns"]
    same = {name: value for name, value in columns.items() if value is not None}
    said = ", ".join(
        _cell(value) if name in ("gpu", "dtype") else f"{name} {_cell(value)}" for name, value in same.items()
    )
    title = Padding(Text(printable(f"{kind}: {said}" if said else kind), style="bold"), (1, 0, 0, 0), expand=False)
    if count == 1:
        (row,) = rows
        line = Text(interval_text(row["time_s"], row["low_s"], row["high_s"]), style="bold")
        rate = [f"{text} {unit}" for text, unit in zip(_rates(row), ("TFLOP/s", "GB/s"), strict=True) if text]
        return [title, line.append(f"; {'; '.join(rate)}; bound by {row['bound_by']}; {row['source']}")]
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    shown = [name for name in columns if name not in same]
    together = len(shown) > MOST_COLUMNS
    table.add_column("row", justify="right", no_wrap=True)
    for name in ("shape",) if together else shown:
        table.add_column(printable(name), justify="left" if together else "right", overflow="fold")
    for name in ("time", "80% low", "80% high", "TFLOP/s", "GB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("bound by", "source"):
        table.add_column(name, no_wrap=True)
    for row in rows[:SHOWN]:
        sizes = {name: printable(_cell({**row["shape"], "gpu": row["gpu"]}.get(name, ""))) for name in shown}
        told = (", ".join(f"{name} {size}" for name, size in sizes.items() if size),) if together else sizes.values()
        times = (format_seconds(row[name]) for name in ("time_s", "low_s", "high_s"))
        table.add_row(*map(Text, (f"{row['row']}", *told, *times, *_rates(row), row["bound_by"], row["source"])))
    rest = count - SHOWN
    more = [Text(f"and {rest:,} more (--json and --write have all)", style="dim")] if rest > 0 else []
    return [title, table, *more]


def _cell(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _rates(row: JsonMap) -> tuple[str, str]:
    """TFLOP/s (empty for operators without FLOPs) and GB/s."""
    flops = f"{row['achieved_flops_per_s'] / 1e12:,.4g}" if row["flops"] else ""
    return flops, f"{row['achieved_bytes_per_s'] / 1e9:,.4g}"


def _named(refused: JsonMap) -> str:
    """``row 3``, ``rows 3, 7 and 12 more``."""
    rows, rest = refused["rows"], refused["count"] - len(refused["rows"])
    if refused["count"] == 1:
        return f"row {rows[0]}"
    *first, last = rows
    more = f", {last} and {rest:,} more" if rest else f" and {last}"
    return f"rows {', '.join(map(str, first))}{more}"
