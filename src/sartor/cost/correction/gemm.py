"""Corrections from measurements on top of the GEMM formula: one step after another, each only if it has data.

A step looks up its data in the calibration (a network fitted on these coefficients, rows up to which kernels stream, a
wait for the host, a user's own rows) and leaves the rows unchanged if there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.carrying import HOST_WAIT
from sartor.cost.correction.coefficients import SCALE_BLOCK, GemmCoefficients
from sartor.cost.correction.gemm_features import (
    STEPS,
    general_features,
    held_length,
    quantizing_of,
    table_features,
    table_length,
    waits_for_the_host,
)
from sartor.cost.correction.network import FRAMEWORK, LIBRARY, Corrected, Mask, Residual, Weights, applicable, moved_by
from sartor.cost.cost import Z80
from sartor.cost.gpu.rates import LONG_RUN_LOG_SIGMA
from sartor.cost.gpu.tiles import Machine, Problems, evaluate, quantizing_s
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict
from sartor.operators import DType
from sartor.units import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRows:
    """GEMMs of one type on one device: flat arrays with the results of the formula and of every correction so far."""

    gpu: Gpu
    dtype: DType
    machine: Machine
    calibration: Calibration
    coefficients: GemmCoefficients
    fitted: GemmCoefficients
    """The same as they were fitted, launches by the host included; networks know them by these."""
    waited: Array
    """The formula's time with those launches over its time without; 1 where they stay."""
    sizes: Problems
    terms: dict[str, Array]
    """``time_s``; with details also its parts and the chosen tile."""
    log_sigma: Array
    formula_s: Array
    short: Mask
    """Mostly launch time."""
    single: Mask
    """A linear layer's forward as tables of tensor cores time it: TN, batch 1, quantizing kernel included."""
    across: Mask
    """The same in layout NN, batched or not, which tables of general cores also have."""
    quantized: Mask
    """Operands are already quantized."""
    penalty_log_sigma: Array
    """Uncertainty of what misalignment costs, relative to ln of that cost."""
    coarse: Mask
    """Only kernels of coarse tiles take them readily: the first operand is aligned to 16 bytes and no more."""

    @property
    def time_s(self) -> Array:
        return self.terms["time_s"]

    @property
    def kernels(self) -> str:
        """The framework or library whose GEMMs these are; empty if they are the median's."""
        return self.calibration.kernels

    def with_terms(self, **terms: Any) -> GemmRows:
        """The same with these terms in place of the existing ones of the same name."""
        return replace(self, terms=self.terms | {name: v for name, v in terms.items() if name in self.terms})


def correct(rows: GemmRows) -> GemmRows:
    """The formula's times and intervals with all corrections, in this order."""
    for step in _STEPS:
        rows = step(rows)
    return rows


def _by_network(rows: GemmRows) -> GemmRows:
    """Apply the network fitted on these coefficients; the terms stay the formula's, and ``residual`` is the factor.
    Unlike its tables, the formula's time stays."""
    residual, library = _network_of(rows)
    where = _known_to(residual, rows)
    if residual is None or not where.size:
        return rows
    moved = _moved(rows, residual, library, where)
    terms = rows.terms | {"time_s": _with(rows.time_s, where, moved.time_s)}
    if len(terms) > 1:
        terms["residual"] = _with(np.ones_like(rows.log_sigma), where, moved.factor)
    return replace(rows, terms=terms, log_sigma=_with(rows.log_sigma, where, moved.log_sigma))


def _by_any_framework(rows: GemmRows) -> GemmRows:
    """If kernels are those of an unknown framework, or of one whose own times nobody knows: widen the interval so that
    its ends are no nearer than the framework furthest away."""
    residual, kernels = applicable(rows.calibration, rows.fitted, FRAMEWORK), rows.kernels
    where = _known_to(residual, rows)
    if residual is None or not kernels or _name_in(residual, kernels) or not where.size:
        return rows
    indices = range(len(residual.libraries))
    seconds = [_in_a_model(rows, residual, i, where, _moved(rows, residual, i, where).time_s) for i in indices]
    apart = np.abs(np.log(np.stack(seconds) / rows.time_s[where])).max(axis=0)
    return replace(rows, log_sigma=_with(rows.log_sigma, where, np.hypot(rows.log_sigma[where], apart / Z80)))


