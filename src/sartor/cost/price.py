"""Entry point for prediction: the cost of every operator of one graph or several, and the least a datasheet allows.

An operator alone, as benchmarks repeat it, may find in the caches as much as they hold. In a model, more weights and
cached keys pass through them between two runs of a layer than they hold, so a layer's own come from memory.

Graphs that differ in one size each (a sweep of every field, the fixes of every rule) share most operators, and a shared
operator is priced once. An entry of an array equals the scalar call to the last bit, so the times are those of
``price``, graph by graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from sartor.cost.collective.collective import collective_costs
from sartor.cost.correction.calibration import Calibration, Clock, load_calibration
from sartor.cost.cost import (
    BACKWARD_PASS_LOG_SIGMA,
    PASS_LOG_SIGMA,
    Cost,
    Source,
    add,
    interval_80,
    total_deviation,
    variance_of_each,
    weakest_source,
)
from sartor.cost.gpu.attention import DECODE_ROWS, attention_cost
from sartor.cost.gpu.gemm import GemmAlternative, gemm_alternatives, gemm_costs
from sartor.cost.gpu.grouped import grouped_cost
from sartor.cost.gpu.memory_bound import launched_cost, memory_bound_cost
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import datasheet_of
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.operators import (
    PLACE,
    Attention,
    Collective,
    DType,
    Gemm,
    GroupedGemm,
    Layout,
    MemoryBound,
    Operator,
    OperatorGraph,
    Pass,
)
from sartor.units import Floats, plain, shaped


def least_s(op: Operator, gpu: Gpu, *, in_model: bool = False) -> Floats:
    """Seconds of one execution: FLOPs at the dense peak, or bytes at memory's rate. Collectives have 0."""
    return np.maximum(_multiplying_s(op, gpu), _reading_s(op, gpu, in_model))


def _at_least(op: Operator, cost: Cost, gpu: Gpu, *, in_model: bool) -> Cost:
    """The cost with ``floor_s``, and with a time, its largest term and ``residual`` that respect it."""
    if isinstance(op, Collective):
        return cost
    multiplying, reading = _multiplying_s(op, gpu), _reading_s(op, gpu, in_model)
    floor = np.maximum(multiplying, reading)
    if np.all(floor <= cost.time_s):
        return replace(cost, floor_s=plain(floor))
    time_s = np.maximum(cost.time_s, floor)
    details = cost.details
    if "residual" in details:
        details = details | {"residual": plain(details["residual"] * time_s / cost.time_s)}
    return replace(
        cost,
        time_s=plain(time_s),
        floor_s=plain(floor),
        compute_s=plain(np.maximum(cost.compute_s, multiplying)),
        memory_s=plain(np.maximum(cost.memory_s, reading)),
        details=details,
    )


def _multiplying_s(op: Operator, gpu: Gpu) -> Floats:
    if not isinstance(op, (Gemm, GroupedGemm, Attention)):
        return 0.0
    return op.flops / peak_flops_per_s(gpu, op.dtype)


def _reading_s(op: Operator, gpu: Gpu, in_model: bool) -> Floats:
    cold = _cold_bytes(op) if in_model else 0.0
    if isinstance(op, (Gemm, MemoryBound)):  # windows skip keys and routing skips experts
        cold = np.maximum(cold, op.bytes_moved - (gpu.l2_bytes + gpu.memory_side_cache_bytes))
    return np.maximum(cold, 0.0) / gpu.hbm_bytes_per_s


