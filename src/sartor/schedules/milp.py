"""An independent solver: PHAZE's integer program on HiGHS, through ``scipy.optimize.milp`` (extra ``milp``).

Variables of Wang et al. 2024 (ICML, "Integrated Hardware Architecture and Device Placement Search"): start t_i,
mode y_i (1 = split over all cores), x_ij (i ends before j starts) and z_ic (i runs on core c). With l, q the two
latencies, p_i = q_i y_i + l_i (1 - y_i) and H a horizon:

    T >= t_i + p_i;  t_i + p_i <= t_j where i precedes j, else t_i + p_i <= t_j + H (1 - x_ij)
    y_i <= x_ij + x_ji <= 1,  x_ik >= x_ij + x_jk - 1
    sum over c of z_ic >= 1 - y_i,  x_ij + x_ji >= z_ic + z_jc - 1        for tensor and for vector cores

All rows are given at once, and the gap is zero. SciPy's built-in HiGHS works with OR-Tools in one process; highspy does
not (docs/dependencies.md).

HiGHS writes lines to stdout regardless of its options (SciPy 1.17: its sub-solver does), so it runs silenced.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations, permutations
from math import ceil
from typing import Any

import numpy as np

from sartor.errors import InputError, MissingExtraError
from sartor.schedules.split import BlockAnswer, OpBlock, Timetable, bits

MAX_OPERATORS = 64
"""Rows grow with the cube of the operators: 64 give 250,000, and HiGHS proves nothing well before that."""


def solve_block(block: OpBlock, hint: Timetable, lower_bound: int, time_limit_s: float) -> BlockAnswer:
    """The best schedule HiGHS finds within the limit, or ``hint`` if that is as good, and the best bound."""
    optimize, sparse = _scipy()
    if block.traffic:
        must = "knows cores only; these operators also share memory, a buffer or links"
        raise InputError("solver", "milp", must, "cp_sat")
    if block.size > MAX_OPERATORS:
        must = f"must have at most {MAX_OPERATORS} operators that may overlap, not {block.size}"
        raise InputError("solver", "milp", must, "cp_sat")
    program = _MilpProgram(block, hint.makespan(block), lower_bound)
    rows, columns, values = map(np.asarray, zip(*program.entries, strict=True))
    indices = rows.astype(np.int32), columns.astype(np.int32)  # HiGHS uses 32-bit indices
    matrix = sparse.csr_array((values, indices), shape=(len(program.least), program.num_columns))
    result = silently(
        optimize.milp,
        c=np.eye(1, program.num_columns).ravel(),
        integrality=np.asarray(program.integral),
        bounds=optimize.Bounds(0, np.asarray(program.upper, dtype=float)),
        constraints=optimize.LinearConstraint(matrix, np.asarray(program.least, dtype=float), np.inf),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    best = hint if result.x is None else min(hint, program.read(result.x), key=lambda table: table.makespan(block))
    # Times are integers and rows hold to 1e-6 of the horizon: the bound is rounded to nearest, not up.
    bound = result.mip_dual_bound
    proved = ceil(bound - 0.5) if bound is not None and np.isfinite(bound) else 0
    return BlockAnswer(timetable=best, lower_bound=min(max(lower_bound, proved), best.makespan(block)), method="milp")


class _MilpProgram:
    """Columns (the makespan first) and rows ``sum of coefficient * column >= least`` of the integer program."""

    def __init__(self, block: OpBlock, upper: int, lower: int) -> None:
        self.block, self.horizon = block, upper + max(1, upper // 50)
        self.integral: list[int] = []
        self.upper: list[int] = []
        self.least: list[int] = []
        self.entries: list[tuple[int, int, int]] = []
        self.makespan = self._column(self.horizon, integral=False)
        self.start = [self._column(self.horizon, integral=False) for _ in range(block.size)]
        self.mode = [self._column(int(may)) for may in block.may_split]
        self.first = self._orders()
        self._row({self.makespan: 1}, lower)
        self._times()
        self._transitive()
        self._cores()

    @property
    def num_columns(self) -> int:
        return len(self.upper)

    def read(self, values: Any) -> Timetable:
        """The modes and the order found; starts are recomputed from them as whole numbers."""
        block = self.block
        split = tuple(bool(values[column] > 0.5) for column in self.mode)
        ahead = {pair for pair, column in self.first.items() if values[column] > 0.5}
        before = [set(bits(mask)) | {i for i, j in ahead if j == k} for k, mask in enumerate(block.before)]
        starts = [0] * block.size
        for k in sorted(range(block.size), key=lambda k: len(before[k])):
            durations = ((i, block.intra_latency[i] if split[i] else block.latency[i]) for i in before[k])
            starts[k] = max((starts[i] + time for i, time in durations), default=0)
        return Timetable(starts=tuple(starts), split=split)

    def _column(self, upper: int, *, integral: bool = True) -> int:
        self.integral.append(int(integral))
        self.upper.append(upper)
        return len(self.upper) - 1

    def _row(self, coefficients: dict[int, int], lowest: int) -> None:
        self.entries += [(len(self.least), column, value) for column, value in coefficients.items()]
        self.least.append(lowest)

    def _orders(self) -> dict[tuple[int, int], int]:
        """Columns of x_ij for pairs that the graph does not order."""
        after, pairs = self.block.after, permutations(range(self.block.size), 2)
        return {(i, j): self._column(1) for i, j in pairs if not (after[i] >> j | after[j] >> i) & 1}

    def _ordered(self, i: int, j: int) -> tuple[dict[int, int], int]:
        """x_ij as columns and a constant."""
        if (i, j) in self.first:
            return {self.first[i, j]: 1}, 0
        return {}, self.block.after[i] >> j & 1

    def _times(self) -> None:
        """T and successors come after an operator's end t_i + l_i + (q_i - l_i) y_i."""
        block = self.block
        for i in range(block.size):
            gain = block.latency[i] - block.intra_latency[i]
            self._row({self.makespan: 1, self.start[i]: -1, self.mode[i]: gain}, block.latency[i])
            for j in bits(block.covers[i]):
                self._row({self.start[j]: 1, self.start[i]: -1, self.mode[i]: gain}, block.latency[i])
        for (i, j), column in self.first.items():
            gain, big = block.latency[i] - block.intra_latency[i], self.horizon + block.latency[i]
            row = {self.start[j]: 1, self.start[i]: -1, self.mode[i]: gain, column: -big}
            self._row(row, block.latency[i] - big)
            both = {column: 1, self.first[j, i]: 1}
            self._row({**both, self.mode[i]: -1}, 0)
            if i < j:
                self._row(dict.fromkeys(both, -1), -1)

    def _transitive(self) -> None:
        for i, j, k in permutations(range(self.block.size), 3):
            if (i, k) not in self.first:
                continue
            (lead, first), (two, second) = self._ordered(i, j), self._ordered(j, k)
            if first + second + len(lead) + len(two) == 2:
                row = {self.first[i, k]: 1} | dict.fromkeys((*lead, *two), -1)
                self._row(row, first + second - 1)

    def _cores(self) -> None:
        """One core of each kind needed unless split; two operators on one core are ordered."""
        block = self.block
        for count, users in (
            (block.num_tc, [i for i, kind in enumerate(block.core_types) if kind.needs_tensor_core]),
            (block.num_vc, [i for i, kind in enumerate(block.core_types) if kind.needs_vector_core]),
        ):
            if count >= len(users):
                continue
            on = {(i, c): self._column(1) for i in users for c in range(count)}
            for i in users:
                self._row({on[i, c]: 1 for c in range(count)} | {self.mode[i]: 1}, 1)
            for i, j in combinations(users, 2):
                if (i, j) in self.first:
                    pair = {self.first[i, j]: 1, self.first[j, i]: 1}
                    for c in range(count):
                        self._row({**pair, on[i, c]: -1, on[j, c]: -1}, -1)


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse
    except ImportError:
        raise MissingExtraError("solver milp (HiGHS through SciPy)", "milp") from None
    return optimize, sparse


def silently(call: Callable[..., Any], **words: Any) -> Any:
    """``call(**words)`` with its output to file descriptor 1 discarded."""
    with _nowhere():
        return call(**words)


@contextmanager
def _nowhere() -> Iterator[None]:
    try:
        saved_stdout = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    if sys.stdout is not None:
        sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        _flush_c()
        os.dup2(saved_stdout, 1)
        os.close(nowhere)
        os.close(saved_stdout)


def _flush_c() -> None:
    """Flush C's output buffer, which also holds output of the call."""
    try:
        ctypes.CDLL(None).fflush(None)
    except (AttributeError, OSError, TypeError):  # a platform without a default C library
        return