def _without_the_host(rows: GemmRows) -> GemmRows:
    """Where the host's launches were taken out of a fit, the error of the whole time remains."""
    return replace(rows, log_sigma=rows.log_sigma * rows.waited) if np.any(rows.waited > 1.0) else rows


def _with_scales_known(rows: GemmRows) -> GemmRows:
    """In a model: without the kernels that quantize an input only where a framework's GEMM is timed alone. The error
    of the whole time remains."""
    residual, index = _network_of(rows)
    where = _known_to(residual, rows)
    if residual is None or index < 0 or not where.size:
        return rows
    before = rows.time_s[where]
    time_s = _in_a_model(rows, residual, index, where, before)
    if time_s is before:
        return rows
    moved = rows.with_terms(time_s=_with(rows.time_s, where, time_s))
    if "overhead_s" in rows.terms:
        overhead_s = rows.terms["overhead_s"]
        less_s = np.maximum(overhead_s[where] - (before - time_s), 0.0)
        moved = moved.with_terms(overhead_s=_with(overhead_s, where, less_s))
    return replace(moved, log_sigma=_with(rows.log_sigma, where, rows.log_sigma[where] * before / time_s))


def _in_a_model(rows: GemmRows, residual: Residual, index: int, where: Any, time_s: Array) -> Array:
    """Times of a framework's GEMMs, of which ``time_s`` are the ones alone; no less than the roofline."""
    framework = residual.libraries[index]
    alone, left = (quantizing_of(framework, rows.dtype, alone=is_alone) for is_alone in (True, False))
    if rows.calibration.gemms_alone or alone == left:
        return time_s
    p = rows.sizes.part(where)
    timed_s, left_s = (quantizing.time_s(p.m * p.k, *residual.quantizing) for quantizing in (alone, left))
    least_s = np.minimum(_roofline_of(p, rows.machine, rows.gpu), time_s)
    return np.maximum(time_s - (timed_s - left_s), least_s)


def _known_to(residual: Residual | None, rows: GemmRows) -> Any:
    """Indices of the GEMMs that a network's table holds the like of."""
    general = residual is not None and residual.dtype == DType.FP32.value
    return np.flatnonzero(rows.single | rows.across if general else rows.single)


def _moved(rows: GemmRows, residual: Residual, library: float, where: Any) -> Corrected:
    """The formula's times there with a network applied, for the library of this index among its own."""
    p = rows.sizes.part(where)
    columns = {"m": p.m, "n": p.n, "k": p.k, "library": np.full(where.size, library)}
    sees: Callable[..., Weights] = partial(
        table_features,
        own_lengths=residual.own_lengths,
        menu=residual.menu,
        steps=residual.steps or STEPS,
        libraries=len(residual.libraries),
    )
    if residual.dtype == DType.FP32.value:
        columns |= {"batch": p.batch, "across": rows.across[where].astype(np.float64)}
        sees = general_features
    elif residual.lengths:
        block = rows.coefficients.split_columns
        steps = zip("nk", residual.lengths, (block / 2, block), strict=True)
        columns |= {a: held_length(columns[a], lengths, tile, block) for a, lengths, tile in steps}

    def moved(sizes: dict[str, Array]) -> Corrected:
        return moved_by(
            residual,
            rows.gpu,
            sizes,
            lambda block: sees(block, rows.machine, rows.fitted, rows.gpu),
            rows.formula_s[where],
            _roofline_of(p, rows.machine, rows.gpu),
            rows.log_sigma[where],
            rows.short[where],
        )

    between = residual.lengths and not residual.own_lengths
    return _between_lengths(residual, columns, moved) if between else moved(columns)


