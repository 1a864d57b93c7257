"""The conditions that a plan must satisfy before it is priced, each with a reason for counting its failures.

A condition is checked as soon as its axes are known, so an impossible degree is removed before the rest of the grid is
expanded below it; all grid points it removes are counted. A point that fails several conditions is counted under the
first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sartor.model.blocks import layer_order
from sartor.model.lower.split import contexts_divide, divisions, sequence_divides
from sartor.model.training import (
    ContextParallel,
    OffloadModule,
    PipelineSchedule,
    Recompute,
    TrainingJob,
    TrainingPlan,
)
from sartor.model.workload import AttentionKernel, ParallelDims
from sartor.plans.space import (
    AXES,
    DIMS,
    SWITCHES,
    UNEVEN_CHUNKS,
    PlanSpace,
    Rows,
    cross,
    num_microbatches,
    size_of,
    take,
)
from sartor.units import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """``ok(rows)`` is True where a row satisfies the condition; ``reason`` is what is wrong elsewhere."""

    reason: str
    ok: Callable[[Rows], Array]
    of_search: bool = False
    """The search alone wants it, to leave out plans of no use; a run without it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structures:
    """Possible rows of all axes except the switches, and how many grid points each reason rejected."""

    rows: Rows
    rejected: Mapping[str, int]


def structures(job: TrainingJob, space: PlanSpace) -> Structures:
    """Expand the axes one after the other, removing impossible rows as soon as their axes are known."""
    rejected: dict[str, int] = {}
    rows, below = space.dims, space.size // max(1, size_of(space.dims))
    rows = _strike(rows, _dims_conditions(job), rejected, weight=below)
    levels = {
        "ep": _expert_conditions(job),
        "virtual_stages": _chunk_conditions(job),
        "microbatch_size": _batch_conditions(job),
    }
    for axis, conditions in levels.items():
        below //= len(space.axes[axis])
        rows = _strike(cross(rows, axis, space.axes[axis]), conditions, rejected, weight=below)
    return Structures(rows=rows, rejected=rejected)


def with_switches(job: TrainingJob, space: PlanSpace, rows: Rows, rejected: dict[str, int]) -> Rows:
    """Every structure with every legal setting of the switches; rejected points are added to ``rejected``."""
    below = math.prod(len(space.axes[axis]) for axis in SWITCHES)
    for axis, conditions in _switch_conditions(job).items():
        below //= len(space.axes[axis])
        rows = _strike(cross(rows, axis, space.axes[axis]), conditions, rejected, weight=below)
    layers = space.fixed.get("recompute_layers", -1)
    return {**rows, "recompute_layers": np.where(rows["recompute"] == Recompute.FULL, layers, -1)}


def _strike(rows: Rows, conditions: Iterator[Condition], rejected: dict[str, int], *, weight: int) -> Rows:
    for condition in conditions:
        if not size_of(rows):
            break
        ok = np.broadcast_to(condition.ok(rows), (size_of(rows),))
        struck = int(len(ok) - ok.sum())
        if struck:
            rejected[condition.reason] = rejected.get(condition.reason, 0) + struck * weight
            rows = take(rows, ok)
    return rows


def broken(job: TrainingJob, plan: TrainingPlan) -> tuple[str, ...]:
    """What keeps a single plan from running, as reasons; empty if it runs."""
    d = plan.dims
    values = {name: getattr(d, name) for name in (*DIMS, "ep")}
    values |= {name: getattr(plan, name) for name in AXES if name not in (*values, "sequence_parallel")}
    rows = {name: np.array([int(value)]) for name, value in values.items()}
    rows["sequence_parallel"] = np.array([int(bool(d.sequence_parallel) and d.tp > 1)])
    kinds = (_dims_conditions, _expert_conditions, _chunk_conditions, _batch_conditions)
    conditions = [each for kind in kinds for each in kind(job)]
    conditions += [each for kind in _switch_conditions(job).values() for each in kind]
    return tuple(c.reason for c in conditions if not c.of_search and not np.all(c.ok(rows)))


