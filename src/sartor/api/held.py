"""The plan of a training question: from the degrees and sizes a user gives to every axis of a plan.

Without a number of devices the plan of a typical run is assumed, so that the time of one microbatch plus a whole
optimizer step is never mistaken for training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sartor.api.words import size_of
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob
from sartor.model.workload import ParallelDims
from sartor.plans.search import HeldPlan
from sartor.step.recipes import as_trained

REPLICAS = 64
"""Data-parallel replicas of a typical run: enough that an optimizer sharded over them (Adam's 12 bytes per parameter,
ZeRO 1) is a small part of a device's memory and of the step, and few enough for most clusters."""

MICROBATCHES = 8
"""Microbatches per pipeline stage and step in a typical run. With 8 of 8,192 tokens on 64 replicas a step has 4 million
tokens, as in published runs (Llama 3, arXiv 2407.21783, table 4: 4M to 16M)."""

TOKENS_AT_ONCE = 8192
"""Default tokens of a microbatch, as in the sweeps of arXiv 2401.14489."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How training is spread, as given by the user; None: not given."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    num_devices: int | None = None
    global_batch_size: int | None = None
    microbatch_size: int | None = None
    zero_stage: int | None = None
    virtual_stages: int | None = None
    sequence_parallel: bool | None = None
    """None: wherever the sequence divides."""
    recompute: str | None = None
    headroom: float | None = None

    @property
    def assumed(self) -> bool:
        """Whether the number of devices was not given, so that a typical run is assumed."""
        return self.num_devices is None

    @property
    def model_devices(self) -> int:
        """Devices of one replica."""
        return self.tp * self.pp * self.cp


def devices_and_batch(spread: Spread, seq_len: int) -> tuple[int, int, int]:
    """Devices, sequences per step and sequences per microbatch; those of a typical run where not given.

    Raises ``InputError`` where they contradict each other.
    """
    if spread.assumed and spread.global_batch_size is None:
        replicas = math.lcm(REPLICAS, spread.ep)  # expert-parallel groups lie within the replicas
        microbatch = size_of("microbatch_size", spread.microbatch_size, max(TOKENS_AT_ONCE // seq_len, 1))
        return replicas * spread.model_devices, replicas * microbatch * MICROBATCHES * spread.pp, microbatch
    if spread.num_devices is None:
        raise InputError("num_devices", "not given", "is needed with global_batch_size", "64")
    if spread.global_batch_size is None:
        raise InputError("global_batch_size", "not given", "give the number of sequences per step", "256")
    devices, batch = (
        size_of("num_devices", spread.num_devices, 64),
        size_of("global_batch_size", spread.global_batch_size, 256),
    )
    return devices, batch, _microbatch(spread, seq_len, _replicas(spread, devices), batch)


def _replicas(spread: Spread, devices: int) -> int:
    replicas, rest = divmod(devices, spread.model_devices)
    if rest:
        near = [n for n in (replicas * spread.model_devices, (replicas + 1) * spread.model_devices) if n]
        must = f"must be a multiple of tp x pp x cp = {spread.tp} x {spread.pp} x {spread.cp} = {spread.model_devices}"
        raise InputError("num_devices", devices, must, " or ".join(map(str, near)))
    return replicas


def _microbatch(spread: Spread, seq_len: int, replicas: int, batch: int) -> int:
    """The given microbatch size, or the largest up to the default that divides a replica's batch."""
    least = replicas * (size_of("microbatch_size", spread.microbatch_size, 1))
    if batch % least:
        each = "" if spread.microbatch_size is None else f" x microbatch_size={spread.microbatch_size}"
        near = [n for n in (batch // least * least, (batch // least + 1) * least) if n]
        must = f"must be a multiple of dp={replicas}{each}"
        raise InputError("global_batch_size", batch, must, " or ".join(map(str, near)))
    if spread.microbatch_size is not None:
        return spread.microbatch_size
    return next(n for n in range(max(TOKENS_AT_ONCE // seq_len, 1), 0, -1) if batch // replicas % n == 0)


def held_plan(spread: Spread, job: TrainingJob, cluster: Cluster, devices: int, microbatch: int) -> HeldPlan:
    """Every axis of the plan; those not given as in a typical run. Raises ``InputError``."""
    dp = devices // spread.model_devices
    if spread.ep > 1 and job.shape.moe_ffn is None and not spread.assumed:
        raise InputError("ep", spread.ep, "the model has no experts", "1")
    sharded = dp * spread.cp > 1
    usual_zero = (3 if job.trainer.shards_fully else 1) if sharded and not job.trainer.lockstep else 0
    zero = usual_zero if spread.zero_stage is None else spread.zero_stage
    if zero not in (0, 1, 2, 3):
        raise InputError("zero_stage", zero, "must be from 0 to 3", "1")
    divides = spread.tp > 1 and job.seq_len % (spread.tp * spread.cp) == 0
    axes = {
        "tp": spread.tp,
        "pp": spread.pp,
        "cp": spread.cp,
        "dp": dp,
        "ep": spread.ep,
        "virtual_stages": size_of("virtual_stages", spread.virtual_stages, 1),
        "microbatch_size": microbatch,
        "sequence_parallel": int(divides if spread.sequence_parallel is None else spread.sequence_parallel),
        "zero_stage": zero,
        "shard_group": 0,
        "schedule": int(PipelineSchedule.ONE_F_ONE_B),
        "optimizer_offload": 0,
        "recompute": int(_recompute(spread.recompute)),
    }
    return HeldPlan(
        job=job,
        cluster=cluster.reached(devices),
        num_devices=devices,
        axes=axes,
        assumed=spread.assumed,
        kept_free=spread.headroom,
    )


def _recompute(word: str | None) -> Recompute:
    words = {each.word: each for each in Recompute}
    if word is not None and word.lower() not in words:
        raise InputError("recompute", word, f"must be one of {', '.join(words)}", "full")
    return Recompute.NONE if word is None else words[word.lower()]


def _vocabulary(held: HeldPlan) -> str:
    whole = int(as_trained(held.job, ParallelDims(tp=held.axes["tp"])).vocab_size)
    if whole == held.job.shape.vocab_size:
        return "vocabulary not padded"
    return f"vocabulary padded to {whole}, which tp={held.axes['tp']} divides"


def notes_of(spread: Spread, held: HeldPlan) -> tuple[str, ...]:
    """What was assumed about the plan, in sentences."""
    axes, job = held.axes, held.job
    microbatches = job.global_batch_size // (axes["dp"] * axes["microbatch_size"])
    zero = axes["zero_stage"]
    sharded = f"optimizer sharded over the replicas (ZeRO {zero})" if zero else "optimizer not sharded"
    if held.assumed:
        size = () if spread.microbatch_size else (f"microbatch_size={axes['microbatch_size']} (default)",)
        return (
            *size,
            f"one device of a training run with {axes['dp']} replicas on {held.num_devices} devices "
            f"({held.cluster.name}): {microbatches} microbatches per step, {sharded}, {_vocabulary(held)} "
            "(default; `sartor estimate` takes --num-devices and --global-batch-size)",
        )
    said = {
        "microbatch_size": spread.microbatch_size,
        "zero_stage": spread.zero_stage,
        "virtual_stages": spread.virtual_stages if spread.pp > 1 else 1,
    }
    notes = [f"{name}={axes[name]} (default)" for name, value in said.items() if value is None]
    return (*notes, *(() if spread.recompute else ("recompute=none (default)",)))
