"""Entry point for prediction: the cost of every operator of a graph on a GPU or an accelerator, and the total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sartor.cost.chip.price import chip_alternatives, chip_cost
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
from sartor.cost.floor import at_least, least_s
from sartor.cost.gpu.attention import attention_cost
from sartor.cost.gpu.gemm import GemmAlternative, gemm_alternatives, gemm_costs
from sartor.cost.gpu.grouped import grouped_cost
from sartor.cost.gpu.memory_bound import launched_cost, memory_bound_cost
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.cluster import Cluster
from sartor.hardware.device import datasheet_of
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention, Collective, DType, Gemm, GroupedGemm, MemoryBound, Operator, OperatorGraph, Pass
from sartor.units import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Costs aligned with the graph's operators, and totals over their counts. Arrays broadcast like the sizes."""

    graph: OperatorGraph
    device: Gpu
    """For an accelerator, its generated datasheet (``datasheet_of``)."""
    costs: tuple[Cost, ...]
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
    return [at_least(op, _behind(op, cost, calibration), gpu, in_model=in_model) for op, cost in parts]


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