def _dims_conditions(job: TrainingJob) -> Iterator[Condition]:
    """Divisibility conditions on tp, pp, cp and dp."""
    layers = len(layer_order(job.shape))
    if job.shape.traced is not None:
        yield Condition(reason="traced on one device: tp and cp are 1", ok=lambda r: (r["tp"] == 1) & (r["cp"] == 1))
    yield Condition(reason="fewer layers than pipeline stages", ok=lambda r: r["pp"] <= layers)
    if not job.trainer.pipelines:
        yield Condition(reason=f"{job.trainer.name} has no pipeline", ok=lambda r: r["pp"] == 1)
    if OffloadModule.LAYER in job.offload_modules and job.trainer.offloads_layers_alone:
        # megatron/core/transformer/transformer_config.py of 0.16.1
        yield Condition(reason="whole-layer offloading does not work with a pipeline", ok=lambda r: r["pp"] == 1)
    yield Condition(
        reason="global_batch_size does not divide over dp", ok=lambda r: job.global_batch_size % r["dp"] == 0
    )
    if not job.trainer.contexts:
        yield Condition(reason=f"{job.trainer.name} has no context parallelism", ok=lambda r: r["cp"] == 1)
    if job.shape.mtp_layers and not job.trainer.spreads_mtp:
        yield Condition(
            reason="multi-token prediction does not work with pipeline or context parallelism",
            ok=lambda r: r["pp"] * r["cp"] == 1,
        )
    for field, degree_ok in _tensor_divisions(job):
        yield Condition(reason=f"{field} does not split over tp", ok=degree_ok)
    yield Condition(reason="seq_len does not split over cp", ok=lambda r: contexts_divide(job.seq_len, r["cp"]))
    if job.attention_kernel is AttentionKernel.UNFUSED:  # Megatron-Core's dot_product_attention.py asserts it
        yield Condition(reason="context parallelism needs fused attention", ok=lambda r: np.asarray(r["cp"] == 1))
    heads = job.shape.num_heads
    if job.context_parallel is ContextParallel.ALL_TO_ALL:
        yield Condition(
            reason="num_heads does not split over tp x cp",
            ok=lambda r: (r["cp"] == 1) | (heads % (r["tp"] * r["cp"]) == 0),
        )
    if len(job.shape.stacks) > 1 and any(s.is_text and s is not job.shape.main for s in job.shape.stacks):
        yield Condition(reason="context parallelism needs a model of one stack", ok=lambda r: np.asarray(r["cp"] == 1))


def _tensor_divisions(job: TrainingJob) -> Iterator[tuple[str, Callable[[Rows], Array]]]:
    """Fields of the shape that tp must divide, each once; a padded vocabulary always divides."""
    tried = np.arange(1, 2)
    padded = {"vocab_size"} if job.trainer.vocab_multiple else set()
    fields = {d.field for d in divisions(job.shape, ParallelDims(tp=tried))} - padded
    for field in sorted(fields, key=lambda f: (f != "num_heads", f)):
        yield field, _divides(job, field)


def _divides(job: TrainingJob, field: str) -> Callable[[Rows], Array]:
    def ok(rows: Rows) -> Array:
        found = [d.ok for d in divisions(job.shape, ParallelDims(tp=rows["tp"])) if d.field == field]
        return np.asarray(np.logical_and.reduce(found))

    return ok


def _expert_conditions(job: TrainingJob) -> Iterator[Condition]:
    """ep divides dp x cp, or tp x dp x cp if tp does not split experts (``expert_tensor_parallel_size`` 1)."""
    whole, alone = not job.trainer.splits_experts, job.trainer.one_program  # MaxText's mesh: dp holds the expert axis
    if not job.trainer.expert_parallel:
        yield Condition(reason=f"{job.trainer.name} has no expert parallelism", ok=lambda r: r["ep"] == 1)
    yield Condition(
        reason=f"ep does not divide {'tp x ' if whole else ''}dp{'' if alone else ' x cp'}",
        ok=lambda r: r["dp"] * np.where(alone, 1, r["cp"]) * np.where(whole, r["tp"], 1) % r["ep"] == 0,
    )
    if job.trainer.experts_fill_groups and job.shape.moe_ffn is not None:
        yield Condition(
            reason=f"ep is not a multiple of {'tp x ' if whole else ''}cp",
            ok=lambda r: (
                (r["ep"] % (r["cp"] * np.where(whole, r["tp"], 1)) == 0) | (r["ep"] * np.where(whole, r["tp"], 1) == 1)
            ),
        )


