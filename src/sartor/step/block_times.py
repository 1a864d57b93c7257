"""Seconds of every block of a model on one device for one microbatch, and what blocks add to a pipeline stage.

A block's time depends on few fields of a plan (`BlockRows`). Only their distinct combinations are lowered and priced,
in one array pass per distinct structure, and then mapped back to the plans by index. Symbols and what is left out:
docs/concepts/training-step.md.

On a template chip in lockstep a layer takes the makespan of its best schedule. A layer's operators, collectives
included, overlap on the chip's cores, so forward and backward are one number each. Everything outside the layers runs
one operator after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.cost import Cost, total_deviation
from sartor.cost.price import Key, costs_together
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.cluster import Cluster
from sartor.model.lower import lower
from sartor.model.lower.graph import lower_layer
from sartor.model.lower.setting import check
from sartor.model.shape import Block, BlockKind, TransformerShape, blocks
from sartor.model.training import RecomputeModule, Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims, Workload
from sartor.operators import (
    PLACE,
    Attention,
    Axis,
    Collective,
    CollectiveKind,
    Gemm,
    GroupedGemm,
    MemoryBound,
    Operator,
    OperatorGraph,
    Part,
    Pass,
    Role,
    is_model_product,
)
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.mechanisms import acting
from sartor.step.mechanisms.mechanism import BlockShare, BlockWork
from sartor.step.question import check_recipe, kernels_of, workload_of
from sartor.step.results import BlockTimes
from sartor.step.stages import BlockRows, block_rows, distinct_rows
from sartor.units import FEW, FloatArray, Floats, IntArray, Ints, ceil_div, remembered

LOG_SIGMA = float(Cost(time_s=1.0).log_sigma)
"""Standard deviation of ln(measured/predicted): a datasheet's, since no template chip has been measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGraphs:
    """Operators of one block for one microbatch on one device. ``in_turn``: a block outside the layers, whose operators
    run one after another, with nothing to schedule."""

    block: Block
    forward: OperatorGraph
    backward: OperatorGraph
    in_turn: bool


def block_graphs(job: TrainingJob, dims: ParallelDims, microbatch_size: int) -> tuple[BlockGraphs, ...]:
    """The graphs of the `blocks` of ``job.shape``. Raises ``InputError`` for sizes that do not split."""
    return workload_graphs(workload_of(job, dims.tp, microbatch_size), dims)


def workload_graphs(workload: Workload, dims: ParallelDims) -> tuple[BlockGraphs, ...]:
    """The graphs of any pass over the model; only training has a backward."""
    whole, runs, out = lower(workload, dims), iter(range(len(workload.shape.main.runs))), []
    for i, block in enumerate(blocks(workload.shape)):
        if block.kind is BlockKind.LAYER:
            layer = lower_layer(workload, dims, next(runs))
            out.append(BlockGraphs(block=block, forward=layer.forward, backward=layer.backward, in_turn=False))
            continue
        operators = [op for op in whole.operators if op.block == i]
        forward = tuple(op for op in operators if op.pass_ is Pass.FORWARD)
        backward = tuple(op for op in operators if op.pass_ not in (Pass.FORWARD, Pass.OPTIMIZER))
        graphs = (OperatorGraph(operators=half, tokens=whole.tokens) for half in (forward, backward))
        out.append(BlockGraphs(block=block, forward=next(graphs), backward=next(graphs), in_turn=True))
    return tuple(out)


def check_one_stack(shape: TransformerShape) -> None:
    """Raise ``InputError`` for a model of several stacks, whose layers do not form a chain."""
    if len([stack for stack in shape.stacks if stack.is_text]) > 1:
        must = "must be one stack of layers on an accelerator; an encoder with a decoder is not"
        raise InputError("model", shape.name or "this model", must)


