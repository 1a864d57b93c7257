"""Traces of a run: read by format, with the steps that no marker shows found by phase.

The traces in a file: one from PyTorch's profiler, or all ranks of a Nsight Systems export. It is decoded event by
event, so memory grows with the number of kernels and operators, not with the file.

Tables and columns as NVIDIA documents them (SQLite Export Schema Reference, read 2026-11-23); missing ones are treated
as empty. Operators and their sizes are the NVTX ranges of PyTorch's ``emit_nvtx(record_shapes=True)``.

Steps of a training run without step marks: each ends when the optimizer has run.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np

from sartor.bounded import GZIP
from sartor.errors import InputError
from sartor.interrupts import report
from sartor.json_types import JsonDict
from sartor.traces.kernel_trace import (
    ENGINE_STEP,
    KINDS,
    PROFILER_STEP,
    HostOperator,
    KernelKind,
    KernelTrace,
    Recorded,
    kernel_kinds,
    kernel_trace,
)
from sartor.units import MICRO, IntArray

BEGINNING = re.compile(rb"\s*(?:\{\s*(?:[\"}]|\Z)|\[\s*(?:[{\]]|\Z))")
OBJECTS = re.compile(rb"\s*\{[^\n]*\}\s*\n\s*\{")
"""One object a line: a log."""
ENDINGS = (".json", ".json.gz", ".sqlite")
"""File name endings of traces in a folder."""
REPORTS = (".nsys-rep", ".qdrep")


def is_trace(path: str | Path) -> bool:
    """Whether a file, unpacked, is a SQLite database, or begins like a JSON object or a list of objects (log lines may
    begin with [ too, or be one object each). Raises ``InputError`` for a Nsight Systems report that was not
    exported."""
    if str(path).endswith(REPORTS):
        must = f"must be exported first: nsys export --type sqlite {Path(path).name}"
        raise InputError("TRACE", str(path), must)
    with Path(path).open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(GZIP):
        with suppress(zlib.error):
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, 4096)
            return not head or _is_json(head)
        return True
    return head.startswith(SQLITE) or _is_json(head)


def _is_json(head: bytes) -> bool:
    return BEGINNING.match(head) is not None and OBJECTS.match(head) is None


def read_traces(path: str | Path, field: str = "TRACE") -> tuple[KernelTrace, ...]:
    """The ranks in a file, lowest first; unmarked steps are found by the optimizer. Raises ``InputError`` for a file
    that is not a trace, is truncated, or holds no kernel."""
    source = Path(path)
    if not source.is_file():
        raise InputError(field, str(path), "no such file; must be a profiler's trace")
    with source.open("rb") as stream:
        database = stream.read(len(SQLITE)) == SQLITE
    traces = _read_nsight(source, field) if database else (read_kineto(source, field),)
    return tuple(_with_steps(trace) for trace in traces)


REPEATED = "between optimizer runs"
"""Name given to such a step."""
LEAST_KERNELS = 8
"""Least number of matrix multiplications between two optimizer runs; fewer are the optimizer's own (Muon, Shampoo)."""


def _with_steps(trace: KernelTrace) -> KernelTrace:
    """The trace with the intervals between optimizer runs as steps; unchanged if steps are marked or there are fewer
    than two runs. Kernels before the first run may be part of a step only, so they belong to none."""
    if trace.steps:
        return trace
    ends = _runs(kernel_kinds(trace))
    if ends.size < 2:
        return trace
    order = np.arange(trace.begin_s.size)
    step = np.searchsorted(ends, order, side="left") - 1
    step[step >= ends.size - 1] = -1
    edges = trace.end_s[ends].tolist()
    marks = tuple((REPEATED, left, right) for left, right in pairwise(edges))
    return replace(trace, step=step, steps=marks)


def _runs(kinds: IntArray) -> IntArray:
    """Index of the last kernel of each run of the optimizer."""
    optimizer_index = np.flatnonzero(kinds == KINDS.index(KernelKind.OPTIMIZER))
    if not optimizer_index.size:
        return optimizer_index
    products = np.cumsum(kinds == KINDS.index(KernelKind.MATMUL))
    apart = np.diff(products[optimizer_index]) >= LEAST_KERNELS
    last: IntArray = optimizer_index[np.append(apart, True)]
    return last


CHUNK = 1 << 22
LONGEST_EVENT = 1 << 24
"""Maximum number of characters of one event."""
MUST = "must be a trace of PyTorch's profiler (JSON, or JSON in gzip)"
MOST = 2**53
"""Largest number accepted in an event."""
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
ON_HOST = frozenset({"cuda_runtime", "cuda_driver"})


def read_kineto(path: str | Path, field: str = "TRACE") -> KernelTrace:
    """The kernels of a trace. Raises `InputError` for a file that is not a trace, is truncated, or holds no kernel."""
    source = Path(path)
    if not source.is_file():
        raise InputError(field, str(path), f"no such file; {MUST}")
    recorded = Recorded()
    try:
        with source.open("rb") as file, _opened(file) as stream:
            read = partial(_chunk, stream, file, f"reading {source.name}", source.stat().st_size)
            whole = _each_event(read, recorded)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(field, str(path), f"must be readable ({error})") from None
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(field, str(path), f"{MUST}; {' '.join(str(error).split())[:100]}") from None
    if not whole:
        raise InputError(field, str(path), "is truncated in the middle of its events")
    if not recorded.kernels:
        raise InputError(field, str(path), "holds no GPU event; must be profiled with ProfilerActivity.CUDA")
    return kernel_trace(str(path), recorded)


def _opened(file: io.BufferedReader) -> IO[str]:
    packed = file.peek(2)[:2] == GZIP
    return io.TextIOWrapper(gzip.GzipFile(fileobj=file) if packed else file, encoding="utf-8", errors="replace")


def _chunk(stream: IO[str], file: io.BufferedReader, words: str, size: int, count: int = CHUNK) -> str:
    report(words, file.tell(), size)
    return stream.read(count)


def _each_event(read: Callable[..., str], recorded: Recorded) -> bool:
    """Keep every event of what ``read`` gives; returns whether the list of events is complete."""
    decoder, buffer = json.JSONDecoder(), ""
    start = -1
    while start < 0:
        chunk = read()
        buffer += chunk
        if buffer.lstrip()[:1] == "[":
            start = buffer.index("[") + 1
            break
        position = buffer.find('"traceEvents"')
        start = buffer.find("[", position) + 1 or -1 if position >= 0 else -1
        if start < 0 and not chunk:
            raise ValueError(_without_events(buffer))
    _properties(buffer[:start], recorded)
    position = start
    while True:
        position = _skip(buffer, position)
        if position < len(buffer) and buffer[position] == "]":
            _properties(buffer[position + 1 :][:LONGEST_EVENT] + read(1 << 16), recorded)
            return True
        try:
            event, position = decoder.raw_decode(buffer, position)
        except ValueError:
            chunk = read()
            if not chunk:
                return False
            buffer, position = buffer[position:] + chunk, 0
            if len(buffer) > LONGEST_EVENT + CHUNK:
                raise ValueError("one event is longer than any can be") from None
            continue
        if isinstance(event, dict):
            _keep(event, recorded)


def _without_events(text: str) -> str:
    """Why a file has no list of events: damaged JSON, or JSON of something else."""
    try:
        json.loads(text)
    except ValueError as error:
        return f"it is not JSON: {error}"
    return "it is JSON without traceEvents"


def _skip(buffer: str, position: int) -> int:
    while position < len(buffer) and buffer[position] in " \n\r\t,":
        position += 1
    return position


def _properties(text: str, recorded: Recorded) -> None:
    """Device and distributed info, which are outside the list of events."""
    devices, who = _beside(text, "deviceProperties"), _beside(text, "distributedInfo")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        recorded.gpu = str(devices[0].get("name", ""))
        recorded.memory_bytes = max(_int(devices[0].get("totalGlobalMem")), 0)
    if isinstance(who, dict):
        rank, size = _int(who.get("rank")), _int(who.get("world_size"))
        recorded.rank, recorded.world_size = (None if rank < 0 else rank), (None if size < 0 else size)


def _beside(text: str, name: str) -> object:
    match = re.search(rf'"{name}"\s*:\s*', text)
    with suppress(ValueError):
        return json.JSONDecoder().raw_decode(text, match.end())[0] if match else None
    return None


def _keep(event: JsonDict, recorded: Recorded) -> None:
    cat, args = event.get("cat"), event.get("args")
    if event.get("name") == "[memory]" and isinstance(args, dict) and args.get("Device Type") == 1:
        recorded.reserved_bytes = max(recorded.reserved_bytes, _int(args.get("Total Reserved")))
    begin, took = event.get("ts"), event.get("dur")
    if not isinstance(args, dict) or not isinstance(begin, int | float | str):
        return
    if not isinstance(cat, str) or event.get("ph") != "X":
        return
    begin_s, took_s = MICRO * _float(begin), MICRO * _float(took)
    name = recorded.same(str(event.get("name", "")))
    number = _int(args.get("External id", args.get("external id")))
    if cat in ON_DEVICE:
        where = _int(args.get("stream", event.get("tid")))
        recorded.kernels.append((begin_s, took_s, name, where, _int(args.get("correlation")), number))
    elif cat in ON_HOST:
        recorded.launches[_int(args.get("correlation"))] = begin_s, number, _thread(event)
        recorded.add_call(name, begin_s, begin_s + took_s)
    elif cat == "cpu_op":
        if number not in recorded.operators:
            recorded.threads.append(_thread(event))
        recorded.operators[number] = _operator(name, args, begin_s, begin_s + took_s, recorded)
    elif cat == "user_annotation" and (name.startswith(PROFILER_STEP) or ENGINE_STEP.match(name)):
        recorded.steps.append((name, begin_s, begin_s + took_s))
    elif cat in ("python_function", "user_annotation"):
        recorded.add_frame(name, begin_s, begin_s + took_s)


def _operator(name: str, args: JsonDict, begin_s: float, end_s: float, recorded: Recorded) -> HostOperator:
    dims = args.get("Input Dims")
    shapes = (
        [d for d in dims if isinstance(d, list) and d and all(_int(n) >= 0 for n in d)]
        if isinstance(dims, list)
        else []
    )
    return HostOperator(
        name=name,
        dims=recorded.same(tuple(tuple(d) for d in shapes[:8])),
        begin_s=begin_s,
        end_s=end_s,
        collective=str(args.get("Collective name") or ""),
        elements=max(_int(args.get("In msg nelems")), _int(args.get("Out msg nelems")), 0),
        dtype=recorded.same(str(args.get("dtype") or _first_type(args.get("Input type")))),
        group_size=max(_int(args.get("Group size")), 0),
    )


def _first_type(types: object) -> str:
    return next((word for word in types if isinstance(word, str) and word), "") if isinstance(types, list) else ""


def _int(value: object) -> int:
    return value if isinstance(value, int) and abs(value) < MOST else -1


def _thread(event: JsonDict) -> object:
    """A thread's number or name; None for anything else."""
    thread = event.get("tid")
    return thread if isinstance(thread, int | str) else None


def _float(value: object) -> float:
    """A number of microseconds; 0 if it is not a number."""
    with suppress(ValueError, OverflowError):
        number = float(value) if isinstance(value, int | float | str) else 0.0
        return number if abs(number) < MOST else 0.0
    return 0.0


SQLITE = b"SQLite format 3\x00"
NANO = 1e-9
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
HOST = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": "Memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "Memset"}
DIRECTIONS = {1: " HtoD", 2: " DtoH", 8: " DtoD", 10: " PtoP"}
"""CUPTI's kinds of copies (cupti_activity.h); memory of kind 0 is pageable (Nsight's ENUM_CUDA_MEM_KIND)."""
PROCESS = 24
"""Number of low bits of a global thread id below the process id."""
RANGE = re.compile(r"^([\w:.~<>]+)(?:, (?:seq|op_id) = -?\d+)*(?:, sizes = (\[.*?\]\]|\[\]))?")
STEP = re.compile(r"(?i)^[\w .:/#-]{0,30}?\b(?:profiler)?_?(?:step|iter|iteration)[\s#:=_-]*\d+$")
LIST = re.compile(r"\[([\d, ]*)\]")
LONGEST = 10_000
"""Only this many characters of a range's text are read."""