def _between_lengths(
    residual: Residual, columns: dict[str, Array], moved: Callable[[dict[str, Array]], Corrected]
) -> Corrected:
    """Linear layers whose n or k lies between those of a table that holds few, and says nothing of remainders between:
    of the factors from one held length to the next, the nearest to 1; of long results those at held m too. The
    interval is wider by how far the ends are, the nearer one more: powers of two may take three times as long as their
    neighbours. With a quarter of all n withheld layers up to 16,384 columns are 5.1% off (network 4.7, formula 7.5),
    longer ones 26% (37, 17); with a quarter of all m longer ones are 16% off (network 18) and others would be 4.7%
    (4.0), so those keep their m."""
    linear = (columns["across"] == 0) & (columns["batch"] == 1)
    moves = {"n": linear, "k": linear, "m": linear & (columns["n"] > _LONG)}
    around = {
        axis: _around(columns[axis], lengths, moves[axis])
        for axis, lengths in zip("nkm", residual.lengths, strict=True)
    }
    ends = list(product((0, 1), repeat=len(around)))
    corners = [
        moved(columns | {a: ends_of_axis[i] for (a, ends_of_axis), i in zip(around.items(), corner, strict=True)})
        for corner in ends
    ]
    near = np.stack(
        [
            np.prod([abs(1 - i - way) for (*_, way), i in zip(around.values(), corner, strict=True)], axis=0)
            for corner in ends
        ]
    )
    logs = np.log(np.stack([outcome.factor for outcome in corners]))
    log_factor = np.clip(0.0, logs.min(axis=0), logs.max(axis=0))
    sigma = (near * np.stack([outcome.log_sigma for outcome in corners])).sum(axis=0)
    apart = (near * np.abs(logs - log_factor)).sum(axis=0)
    factor = np.exp(log_factor)
    formula_s = corners[0].time_s / corners[0].factor
    return Corrected(time_s=formula_s * factor, log_sigma=np.hypot(sigma, apart / Z80), factor=factor)


def _around(length: Array, lengths: tuple[float, ...], moves: Mask) -> tuple[Array, Array, Array]:
    """The nearest lengths of a table below and above, and the way (ln) from one to the other; below the least, far
    beyond the greatest, where networks fade, and where not asked the length itself."""
    table = np.asarray((*lengths, _FAR * lengths[-1]))
    upper = np.clip(np.searchsorted(table, length), 1, table.size - 1)
    between = moves & (length > table[upper - 1]) & (length < table[upper])
    low, high = np.where(between, table[upper - 1], length), np.where(between, table[upper], length)
    return low, high, np.where(between, np.log(length / low) / np.log(np.where(between, high / low, 2.0)), 0.0)


_LONG = 16384
"""Columns beyond which fp32's results are vocabularies' logits: times of neighbouring rows differ by up to three there
(lab/notebook/gemm.md, fp32's rows between those held)."""

_FAR = 8.0
"""Times the greatest length of a table at which fp32's networks have faded."""


def _network_of(rows: GemmRows) -> tuple[Residual | None, int]:
    """The network for these GEMMs, and the index of their library in it. If the calibration names a library of kernels
    (``aiter_asm``) or a framework that a network knows, that one; else the network for any library."""
    kernels = rows.kernels
    for part in (LIBRARY, FRAMEWORK) if kernels else ():
        residual = applicable(rows.calibration, rows.fitted, part)
        if residual and (name := _name_in(residual, kernels)):
            index = residual.libraries.index(name)
            return residual.of_library(index), index
    return applicable(rows.calibration, rows.fitted), -1


def _name_in(residual: Residual, kernels: str) -> str:
    """The network's name for these kernels: their own, or their framework's; empty if it has none."""
    return next((name for name in (kernels, kernels.partition("_")[0]) if name in residual.libraries), "")


def libraries_measured(calibration: Calibration) -> tuple[str, ...]:
    """Libraries and frameworks whose GEMMs were told apart on the device, or on one of its die."""
    fits = (*calibration.gemm.values(), *calibration.tiled.values())
    residuals = [applicable(calibration, c, part) for c in fits for part in (LIBRARY, FRAMEWORK)]
    return tuple(sorted({name for residual in residuals if residual for name in residual.libraries}))


def frameworks_of_gemms(calibration: Calibration, dtype: DType, part: str = FRAMEWORK) -> tuple[str, ...]:
    """Frameworks whose GEMMs of a type were told apart on the device, or on one of its die."""
    c = calibration.gemm.get(dtype)
    residual = applicable(calibration, c, part) if c else None
    return residual.libraries if residual else ()


def libraries_of_gemms(calibration: Calibration, dtype: DType) -> tuple[str, ...]:
    """Libraries that a tuning run chose among for GEMMs of a type and that were told apart."""
    return frameworks_of_gemms(calibration, dtype, LIBRARY)


def kernel_of_quantizing(calibration: Calibration, dtype: DType) -> tuple[float, float]:
    """Seconds of a kernel that quantizes a GEMM's input, and per byte of its traffic, where frameworks are known."""
    residual = applicable(calibration, calibration.gemm[dtype], FRAMEWORK)
    return residual.quantizing if residual else (0.0, 0.0)