def _chunk_conditions(job: TrainingJob) -> Iterator[Condition]:
    """Conditions on interleaving: chunks of layers on stages."""
    layers = len(layer_order(job.shape))
    yield Condition(reason="virtual stages need a pipeline", ok=lambda r: (r["virtual_stages"] == 1) | (r["pp"] > 1))
    yield Condition(
        reason="fewer layers than virtual stages",
        ok=lambda r: (r["pp"] * r["virtual_stages"] <= layers) | _own_ends(layers, r),
    )
    yield Condition(
        reason="layers do not divide into so many virtual stages",
        ok=lambda r: (r["virtual_stages"] <= UNEVEN_CHUNKS) | (layers % (r["pp"] * r["virtual_stages"]) == 0),
        of_search=True,
    )
    if job.trainer.one_program:
        yield Condition(
            reason=f"{job.trainer.name} has equal chunks of layers",
            ok=lambda r: layers % (r["pp"] * r["virtual_stages"]) == 0,
        )
    if job.trainer.lockstep:
        yield Condition(
            reason=f"{job.trainer.name} interleaves equal chunks of layers",
            ok=lambda r: (r["virtual_stages"] == 1) | (layers % (r["pp"] * r["virtual_stages"]) == 0),
        )
    if not job.trainer.interleaves:
        yield Condition(
            reason=f"{job.trainer.name} does not interleave", ok=lambda r: np.asarray(r["virtual_stages"] == 1)
        )


def _own_ends(layers: int, rows: Rows) -> Array:
    """Whether every chunk is one layer, and embedding and head have their own chunks (Llama 3, sec. 3.3.2)."""
    return np.asarray((rows["pp"] * rows["virtual_stages"] == layers + 2) & (rows["virtual_stages"] > 1))


def _batch_conditions(job: TrainingJob) -> Iterator[Condition]:
    rounds, bent = not job.trainer.one_program, _has_v(job)
    yield Condition(
        reason="global_batch_size does not divide into dp x microbatch_size",
        ok=lambda r: job.global_batch_size % (r["dp"] * r["microbatch_size"]) == 0,
    )
    yield Condition(
        reason=f"{'interleaving' if rounds else job.trainer.name} needs num_microbatches to be a multiple of pp",
        ok=lambda r: (
            ((r["virtual_stages"] == 1) & rounds)
            | (num_microbatches(job, r) % r["pp"] == 0)
            | ((r["virtual_stages"] == 2) & bent)  # decided by the schedule
        ),
    )


def _has_v(job: TrainingJob) -> bool:
    """Whether the trainer has V-shaped schedules."""
    return max(job.trainer.schedules) >= PipelineSchedule.ZERO_BUBBLE_V


def _switch_conditions(job: TrainingJob) -> dict[str, Iterator[Condition]]:
    """Conditions on each switch, in the order the switches are expanded."""
    return {
        "sequence_parallel": _sequence_conditions(job),
        "zero_stage": _zero_conditions(job),
        "shard_group": _group_conditions(job),
        "schedule": _schedule_conditions(job),
        "optimizer_offload": iter(()),
        "recompute": _recompute_conditions(job),
    }


