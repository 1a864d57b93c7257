"""Time of a GEMM: tiles over SMs in waves, fed from memory, chosen from the generation's tile menu.

For every (tile, split) of the menu: blocks are dealt to SMs in waves; a wave lasts its main loop (matrix rate or
operand feed, whichever is slower) plus fill and epilogue; memory traffic overlaps; launch adds. The library is taken
to choose the fastest. Formula, symbols and accuracy: docs/concepts/gemm.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration, Clock
from sartor.cost.correction.carrying import l2_bytes_per_s
from sartor.cost.correction.coefficients import FRESH_BYTES, GemmCoefficients, PowerCoefficients
from sartor.cost.correction.gemm import GemmRows, correct
from sartor.cost.cost import Cost, Source
from sartor.cost.gpu.eager import (
    SHORT,
    between,
    carried,
    has_few,
    mostly_few,
    queued,
    replayed,
    rows_replayed,
    with_few,
)
from sartor.cost.gpu.rates import long_run, peak_flops_per_s
from sartor.cost.gpu.tiles import TERMS, Machine, Problems, alternatives, evaluate
from sartor.hardware.gpu import Gpu
from sartor.operators import DType, Gemm, GroupedGemm, Layout, Pass
from sartor.units import FloatArray, Floats, Ints, plain


def gemm_costs(
    gemms: Sequence[Gemm | GroupedGemm],
    gpu: Gpu,
    calibration: Calibration,
    *,
    clock: Clock = Clock.SUSTAINED,
    details: bool = True,
    replay: bool = False,
) -> list[Cost]:
    """Costs of GEMMs, in the order given; each ``Cost`` has the broadcast shape of its GEMM's sizes.

    GEMMs of one dtype are evaluated together, so a whole model's take one pass: the formula, then all that was learned
    (``correction.gemm``). ``replay``: kernels wait in a queue or a graph, also those of types that tables hold with the
    host's launches only (``eager.queued``).
    """
    cost_of: dict[int, Cost] = {}
    for kind in dict.fromkeys(_kind(gemm) for gemm in gemms):
        chosen = [i for i, gemm in enumerate(gemms) if _kind(gemm) == kind]
        same = [gemms[i] for i in chosen]
        problems = [_problem(gemm, _coefficients_of(kind, calibration)) for gemm in same]
        rows = correct(_by_formula(same, problems, gpu, calibration, clock, details, replay))
        cost_of |= dict(zip(chosen, _each(same, [shape for _, shape in problems], rows), strict=True))
    costs = [cost_of[i] for i in range(len(gemms))]
    wide = [i for i, gemm in enumerate(gemms) if has_few(gemm, calibration)]
    if wide:
        few = gemm_costs([gemms[i] for i in wide], gpu, with_few(calibration), clock=clock, details=details)
        for i, carried_cost in zip(wide, _carried(few, [gemms[i] for i in wide], gpu, calibration, clock), strict=True):
            costs[i] = between(costs[i], carried_cost, gemms[i], calibration)
    return _with_wide_products(costs, gemms, gpu, calibration, clock)


def _carried(
    few: Sequence[Cost], gemms: Sequence[Gemm | GroupedGemm], gpu: Gpu, calibration: Calibration, clock: Clock
) -> list[Cost]:
    """Costs of few rows, with part of the correction by the network of the type that was replayed."""
    of_network = [i for i, gemm in enumerate(gemms) if replayed(gemm.dtype, calibration)]
    alike = [replace(gemms[i], dtype=DType.BF16) for i in of_network]
    costs = list(few)
    for i, cost in zip(of_network, gemm_costs(alike, gpu, calibration, clock=clock, details=False), strict=True):
        costs[i] = carried(few[i], cost, gemms[i])
    return costs


def _with_wide_products(
    costs: list[Cost], gemms: Sequence[Gemm | GroupedGemm], gpu: Gpu, calibration: Calibration, clock: Clock
) -> list[Cost]:
    """GEMMs that store narrow weights multiply in a wider type: no sooner than that GEMM computes, unless their own
    kernels were measured here. Where it waits for its wide weights, that share of its time does not count."""
    which = [
        i
        for i, gemm in enumerate(gemms)
        if gemm.dtype.weight_only and f"gemm.{gemm.dtype.value}" not in calibration.calibrated
    ]
    alike = [replace(gemms[i], dtype=gpu.default_dtype) for i in which]
    for i, cost in zip(which, gemm_costs(alike, gpu, calibration, clock=clock) if alike else (), strict=True):
        costs[i] = _no_sooner(costs[i], cost)
    return costs


def _no_sooner(narrow: Cost, wide: Cost) -> Cost:
    longest = np.maximum(np.maximum(wide.compute_s, wide.memory_s), np.finfo(np.float64).tiny)
    least_s = wide.time_s * np.asarray(wide.compute_s) / longest
    later = least_s > narrow.time_s
    if not np.any(later):
        return narrow
    picked = {
        name: plain(np.where(later, getattr(wide, name), getattr(narrow, name))) for name in ("compute_s", "overhead_s")
    }
    sigma = np.where(later, np.maximum(narrow.log_sigma, wide.log_sigma), narrow.log_sigma)
    return replace(narrow, time_s=plain(np.maximum(narrow.time_s, least_s)), log_sigma=plain(sigma), **picked)


def _by_formula(
    gemms: Sequence[Gemm | GroupedGemm],
    problems: Sequence[tuple[dict[str, Any], tuple[int, ...]]],
    gpu: Gpu,
    calibration: Calibration,
    clock: Clock,
    details: bool,
    replay: bool,
) -> GemmRows:
    """GEMMs of one kind as flat rows, priced by the formula alone."""
    kind = _kind(gemms[0])
    timed = _coefficients_of(kind, calibration)
    c = queued(timed, kind[0], calibration, clock, replay=replay)
    machine = _machine(gpu, kind[0], c, clock, calibration.power)
    counts = [prod(shape) for _, shape in problems]
    sizes = Problems(**{name: _side_by_side(name, problems, counts) for name in Problems.__slots__})
    sizes = replace(sizes, m=rows_replayed(sizes.m, kind[0], calibration)) if replay else sizes
    level = np.zeros(sizes.m.size)
    if calibration.misaligned:
        pairs = zip(gemms, problems, strict=True)
        level = np.concatenate([np.broadcast_to(misaligned_level(gemm), shape).ravel() for gemm, (_, shape) in pairs])
    penalty = np.where(level > 0, _least_penalty(c), sizes.penalty)
    sizes = replace(sizes, penalty=penalty)
    terms = evaluate(sizes, machine, c, details)
    as_fitted_s = terms["time_s"]
    if replay and c != timed:
        as_fitted_s = np.maximum(evaluate(sizes, machine, timed, False)["time_s"], as_fitted_s)
    short = as_fitted_s < SHORT * (timed if replay else c).launch_s
    log_sigma = np.where(short, c.log_sigma_small, c.log_sigma)
    penalty_log_sigma = np.full(sizes.m.size, c.penalty_log_sigma)
    for kernels, fit in enumerate(calibration.misaligned, 1):
        if (where := np.flatnonzero(level >= kernels)).size:
            whole = replace(sizes.part(where), penalty=np.ones(where.size))
            slow = evaluate(whole, _machine(gpu, kind[0], fit, clock, calibration.power), fit, details)
            factor = np.maximum(slow["time_s"] / terms["time_s"][where], 1.0)
            penalty[where] *= factor
            slow |= {"alignment": 1.0 / penalty[where]} if details else {}
            for name, values in terms.items():
                values[where] = np.where(factor > 1.0, slow[name], values[where])
            log_sigma[where] = np.where(short[where], fit.log_sigma_small, fit.log_sigma)
            penalty_log_sigma[where] = fit.penalty_log_sigma
    forward = [isinstance(product, Gemm) and not product.accumulates and not product.quantized for product in gemms]
    layouts = [product.layout if plain else None for product, plain in zip(gemms, forward, strict=True)]
    return GemmRows(
        gpu=gpu,
        dtype=kind[0],
        machine=machine,
        calibration=calibration,
        coefficients=c,
        fitted=timed,
        waited=as_fitted_s / terms["time_s"],
        sizes=sizes,
        terms=terms,
        log_sigma=log_sigma,
        formula_s=terms["time_s"],
        short=short,
        single=np.repeat([bool(layout and layout.second_along_k) for layout in layouts], counts)
        & (sizes.batch == 1)
        & (level == 0),
        across=np.repeat([layout is Layout.NN for layout in layouts], counts),
        quantized=np.repeat([gemm.quantized for gemm in gemms], counts),
        penalty_log_sigma=penalty_log_sigma,
        coarse=np.concatenate(
            [np.broadcast_to(_coarse(gemm), shape).ravel() for gemm, (_, shape) in zip(gemms, problems, strict=True)]
        ),
    )


def _coarse(gemm: Gemm | GroupedGemm) -> Any:
    """Where the first operand of a GEMM in 16 bits is aligned to 16 bytes and no more, and none to less."""
    if isinstance(gemm, GroupedGemm) or gemm.dtype not in (DType.BF16, DType.FP16):
        return np.False_
    first, second, out = (_alignment(length, 16) for length in _contiguous(gemm))
    return (first == _COARSE) & (np.minimum(second, out) >= _COARSE)


_COARSE = 4
"""log2 of 16 bytes."""


def _side_by_side(
    name: str, problems: Sequence[tuple[dict[str, Any], tuple[int, ...]]], counts: Sequence[int]
) -> FloatArray:
    """One size of all GEMMs as a flat row, each broadcast to its own shape."""
    row, start = np.empty(sum(counts)), 0
    for (sizes, shape), count in zip(problems, counts, strict=True):
        row[start : start + count].reshape(shape)[...] = sizes[name]
        start += count
    return row


def _each(gemms: Sequence[Gemm | GroupedGemm], shapes: Sequence[tuple[int, ...]], rows: GemmRows) -> Iterator[Cost]:
    """The rows split back into their GEMMs, each in its own shape."""
    fitted_here = f"gemm.{rows.dtype.value}" in rows.calibration.calibrated
    source, start = Source.CALIBRATED if fitted_here else Source.ANALYTIC, 0
    for gemm, shape in zip(gemms, shapes, strict=True):
        stop = start + prod(shape)
        widen = GROUPED_SIGMA if isinstance(gemm, GroupedGemm) else 1.0
        terms = {key: values[start:stop] for key, values in rows.terms.items()}
        yield _cost(terms, rows.log_sigma[start:stop] * widen, shape, source)
        start = stop


def _kind(gemm: Gemm | GroupedGemm) -> tuple[DType, bool, bool]:
    """Its type, whether it is one that tables time only together with the kernel that narrows its operands, and whether
    its weights are stored in tiles."""
    return gemm.dtype, gemm.quantized and gemm.dtype in _BARE, gemm.layout is Layout.TILED


_BARE = (DType.FP8, DType.MXFP8, DType.INT8, DType.NVFP4, DType.MXFP4, DType.INT4)
"""Types whose operands are scaled in the tensor cores or once per tensor: blocks of other kinds are a kernel's own."""