def _as_stream(rows: GemmRows) -> GemmRows:
    """A matrix times a vector where the fit saw none: as long as a streaming kernel takes for its bytes, at most."""
    p, machine, streams = rows.sizes, rows.machine, rows.calibration.memory_bound
    few = p.m <= rows.coefficients.stream_rows
    if not np.any(few):
        return rows
    moved = p.k * (machine.first_bytes * p.m + machine.element_bytes * p.n) + p.out_bytes * p.m * p.n
    memory_s = p.batch * moved / (streams.hbm_share * rows.gpu.hbm_bytes_per_s)
    sooner = few & (memory_s + streams.launch_s < rows.time_s)
    streamed: JsonDict = {
        "time_s": memory_s + streams.launch_s,
        "compute_s": 0.0,
        "memory_s": memory_s,
        "overhead_s": streams.launch_s,
    }
    return rows.with_terms(
        **{name: np.where(sooner, value, rows.terms[name]) for name, value in streamed.items() if name in rows.terms}
    )


def _between_the_lengths(rows: GemmRows) -> GemmRows:
    """Widen the interval where n or k is none of the lengths that a network rounds to: libraries choose their kernels
    by rules that tables of other lengths say nothing of. Tuning tables hold such lengths themselves."""
    residual, _ = _network_of(rows)
    if residual is None or residual.own_lengths or residual.menu or residual.dtype == DType.FP32.value:
        return rows
    rounded = (table_length(rows.sizes.n) != rows.sizes.n) | (table_length(rows.sizes.k) != rows.sizes.k)
    return replace(rows, log_sigma=np.where(rounded, np.hypot(rows.log_sigma, _ROUNDED_LOG_SIGMA), rows.log_sigma))


def _in_the_other_16_bits(rows: GemmRows) -> GemmRows:
    """Widen the interval of fp16 by a fit of bf16 and of bf16 by one of fp16: the same units, but rules of their own
    choose the kernels."""
    residual, _ = _network_of(rows)
    wide = {DType.BF16.value, DType.FP16.value}
    if residual is None or {residual.dtype, rows.dtype.value} != wide:
        return rows
    return replace(rows, log_sigma=np.hypot(rows.log_sigma, _OTHER_16_BITS_LOG_SIGMA))


_OTHER_16_BITS_LOG_SIGMA = 0.05
"""Deviation of ln(measured / predicted) of aligned fp16 GEMMs beyond that of bf16's network (for 80% inside, records of
H100 need 0.03, of H200 0.07; lab/records, 2026-11-27)."""

_ROUNDED_LOG_SIGMA = 0.075
"""Deviation of ln(measured / predicted) at such lengths beyond the network's own (lab/fit_off_grid.py: for 80%
inside, records of H200 need 0.091, of H100 0.059)."""


def _on_coarse_tiles(rows: GemmRows) -> GemmRows:
    """GEMMs of few waves whose first operand is aligned to 16 bytes only: libraries take the fastest coarse tile for
    some of them, the fastest of all for others, and nothing in the shape says for which."""
    c, p = rows.coefficients, rows.sizes
    waves = np.ceil(p.m / 128) * np.ceil(p.n / 256) / rows.machine.num_sms
    where = np.flatnonzero(rows.coarse & (p.batch == 1) & (waves <= _FEW_WAVES))
    if not c.coarse_share or not where.size:
        return rows
    few = evaluate(p.part(where), rows.machine, replace(c, tiles=_coarse_tiles(c), max_split=1.0), False)
    share, apart = c.coarse_share, few["time_s"] / rows.formula_s[where] - 1.0
    factor = 1.0 + share * apart
    spread = np.sqrt(share * (1.0 - share)) * apart / factor
    terms = rows.terms | {"time_s": _with(rows.time_s, where, rows.time_s[where] * factor)}
    if len(terms) > 1:
        learned = rows.terms.get("residual", np.ones_like(rows.log_sigma))
        terms["residual"] = _with(learned, where, learned[where] * factor)
    return replace(rows, terms=terms, log_sigma=_with(rows.log_sigma, where, np.hypot(rows.log_sigma[where], spread)))


_FEW_WAVES = 2.0
"""Of 128 x 256 tiles. Beyond, GEMMs aligned to 16 bytes take no longer than others (13 rows of H200 and H100
were priced 0.6 and 2.3% too slow without this step, 4.3 and 3.5% with it)."""


