"""Time of a matrix product: tiles over SMs in waves, fed from memory, chosen from the generation's tile menu.

For every (tile, split) of the menu: blocks are dealt to SMs in waves; a wave lasts its main loop (matrix rate or
operand feed, whichever is slower) plus fill and epilogue; memory traffic overlaps; launch adds. The library is taken
to choose the fastest. Formula, symbols and accuracy: docs/concepts/gemm.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration, Clock
from sartor.cost.correction.coefficients import (
    FRESH_BYTES,
    SCALE_BLOCK,
    GemmCoefficients,
    MemoryBoundCoefficients,
    PowerCoefficients,
)
from sartor.cost.correction.gemm import correct_gemms
from sartor.cost.correction.own_rows import correct_by_own_rows
from sartor.cost.correction.scaling import HOST_WAIT, l2_bytes_per_s
from sartor.cost.cost import Cost, Source
from sartor.cost.gpu.power import LONG_RUN_LOG_SIGMA, long_run
from sartor.cost.gpu.tiles import TERMS, Array, Machine, Problems, alternatives, evaluate, quantizing_s
from sartor.hardware.gpu import Gpu
from sartor.hardware.peaks import STAND_INS, peak_flops_per_s
from sartor.operators import DType, Gemm, GroupedGemm, Layout, Pass
from sartor.units import Floats


def gemm_costs(
    gemms: Sequence[Gemm | GroupedGemm],
    gpu: Gpu,
    calibration: Calibration,
    *,
    clock: Clock = Clock.SUSTAINED,
    details: bool = True,
) -> list[Cost]:
    """Costs of products, in the order given; each ``Cost`` has the broadcast shape of its product's sizes.

    Products of one dtype are evaluated together, so a whole model's scalar products take one pass.
    """
    costs: list[Cost | None] = [None] * len(gemms)
    for dtype, bare in dict.fromkeys(_kind(gemm) for gemm in gemms):
        chosen = [i for i, gemm in enumerate(gemms) if _kind(gemm) == (dtype, bare)]
        coefficients = _bare_coefficients(calibration) if bare else _coefficients(calibration, dtype)
        problems = [_problem(gemms[i], coefficients) for i in chosen]
        machine = _machine(gpu, dtype, coefficients, clock, calibration.power)
        flat = Problems(
            **{
                name: np.concatenate([np.broadcast_to(p[name], shape).ravel() for p, shape in problems])
                for name in Problems.__slots__
            }
        )
        formula = evaluate(flat, machine, coefficients, details)
        counts = [int(np.prod(shape)) for _, shape in problems]
        across = np.repeat([gemms[i].layout is Layout.NN for i in chosen], counts)
        seen = np.repeat([_tabled(gemms[i]) for i in chosen], counts) & (across | (flat.batch == 1))
        short = formula["time_s"] < _SHORT * coefficients.launch_s
        sigma = np.where(short, coefficients.log_sigma_small, coefficients.log_sigma)
        result, sigma = correct_gemms(
            formula,
            sigma,
            short,
            seen,
            across if dtype is DType.FP32 else None,
            flat,
            machine,
            gpu,
            calibration,
            coefficients,
        )
        result = _streamed(result, flat, machine, gpu, calibration.memory_bound, coefficients)
        quantized = np.repeat([gemms[i].quantized for i in chosen], counts)
        result = _without_quantizing(result, formula["time_s"], quantized, flat, machine, coefficients)
        if dtype is DType.FP8_BLOCK:
            result, sigma = _below_a_block(result, sigma, flat, gpu, coefficients)
        if dtype in calibration.own_rows:
            result, sigma = correct_by_own_rows(result, sigma, short, flat, machine, gpu, calibration.own_rows[dtype])
        if machine.long_run and machine.long_run.limit_flops_per_s:
            sigma = np.sqrt(sigma * sigma + LONG_RUN_LOG_SIGMA * LONG_RUN_LOG_SIGMA)
        source = Source.CALIBRATED if f"gemm.{dtype.value}" in calibration.calibrated else Source.ANALYTIC
        start = 0
        for i, (_, shape) in zip(chosen, problems, strict=True):
            stop = start + int(np.prod(shape))
            widen = GROUPED_SIGMA if isinstance(gemms[i], GroupedGemm) else 1.0
            part = {key: v[start:stop] for key, v in result.items()}
            costs[i] = _cost(part, sigma[start:stop] * widen, shape, source)
            start = stop
    found = [cost for cost in costs if cost is not None]
    swept = [i for i, gemm in enumerate(gemms) if _swept(gemm, calibration)]
    alike = [replace(gemms[i], dtype=DType.BF16) for i in swept]
    timed = gemm_costs(alike, gpu, calibration, clock=clock, details=details) if swept else []
    for i, other in zip(swept, timed, strict=True):
        found[i] = _without_the_host(found[i], other, _SHORT * calibration.gemm[DType.FP16].launch_s)
    return found


def _swept(gemm: Gemm | GroupedGemm, calibration: Calibration) -> bool:
    """A linear layer's fp16 product where fp16 was fitted on products the host launched one by one, and bf16, which
    runs at the same rates, on replayed ones."""
    by_host = [calibration.provenance.get(f"gemm.{d.value}", {}).get("launched") for d in (DType.FP16, DType.BF16)]
    return gemm.dtype is DType.FP16 and gemm.layout is Layout.TN and by_host == ["host", None]


def _without_the_host(eager: Cost, replayed: Cost, short_s: float) -> Cost:
    """``eager``, or ``replayed`` where a product is so short that the host's launch is much of it and shorter so."""
    sooner = (eager.time_s < short_s) & (replayed.time_s < eager.time_s)
    if not np.any(sooner):
        return eager

    def either(before: Any, after: Any) -> Any:
        return _plain(np.where(sooner, after, before))

    names = ("time_s", "compute_s", "memory_s", "overhead_s", "log_sigma")
    values = {name: either(getattr(eager, name), getattr(replayed, name)) for name in names}
    keys = dict.fromkeys((*eager.details, *replayed.details))
    details = {key: either(eager.details.get(key, 1.0), replayed.details.get(key, 1.0)) for key in keys}
    return replace(eager, **values, details=details)


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value