def _chip_row_times(job: TrainingJob, rows: BlockRows, cluster: Cluster) -> tuple[BlockTimes, ...]:
    """Times of the `blocks` of ``job.shape`` for every distinct row of plans, arrays of one axis."""
    check_one_stack(job.shape)
    chip = cluster.gpu.accelerator
    assert chip is not None
    block_kinds = blocks(job.shape)
    columns = [{name: np.zeros(rows.size) for name in _FIELDS} for _ in block_kinds]
    for i in range(rows.size):
        dims = ParallelDims(
            tp=int(rows.tp[i]),
            cp=int(rows.cp[i]),
            ep=int(rows.ep[i]),
            dp=int(rows.ep[i]),
            sequence_parallel=bool(rows.sequence_parallel[i]),
        )
        for column, graphs in zip(columns, block_graphs(job, dims, int(rows.microbatch_size[i])), strict=True):
            for name, value in _chip_times(graphs, chip).items():
                column[name][i] = value
    return tuple(BlockTimes(name=b.name, **c) for b, c in zip(block_kinds, columns, strict=True))


def _chip_times(graphs: BlockGraphs, chip: Accelerator) -> dict[str, float]:
    forward, backward = (_seconds(graph, graphs.in_turn, chip) for graph in (graphs.forward, graphs.backward))
    core = [op for op in graphs.forward.operators if isinstance(op, Attention)]
    return {
        "forward_s": forward,
        "dgrad_s": backward,
        "selective_s": 0.0 if graphs.in_turn else _seconds(OperatorGraph(operators=tuple(core)), True, chip),
        "full_s": 0.0 if graphs.in_turn else forward,
        "log_sigma": LOG_SIGMA,
        "flops": float(graphs.forward.matmul_flops + graphs.backward.matmul_flops),
    }


def _seconds(graph: OperatorGraph, in_turn: bool, chip: Accelerator) -> float:
    from sartor.schedules.makespan import in_turn_s, known_makespan_s  # the solvers: no GPU's step needs them

    return float(in_turn_s(graph, chip)) if in_turn else known_makespan_s(graph, chip)


def row_times(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None = None
) -> tuple[tuple[BlockTimes, ...], BlockRows]:
    """Times of the `blocks` of ``job.shape`` for the distinct rows of a plan's tp, cp, ep, microbatch size and sequence
    parallelism (arrays of one axis), and the rows, with an index into them. A LAYER block's times are those of one
    layer.

    Raises ``InputError`` if the device has no units for the recipe, or a single plan does not divide the model. In
    arrays, entries that do not divide are priced as if padded: mask them with `sartor.model.lower.feasible`.
    """
    check_recipe(job.recipe, cluster.gpu)
    check(replace(job.shape, vocab_size=0), plan.dims)  # vocabularies are padded: they always divide
    rows = block_rows(plan)
    if cluster.gpu.accelerator is not None and job.trainer.lockstep:
        return _chip_row_times(job, rows, cluster), rows
    block_kinds = blocks(job.shape)
    columns: list[dict[str, FloatArray]] = [{f: np.zeros(rows.size) for f in _FIELDS} for _ in block_kinds]
    structures = list(_structures(job, rows))
    graphs = [_lowered(job, rows, where, dims, cluster) for where, dims in structures]
    groupings = [_groupings(job, rows, where) for where, _ in structures]
    every_cost = _distinct_costs(graphs, groupings, cluster, calibration)
    for (where, dims), graph, costs in zip(structures, graphs, every_cost, strict=True):
        for column, priced in zip(columns, _by_block(block_kinds, graph, costs), strict=True):
            for name, value in _times(priced, dims, job).items():
                column[name][where] = value
    return tuple(BlockTimes(name=b.name, **c) for b, c in zip(block_kinds, columns, strict=True)), rows


_FIELDS = tuple(f.name for f in fields(BlockTimes) if f.name != "name")


def _structures(job: TrainingJob, rows: BlockRows) -> Iterator[tuple[Any, ParallelDims]]:
    """Rows grouped by the kernels they run: with and without context and sequence parallelism, and expert parallelism
    where a trainer splits experts only without it. Tensor and expert groups of one device cost nothing else, so they
    need no group of their own."""
    lone = (rows.ep == 1) & (job.trainer.splits_lone_experts and job.shape.moe_ffn is not None)
    for shared, sequence, alone in product((False, True), repeat=3):
        same = (rows.cp > 1) == shared, rows.sequence_parallel == sequence, lone == alone
        where = np.flatnonzero(np.logical_and.reduce(same))
        if where.size:
            cp, ep = rows.cp[where] if shared else 1, 1 if alone else rows.ep[where]
            yield where, ParallelDims(tp=rows.tp[where], cp=cp, ep=ep, sequence_parallel=sequence)