def _coarse_tiles(c: GemmCoefficients) -> tuple[tuple[int, int, float], ...]:
    """The menu's tiles of at least 128 x 256, and the narrow ones for few rows or columns. Of menus cut off at 64 x 128
    to 192 x 256, with tiles of up to 0, 16 or 32 besides and with or without splits of k, the nearest to each of H100
    and H200 fitted on the other (lab/notebook/gemm.md)."""
    return tuple(tile for tile in c.tiles if tile[0] * tile[1] >= 128 * 256 or min(tile[:2]) <= 32)


def _without_quantizing(rows: GemmRows) -> GemmRows:
    """Shorten GEMMs with quantized operands by the formula's share for the quantizing kernel."""
    if not np.any(rows.quantized):
        return rows
    quantizing = quantizing_s(rows.sizes, rows.machine, rows.coefficients)
    share = np.where(rows.quantized, quantizing / rows.formula_s, 0.0)
    overhead_s = rows.terms.get("overhead_s", 0.0)
    return rows.with_terms(time_s=rows.time_s * (1.0 - share), overhead_s=overhead_s - share * rows.formula_s)


def _waiting_for_the_host(rows: GemmRows) -> GemmRows:
    """GEMMs narrower than one scale block wait for the host of a fallback kernel, and so do a framework's that its
    table times without a graph. Those rows are vLLM's alone, timed one by one: in a model, and in other frameworks,
    nothing waits."""
    p, c = rows.sizes, rows.coefficients
    if not c.sub_block_s and not c.half_block_s:
        return rows
    half = (p.k >= SCALE_BLOCK) & (p.n >= SCALE_BLOCK / 2) if c.half_block_s else np.zeros(p.m.shape, dtype=bool)
    wait_s = np.where(half, np.where(p.m < _FEW_ROWS, c.half_block_few_s, c.half_block_s), c.sub_block_s)
    wait_s = wait_s * HOST_WAIT.get(rows.gpu.host, 1.0)
    called = bool(c.half_block_s) and rows.calibration.gemms_alone and waits_for_the_host(rows.kernels, rows.dtype)
    bound = (_narrow(rows, timed=True) | called) & (rows.time_s < wait_s)
    if not np.any(bound):
        return rows
    waited = np.where(bound, wait_s - rows.time_s, 0.0)
    sigma = np.where(half, c.half_block_log_sigma, c.sub_block_log_sigma)
    moved = rows.with_terms(
        time_s=rows.time_s + waited,
        overhead_s=rows.terms.get("overhead_s", 0.0) + waited,
        residual=np.where(bound, 1.0, rows.terms.get("residual", 1.0)),
    )
    return replace(moved, log_sigma=np.where(bound, sigma, rows.log_sigma))


def _narrow(rows: GemmRows, *, timed: bool) -> Mask:
    """GEMMs narrower than one scale block whose kernel was timed, or was not."""
    p, c = rows.sizes, rows.coefficients
    is_timed = rows.calibration.gemms_alone and rows.kernels.partition("_")[0] in ("", "vllm")
    return (np.minimum(p.n, p.k) < SCALE_BLOCK) & (bool(c.sub_block_s or c.half_block_s) and is_timed == timed)


_UNTIMED_LOG_SIGMA = 0.5
"""Of a kernel that nobody timed: half to twice the time of the usual one's tiles (a choice)."""

_FEW_ROWS = 32
"""From this many rows on vLLM runs DeepGEMM's block-scaled kernel, not FlashInfer's (H200, 17 and 32 rows measured)."""


def _by_own_rows(rows: GemmRows) -> GemmRows:
    """Apply the factor from the user's measurements (docs/howto/calibrate.md), never below the roofline, with the
    interval that held-out regions of those rows needed, wider beyond their range. The terms stay the formula's;
    ``own_rows`` is the factor."""
    own_rows = rows.calibration.own_rows.get(rows.dtype)
    if own_rows is None:
        return rows
    p, before = rows.sizes, rows.time_s
    log_factor, untold = own_rows.log_factor(p.batch * p.m, p.n, p.k)
    factor = np.exp(log_factor)
    time_s = np.maximum(before * factor, np.minimum(_roofline_of(p, rows.machine, rows.gpu), before))
    terms = rows.terms | {"time_s": time_s}
    if len(terms) > 1:
        terms["own_rows"] = time_s / before
    near = np.where(rows.short, own_rows.log_sigma_small, own_rows.log_sigma)
    return replace(rows, terms=terms, log_sigma=np.hypot(near, untold))


