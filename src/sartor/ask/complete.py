"""Completing a question: an unfinished run becomes a finished one, by rules, usual values and the search.

Completing a plan is the search of `sartor plan` with less shown: what is stated is held, the rest is the fastest that
fits. Devices that are not stated are the fewest usual number on which the run fits.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from sartor.ask.alternatives import weighed
from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.lower.setting import check
from sartor.model.plan import AXES, phrases
from sartor.model.training import Recompute, Trainer, TrainingJob
from sartor.model.workload import ModelReading, ParallelDims
from sartor.plans.fixed import named_values, other_settings, searched_settings, settings, with_switches
from sartor.plans.result import PricedPlan
from sartor.plans.search import HeldPlan, fastest_plan, fewest_devices, leanest_plan
from sartor.plans.space import axes_of
from sartor.run.fields import Origin, Run, Turn
from sartor.step.footprint import host_bytes
from sartor.step.question import as_trained, training_job, within_files
from sartor.step.trainers import plausible_trainers, release_words, trainer_named
from sartor.units import format_bytes, format_count

TOKENS_PER_STEP = 4 * 2**20
"""Usual tokens of a training step: those of Llama 2 (arXiv 2307.09288, table 1) and of Llama 3's start (arXiv
2407.21783, sec. 3.4.1); GPT-3's grow from 0.5M to 3.2M with its size (arXiv 2005.14165, table 2.1)."""

TOKENS_PER_DEVICE = 2**10
"""Tokens of a step per device from which a larger job takes a larger batch: 16M on 16,384 GPUs (arXiv 2407.21783,
table 4)."""

MOST_DEVICES = 2**17
"""Where doubling the devices ends: the largest clusters in use (2026) have about as many."""

FIXED = (Origin.STATED, Origin.IMPLIED)
"""Origins of axes that the search does not change."""

FLAT = {name: row.plain[0] for name, row in AXES.items() if row.flat}
"""The plan of a model whose states fit on no number of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Completed:
    """A finished training run."""

    run: Run
    held: HeldPlan
    """Job and plan on their cluster."""
    notes: tuple[str, ...]
    """What was assumed, in sentences."""
    turns: tuple[Turn, ...]
    """What stays open and would turn the verdict."""


def complete(run: Run, reading: ModelReading, cluster: Cluster, calibration: Calibration | None) -> _Completed:
    """Finish a training run on a cluster; a plan that does not fit is kept if every axis was stated or nothing fits.

    Raises ``InputError`` for values that no plan can have.
    """
    job, run, notes = settled_job(run, reading, cluster)
    split = ParallelDims(tp=run.get("tp", 1), ep=run.get("ep", 1))
    check(as_trained(job, split), split)
    try:
        held = _placed(run, job, cluster, named_values(stated_axes(run)), calibration)
    except InputError as error:
        raise as_option(error, AXES) from None
    run = _finished(run, held, fixed_size=bool(cluster.total_devices))
    assert held.searched is not None
    plan, limit_bytes = held.searched.plan, held.limit_bytes
    tried = searched_settings(job, run, stated_axes(run))
    run = run.with_(Origin.SEARCHED, "the fastest setting", **{name: settings(held.job)[name] for name in tried})
    open_run = weighed(
        run, reading.shape, held.job, plan, held.cluster, calibration, limit_bytes=limit_bytes, closed=tried
    )
    held = replace(held, spread=open_run.spread)
    set_words = tuple(
        f"{name}={word}: faster than {words[0]} (--fix {name})"
        for name, words in tried.items()
        if (word := settings(held.job)[name]) != words[0]
    )
    return _Completed(run=open_run.run, held=held, notes=(*notes, *_words(run, held), *set_words), turns=open_run.turns)


def as_option(error: InputError, names: Container[str]) -> InputError:
    """The search's error about a held axis, under the name of the option (one of ``names``) that states it."""
    name = error.field.removeprefix("fix ")
    held = name != error.field and name in names
    return InputError(name, error.value, error.must, error.nearest) if held else error


def stated_axes(run: Run) -> dict[str, int | str]:
    """The axes of the plan that a run states, as words of a search."""
    values = run.of_origin(*FIXED)
    words = {name: values[name] for name in AXES if name in values}
    return {name: str(word).lower() if isinstance(word, bool) else word for name, word in words.items()}


# -- the job -------------------------------------------------------------------------------------------------------