def _coefficients_of(kind: tuple[DType, bool, bool], calibration: Calibration) -> GemmCoefficients:
    """Coefficients of a type; without its quantizing kernel the 16-bit ones, at the narrow type's peak and bytes.

    Fits of narrow types include that kernel's traffic in the GEMM (docs/concepts/gemm.md, "Narrow types"). The interval
    is that of other units, twice as wide.
    """
    dtype, bare, tiled = kind
    if not bare:
        return (calibration.tiled if tiled else {}).get(dtype) or calibration.gemm[dtype]
    c = calibration.gemm[DType.BF16]
    return replace(c, log_sigma=2 * c.log_sigma, log_sigma_small=2 * c.log_sigma_small)


def gemm_cost(gemm: Gemm | GroupedGemm, gpu: Gpu, calibration: Calibration, *, clock: Clock = Clock.SUSTAINED) -> Cost:
    """Cost of one GEMM; sizes may be arrays."""
    return gemm_costs([gemm], gpu, calibration, clock=clock)[0]


def weights_stay(gemm: Gemm, gpu: Gpu, calibration: Calibration, clock: Clock) -> bool:
    """Whether a GEMM of scalar sizes that is repeated alone finds its weights in L2, where the run before left them."""
    machine = _machine(gpu, gemm.dtype, _coefficients_of(_kind(gemm), calibration), clock)
    return bool(weight_bytes(gemm) <= machine.warm_weight_bytes)