def _lowered(job: TrainingJob, rows: BlockRows, where: IntArray, dims: ParallelDims, cluster: Cluster) -> OperatorGraph:
    kernels = kernels_of(job, cluster, spread=bool(np.ndim(dims.ep)))
    return lower(workload_of(job, dims.tp, rows.microbatch_size[where]), dims, kernels)


Grouping = tuple[IntArray, IntArray]
"""The first row of each group of rows, and the group of each row."""


def _groupings(job: TrainingJob, rows: BlockRows, where: IntArray) -> list[Grouping]:
    """Ways to group the rows ``where`` by what an operator's sizes may depend on, fewest groups first: tokens and tp;
    these and ep; all but ep."""
    tp, cp, ep, batch = (column[where] for column in (rows.tp, rows.cp, rows.ep, rows.microbatch_size))
    tokens = batch * ceil_div(job.seq_len, cp)
    groupings = []
    for columns in ([tp, tokens], [tp, tokens, ep], [tp, cp, batch]):
        _, group = distinct_rows(columns)
        _, first = np.unique(group, return_index=True)
        groupings.append((first, group))
    return sorted((grouping for grouping in groupings if 2 * grouping[0].size <= tp.size), key=lambda g: g[0].size)


def _distinct_costs(
    graphs: Sequence[OperatorGraph],
    groupings: Sequence[Sequence[Grouping]],
    cluster: Cluster,
    calibration: Calibration | None,
) -> Iterator[tuple[Cost, ...]]:
    """Costs of each graph's operators in the shape of all its rows; each operator is priced once for every distinct set
    of sizes, and all graphs' operators together."""
    few = [
        [_grouped(operator, ways) for operator in graph.operators]
        for graph, ways in zip(graphs, groupings, strict=True)
    ]
    operators = [operator for of_graph in few for operator, _ in of_graph]
    are_few = all(np.size(graph.tokens) <= FEW for graph in graphs) and all(op.role is not None for op in operators)
    cost_of = _known_costs(cluster, calibration) if are_few else {}
    if len(cost_of) > MOST_KNOWN:
        cost_of.clear()
    costs = iter(costs_together(operators, cluster.gpu, calibration, cluster=cluster, cost_of=cost_of))
    for of_graph in few:
        yield tuple(next(costs) if group is None else _spread(next(costs), group) for _, group in of_graph)


MOST_KNOWN = 1 << 14
"""Costs that are remembered at once: about 20 MB."""


@remembered
def _known_costs(cluster: Cluster, calibration: Calibration | None) -> dict[Key, Cost]:
    """Costs of operators on a device of the cluster: a plan under another switch runs most of them too."""
    return {}


def _grouped(operator: Operator, groupings: Sequence[Grouping]) -> tuple[Operator, IntArray | None]:
    """The operator at the first row of each group, if its sizes are equal within the groups of some grouping."""
    if not groupings:
        return operator, None
    sizes = {f.name: getattr(operator, f.name) for f in fields(operator) if f.name not in PLACE}
    arrays = {name: size for name, size in sizes.items() if np.ndim(size)}
    for first, group in groupings:
        few = {name: size[first] for name, size in arrays.items()}
        if all(np.array_equal(few[name][group], size) for name, size in arrays.items()):
            return replace(operator, **few, count=1), group if few else None
    return operator, None


def _spread(cost: Cost, group: IntArray) -> Cost:
    """The cost of each group's first row for all rows of the group."""
    time_s, log_sigma = (
        term[group] if isinstance(term, np.ndarray) and term.ndim else term for term in (cost.time_s, cost.log_sigma)
    )
    return replace(cost, time_s=time_s, log_sigma=log_sigma)