_Rows = Callable[[str, tuple[str, ...]], Iterator[tuple[object, ...]]]


def _read_nsight(path: Path, field: str) -> tuple[KernelTrace, ...]:
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
    rows: _Rows = partial(_rows, database, _columns(database))
    names = {number: text[:LONGEST] for number, text in rows("StringIds", ("id", "value")) if isinstance(text, str)}
    recorded: dict[tuple[int, int], Recorded] = {}
    for table, fixed in ((KERNELS, ""), *COPIES.items()):
        for begin, end, name, process, device, correlation, stream, copy, *memories in _device_rows(rows, table):
            rank = recorded.setdefault((process >> PROCESS, device), Recorded())
            words = (
                f"{fixed}{DIRECTIONS.get(copy, '')}{' (Pageable)' * (0 in memories)}" if fixed else names.get(name, "")
            )
            rank.kernels.append((NANO * begin, NANO * (end - begin), words, stream, correlation, -1))
    recorded = {
        where: rank for where, rank in sorted(recorded.items()) if any(words for _, _, words, *_ in rank.kernels)
    }
    by_process: dict[int, list[Recorded]] = {}
    for number, ((process, device), rank) in enumerate(recorded.items()):
        rank.gpu = _gpu(rows, device)
        rank.rank, rank.world_size = (number, len(recorded)) if len(recorded) > 1 else (None, None)
        by_process.setdefault(process, []).append(rank)
    _host(rows, names, by_process)
    _ranges(rows, names, by_process)
    return list(recorded.values())


