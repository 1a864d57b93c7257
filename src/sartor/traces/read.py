"""The traces in a file: one from PyTorch's profiler, or all ranks of a Nsight Systems export."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from pathlib import Path

from sartor.bounded import GZIP
from sartor.errors import InputError
from sartor.traces.kernel_trace import KernelTrace
from sartor.traces.kineto import read_kineto
from sartor.traces.nsight import SQLITE, read_nsight
from sartor.traces.phases import with_steps

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
    traces = read_nsight(source, field) if database else (read_kineto(source, field),)
    return tuple(with_steps(trace) for trace in traces)