def _sequence_conditions(job: TrainingJob) -> Iterator[Condition]:
    yield Condition(
        reason="sequence parallelism needs tp > 1", ok=lambda r: (r["sequence_parallel"] == 0) | (r["tp"] > 1)
    )
    if job.trainer.lockstep or job.trainer.one_program:
        yield Condition(
            reason=f"{job.trainer.name} always splits the sequence over tp",
            ok=lambda r: (r["sequence_parallel"] == 1) | (r["tp"] == 1),
        )
    if job.trainer.tp_overlap and job.trainer.optional_sequence_parallel:
        # Megatron-LM, arguments.py; Transformer Engine's userbuffers communicate what sequence parallelism splits.
        yield Condition(
            reason="overlap of tensor parallelism needs sequence parallelism",
            ok=lambda r: (r["sequence_parallel"] == 1) | (r["tp"] == 1),
        )
    if not job.trainer.splits_sequence:
        yield Condition(
            reason=f"{job.trainer.name} has no sequence parallelism", ok=lambda r: r["sequence_parallel"] == 0
        )
    yield Condition(
        reason="seq_len does not split over tp x cp",
        ok=lambda r: (r["sequence_parallel"] == 0) | sequence_divides(job.seq_len, r["tp"], r["cp"]),
    )
    if job.shape.moe_ffn is not None:
        # Megatron-LM, arguments.py: experts with tensor parallelism require sequence parallelism.
        yield Condition(
            reason="experts and tp together need sequence parallelism",
            ok=lambda r: (r["sequence_parallel"] == 1) | (r["tp"] == 1) | (r["ep"] == 1),
            of_search=not job.trainer.optional_sequence_parallel,  # others do not assert it
        )


def _zero_conditions(job: TrainingJob) -> Iterator[Condition]:
    yield Condition(
        reason="ZeRO has nothing to shard: dp x cp is 1",
        ok=lambda r: (r["zero_stage"] == 0) | (r["dp"] * r["cp"] > 1),
    )
    if (most := job.trainer.most_zero_with_tp) < 3:
        yield Condition(
            reason=f"{job.trainer.name} has ZeRO {most} at most beside tp",
            ok=lambda r: (r["tp"] == 1) | (r["zero_stage"] <= most),
        )
    if job.trainer.one_program:
        yield Condition(
            reason=f"{job.trainer.name} shards weights over ranks of experts and contexts",
            ok=lambda r: (r["zero_stage"] == 3) | (r["cp"] * r["ep"] == 1),
        )
        yield Condition(
            reason=f"{job.trainer.name} shards weights and gradients (ZeRO 3), or the optimizer alone (1)",
            ok=lambda r: r["zero_stage"] != 2,
        )
    if job.trainer.shards_fully:
        name = job.trainer.name
        yield Condition(
            reason=f"{name} shards gradients with the optimizer (ZeRO 2, 3) or nothing",
            ok=lambda r: r["zero_stage"] != 1,
        )
        yield Condition(
            reason=f"{name} shards wherever another degree is above 1",
            ok=lambda r: (
                (r["zero_stage"] > 0) | (r["tp"] * r["pp"] * r["cp"] * r["ep"] == 1) | (r["dp"] * r["cp"] == 1)
            ),
        )
        return
    # Gradients and parameters sharded between microbatches would have to be gathered for each microbatch.
    gathers = job.trainer.one_program  # MaxText does
    yield Condition(
        reason="ZeRO 2 and 3 do not work with a pipeline",
        ok=lambda r: (r["zero_stage"] < 2) | (r["pp"] == 1) | gathers,
        of_search=True,
    )


def _group_conditions(job: TrainingJob) -> Iterator[Condition]:
    def where_grouped(ok: Callable[[Rows, Array], Array]) -> Callable[[Rows], Array]:
        """Rows without a shard group satisfy everything; usually no row has one."""

        def satisfied(rows: Rows) -> Array:
            group = rows["shard_group"]
            return np.asarray((group == 0) | ok(rows, np.maximum(group, 1))) if group.any() else np.asarray(True)

        return satisfied

    if not job.trainer.groups_shards:
        yield Condition(
            reason=f"{job.trainer.name} shards over all replicas",
            ok=where_grouped(lambda r, group: np.zeros_like(group, dtype=bool)),
        )
    yield Condition(reason="a shard group needs ZeRO", ok=where_grouped(lambda r, group: r["zero_stage"] > 0))
    yield Condition(
        reason="shard_group does not divide dp x cp into several sets",
        ok=where_grouped(
            lambda r, group: (group < r["dp"] * r["cp"]) & (r["dp"] * r["cp"] % group == 0)  # several equal sets
        ),
    )
    yield Condition(
        reason="shard_group does not hold whole groups of cp", ok=where_grouped(lambda r, group: group % r["cp"] == 0)
    )