def settled_job(
    run: Run, reading: ModelReading, cluster: Cluster, writer: str = ""
) -> tuple[TrainingJob, Run, tuple[str, ...]]:
    """The job of the run with the switches that it states, its batch 1 where it is not stated; with a ``writer`` one
    that its launch files can express."""
    trainer, run = _trainer(run, cluster)
    job, notes = training_job(
        reading.shape,
        cluster.gpus,
        global_batch_size=run.get("global_batch_size", 1),
        seq_len=run.get("seq_len"),
        dtype=run.get("dtype"),
        framework=trainer,
        optimizer=run.get("optimizer", "adam"),
        attention=run.get("attention"),
        context_parallel=run.get("context_parallel"),
        routing_skew=run.get("routing_skew", 1.0),
    )
    job, switched = with_switches(within_files(job, writer) if writer else job, run, cluster.gpus)
    settled = {
        "seq_len": job.seq_len,
        "dtype": job.recipe.value,
        "optimizer": job.optimizer.value,
        "attention": job.attention_kernel.value,
        "context_parallel": job.context_parallel.value,
    }
    usual = {name: value for name, value in settled.items() if not run.states(name)}
    return (
        job,
        run.with_(Origin.USUAL, job.trainer.name, **usual),
        (
            *notes,
            *release_words(run.get("framework")),
            *switched,
            *cluster.unstated,
        ),
    )


def _trainer(run: Run, cluster: Cluster) -> tuple[Trainer, Run]:
    usual, *others = plausible_trainers(cluster.gpus)
    name = run.get("framework") or usual
    trainer = trainer_named(name, cluster.gpu)
    if run.get("eager"):
        trainer = replace(trainer, fused_kernels=False)
    if not run.states("framework"):
        run = run.with_(Origin.USUAL, "the usual trainer", framework=name).among("framework", *others)
    return trainer, run


def usual_batch(seq_len: int, num_devices: int, microbatch_size: int = 1) -> int:
    """Sequences of a usual step: about `TOKENS_PER_STEP` tokens, a power of two of microbatches."""
    tokens = max(TOKENS_PER_STEP, num_devices * TOKENS_PER_DEVICE)
    return int(microbatch_size * 2 ** max(round(math.log2(tokens / (seq_len * microbatch_size))), 0))


# -- devices and plan ----------------------------------------------------------------------------------------------


def _placed(
    run: Run, job: TrainingJob, cluster: Cluster, fixed: dict[str, int], calibration: Calibration | None
) -> HeldPlan:
    """The fastest plan that fits, on the fewest devices where none are stated; else the leanest on the last tried."""
    refused: InputError | None = None
    possible: tuple[TrainingJob, int] | None = None
    if not run.get("num_devices") and fewest_devices(job, cluster, run.get("headroom")) > MOST_DEVICES:
        fixed = FLAT | fixed  # nothing fits anywhere: a plan to price, not a search
    search = {"fixed": fixed, "headroom": run.get("headroom"), "calibration": calibration}
    others = [other for name in searched_settings(job, run, fixed) for other in other_settings(job, name).values()]
    for num_devices in _device_counts(run, job, cluster, fixed):
        usual = usual_batch(job.seq_len, num_devices, fixed.get("microbatch_size", 1))
        reached, plans = cluster.reached(num_devices), list[tuple[TrainingJob, PricedPlan]]()
        for setting in (job, *others):
            sized = replace(setting, global_batch_size=run.get("global_batch_size") or usual)
            try:
                plan = fastest_plan(sized, reached, num_devices, **search)
            except InputError as error:
                refused = refused or error
                continue
            plans += [(sized, plan)] if plan is not None else []
            possible = (sized, num_devices) if setting is job else possible or (sized, num_devices)
        if plans:
            sized, plan = min(plans, key=lambda pair: float(pair[1].step.step_s))
            return _held(run, sized, reached, num_devices, plan)
    if possible is None:
        raise refused or InputError("num_devices", run.get("num_devices"), "no plan is possible on so many")
    sized, num_devices = possible
    return _held(run, sized, cluster, num_devices, leanest_plan(sized, cluster, num_devices, **search))


def _held(run: Run, job: TrainingJob, cluster: Cluster, num_devices: int, plan: PricedPlan) -> HeldPlan:
    return HeldPlan(
        job=job,
        cluster=cluster.reached(num_devices),
        num_devices=num_devices,
        axes=axes_of(plan.plan),
        assumed=not run.states("num_devices"),
        kept_free=run.get("headroom"),
        searched=plan,
    )


def _device_counts(run: Run, job: TrainingJob, cluster: Cluster, fixed: dict[str, int]) -> Iterator[int]:
    """Numbers of devices to try: the stated one, the cluster's own, or nodes, doubling, that could hold the states."""
    stated = run.get("num_devices") or cluster.total_devices
    if stated:
        yield stated
        return
    degrees = math.prod(fixed.get(name, 1) for name in ("tp", "pp", "cp", "dp"))
    if {"tp", "pp", "cp", "dp"} <= fixed.keys():
        yield degrees
        return
    count = math.lcm(cluster.devices_per_node, degrees, fixed.get("ep", 1))
    least = fewest_devices(job, cluster, run.get("headroom"))
    while count < least and 2 * count <= MOST_DEVICES:
        count *= 2
    yield count
    while 2 * count <= MOST_DEVICES:
        count *= 2
        yield count