def _streamed(
    found: dict[str, Array],
    p: Problems,
    machine: Machine,
    gpu: Gpu,
    streams: MemoryBoundCoefficients,
    c: GemmCoefficients,
) -> dict[str, Array]:
    """A matrix times a vector where the fit saw none: as long as a streaming kernel takes for its bytes, at most."""
    few = p.m <= c.stream_rows
    if not np.any(few):
        return found
    moved = p.k * (machine.first_bytes * p.m + machine.element_bytes * p.n) + p.out_bytes * p.m * p.n
    memory = p.batch * moved / (streams.hbm_share * gpu.hbm_bytes_per_s)
    sooner = few & (memory + streams.launch_s < found["time_s"])
    terms: dict[str, Any] = {
        "time_s": memory + streams.launch_s,
        "compute_s": 0.0,
        "memory_s": memory,
        "overhead_s": streams.launch_s,
    }
    return found | {name: np.where(sooner, terms[name], found[name]) for name in terms.keys() & found.keys()}


def _kind(gemm: Gemm | GroupedGemm) -> tuple[DType, bool]:
    """Its type, and whether it is one that tables time only together with the kernel that narrows its operands."""
    return gemm.dtype, gemm.quantized and gemm.dtype in _BARE


_BARE = (DType.FP8, DType.MXFP8, DType.INT8, DType.NVFP4, DType.MXFP4, DType.INT4)
"""Types whose operands are scaled in the tensor cores or once per tensor: blocks of other kinds are a kernel's own."""


def _bare_coefficients(calibration: Calibration) -> GemmCoefficients:
    """Of a narrow product without its quantizing kernel: the device's 16-bit kernels at the narrow type's peak and
    bytes.

    Fits of narrow types take that kernel's traffic for the product's own (docs/concepts/gemm.md, "Narrow types"). The
    interval is that of other units, twice as wide.
    """
    c = _coefficients(calibration, DType.BF16)
    return replace(c, log_sigma=2 * c.log_sigma, log_sigma_small=2 * c.log_sigma_small)


def _without_quantizing(
    found: dict[str, Array], formula_s: Array, where: Any, p: Problems, machine: Machine, c: GemmCoefficients
) -> dict[str, Array]:
    """Products whose operands come narrow are shorter by the share that the formula gives the quantizing kernel."""
    if not np.any(where):
        return found
    share = np.where(where, quantizing_s(p, machine, c) / formula_s, 0.0)
    out = {**found, "time_s": found["time_s"] * (1.0 - share)}
    if "overhead_s" in found:
        out["overhead_s"] = found["overhead_s"] - share * formula_s
    return out


