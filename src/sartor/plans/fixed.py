"""Fixed values of a search (``--fix tp=8,recompute=none``): parses words and rejects values that no plan can have."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping

import numpy as np

from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.model.blocks import layer_order
from sartor.model.training import Recompute, TrainingJob
from sartor.plans.conditions import structures
from sartor.plans.space import AXES, DIMS, STRUCTURE, plan_space, size_of
from sartor.plans.switches import SWITCHED
from sartor.run.fields import FIELDS
from sartor.step.mechanisms.mechanism import Rows
from sartor.units import Array, Floats

FIXABLE = (*AXES, "recompute_layers")
NEAR_DEVICES = 64
"""Range in which a usable number of devices is searched, above and below the given one."""


def check_fixed(job: TrainingJob, num_devices: int, fixed: JsonMap) -> dict[str, int]:
    """``fixed`` as integers by axis, each a value that some plan of the job on ``num_devices`` has.

    Raises ``InputError`` for an unknown axis or word, a value no plan can have, and a number of devices that no plan of
    the job can use; it names the nearest that would work.
    """
    values = with_recompute(job, named_values(fixed))
    _check_together(job, num_devices, values)
    possible = structures(job, plan_space(job, num_devices, {}))
    if not size_of(possible.rows):
        raise _no_plan(job, num_devices, possible.rejected)
    if error := _impossible_alone(job, num_devices, values, possible.rows, "fix "):
        raise error
    return values


def impossible_axis(job: TrainingJob, num_devices: int, axes: Mapping[str, int]) -> InputError | None:
    """The error for the first value that no plan of the job has; None if values conflict only in combination."""
    possible = structures(job, plan_space(job, num_devices, {})).rows
    return _impossible_alone(job, num_devices, axes, possible) if size_of(possible) else None


def _impossible_alone(
    job: TrainingJob, num_devices: int, values: Mapping[str, int], possible: Rows, option: str = ""
) -> InputError | None:
    for name, value in values.items():
        if name in STRUCTURE and not (possible[name] == value).any():
            return _impossible(job, num_devices, name, value, np.unique(possible[name]), option)
    return None


def named_values(fixed: JsonMap, option: str = "fix") -> dict[str, int]:
    """Values by axis as integers. Raises ``InputError`` for an unknown axis or word."""
    return {_axis(name, option): _value(_axis(name, option), value, option) for name, value in fixed.items()}


OF_THE_JOB = (
    "attention", "cluster", "dtype", "framework", "global_batch_size", "headroom", "num_devices", "optimizer",
    "routing_skew", "seq_len",
)  # fmt: skip
OF_A_CLUSTER = ("rails", "oversubscription")


def _axis(name: str, option: str) -> str:
    axis = name.strip().lower().replace("-", "_")
    if axis in FIXABLE:
        return axis
    if axis in OF_THE_JOB:
        raise InputError(option, name, "is a setting of the job, not of the plan", f"--{axis.replace('_', '-')}")
    if axis in OF_A_CLUSTER:
        raise InputError(
            option, name, "is a property of the network, not of the plan", f"a tier of a cluster's file: {axis} = ..."
        )
    names = (*FIXABLE, *SWITCHED)
    near = difflib.get_close_matches(axis, names, n=2, cutoff=0.5)
    raise InputError(option, name, f"is not an axis of a plan; the axes are {', '.join(names)}", " or ".join(near))


def _value(axis: str, value: Floats, option: str) -> int:
    words = FIELDS[axis].numbers
    word = str(value).strip().lower()
    if word in words:
        return words[word]
    try:
        number = int(word)
    except ValueError:
        near = difflib.get_close_matches(word, words, n=1, cutoff=0.0)
        must = f"must be one of {', '.join(words)}" if words else "must be a whole number"
        raise InputError(f"{option} {axis}", value, must, near[0] if near else "") from None
    low, high = FIELDS[axis].bounds
    if not low <= number <= high:
        must = f"must be from {low} to {high}" if high < 2**31 else f"must be at least {low}"
        raise InputError(f"{option} {axis}", number, must, str(min(max(number, low), high)))
    return number


def with_recompute(job: TrainingJob, values: dict[str, int]) -> dict[str, int]:
    """A number of recomputed layers implies full recomputation."""
    some = values.get("recompute_layers")
    if some is None:
        return values
    layers = len(layer_order(job.shape))
    if not job.trainer.recomputes_some_layers:
        raise InputError(
            "fix recompute_layers", some, f"{job.trainer.called} recomputes all layers or none", "recompute=full"
        )
    if some > layers:
        raise InputError("fix recompute_layers", some, f"must be at most the model's {layers} layers", str(layers))
    if values.get("recompute", Recompute.FULL) != Recompute.FULL:
        word = Recompute(values["recompute"]).word
        must = f"needs recompute=full; recompute={word} recomputes no whole layer"
        raise InputError("fix recompute_layers", some, must, "recompute=full")
    return {**values, "recompute": int(Recompute.FULL)}


def _check_together(job: TrainingJob, num_devices: int, values: Mapping[str, int]) -> None:
    """The product of fixed degrees must divide the devices, and the batch must be divisible by dp x microbatch size."""
    names = [name for name in DIMS if name in values]
    product = math.prod(values[name] for name in names)
    if len(names) > 1 and num_devices % product:
        words = ",".join(f"{name}={values[name]}" for name in names)
        below, above = num_devices // product * product, (num_devices // product + 1) * product
        must = f"take {product} devices together; num_devices={num_devices} is not a multiple of {product}"
        raise InputError("fix", words, must, f"num_devices={' or '.join(str(n) for n in (below, above) if n)}")
    batch, at_once = job.global_batch_size, values.get("dp", 1) * values.get("microbatch_size", 1)
    if batch % at_once and num_devices % values.get("dp", 1) == 0:
        names = [name for name in ("dp", "microbatch_size") if name in values]
        words = " x ".join(f"{name}={values[name]}" for name in names)
        near = [n for n in (batch // at_once * at_once, (batch // at_once + 1) * at_once) if n]
        raise InputError("global_batch_size", batch, f"must be a multiple of {words}", " or ".join(map(str, near)))


def _impossible(job: TrainingJob, num_devices: int, axis: str, value: int, legal: Array, option: str) -> InputError:
    """The error for a value that no plan has: what rules it out, and the nearest values that some plan has."""
    if axis in DIMS and num_devices % value:
        why = f"must divide num_devices={num_devices}"
    elif axis == "ep":
        within = "dp x cp" if job.trainer.splits_experts else "tp x dp x cp"
        why = f"must divide the model's experts and {within}" if job.shape.moe_ffn else "the model has no experts"
    else:
        rejected = structures(job, plan_space(job, num_devices, {axis: value})).rejected
        why = max(rejected, key=lambda reason: rejected[reason]) if rejected else "no plan has it"
    nearest = sorted(sorted(legal.tolist(), key=lambda v: (abs(v - value), v))[:2])
    return InputError(f"{option}{axis}", value, why, " or ".join(map(str, nearest)))


def _no_plan(job: TrainingJob, num_devices: int, rejected: Mapping[str, int]) -> InputError:
    """The error if no structure is possible: the most common reason, and nearby usable numbers of devices."""
    reason = max(rejected, key=lambda cause: rejected[cause])
    near = [n for n in (_towards(job, num_devices, -1), _towards(job, num_devices, 1)) if n]
    must = f"no tp x pp x dp x cp split works with the model and global_batch_size={job.global_batch_size} ({reason})"
    return InputError("num_devices", num_devices, must, " or ".join(map(str, near)))


def _towards(job: TrainingJob, num_devices: int, step: int) -> int | None:
    candidates = (num_devices + step * k for k in range(1, NEAR_DEVICES + 1))
    return next((n for n in candidates if n > 0 and size_of(structures(job, plan_space(job, n, {})).rows)), None)
