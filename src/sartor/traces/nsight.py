"""Exports of Nsight Systems (``nsys export --type sqlite``): a rank for each process and device.

Tables and columns as NVIDIA documents them (SQLite Export Schema Reference, read 2026-11-23); missing ones are treated
as empty. Operators and their sizes are the NVTX ranges of PyTorch's ``emit_nvtx(record_shapes=True)``.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sartor.errors import InputError
from sartor.traces.kernel_trace import HostOperator, KernelTrace, Recorded, kernel_trace

SQLITE = b"SQLite format 3\x00"
NANO = 1e-9
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
HOST = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": "Memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "Memset"}
PROCESS = 24
"""Number of low bits of a global thread id below the process id."""
RANGE = re.compile(r"^([\w:.~<>]+)(?:, (?:seq|op_id) = -?\d+)*(?:, sizes = (\[.*?\]\]|\[\]))?")
STEP = re.compile(r"(?i)^[\w .:/#-]{0,30}?\b(?:profiler)?_?(?:step|iter|iteration)[\s#:=_-]*\d+$")
LIST = re.compile(r"\[([\d, ]*)\]")
LONGEST = 10_000
"""Only this many characters of a range's text are read."""


def read_nsight(path: Path, field: str) -> tuple[KernelTrace, ...]:
    """The ranks of an export. Raises ``InputError`` for anything else, a damaged file, or one without kernels."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            ranks = _ranks(database)
    except (sqlite3.Error, OverflowError) as error:
        must = "must be a whole export of Nsight Systems (nsys export --type sqlite)"
        raise InputError(field, str(path), f"{must}; {' '.join(str(error).split())[:100]}") from None
    if not ranks:
        raise InputError(field, str(path), "holds no GPU kernel; must be profiled with nsys profile --trace cuda,nvtx")
    return tuple(kernel_trace(str(path), recorded) for recorded in ranks)


def _ranks(database: sqlite3.Connection) -> list[Recorded]:
    tables = _columns(database)
    names = _names(database, tables)
    recorded: dict[tuple[int, int], Recorded] = {}
    for table, fixed in ((KERNELS, ""), *COPIES.items()):
        for begin, end, name, process, device, correlation, stream in _device_rows(database, tables, table):
            rank = recorded.setdefault((process >> PROCESS, device), Recorded())
            words = fixed or names.get(name, "")
            rank.kernels.append((NANO * begin, NANO * (end - begin), words, stream, correlation, -1))
    recorded = {
        where: rank for where, rank in sorted(recorded.items()) if any(words for _, _, words, *_ in rank.kernels)
    }
    by_process: dict[int, list[Recorded]] = {}
    for number, ((process, device), rank) in enumerate(recorded.items()):
        rank.gpu = _gpu(database, tables, device)
        rank.rank, rank.world_size = (number, len(recorded)) if len(recorded) > 1 else (None, None)
        by_process.setdefault(process, []).append(rank)
    _host(database, tables, names, by_process)
    _ranges(database, tables, names, by_process)
    return list(recorded.values())


def _columns(database: sqlite3.Connection) -> dict[str, frozenset[str]]:
    names = (KERNELS, *HOST, *COPIES, "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU")
    columns = {}
    for table in names:
        rows = database.execute(f"PRAGMA table_info({table})").fetchall()
        if rows:
            columns[table] = frozenset(str(row[1]) for row in rows)
    return columns


def _rows(
    database: sqlite3.Connection, tables: dict[str, frozenset[str]], table: str, columns: tuple[str, ...]
) -> Iterator[tuple[object, ...]]:
    """Rows of a table. Each wanted column may name alternatives (``a|b``): the first that exists, or NULL."""
    if table not in tables:
        return iter(())
    names = [next((f'"{name}"' for name in column.split("|") if name in tables[table]), "NULL") for column in columns]
    return iter(database.execute(f"SELECT {', '.join(names)} FROM {table}"))


def _whole(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) else default


def _names(database: sqlite3.Connection, tables: dict[str, frozenset[str]]) -> dict[object, str]:
    rows = _rows(database, tables, "StringIds", ("id", "value"))
    return {number: text[:LONGEST] for number, text in rows if isinstance(text, str)}


def _device_rows(
    database: sqlite3.Connection, tables: dict[str, frozenset[str]], table: str
) -> Iterator[tuple[int, int, object, int, int, int, int]]:
    """begin, end, name id, process, device, correlation, stream"""
    columns = ("start", "end", "demangledName|shortName", "globalPid", "deviceId", "correlationId", "streamId")
    for begin, end, name, *rest in _rows(database, tables, table, columns):
        if isinstance(begin, int) and isinstance(end, int):
            process, device, correlation, stream = (_whole(value) for value in rest)
            yield begin, end, name, process, device, correlation, stream


def _host(
    database: sqlite3.Connection,
    tables: dict[str, frozenset[str]],
    names: dict[object, str],
    ranks: dict[int, list[Recorded]],
) -> None:
    """Record launches, and the calls in which the host waited."""
    for table in HOST:
        for row in _rows(database, tables, table, ("start", "end", "nameId", "globalTid", "correlationId")):
            begin, end, name, thread, correlation = row
            if not isinstance(begin, int) or not isinstance(end, int):
                continue
            words = names.get(name, "")
            for rank in ranks.get(_whole(thread) >> PROCESS, ()):
                rank.launches[_whole(correlation, -1)] = NANO * begin, -1, thread
                if "Synchronize" in words:
                    rank.waits.append((words, NANO * begin, NANO * end))


def _ranges(
    database: sqlite3.Connection,
    tables: dict[str, frozenset[str]],
    names: dict[object, str],
    ranks: dict[int, list[Recorded]],
) -> None:
    """NVTX ranges: operators with their sizes, and steps."""
    rows = _rows(database, tables, "NVTX_EVENTS", ("start", "end", "text", "textId", "globalTid"))
    for number, (begin, end, text, text_id, thread) in enumerate(rows):
        words = text[:LONGEST] if isinstance(text, str) and text else names.get(text_id, "")
        if not isinstance(begin, int) or not isinstance(end, int) or not words:
            continue
        for rank in ranks.get(_whole(thread) >> PROCESS, ()):
            if STEP.match(words):
                rank.steps.append((words, NANO * begin, NANO * end))
            elif "::" in words or "sizes = " in words or words.startswith("nccl"):
                rank.operators[number] = _operator(words, NANO * begin, NANO * end)
                rank.threads.append(thread)
            else:
                rank.add_frame(words, NANO * begin, NANO * end)


def _operator(words: str, begin_s: float, end_s: float) -> HostOperator:
    """``aten::mm, seq = 3, op_id = 7, sizes = [[16, 32], [32, 8]]``"""
    match = RANGE.match(words)
    name, sizes = (match[1], match[2] or "") if match else (words, "")
    lists = [
        tuple(int(n[:15]) for n in sizes_of_input.replace(",", " ").split()) for sizes_of_input in LIST.findall(sizes)
    ]
    return HostOperator(
        name=name,
        dims=tuple(sizes_of_input for sizes_of_input in lists if sizes_of_input)[:8],
        begin_s=begin_s,
        end_s=end_s,
    )


def _gpu(database: sqlite3.Connection, tables: dict[str, frozenset[str]], device: int) -> str:
    """Name of a device by its number, or of all if they are the same."""
    named = {
        _whole(number, -1): str(name) for number, name in _rows(database, tables, "TARGET_INFO_GPU", ("id", "name"))
    }
    if len(set(named.values())) == 1:
        return next(iter(named.values()))
    return named.get(device, "")
