"""Traces of a run: read by format, with the steps that no marker shows found by phase.

The traces in a file: one from PyTorch's profiler, or all ranks of a Nsight Systems export.

Steps of a training run without step marks: each ends when the optimizer has run.
"""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from sartor.bounded import GZIP
from sartor.errors import InputError
from sartor.traces.kernel_kinds import KINDS, KernelKind, kernel_kinds
from sartor.traces.kernel_trace import KernelTrace
from sartor.traces.kineto import SQLITE, read_kineto, read_nsight
from sartor.units import IntArray

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