def _columns(database: sqlite3.Connection) -> dict[str, frozenset[str]]:
    names = (KERNELS, *HOST, *COPIES, "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU")
    columns = {table: database.execute(f"PRAGMA table_info({table})").fetchall() for table in names}
    return {table: frozenset(str(row[1]) for row in rows) for table, rows in columns.items() if rows}


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


def _device_rows(rows: _Rows, table: str) -> Iterator[tuple[int, int, object, int, int, int, int, int, int, int]]:
    """begin, end, name id, process, device, correlation, stream; of a copy its kind and those of its memories, else
    -1"""
    columns = ("start", "end", "demangledName|shortName", "globalPid", "deviceId", "correlationId", "streamId")
    for begin, end, name, *rest in rows(table, (*columns, "copyKind", "srcKind", "dstKind")):
        if isinstance(begin, int) and isinstance(end, int):
            process, device, correlation, stream = (_whole(value) for value in rest[:4])
            copy, source, target = (_whole(value, -1) for value in rest[4:])
            yield begin, end, name, process, device, correlation, stream, copy, source, target


def _host(rows: _Rows, names: dict[object, str], ranks: dict[int, list[Recorded]]) -> None:
    """Record launches, and the calls in which the host waited."""
    for table in HOST:
        for row in rows(table, ("start", "end", "nameId", "globalTid", "correlationId")):
            begin, end, name, thread, correlation = row
            if not isinstance(begin, int) or not isinstance(end, int):
                continue
            words = names.get(name, "")
            for rank in ranks.get(_whole(thread) >> PROCESS, ()):
                rank.launches[_whole(correlation, -1)] = NANO * begin, -1, thread
                rank.add_call(words, NANO * begin, NANO * end)