@dataclass(frozen=True, slots=True)
class _Priced:
    """One operator of a block: its cost, its executions in one layer, and their time."""

    operator: Operator
    cost: Cost
    count: Floats
    time_s: Floats


def _by_block(block_kinds: tuple[Block, ...], graph: OperatorGraph, costs: tuple[Cost, ...]) -> list[list[_Priced]]:
    """Operators and their costs, grouped by block."""
    out: list[list[_Priced]] = [[] for _ in block_kinds]
    for operator, cost in zip(graph.operators, costs, strict=True):
        block = block_kinds[operator.block]
        repeats = block.count if block.kind in (BlockKind.LAYER, BlockKind.MTP) else 1
        count = operator.count / repeats
        out[operator.block].append(_Priced(operator, cost, count, cost.time_s * count))
    return out


def _times(priced: list[_Priced], dims: ParallelDims, job: TrainingJob) -> dict[str, Floats]:
    """The fields of `BlockTimes` from the operators of one block."""
    compute = [x for x in priced if not isinstance(x.operator, Collective)]
    forward = [x for x in compute if x.operator.pass_ is Pass.FORWARD]
    wgrad = [x for x in compute if x.operator.pass_ is Pass.WGRAD]
    dgrad = [x for x in compute if x.operator.pass_ not in (Pass.FORWARD, Pass.WGRAD)]
    core, core_back = ([x for x in part if _is_core(x.operator)] for part in (forward, dgrad))
    with_core = RecomputeModule.CORE_ATTN in job.recompute_modules
    out: dict[str, Floats] = {"forward_s": _sum(forward), "dgrad_s": _sum(dgrad), "wgrad_s": _sum(wgrad)}
    for axis in (Axis.TENSOR, Axis.EXPERT):
        for way in ("forward", "backward"):
            out[f"{axis.value}_{way}_s"] = _sum(_collectives(priced, axis, way))
    for way, beside in (("forward", core), ("backward", core_back)):
        out[f"cp_{way}_s"] = _exposed(_collectives(priced, Axis.CONTEXT, way), _sum(beside), dims.cp)
    out["tp_beside_s"] = _beside(priced, dgrad, wgrad)
    out["products_forward_s"] = _sum(filter(_is_dense_product, forward))
    out["products_backward_s"] = _sum(filter(_is_dense_product, [*dgrad, *wgrad]))
    out["selective_s"] = _selective_s(job, forward, priced) + (out["cp_forward_s"] if core and with_core else 0.0)
    out["full_s"] = _recomputed(priced, dims)
    out["kernels"] = sum((_launches(x) for x in priced), 0.0)
    deviation = total_deviation((x.operator, x.time_s * x.cost.log_sigma) for x in priced)
    out["log_sigma"] = deviation / np.maximum(_sum(priced), 1e-30)
    products = (x for x in compute if is_model_product(x.operator))
    out["flops"] = sum((x.operator.flops * x.count for x in products), 0.0)
    return out


def _sum(priced: Any) -> Floats:
    return sum((x.time_s for x in priced), 0.0)


def _collectives(priced: list[_Priced], axis: Axis, way: str) -> list[_Priced]:
    forward = way == "forward"
    return [
        x
        for x in priced
        if isinstance(x.operator, Collective)
        and x.operator.axis is axis
        and (x.operator.pass_ is Pass.FORWARD) == forward
    ]


_CORE = (Role.INDEX, Role.ATTENTION, Role.SCORE, Role.SOFTMAX, Role.OVER_VALUE)
"""What recomputing the attention core runs again: flash attention, or the GEMMs and kernels of an unfused one."""