def weight_bytes(gemm: Gemm) -> Floats:
    """Bytes of the second operand."""
    return gemm.batch * gemm.n * gemm.k * gemm.dtype.bytes


_NOTHING_KNOWN = PowerCoefficients()


def _machine(
    gpu: Gpu, dtype: DType, c: GemmCoefficients, clock: Clock, power: PowerCoefficients = _NOTHING_KNOWN
) -> Machine:
    peak = peak_flops_per_s(gpu, dtype)
    return Machine(
        num_sms=float(gpu.num_sms),
        sm_flops_per_s=peak / gpu.num_sms,
        feed_bytes_per_s=c.feed_bytes_per_clock * gpu.boost_clock_hz,
        hbm_bytes_per_s=c.hbm_share * gpu.hbm_bytes_per_s,
        warm_bytes=c.l2_share * gpu.l2_bytes,
        warm_weight_bytes=gpu.l2_bytes / c.weight_copies if c.weight_copies and clock is Clock.BOOST else 0.0,
        near_out_bytes=c.out_part * gpu.l2_bytes,
        l2_bytes_per_s=max(c.l2_rate * l2_bytes_per_s(gpu), c.hbm_share * gpu.hbm_bytes_per_s),
        turned_bytes=gpu.memory_side_cache_bytes / c.copies if c.copies and clock is Clock.BOOST else 0.0,
        turned_share=c.turned_share,
        turned_step=c.turned_step,
        element_bytes=dtype.bytes,
        first_bytes=dtype.activation_bytes,
        step_k=max(16.0, c.step_bytes // dtype.activation_bytes),
        throttle_s=c.throttle_s,
        long_run=long_run(gpu, dtype, power, c.throttle, clock),
        quantize_bytes=c.quantize_bytes * c.quantize_pace,
    )


def _problem(gemm: Gemm | GroupedGemm, c: GemmCoefficients) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The GEMM's sizes as float arrays, with the shape they broadcast to."""
    sizes = _group_sizes(gemm) if isinstance(gemm, GroupedGemm) else (gemm.batch, gemm.m, gemm.n, gemm.k)
    out = (gemm.out_dtype.bytes if gemm.out_dtype else max(2.0, gemm.dtype.bytes)) * (2 if gemm.accumulates else 1)
    arrays: dict[str, Any] = {
        name: np.asarray(size, dtype=np.float64) for name, size in zip(("batch", "m", "n", "k"), sizes, strict=True)
    }
    arrays["out_bytes"] = np.float64(out)
    arrays["penalty"] = alignment_penalty(gemm, c)
    arrays["packed_bytes"] = _packed_bytes(gemm, c, *(arrays[name] for name in ("batch", "m", "n", "k")))
    shape = np.broadcast_shapes(*(np.shape(array) for array in arrays.values()))
    return arrays, shape


def _packed_bytes(gemm: Gemm | GroupedGemm, c: GemmCoefficients, batch: Ints, m: Ints, n: Ints, k: Ints) -> Floats:
    """Traffic of copies into blocks, and of fresh pages for a large result. A few rows in fp32 read weights as they lie
    (MKL; in bf16 oneDNN copies all the same: docs/measured.md)."""
    second = batch * n * k * (c.pack_tn if gemm.layout.second_along_k else c.pack_nn)
    if gemm.dtype is DType.FP32:
        second = np.where(m > AS_IT_LIES, second, 0.0)
    if gemm.layout is Layout.NT:
        copies = np.maximum(n / c.pack_columns, 1.0) if c.pack_columns else 1.0
        second = second + batch * m * k * c.pack_nt * copies
    if not c.fresh_cost:
        return second
    written = batch * m * n * (gemm.out_dtype or gemm.dtype).bytes
    return second + np.where(written > FRESH_BYTES, written * c.fresh_cost, 0.0)


AS_IT_LIES = 6
"""Rows of an fp32 GEMM on a host up to which weights stream at memory's rate (20 to 29 GB/s of 42 for one to three
rows, 14 to 21 for four to six, 7 to 14 from eight on: this project's host, MKL 2024.2, 2026-11-21)."""


def _group_sizes(op: GroupedGemm) -> tuple[Ints, Ints, Ints, Ints]:
    """A grouped GEMM as a batch of equal ones: groups that have rows, each with its mean rows (times skew)."""
    active = np.maximum(np.minimum(op.groups, op.rows), 1)
    rows = np.ceil(np.asarray(op.rows) / active) * op.skew
    return (active, op.n, op.k, rows) if op.pass_ is Pass.WGRAD else (active, rows, op.n, op.k)


def alignment_penalty(gemm: Gemm | GroupedGemm, c: GemmCoefficients) -> Any:
    """Main-loop slowdown (>= 1): each operand adds its own, by how its contiguous length is aligned.

    TN reads both inputs along k, NN the second along n, NT the first along m and the second along n; the output is
    contiguous along n. In 16 bits a kernel is chosen for the least aligned of its operands, whichever that is: one
    costs at least what the second input and the output do together in NN, as A100's sweeps have them. Of one alone
    there are only Hopper's records, which say so of the same kernels (``misaligned_level``); elsewhere it is taken
    from there (docs/concepts/gemm.md, "Alignment").
    """
    first, second, out = _contiguous(gemm)
    out_bits = max(16, round(8 * gemm.dtype.bytes))
    bits = _ELEMENT_BITS.get(gemm.dtype, 16)
    inputs, outputs = np.asarray(c.input_penalty), np.asarray(c.output_penalty)
    first, second, out = _alignment(first, bits), _alignment(second, bits), _alignment(out, out_bits)
    worst = np.minimum(np.minimum(first, second), out)
    tolerated = np.where((worst < _COARSE) & (bits == out_bits == 16), worst, out)
    either = np.maximum(inputs[first] + inputs[second] + outputs[out], inputs[tolerated] + outputs[tolerated])
    return 1.0 + either


def _contiguous(gemm: Gemm | GroupedGemm) -> tuple[Ints, Ints, Ints]:
    """Contiguous lengths of both inputs and the result."""
    m = gemm.rows if isinstance(gemm, GroupedGemm) else gemm.m
    first = m if gemm.layout is Layout.NT else gemm.k
    return first, gemm.k if gemm.layout.second_along_k else gemm.n, gemm.n


def _least_penalty(c: GemmCoefficients) -> float:
    """Main-loop slowdown with all operands at 16 bytes: what misaligned ones, whichever kernel runs, cost at least."""
    return 1.0 + 2 * c.input_penalty[4] + c.output_penalty[4]


def misaligned_level(gemm: Gemm | GroupedGemm) -> Any:
    """0 where every contiguous length is a multiple of 16 bytes; 1 where the worst is of 4 or 8, 2 where it is odd in
    16 bits, 3 where the result is in layout TN. The worst decides: on H200 one operand costs what three do
    (lab/records, alignment.csv), save that result, which costs a third more. A matrix times a vector has kernels for
    any length, which are slowed as little as the first. In tf32 every length is a multiple of 4 bytes."""
    if isinstance(gemm, GroupedGemm) or gemm.dtype not in (DType.BF16, DType.FP16, DType.TF32):
        return np.float64(0)
    worst, out = _worst_alignment(gemm)
    odd = 2.0 + (gemm.layout.second_along_k & (out < 2))
    level = np.where(worst >= 4, 0.0, np.where(worst >= 2, 1.0, odd))
    return np.where(np.asarray(gemm.m) == 1, np.minimum(level, 1.0), level)


def _worst_alignment(gemm: Gemm | GroupedGemm) -> tuple[Any, Any]:
    """log2 of the bytes to which all contiguous lengths are aligned, and to which the result's is."""
    first, second, out = (_alignment(length, _ELEMENT_BITS.get(gemm.dtype, 16)) for length in _contiguous(gemm))
    return np.minimum(np.minimum(first, second), out), out


def aligned_bytes(gemm: Gemm | GroupedGemm) -> Any:
    """Bytes to which every row of both inputs and of the result is aligned, 1 to 128."""
    return 2 ** _worst_alignment(gemm)[0]


_ELEMENT_BITS = {
    DType.FP64: 64,
    DType.FP32: 32,
    DType.TF32: 32,
    DType.FP8: 8,
    DType.FP8_BLOCK: 8,
    DType.MXFP8: 8,
    DType.INT8: 8,
    DType.NVFP4: 4,
    DType.MXFP4: 4,
    DType.INT4: 4,
    DType.INT8_WO: 8,
    DType.INT4_WO: 4,
}


def _alignment(length: object, bits: int) -> Any:
    """log2 of the bytes (1..128) that a contiguous length of elements is a whole multiple of."""
    length = np.asarray(length, dtype=np.int64)
    aligned = np.minimum(np.maximum((length & -length) * bits // 8, 1), 128)
    return np.frexp(aligned.astype(np.float64))[1] - 1


GROUPED_SIGMA = 2.5
"""Grouped GEMMs over plain ones: kernels and routing differ by framework (data/measured/moe_bf16.parquet: with this
formula plus a fixed 20 to 30 us and the permutation's traffic, medians of 6 to 20%)."""


def _cost(flat: dict[str, FloatArray], sigma: FloatArray, shape: tuple[int, ...], source: Source) -> Cost:
    values: dict[str, Any] = {key: v.reshape(shape) if shape else float(v[0]) for key, v in flat.items()}
    log_sigma: Floats = sigma.reshape(shape) if shape else float(sigma[0])
    time = values.pop("time_s")
    terms = {key: values.pop(key) for key in ("compute_s", "memory_s", "overhead_s") if key in values}
    return Cost(time_s=time, log_sigma=log_sigma, source=source, details=values, **terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmAlternative:
    """One way a library could run a GEMM, and its predicted time; shares are 0..1."""

    tile_m: int
    tile_n: int
    split_k: int
    waves: int
    time_s: float
    compute_s: float
    memory_s: float
    overhead_s: float
    tile_efficiency: float
    wave_efficiency: float
    alignment: float


def gemm_alternatives(
    gemm: Gemm, gpu: Gpu, calibration: Calibration, *, clock: Clock = Clock.SUSTAINED, replay: bool = False
) -> tuple[GemmAlternative, ...]:
    """Every (tile, split_k) considered for one GEMM of scalar sizes, fastest first."""
    if has_few(gemm, calibration) and mostly_few(gemm, calibration):
        return gemm_alternatives(gemm, gpu, with_few(calibration), clock=clock)
    c = queued(calibration.gemm[gemm.dtype], gemm.dtype, calibration, clock, replay=replay)
    arrays, _ = _problem(gemm, c)
    flat = Problems(**{name: np.asarray(value, dtype=np.float64).reshape(1) for name, value in arrays.items()})
    slower = calibration.misaligned[: int(misaligned_level(gemm))]
    ways = [(c, replace(flat, penalty=np.full(1, _least_penalty(c))) if slower else flat)]
    ways += [(fit, replace(flat, penalty=np.ones(1))) for fit in slower]
    machines = [_machine(gpu, gemm.dtype, fit, clock, calibration.power) for fit, _ in ways]
    tables = [
        {key: values[:, 0] for key, values in alternatives(sizes, machine, fit).items()}
        for machine, (fit, sizes) in zip(machines, ways, strict=True)
    ]
    columns = max(tables, key=lambda table: float(table["time_s"].min()))
    aligned, fastest = (float(table["time_s"].min()) for table in (tables[0], columns))
    columns["alignment"] = np.full(columns["time_s"].size, tables[0]["alignment"][0] * aligned / fastest)
    order = [i for i in np.argsort(columns["time_s"], kind="stable") if np.isfinite(columns["time_s"][i])]
    return tuple(_alternative({key: column[i] for key, column in columns.items()}) for i in order)


def _alternative(row: dict[str, Any]) -> GemmAlternative:
    values: dict[str, Any] = {key: int(row[key]) if key in _WHOLE else float(row[key]) for key in TERMS}
    return GemmAlternative(**values)


_WHOLE = {"tile_m", "tile_n", "split_k", "waves"}