def _cold_bytes(op: Operator) -> Floats:
    """Bytes that lay in no cache: weights, of experts those of one token's at least, and cached keys and values."""
    if isinstance(op, Attention):
        decodes = (np.asarray(op.seq_q) <= DECODE_ROWS) & (op.pass_ is Pass.FORWARD)
        return np.where(decodes, op.cached_bytes, 0.0)
    if isinstance(op, GroupedGemm):
        if op.pass_ is Pass.WGRAD:
            return 0.0
        visited = np.where(np.greater(op.tokens, 0), np.ceil(op.rows / np.maximum(op.tokens, 1)), 1.0)
        return np.minimum(visited, op.groups) * op.k * op.n * op.dtype.bytes
    if isinstance(op, Gemm) and op.layout is not Layout.NT:  # a batch multiplies activations
        return np.where(np.equal(op.batch, 1), op.dtype.bytes * op.k * op.n, 0.0)
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Costs aligned with the graph's operators, and totals over their counts. Arrays broadcast like the sizes."""

    graph: OperatorGraph = field(repr=False)
    device: Gpu = field(repr=False)
    """For an accelerator, its generated datasheet (``datasheet_of``)."""
    costs: tuple[Cost, ...] = field(repr=False)
    time_s: Floats
    sigma_factor: Floats = 1.0
    """Factor by which every interval is widened."""

    @property
    def log_sigma(self) -> Floats:
        """Standard deviation of ln(measured/predicted) of the total, including correlation within families."""
        parts = zip(self.graph.operators, self.costs, strict=True)
        of_operators = total_deviation((op, cost.time_s * op.count * cost.log_sigma) for op, cost in parts)
        beyond = _beyond_operators(self.graph) * self.sigma_factor
        return np.hypot(of_operators / self.time_s, beyond)

    @property
    def low_s(self) -> Floats:
        parts = zip(self.graph.operators, self.costs, strict=True)
        floor_s = add([np.minimum(cost.floor_s, cost.time_s) * op.count for op, cost in parts])
        return interval_80(self.time_s, self.log_sigma, floor_s)[0]

    @property
    def high_s(self) -> Floats:
        return interval_80(self.time_s, self.log_sigma)[1]

    @property
    def formula_time_s(self) -> Floats:
        """The total without residuals and the user's own measurements."""
        pairs = zip(self.graph.operators, self.costs, strict=True)
        return sum((op.count * cost.time_s / cost.learned for op, cost in pairs), 0.0)

    @property
    def variance_shares(self) -> tuple[float, ...]:
        """Each operator's share of the squared ``log_sigma``; the remainder is beyond operators."""
        parts = [
            (op, c.time_s * op.count * c.log_sigma) for op, c in zip(self.graph.operators, self.costs, strict=True)
        ]
        whole = (self.log_sigma * self.time_s) ** 2
        return tuple(float(np.mean(variance / whole)) for variance in variance_of_each(parts))

    @property
    def source(self) -> Source:
        """The weakest source among operators: a total is calibrated only if every part is. ASSUMED if operators with
        assumed costs cause more than half of the interval."""
        shares = zip(self.costs, self.variance_shares, strict=True)
        return Source(
            str(weakest_source([(bool(np.all(c.fitted)), bool(np.any(c.assumed)), share) for c, share in shares]))
        )

    @property
    def flops(self) -> Floats:
        return self.graph.flops

    @property
    def matmul_flops(self) -> Floats:
        return self.graph.matmul_flops

    @property
    def tokens_per_s(self) -> Floats:
        return self.graph.tokens / self.time_s

    @property
    def mfu(self) -> Floats:
        """FLOPs of matrix multiplications per second over the dense peak of the dtype most of them use."""
        return self.matmul_flops / self.time_s / peak_flops_per_s(self.device, _main_dtype(self.graph))