_FEED_FORWARD = (Role.FFN_UP, Role.FFN_DOWN, Role.ACTIVATION)
_SHARED = (Role.SHARED_UP, Role.SHARED_DOWN)
_EXPERTS = (Role.ROUTER, Role.ROUTING, Role.DISPATCH, Role.COMBINE, Role.EXPERT_UP, Role.EXPERT_DOWN)
AGAIN: Mapping[RecomputeModule, tuple[Role, ...]] = {
    RecomputeModule.CORE_ATTN: _CORE,
    RecomputeModule.LAYERNORM: (Role.NORM,),
    RecomputeModule.MLA_UP_PROJ: (Role.Q_UP, Role.KV_UP, Role.ROTARY),
    RecomputeModule.MOE_ACT: (Role.ACTIVATION,),
    RecomputeModule.SHARED_EXPERTS: _SHARED,
    RecomputeModule.MLP: _FEED_FORWARD,
    RecomputeModule.MOE: (*_EXPERTS, *_SHARED, Role.ACTIVATION),
}
"""Operators that recomputing a module runs again."""
_OF_EXPERTS = {RecomputeModule.MOE_ACT, RecomputeModule.SHARED_EXPERTS, RecomputeModule.MOE}


def roles_again(job: TrainingJob, *, experts: bool) -> frozenset[Role]:
    """Roles of the operators that selective recomputation runs again in a block with or without experts."""
    absent = {RecomputeModule.MLP} if experts else _OF_EXPERTS
    return frozenset(role for module in job.recompute_modules - absent for role in AGAIN[module])


def _selective_s(job: TrainingJob, forward: list[_Priced], priced: list[_Priced]) -> Floats:
    """Seconds of recomputing the job's modules in one block, with their communication: half of a layer's
    tensor-parallel traffic belongs to the feed-forward part."""
    experts = any(x.operator.role is Role.EXPERT_UP for x in forward)
    roles = roles_again(job, experts=experts)
    again = _sum(x for x in forward if x.operator.role in roles and x.operator.part is Part.LAYER)
    if not experts and RecomputeModule.MLP in job.recompute_modules:
        again = again + _sum(_collectives(priced, Axis.TENSOR, "forward")) / 2
    if experts and RecomputeModule.MOE in job.recompute_modules:
        again = again + _sum(_collectives(priced, Axis.EXPERT, "forward"))
    return again


def _is_core(operator: Operator) -> bool:
    return operator.role in _CORE


def _is_dense_product(x: _Priced) -> bool:
    return isinstance(x.operator, Gemm) and not _is_core(x.operator)


def _exposed(exchange: list[_Priced], core_s: Floats, cp: Ints) -> Floats:
    """Seconds of the context-parallel exchange that attention does not hide: a ring hides behind cp - 1 of its cp
    steps; all other exchanges are fully exposed."""
    ring = _sum(x for x in exchange if x.operator.kind is CollectiveKind.SEND_RECV)  # type: ignore[union-attr]
    waited = _sum(x for x in exchange if x.operator.kind is not CollectiveKind.SEND_RECV)  # type: ignore[union-attr]
    return np.maximum(ring - core_s * ((cp - 1) / np.asarray(cp)), 0.0) + waited


def _beside(priced: list[_Priced], dgrad: list[_Priced], wgrad: list[_Priced]) -> Floats:
    """Hidden seconds: a collective hides behind at most the GEMMs of its region's first linear layer, half of all."""
    behind = _collectives(priced, Axis.TENSOR, "backward")
    gathers = _sum(x for x in behind if x.operator.role is Role.INPUT_GATHER)
    reductions = _sum(x for x in behind if x.operator.role is Role.GRAD_REDUCE)
    inputs, weights = _sum(filter(_is_dense_product, dgrad)), _sum(filter(_is_dense_product, wgrad))
    return np.minimum(gathers, inputs / 2) + np.minimum(reductions, weights / 2)


def _recomputed(priced: list[_Priced], dims: ParallelDims) -> Floats:
    """Seconds of a layer's forward run again, with its communication; logits and loss are not recomputed."""
    again = [x for x in priced if x.operator.pass_ is Pass.FORWARD and x.operator.part is Part.LAYER]
    exchange = _collectives(again, Axis.CONTEXT, "forward")
    rest = [x for x in again if not (isinstance(x.operator, Collective) and x.operator.axis is Axis.CONTEXT)]
    return _sum(rest) + _exposed(exchange, _sum(x for x in again if _is_core(x.operator)), dims.cp)