def _below_a_block(
    found: dict[str, Array], sigma: Array, p: Problems, gpu: Gpu, c: GemmCoefficients
) -> tuple[dict[str, Array], Array]:
    """Products narrower than one scale block wait for the host of a fallback."""
    half = (p.k >= SCALE_BLOCK) & (p.n >= SCALE_BLOCK / 2) if c.half_block_s else np.zeros(p.m.shape, dtype=bool)
    wait_s = np.where(half, np.where(p.m < _FEW_ROWS, c.half_block_few_s, c.half_block_s), c.sub_block_s)
    wait_s = wait_s * HOST_WAIT.get(gpu.host, 1.0)
    bound = (np.minimum(p.n, p.k) < SCALE_BLOCK) & (found["time_s"] < wait_s)
    if not np.any(bound):
        return found, sigma
    waited = np.where(bound, wait_s - found["time_s"], 0.0)
    out = {**found, "time_s": found["time_s"] + waited}
    if "overhead_s" in found:
        out["overhead_s"] = found["overhead_s"] + waited
    return out, np.where(bound, np.where(half, c.half_block_log_sigma, c.sub_block_log_sigma), sigma)


_FEW_ROWS = 32
"""From so many rows on vLLM leaves FlashInfer's block-scaled kernel for DeepGEMM's (H200, 17 and 32 rows measured)."""


def gemm_cost(gemm: Gemm | GroupedGemm, gpu: Gpu, calibration: Calibration, *, clock: Clock = Clock.SUSTAINED) -> Cost:
    """Cost of one product; sizes may be arrays."""
    return gemm_costs([gemm], gpu, calibration, clock=clock)[0]


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
        l2_bytes_per_s=max(c.l2_rate * l2_bytes_per_s(gpu), c.hbm_share * gpu.hbm_bytes_per_s),
        element_bytes=dtype.bytes,
        first_bytes=dtype.activation_bytes,
        step_k=max(16.0, c.step_bytes // dtype.activation_bytes),
        throttle_s=c.throttle_s,
        long_run=long_run(gpu, dtype, power, c.throttle, clock),
        quantize_bytes=c.quantize_bytes,
    )


def roofline_s(gemm: Gemm | GroupedGemm, gpu: Gpu) -> Floats:
    """Least time the datasheet allows: FLOPs at peak, and bytes beyond what L2 can hold at HBM's rate."""
    compute = gemm.flops / peak_flops_per_s(gpu, gemm.dtype)
    least: Floats = np.maximum(compute, np.maximum(gemm.bytes_moved - gpu.l2_bytes, 0) / gpu.hbm_bytes_per_s)
    return least


def _coefficients(calibration: Calibration, dtype: DType) -> GemmCoefficients:
    for each in (dtype, *STAND_INS.get(dtype, ()), DType.BF16, DType.FP16):
        if each in calibration.gemm:
            return calibration.gemm[each]
    return next(iter(calibration.gemm.values()))


def _problem(gemm: Gemm | GroupedGemm, c: GemmCoefficients) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The product's sizes as float arrays, with the shape they broadcast to."""
    sizes = _group_sizes(gemm) if isinstance(gemm, GroupedGemm) else (gemm.batch, gemm.m, gemm.n, gemm.k)
    out = (gemm.out_dtype.bytes if gemm.out_dtype else max(2.0, gemm.dtype.bytes)) * (2 if gemm.accumulates else 1)
    arrays: dict[str, Any] = {
        name: np.asarray(size, dtype=np.float64) for name, size in zip(("batch", "m", "n", "k"), sizes, strict=True)
    }
    arrays["out_bytes"] = np.float64(out)
    arrays["penalty"] = alignment_penalty(gemm, c)
    arrays["packed_bytes"] = _packed_bytes(gemm, c, *(arrays[name] for name in ("batch", "m", "n", "k")))
    shape = np.broadcast_shapes(*(np.shape(each) for each in arrays.values()))
    return arrays, shape


def _packed_bytes(gemm: Gemm | GroupedGemm, c: GemmCoefficients, batch: Any, m: Any, n: Any, k: Any) -> Any:
    """Traffic of copies into blocks, and of fresh pages for a large result. A few rows in fp32 read weights as they lie
    (MKL; in bf16 oneDNN copies all the same: docs/measured.md)."""
    second = batch * n * k * (c.pack_tn if gemm.layout is Layout.TN else c.pack_nn)
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
"""Rows of an fp32 product on a host up to which weights stream at memory's rate (20 to 29 GB/s of 42 for one to three
rows, 14 to 21 for four to six, 7 to 14 from eight on: this project's host, MKL 2024.2, 2026-11-21)."""