# -- what was completed --------------------------------------------------------------------------------------------


def _finished(run: Run, held: HeldPlan, *, fixed_size: bool) -> Run:
    """The run with every open value filled in; ``fixed_size``: the cluster has a number of devices of its own."""
    run = with_plan(run, held.axes, "the fastest plan that fits" if _fits(held) else "the leanest plan: none fits")
    if not run.states("num_devices"):
        origin, words_of_size = Origin.SEARCHED, "the fewest nodes on which it fits"
        if fixed_size:
            origin, words_of_size = Origin.IMPLIED, "the cluster's"
        run = run.with_(origin, words_of_size, num_devices=held.num_devices)
    if not run.states("global_batch_size"):
        run = run.with_(Origin.USUAL, "a usual step of 4M tokens", global_batch_size=held.job.global_batch_size)
    if not run.states("cluster"):
        run = run.with_(Origin.USUAL, "the device's usual cluster", cluster=held.cluster.name)
    headroom = {} if run.own_margin else {"headroom": held.headroom}
    return run.with_(Origin.USUAL, "the memory model's margin", **headroom)


def _fits(held: HeldPlan) -> bool:
    return held.searched is not None and float(held.searched.footprint.device_bytes) <= held.limit_bytes


def with_plan(run: Run, axes: Mapping[str, int], source: str) -> Run:
    """The run with the axes of a plan that it does not state, in words."""
    words = {name: AXES[name].shown(value) for name, value in axes.items()}
    return run.with_(
        Origin.SEARCHED, source, **{name: word for name, word in words.items() if run.origin(name) not in FIXED}
    )


def plan_sentence(held: HeldPlan) -> str:
    """``64 h100_sxm as tp 2, dp 32, ZeRO 1, microbatch 2``: degrees above one, and what is not usual."""
    axes = held.axes
    words = [f"{name} {axes[name]}" for name in ("tp", "pp", "cp", "dp", "ep") if axes[name] > 1]
    words += [f"{axes['virtual_stages']} chunks per stage"] if axes["virtual_stages"] > 1 else []
    words += [f"ZeRO {axes['zero_stage']}"] if axes["zero_stage"] else []
    words += [f"microbatch {axes['microbatch_size']}"]
    layers = axes.get("recompute_layers", -1)
    recompute = Recompute(axes["recompute"])
    if recompute is not Recompute.NONE:
        words.append(f"{layers} recomputed layers a stage" if layers >= 0 else f"{recompute.word} recomputation")
    words += phrases(axes)
    placed = () if held.searched is None else held.searched.plan.stage_layers or ()
    if empty := sum(layers == 0 for layers in placed):
        words.append(f"{empty} of {len(placed)} chunks without a layer")
    return f"{held.num_devices} {held.cluster.gpu.name} as {', '.join(words)}"


def size_words(run: Run, job: TrainingJob) -> Iterator[str]:
    """What was assumed about devices and batch, in sentences."""
    if run.origin("num_devices") is Origin.SEARCHED:
        devices = run.get("num_devices")
        yield f"num_devices={devices}: the fewest nodes on which a plan fits (set --num-devices)"
    if not run.states("global_batch_size"):
        tokens = job.global_batch_size * job.seq_len
        size = f"{format_count(tokens)} tokens per step"
        yield f"global_batch_size={job.global_batch_size}: {size} (usual; set --global-batch-size)"


def _words(run: Run, held: HeldPlan) -> tuple[str, ...]:
    """What was assumed about devices, batch and plan, in sentences."""
    stated = {name for name in AXES if run.states(name)}
    notes = list(size_words(run, held.job))
    if not stated >= {"tp", "pp", "cp", "ep", "microbatch_size", "zero_stage", "recompute"}:
        held_words = f" with {', '.join(sorted(stated))} as stated" if stated else ""
        best = "the fastest that fits" if _fits(held) else "the leanest, and it does not fit"
        notes.append(f"plan: {plan_sentence(held)}: {best}{held_words}")
    if held.searched is not None and (in_host := float(host_bytes(held.job, held.searched.plan, held.cluster))) > 0:
        room = held.cluster.host_memory_bytes
        has = "DOES NOT HOLD THEM" if in_host > room else "holds them"
        whose = f"{format_bytes(room)} {has}" if room else "whose size is not known here"
        notes.append(f"optimizer states take up to {format_bytes(in_host)} of each node's host memory, {whose}")
    return tuple(notes)
