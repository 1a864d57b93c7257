"""The origin of every fact of a launch: stated in its files, implied by others, or its trainer's default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sartor.json_types import JsonDict
from sartor.launch.fields import text_of
from sartor.launch.options import OF_JOB, SAID_BY
from sartor.model.plan import AXES
from sartor.plans.space import axes_of
from sartor.run.fields import Origin, Run

if TYPE_CHECKING:
    from sartor.launch.plan import LaunchReading
    from sartor.model.training import TrainingJob, TrainingPlan

STATED_BY = {**SAID_BY, "global_batch_size": (), "recompute_layers": ()}
"""Further fields of the launch table that state an option; accumulation steps imply a batch, and state none."""
DEGREES = "num_devices / (tp x pp x cp)"
BATCH = "microbatch_size x dp x num_microbatches"
SETS = "the sets of shards in the file"
DEVICES = "the product of the degrees"
EVEN = "even routing"
DEFAULT = "'s default"
LEFT = "left to the program that the file starts"


def with_origins(run: Run, reading: LaunchReading, job: TrainingJob, plan: TrainingPlan, source: str) -> Run:
    """The run with every fact of a launch's job and plan that options do not state, each with its origin; ``source``
    names the file or log."""
    for name, value in facts_of(job, plan).items():
        if name not in run and value is not None:
            origin, words = _origin(name, reading, plan)
            run = run.with_(origin, words or source, **{name: value})
    return run


def facts_of(job: TrainingJob, plan: TrainingPlan) -> JsonDict:
    """Every fact of a job and its plan by the name of its option, as options write it."""
    facts = {name: AXES[name].shown(value) for name, value in axes_of(plan).items()} | {
        "num_devices": int(plan.num_devices),
        "global_batch_size": job.global_batch_size,
        "seq_len": job.seq_len,
        "framework": job.trainer.name,
        **{name: getattr(job, field) for name, field in OF_JOB.items()},
    }
    return {name: getattr(value, "value", value) for name, value in facts.items()}


def _origin(name: str, reading: LaunchReading, plan: TrainingPlan) -> tuple[Origin, str]:
    """The origin of a fact that no option states, and its rule or record; no words for what the file states."""
    if name in reading.assumed:
        return Origin.USUAL, LEFT
    if rule := dict(_rules(reading, plan)).get(name):
        return Origin.IMPLIED, rule
    fields = {OF_JOB.get(name, name), *STATED_BY.get(name, ())}
    if name == "framework" or (fields & reading.fields_in_file and name not in reading.implied):
        return Origin.STATED, ""
    last = {"global_batch_size": BATCH, "num_devices": DEVICES} | dict(reading.implied)
    if name in last:
        return Origin.IMPLIED, last[name]
    return Origin.USUAL, EVEN if name == "routing_skew" else f"{reading.parts.trainer.called}{DEFAULT}"


def _rules(reading: LaunchReading, plan: TrainingPlan) -> Iterator[tuple[str, str]]:
    """Axes that follow from others in every trainer, whatever the file says of them."""
    dims = plan.dims
    yield "dp", reading.implied.get("dp", DEGREES)
    if dims.tp == 1:
        yield "sequence_parallel", "no effect with tp=1"
    if dims.pp == 1:
        yield from dict.fromkeys(("virtual_stages", "schedule"), "no effect with pp=1").items()
    if dims.dp * dims.cp == 1:
        yield from dict.fromkeys(("zero_stage", "shard_group"), "one replica").items()
    elif plan.zero_stage == 0:
        yield "shard_group", "no effect with zero_stage=0"
        if "shards" in reading.fields_in_file:  # of one device each
            yield "zero_stage", SETS
    elif {"instances", "replicas"} & reading.fields_in_file:
        yield "shard_group", SETS


RULES_SHOWN = ("num_devices", "global_batch_size", "microbatch_size", "virtual_stages")
"""Facts whose rule is said in words; the others are in the first line of an answer, or have no effect."""


def origin_words(run: Run, job: TrainingJob, notes: Sequence[str]) -> tuple[str, ...]:
    """What follows from a launch and what its trainer's defaults fill in, in two sentences; without what ``notes`` say
    already, and without axes that have no effect."""
    facts = {name: fact for name, fact in run.facts.items() if not any(note.startswith(f"{name}=") for note in notes)}
    rules = [
        f"{name}={text_of(fact.value)} ({fact.source})"
        for name, fact in facts.items()
        if fact.origin is Origin.IMPLIED and name in RULES_SHOWN and not fact.source.startswith("no effect")
    ]
    idle = {"context_parallel"} if run.get("cp") == 1 else set()
    idle |= set() if job.shape.moe_ffn else {"ep"}
    idle |= set() if run.get("shard_group") else {"shard_group"}
    defaults: dict[str, list[str]] = {}
    for name, fact in facts.items():
        if fact.origin is Origin.USUAL and fact.source.endswith(DEFAULT) and name not in idle:
            defaults.setdefault(fact.source, []).append(f"{name}={text_of(fact.value)}")
    return (
        *(f"{words} (usual: {source})" for source, stated in defaults.items() for words in (", ".join(stated),)),
        *((f"from the rest of the launch: {', '.join(rules)}",) if rules else ()),
    )
