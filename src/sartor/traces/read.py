"""The traces in a file: one from PyTorch's profiler, or all ranks of a Nsight Systems export."""

from __future__ import annotations

import re
from pathlib import Path

from sartor.errors import InputError
from sartor.traces.kernel_trace import KernelTrace
from sartor.traces.kineto import read_kineto
from sartor.traces.nsight import SQLITE, read_nsight
from sartor.traces.phases import with_steps

BEGINNING = re.compile(rb"\s*(?:\{\s*(?:[\"}]|\Z)|\[\s*(?:[{\]]|\Z))")
ENDINGS = (".json", ".json.gz", ".sqlite")
"""File name endings of traces in a folder."""
REPORTS = (".nsys-rep", ".qdrep")


def is_trace(path: str | Path) -> bool:
    """Whether a file is gzip, a SQLite database, or begins like a JSON object or a list of objects (log lines may begin
    with [ too). Raises ``InputError`` for a Nsight Systems report that was not exported."""
    if str(path).endswith(REPORTS):
        must = f"must be exported first: nsys export --type sqlite {Path(path).name}"
        raise InputError("TRACE", str(path), must)
    with Path(path).open("rb") as stream:
        head = stream.read(1024)
    return head[:2] == b"\x1f\x8b" or head.startswith(SQLITE) or BEGINNING.match(head) is not None


def read_traces(path: str | Path, field: str = "TRACE") -> tuple[KernelTrace, ...]:
    """The ranks in a file, lowest first; unmarked steps are found by the optimizer. Raises ``InputError`` for a file
    that is not a trace, is truncated, or holds no kernel."""
    source = Path(path)
    if not source.is_file():
        raise InputError(field, str(path), "no such file; must be a profiler's trace")
    with source.open("rb") as stream:
        database = stream.read(len(SQLITE)) == SQLITE
    found = read_nsight(source, field) if database else (read_kineto(source, field),)
    return tuple(with_steps(each) for each in found)