def price(
    graph: OperatorGraph,
    device: Gpu | Accelerator,
    calibration: Calibration | None = None,
    *,
    clock: Clock = Clock.SUSTAINED,
    details: bool = True,
    sigma_factor: float = 1.0,
    cluster: Cluster | None = None,
    eager: bool = False,
) -> Estimate:
    """Predict every operator of ``graph`` on ``device``.

    Sizes that are arrays give arrays: one call evaluates all candidates. ``sigma_factor`` widens every interval (for a
    configuration read with assumptions). With a ``cluster``, collectives cross the tiers of links that their group and
    stride reach; without one they run on the device's own links.

    For GPUs only: ``calibration`` (default ``load_calibration``); ``clock`` BOOST predicts short runs, as benchmark
    tables time them; ``details`` False leaves out GEMM terms and tiles, which is faster; ``eager``: the host launches
    memory-bound kernels one call at a time and runs ahead of a model's (``launched_cost``; it waits for one alone), and
    GEMMs wait in the queue behind them, but for those in fp32, whose tables hold the host's launches
    (``Calibration.host_launches``). An accelerator runs at its
    clock, without host overhead, and has no measurements.

    Examples
    --------
    >>> price(lower(workload, dims), load_gpu("h100_sxm")).time_s        # doctest: +SKIP
    """
    gpu = datasheet_of(device) if isinstance(device, Accelerator) else device
    costs = operator_costs(
        graph.operators,
        gpu,
        calibration,
        clock=clock,
        details=details,
        sigma_factor=sigma_factor,
        cluster=cluster,
        eager=eager,
    )
    total = total_s(graph.operators, costs)
    return Estimate(graph=graph, device=gpu, costs=costs, time_s=total, sigma_factor=sigma_factor)


def operator_costs(
    operators: Sequence[Operator],
    gpu: Gpu,
    calibration: Calibration | None = None,
    *,
    clock: Clock = Clock.SUSTAINED,
    details: bool = True,
    sigma_factor: float = 1.0,
    cluster: Cluster | None = None,
    eager: bool = False,
) -> tuple[Cost, ...]:
    """The cost of each operator, in the shape of its own sizes; arguments as in ``price``."""
    calibrated = calibration or load_calibration(gpu)
    clock = calibrated.clock or clock
    if gpu.accelerator is not None:
        from sartor.cost.chip.operator_latency import chip_cost  # no GPU needs it

        costs = [chip_cost(op, gpu, calibrated, cluster) for op in operators]
        if details:
            costs = [replace(cost, floor_s=least_s(op, gpu)) for op, cost in zip(operators, costs, strict=True)]
    else:
        costs = _on_gpu(operators, gpu, calibrated, clock=clock, details=details, cluster=cluster, eager=eager)
    return tuple(_widen(cost, sigma_factor) for cost in costs)


def _on_gpu(
    operators: Sequence[Operator],
    gpu: Gpu,
    calibration: Calibration,
    *,
    clock: Clock,
    details: bool,
    cluster: Cluster | None,
    eager: bool,
) -> list[Cost]:
    gemms, in_model = [op for op in operators if isinstance(op, Gemm)], _in_model(operators)
    of_each = calibration.in_a_model() if in_model else calibration
    replay = not (eager or calibration.host_launches)
    of_gemms = iter(gemm_costs(gemms, gpu, of_each, clock=clock, details=details, replay=replay))
    of_collectives = iter(
        collective_costs([op for op in operators if isinstance(op, Collective)], gpu, calibration, cluster)
    )
    costs: list[Cost] = []
    for op in operators:
        if isinstance(op, Gemm):
            costs.append(next(of_gemms))
        elif isinstance(op, GroupedGemm):
            costs.append(grouped_cost(op, gpu, calibration, clock=clock))
        elif isinstance(op, Attention):
            costs.append(attention_cost(op, gpu, calibration, clock=clock, in_model=in_model))
        elif isinstance(op, MemoryBound):
            ahead = eager and in_model
            costs.append(
                launched_cost(op, gpu, calibration) if ahead else memory_bound_cost(op, gpu, calibration, eager=eager)
            )
        else:
            costs.append(next(of_collectives))
    parts = zip(operators, costs, strict=True)
    return [_at_least(op, _behind(op, cost, calibration), gpu, in_model=in_model) for op, cost in parts]


