"""Seconds of every block of a model on a template chip in lockstep: a layer takes the makespan of its best schedule.

A layer's operators, collectives included, overlap on the chip's cores, so forward and backward are one number each.
Everything outside the layers runs one operator after another.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sartor.cost.cost import Cost
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.cluster import Cluster
from sartor.model.blocks import Block, BlockKind, blocks
from sartor.model.lower import lower
from sartor.model.lower.graph import lower_layer
from sartor.model.shape import TransformerShape
from sartor.model.training import TrainingJob
from sartor.model.workload import ParallelDims, Workload
from sartor.operators import Attention, OperatorGraph, Pass
from sartor.step.recipes import workload_of
from sartor.step.results import BlockTimes
from sartor.step.stages import BlockRows

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


def chip_row_times(job: TrainingJob, rows: BlockRows, cluster: Cluster) -> tuple[BlockTimes, ...]:
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
            for name, value in _times(graphs, chip).items():
                column[name][i] = value
    return tuple(BlockTimes(name=b.name, **c) for b, c in zip(block_kinds, columns, strict=True))


_FIELDS = tuple(f.name for f in fields(BlockTimes) if f.name != "name")


def _times(graphs: BlockGraphs, chip: Accelerator) -> dict[str, float]:
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