def _launches(x: _Priced) -> Floats:
    """Kernel launches of one execution: flash attention's backward has one before and one after it; ungrouped expert
    GEMMs are one launch per expert."""
    operator = x.operator
    if isinstance(operator, GroupedGemm):
        return (operator.groups if operator.apart else 1.0) * x.count
    if isinstance(operator, MemoryBound):
        return operator.kernels * x.count
    if isinstance(operator, Collective):
        return np.where(np.asarray(operator.group_size) > 1, 1.0, 0.0) * x.count
    return (3.0 if isinstance(operator, Attention) and operator.pass_ is Pass.BACKWARD else 1.0) * x.count


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """Seconds of one microbatch through each block [K, D]: blocks by distinct rows of plans.

    ``forward_s`` and ``backward_s`` (without weight gradients) include exposed communication and host time.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    wgrad_s: FloatArray
    selective_s: FloatArray
    full_s: FloatArray
    shares_s: FloatArray
    """[mechanisms that act on blocks, K, D]: what each adds, for forward, backward and ``wgrad_s`` together."""
    deviation_s: FloatArray
    """Standard deviation of their sum."""
    flops: FloatArray

    def share_s(self, name: str) -> FloatArray:
        """``shares_s`` of one mechanism [K, D]."""
        names = [mechanism.name for mechanism in acting("at_block")]
        return np.asarray(self.shares_s[names.index(name)])


def block_seconds(
    times: tuple[BlockTimes, ...],
    kinds: Sequence[BlockKind],
    trainer: Trainer,
    c: TrainingCoefficients,
    *,
    overlapped: bool = False,
) -> BlockSeconds:
    """`BlockTimes` of distinct rows with the trainer's overlap and constants applied; ``overlapped`` if the schedule
    hides the experts' all-to-all behind another microbatch."""
    blocks_of = zip(times, compute_factors(kinds, trainer, c), strict=True)
    columns = [_exposed_seconds(t, trainer, replace(c, compute_factor=factor), overlapped) for t, factor in blocks_of]
    stacked = {name: np.stack([column[name] for column in columns], axis=-2) for name in columns[0]}
    return BlockSeconds(**stacked)


def compute_factors(kinds: Iterable[BlockKind], trainer: Trainer, c: TrainingCoefficients) -> tuple[float, ...]:
    """Seconds of each block's compute in the step over its kernels alone.

    ``compute_factor`` applies only to layers: it stands for gaps between their many kernels and for kernels not
    modelled. The embedding and the head have a few long kernels, for which gaps do not matter.
    """
    return tuple(c.compute_factor if has_gaps(kind, trainer) else 1.0 for kind in kinds)


def has_gaps(kind: BlockKind, trainer: Trainer) -> bool:
    """Whether a block has many short kernels; in lockstep a module for later tokens is part of the head."""
    return kind is BlockKind.LAYER or (kind is BlockKind.MTP and not trainer.lockstep)


def _exposed_seconds(t: BlockTimes, trainer: Trainer, c: TrainingCoefficients, overlapped: bool) -> dict[str, Floats]:
    """What every mechanism that acts on blocks adds, in order."""
    block, total, claimed = BlockWork(times=t, trainer=trainer, c=c, overlapped=overlapped), BlockShare(), []
    for mechanism in acting("at_block"):
        assert mechanism.at_block is not None
        share = mechanism.at_block(block, total)
        claimed.append(share.seconds)
        total = total + share
    busy = t.forward_s + t.dgrad_s + t.wgrad_s + t.tp_forward_s + t.tp_backward_s + t.ep_forward_s + t.ep_backward_s
    return {
        "forward_s": total.forward_s,
        "backward_s": total.backward_s,
        "wgrad_s": total.wgrad_s,
        "selective_s": c.compute_factor * np.asarray(t.selective_s),
        "full_s": np.where(np.greater(t.full_s, 0), total.again_s, 0.0),
        "shares_s": np.stack(np.broadcast_arrays(*claimed)),
        "deviation_s": t.log_sigma * busy,
        "flops": np.asarray(t.flops),
    }