def _behind(op: Operator, cost: Cost, calibration: Calibration) -> Cost:
    """The cost without the part of its launch that hides behind the kernel before."""
    if not calibration.hidden_launches or not isinstance(op, (MemoryBound, Attention, GroupedGemm)):
        return cost
    hidden_s = calibration.hidden_launches * np.minimum(cost.overhead_s, cost.time_s)
    return replace(cost, time_s=cost.time_s - hidden_s, overhead_s=cost.overhead_s - hidden_s)


def _in_model(operators: Sequence[Operator]) -> bool:
    """Whether other weights and caches pass through L2 between two runs of an operator: not for a kernel alone, which
    benchmarks repeat."""
    alone = len(operators) == 1 and operators[0].role is None
    return not (alone and bool(np.all(np.asarray(operators[0].count) == 1)))


def gemm_mappings(gemm: Gemm, gpu: Gpu, calibration: Calibration, *, clock: Clock) -> tuple[GemmAlternative, ...]:
    """Every tile and split considered for one matrix multiplication of scalar sizes, fastest first."""
    if gpu.accelerator is None:
        return gemm_alternatives(gemm, gpu, calibration, clock=clock, replay=not calibration.host_launches)
    from sartor.cost.chip.operator_latency import chip_alternatives

    return tuple(_alternative(cost) for cost in chip_alternatives(gemm, gpu.accelerator))


def _alternative(cost: Cost) -> GemmAlternative:
    details = cost.details
    return GemmAlternative(
        tile_m=int(details["tile_m"]),
        tile_n=int(details["tile_n"]),
        split_k=int(details["split_k"]),
        waves=int(details["waves"]),
        tile_efficiency=float(details["tile_efficiency"]),
        wave_efficiency=float(details["wave_efficiency"]),
        time_s=float(cost.time_s),
        compute_s=float(cost.compute_s),
        memory_s=float(cost.memory_s),
        overhead_s=float(cost.overhead_s),
        alignment=1.0,
    )


def _widen(cost: Cost, factor: float) -> Cost:
    return cost if factor == 1.0 else replace(cost, log_sigma=cost.log_sigma * factor)


def total_s(operators: Sequence[Operator], costs: Sequence[Cost]) -> Floats:
    """Total seconds of all operators, each times its count."""
    total: Floats = add([cost.time_s * op.count for op, cost in zip(operators, costs, strict=True)])
    return total


def _beyond_operators(graph: OperatorGraph) -> float:
    """Extra standard deviation of a model's pass (a graph with tokens); 0 for a bare set of operators."""
    if not np.any(graph.tokens):
        return 0.0
    forward = all(op.pass_ is Pass.FORWARD for op in graph.operators)
    return PASS_LOG_SIGMA if forward else BACKWARD_PASS_LOG_SIGMA


def _main_dtype(graph: OperatorGraph) -> DType:
    flops: dict[DType, float] = {}
    for op in graph.operators:
        if isinstance(op, (Gemm, GroupedGemm, Attention)):
            flops[op.dtype] = flops.get(op.dtype, 0.0) + float(np.max(op.flops * op.count))
    return max(flops, key=lambda dtype: flops[dtype]) if flops else DType.BF16


Key: TypeAlias = tuple[Any, ...]


def price_all(
    graphs: Sequence[OperatorGraph],
    gpu: Gpu,
    calibration: Calibration | None = None,
    *,
    sigma_factor: float = 1.0,
) -> list[Estimate]:
    """Each graph's estimate: total and, per operator, time [s] and its spread; terms and tiles are left out.

    Sizes may be arrays, with a different length in every graph. Arguments as in ``price``.
    """
    operators = [op for graph in graphs for op in graph.operators]
    costs, totals = iter(costs_together(operators, gpu, calibration, sigma_factor=sigma_factor)), []
    for graph in graphs:
        row_costs = tuple(islice(costs, len(graph.operators)))
        time_s = total_s(graph.operators, row_costs)
        totals.append(Estimate(graph=graph, device=gpu, costs=row_costs, time_s=time_s, sigma_factor=sigma_factor))
    return totals