def _ranges(rows: _Rows, names: dict[object, str], ranks: dict[int, list[Recorded]]) -> None:
    """NVTX ranges: operators with their sizes, and steps."""
    columns = ("start", "end", "text", "textId", "globalTid")
    for number, (begin, end, text, text_id, thread) in enumerate(rows("NVTX_EVENTS", columns)):
        words = text[:LONGEST] if isinstance(text, str) and text else names.get(text_id, "")
        if not isinstance(begin, int) or not isinstance(end, int) or not words:
            continue
        for rank in ranks.get(_whole(thread) >> PROCESS, ()):
            if STEP.match(words):
                rank.steps.append((words, NANO * begin, NANO * end))
            elif "::" in words or "sizes = " in words or words.startswith("nccl"):
                rank.operators[number] = _nsight_operator(words, NANO * begin, NANO * end)
                rank.threads.append(thread)
            else:
                rank.add_frame(words, NANO * begin, NANO * end)


def _nsight_operator(words: str, begin_s: float, end_s: float) -> HostOperator:
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


def _gpu(rows: _Rows, device: int) -> str:
    """Name of a device by its number, or of all if they are the same."""
    named = {_whole(number, -1): str(name) for number, name in rows("TARGET_INFO_GPU", ("id", "name"))}
    return next(iter(named.values())) if len(set(named.values())) == 1 else named.get(device, "")