def _in_long_runs(rows: GemmRows) -> GemmRows:
    """Add the uncertainty of the power limit if it slows a long run."""
    run = rows.machine.long_run
    if run is None or not run.limit_flops_per_s:
        return rows
    return replace(rows, log_sigma=np.sqrt(rows.log_sigma * rows.log_sigma + LONG_RUN_LOG_SIGMA * LONG_RUN_LOG_SIGMA))


def _beyond_the_tables(rows: GemmRows) -> GemmRows:
    """Widen intervals outside the fitted range: batches, misaligned operands, lengths beyond the tables. ``assumed``
    marks where this exceeds the fit's own error."""
    p, c = rows.sizes, rows.coefficients
    if rows.dtype in rows.calibration.own_rows:
        return rows
    log_sigma = rows.log_sigma
    widened = np.where(p.batch > 1, np.maximum(log_sigma, c.batched_log_sigma), log_sigma)
    outside = sum(_beyond(length, span) for length, span in ((p.m, _M), (p.n, _NK), (p.k, _NK)))
    ragged = p.penalty > 1
    slowdown = _slowdown(rows)
    if np.any(ragged):
        slowdown = np.maximum(slowdown, _HIDDEN * np.log(p.penalty))
    misaligned = rows.penalty_log_sigma * slowdown + c.ragged_log_sigma * ragged
    guessed = np.hypot(np.hypot(misaligned, _PER_E_FOLD * outside), _UNTIMED_LOG_SIGMA * _narrow(rows, timed=False))
    assumed = np.hypot(guessed, np.sqrt(widened * widened - log_sigma * log_sigma)) > log_sigma
    terms = rows.terms | ({"assumed": assumed.astype(np.float64)} if len(rows.terms) > 1 and np.any(assumed) else {})
    return replace(rows, terms=terms, log_sigma=np.hypot(widened, guessed))


def _slowdown(rows: GemmRows) -> Array:
    """ln of the slowdown that misaligned operands cause in the formula's time."""
    slowdown, where = np.zeros_like(rows.log_sigma), np.flatnonzero(rows.sizes.penalty > 1)
    if where.size:
        p = rows.sizes.part(where)
        aligned = evaluate(replace(p, penalty=np.ones_like(p.penalty)), rows.machine, rows.coefficients, False)
        slowdown[where] = np.log(rows.formula_s[where] / aligned["time_s"])
    return slowdown


def _beyond(length: Array, span: tuple[float, float]) -> Array:
    """Distance outside the span, as ln."""
    excess: Array = np.maximum(np.maximum(span[0] / length, length / span[1]), 1.0)
    return np.log(excess) if np.any(excess > 1.0) else excess - 1.0


_HIDDEN = 0.5
"""Least share of the main loop's slowdown (ln) that counts as uncertain where memory or a launch hides it: loads
narrower than 16 bytes may hold up the reading itself. An estimate; no table has such rows."""

_M, _NK = (1.0, 131072.0), (32.0, 262144.0)
"""Lengths in tables of GEMMs (data/measured, data/measured_amd); beyond their 65,536 columns a vocabulary only adds
waves of the same tiles."""

_PER_E_FOLD = 0.2
"""Standard deviation per factor of e outside: an estimate."""

_STEPS = (
    _by_network,
    _by_any_framework,
    _without_the_host,
    _with_scales_known,
    _between_the_lengths,
    _in_the_other_16_bits,
    _on_coarse_tiles,
    _as_stream,
    _without_quantizing,
    _beyond_the_tables,
    _waiting_for_the_host,
    _by_own_rows,
    _in_long_runs,
)


def _roofline_of(p: Problems, machine: Machine, gpu: Gpu) -> Array:
    compute = 2 * p.batch * p.m * p.n * p.k / (machine.sm_flops_per_s * machine.num_sms)
    moved = p.batch * (p.k * (machine.first_bytes * p.m + machine.element_bytes * p.n) + p.out_bytes * p.m * p.n)
    floor_s: Array = np.maximum(compute, np.maximum(moved - gpu.l2_bytes, 0) / gpu.hbm_bytes_per_s)
    return floor_s


def _with(values: Array, where: Any, changed: Array) -> Array:
    out = values.copy()
    out[where] = changed
    return out