def costs_together(
    operators: Sequence[Operator],
    gpu: Gpu,
    calibration: Calibration | None = None,
    *,
    sigma_factor: float = 1.0,
    cluster: Cluster | None = None,
    cost_of: dict[Key, Cost] | None = None,
) -> list[Cost]:
    """Time [s] and spread of each operator, in the shape of its own sizes: equal ones are priced once, and those that
    differ in sizes alone as one array. ``cost_of`` keeps the costs of operators in a model, with all else unchanged.
    Other arguments as in ``price``."""
    cost_of = {} if cost_of is None else cost_of
    keys, groups = [_key(op) for op in operators], dict[Key, dict[Key, Operator]]()
    for key, op in zip(keys, operators, strict=True):
        if key not in cost_of:
            groups.setdefault(key[0], {})[key] = op
    shapes = [
        {key: np.broadcast_shapes(*map(np.shape, _sizes(op))) for key, op in group.items()} for group in groups.values()
    ]
    joined = [
        _joined(list(group.values()), list(of.values())) for group, of in zip(groups.values(), shapes, strict=True)
    ]
    whole = operator_costs(joined, gpu, calibration, details=False, sigma_factor=sigma_factor, cluster=cluster)
    for cost, of_group in zip(whole, shapes, strict=True):
        cost_of |= _parted(cost, of_group)
    return [cost_of[key] for key in keys]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Fields of an operator that its cost depends on: numbers (possibly arrays), and the rest."""

    sizes: tuple[str, ...]
    words: tuple[str, ...]


def _names(kind: type) -> _Names:
    used = [field for field in fields(kind) if field.name not in PLACE]
    sizes = tuple(field.name for field in used if field.type in ("Ints", "Floats"))
    return _Names(sizes=sizes, words=tuple(field.name for field in used if field.name not in sizes))


_NAMES: dict[type, _Names] = {kind: _names(kind) for kind in (Gemm, GroupedGemm, Attention, MemoryBound, Collective)}


def _sizes(op: Operator) -> list[Any]:
    return [getattr(op, name) for name in _NAMES[type(op)].sizes]


def _key(op: Operator) -> Key:
    """A key that is equal for operators of equal cost: what those that can be priced as one array share, then sizes."""
    words = tuple(getattr(op, name) for name in _NAMES[type(op)].words)
    sizes = ((v.shape, v.dtype, v.tobytes()) if isinstance(v, np.ndarray) else v for v in _sizes(op))
    return ((type(op), *words), *sizes)


def _joined(operators: Sequence[Operator], shapes: Sequence[tuple[int, ...]]) -> Operator:
    """Operators that differ only in sizes as one, with flat arrays as sizes (numbers if equal in all)."""
    if len(operators) == 1:
        return operators[0]
    changed: dict[str, Any] = {}
    for name in _NAMES[type(operators[0])].sizes:
        values = [getattr(op, name) for op in operators]
        if any(isinstance(v, np.ndarray) for v in values) or len(set(values)) > 1:
            changed[name] = np.concatenate(
                [np.full(shape, v).reshape(-1) for v, shape in zip(values, shapes, strict=True)]
            )
    return replace(operators[0], **changed)


def _parted(cost: Cost, shapes: dict[Key, tuple[int, ...]]) -> dict[Key, Cost]:
    """Each operator's own time and spread, split from the joined cost."""
    if len(shapes) == 1:
        return {key: Cost(time_s=cost.time_s, log_sigma=cost.log_sigma, source=cost.source) for key in shapes}
    stops = np.cumsum([math.prod(shape) for shape in shapes.values()]).tolist()
    time_s, sigma = (np.broadcast_to(array, (stops[-1],)) for array in (cost.time_s, cost.log_sigma))
    return {
        key: Cost(time_s=shaped(time_s[i:j], shape), log_sigma=shaped(sigma[i:j], shape), source=cost.source)
        for (key, shape), i, j in zip(shapes.items(), [0, *stops[:-1]], stops, strict=True)
    }