def _group_sizes(op: GroupedGemm) -> tuple[Any, Any, Any, Any]:
    """A grouped product as a batch of equal ones: groups that have rows, each with its mean rows (times skew)."""
    active = np.maximum(np.minimum(op.groups, op.rows), 1)
    rows = np.ceil(np.asarray(op.rows) / active) * op.skew
    return (active, op.n, op.k, rows) if op.pass_ is Pass.WGRAD else (active, rows, op.n, op.k)


def alignment_penalty(gemm: Gemm | GroupedGemm, c: GemmCoefficients) -> Any:
    """Main-loop slowdown (>= 1): each operand adds its own, by how its contiguous length is aligned.

    TN reads both inputs along k, NN the second along n, NT the first along m and the second along n; the output is
    contiguous along n. A kernel is chosen for the least aligned of its operands, so an output that is out of step
    costs as much as one input that is, even where both inputs are aligned: the sweeps (NN) cannot tell the two
    apart, but the vocabulary examples can (forward logits are TN; docs/concepts/gemm.md, "Alignment").
    """
    m = gemm.rows if isinstance(gemm, GroupedGemm) else gemm.m
    first = m if gemm.layout is Layout.NT else gemm.k
    second = gemm.k if gemm.layout is Layout.TN else gemm.n
    out_bits = max(16, round(8 * gemm.dtype.bytes))
    bits = _ELEMENT_BITS.get(gemm.dtype, 16)
    inputs, outputs = np.asarray(c.input_penalty), np.asarray(c.output_penalty)
    out = _alignment(gemm.n, out_bits)
    read = np.maximum(inputs[_alignment(first, bits)] + inputs[_alignment(second, bits)], inputs[out])
    return 1.0 + read + outputs[out]


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


def _alignment(length: Any, bits: int) -> Any:
    """log2 of the bytes (1..128) that a contiguous length of elements is a whole multiple of."""
    length = np.asarray(length, dtype=np.int64)
    aligned = np.clip((length & -length) * bits // 8, 1, 128)
    return np.frexp(aligned.astype(np.float64))[1] - 1


GROUPED_SIGMA = 2.5
"""Grouped products over plain ones: kernels and routing differ by framework (data/measured/moe_bf16.parquet: with this
formula plus a fixed 20 to 30 us and the permutation's traffic, medians of 6 to 20%)."""

_SHORT = 8
"""Products shorter than so many launches have an interval of their own (lab/fit_gemm.py measures both)."""


def _tabled(gemm: Gemm | GroupedGemm) -> bool:
    """Whether measured tables hold its kind, which residuals were fitted on: a linear layer's forward product; on
    general cores batched ones (NN) too."""
    layouts = (Layout.TN, Layout.NN) if gemm.dtype is DType.FP32 else (Layout.TN,)
    plain = isinstance(gemm, Gemm) and gemm.layout in layouts and not gemm.accumulates
    return plain and not gemm.quantized  # tables time narrow products with their quantizing kernel


def _cost(flat: dict[str, Array], sigma: Array, shape: tuple[int, ...], source: Source) -> Cost:
    values: dict[str, Any] = {key: v.reshape(shape) if shape else float(v[0]) for key, v in flat.items()}
    log_sigma: Floats = sigma.reshape(shape) if shape else float(sigma[0])
    time = values.pop("time_s")
    terms = {key: values.pop(key) for key in ("compute_s", "memory_s", "overhead_s") if key in values}
    return Cost(time_s=time, log_sigma=log_sigma, source=source, details=values, **terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmAlternative:
    """One way a library could run a product, and what it would take; shares are 0..1."""

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
    gemm: Gemm, gpu: Gpu, calibration: Calibration, *, clock: Clock = Clock.SUSTAINED
) -> tuple[GemmAlternative, ...]:
    """Every (tile, split_k) considered for one product of scalar sizes, fastest first."""
    c = _coefficients(calibration, gemm.dtype)
    arrays, _ = _problem(gemm, c)
    flat = Problems(**{name: np.asarray(value, dtype=np.float64).reshape(1) for name, value in arrays.items()})
    machine = _machine(gpu, gemm.dtype, c, clock, calibration.power)
    columns = {key: values[:, 0] for key, values in alternatives(flat, machine, c).items()}
    order = [i for i in np.argsort(columns["time_s"], kind="stable") if np.isfinite(columns["time_s"][i])]
    return tuple(_alternative({key: column[i] for key, column in columns.items()}) for i in order)


def _alternative(row: dict[str, Any]) -> GemmAlternative:
    values: dict[str, Any] = {key: int(row[key]) if key in _WHOLE else float(row[key]) for key in TERMS}
    return GemmAlternative(**values)


_WHOLE = {"tile_m", "tile_n", "split_k", "waves"}