def _schedule_conditions(job: TrainingJob) -> Iterator[Condition]:
    known, circular = [int(s) for s in job.trainer.schedules], job.trainer.one_program
    least = job.trainer.zero_bubble_chunks

    def chunked(rows: Rows) -> Array:
        """Rows with a schedule that allows several chunks."""
        kind = rows["schedule"]
        return np.asarray((kind >= PipelineSchedule.ZERO_BUBBLE_V) | ((kind == 1) & (least > 1)))

    yield Condition(
        reason=f"{job.trainer.name} has no such schedule",
        ok=lambda r: np.isin(r["schedule"], known) | ((r["pp"] == 1) & (r["schedule"] == 0)),
    )
    yield Condition(
        reason="a schedule other than 1f1b needs a pipeline" + ("" if circular else " without virtual stages"),
        ok=lambda r: (r["schedule"] == 0) | ((r["pp"] > 1) & (circular | (r["virtual_stages"] == 1) | chunked(r))),
    )
    if _has_v(job):
        yield Condition(
            reason="interleaving needs num_microbatches to be a multiple of pp",
            ok=lambda r: (
                (r["virtual_stages"] == 1)
                | (r["schedule"] >= PipelineSchedule.ZERO_BUBBLE_V)
                | (num_microbatches(job, r) % r["pp"] == 0)
            ),
        )
        yield Condition(
            reason="a V-shaped schedule needs two chunks per device and two microbatches per stage",
            ok=lambda r: (
                (r["schedule"] < PipelineSchedule.ZERO_BUBBLE_V)
                | ((r["virtual_stages"] == 2) & (num_microbatches(job, r) >= 2 * r["pp"]))
            ),
        )
    if least > 1:
        yield Condition(
            reason=f"{job.trainer.name}'s zero_bubble needs {least} chunks per device",
            ok=lambda r: (r["schedule"] != PipelineSchedule.ZERO_BUBBLE) | (r["virtual_stages"] >= least),
        )


def _recompute_conditions(job: TrainingJob) -> Iterator[Condition]:
    if job.trainer.lockstep:
        yield Condition(
            reason=f"{job.trainer.name} recomputes nothing on the last stage, and at pp = 1 there is no other",
            ok=lambda r: (r["recompute"] != Recompute.FULL) | (r["pp"] > 1),
        )
    if not job.trainer.recomputes_parts:
        yield Condition(
            reason=f"{job.trainer.name} recomputes all layers or none",
            ok=lambda r: r["recompute"] != Recompute.SELECTIVE,
        )
    if job.trainer.always_again:
        words = " and ".join(module.value for module in job.trainer.always_again)
        yield Condition(
            reason=f"{job.trainer.name} always recomputes {words}", ok=lambda r: r["recompute"] != Recompute.NONE
        )
    if PipelineSchedule.DUAL_PIPE_V in job.trainer.schedules and not job.trainer.always_again:
        yield Condition(  # torchtitan's overlap has no checkpoints (PR 1721)
            reason="DualPipeV with expert parallelism does not work with recomputation",
            ok=lambda r: (
                (r["schedule"] != PipelineSchedule.DUAL_PIPE_V) | (r["ep"] == 1) | (r["recompute"] == Recompute.NONE)
            ),
        )
    if job.trainer.ep_overlap and not job.trainer.overlaps_recomputed:
        yield Condition(
            reason="overlap of the experts' exchange does not work with full recomputation",
            ok=lambda r: (r["recompute"] != Recompute.FULL) | (r["ep"] == 1) | (r["virtual_stages"] == 1),
        )
    if OffloadModule.LAYER in job.offload_modules and job.trainer.offloads_layers_alone:
        yield Condition(
            reason="whole-layer offloading does not work with recomputation",
            ok=lambda r: r["recompute"] == Recompute.NONE,
        )
    if job.recomputes_nothing:
        yield Condition(
            reason="selective recomputation saves nothing with flash attention",
            ok=lambda r: np.asarray(r["recompute"] != Recompute.SELECTIVE),
            of_search=True,
        )
