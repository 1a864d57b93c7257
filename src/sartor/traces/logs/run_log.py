"""A training run as its log tells it: per step the seconds, rates and bytes, and the facts of the plan found beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from sartor.step.measured import MeasuredRun
from sartor.units import FloatArray, IntArray

SLOWER = 0.05
"""A leading step this much slower than the median of the later half still warms up (compilation, allocator, data)."""
WARM_UP = 0.5
"""Most of a log that may count as warm-up: a run whose steps get faster to its end has no steady ones."""
LEAST_AFTER = 2
"""Steps that must be left before the first one is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """One run of a log; arrays have one entry per printed step, NaN where its line does not say."""

    trainer: str
    """As ``--framework`` calls it."""
    title: str
    iteration: IntArray
    step_s: FloatArray
    tokens_per_s: FloatArray
    """Of the whole job."""
    device_tokens_per_s: FloatArray
    samples_per_s: FloatArray
    """Sequences, of the whole job."""
    flops_per_s: FloatArray
    """Per GPU, as the trainer counts FLOPs: which terms it counts is found by ``sartor diagnose``."""
    allocated_bytes: FloatArray
    """Peak of the allocator's tensors on the device that prints."""
    reserved_bytes: FloatArray
    """Peak of what the allocator holds."""
    facts: Mapping[str, int | str] = field(default_factory=dict)
    """Fields of the plan and job that the log says, by the names of ``--fix`` and of the options."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """The dump of Megatron's arguments, where there is one."""
    units: tuple[str, ...] = ()
    """What this trainer's numbers mean, in sentences."""
    index: int = 0
    num_runs: int = 1
    """Runs in the file; this is number ``index`` of them, from 0."""

    def knowing(self, **facts: int | str | None) -> RunLog:
        """The run with facts that somebody else says, and what follows from them."""
        known = {**self.facts, **{name: value for name, value in facts.items() if value is not None}}
        batch, seq, devices = (_number(known, name) for name in ("global_batch_size", "seq_len", "num_devices"))
        tokens = _filled(self.tokens_per_s, self.device_tokens_per_s * devices)
        step_s = _filled(self.step_s, batch / self.samples_per_s)
        step_s = _filled(step_s, batch * seq / tokens)
        tokens = _filled(tokens, batch * seq / step_s)
        return replace(self, facts=known, step_s=step_s, tokens_per_s=tokens)

    def number(self, fact: str) -> int | None:
        """A fact that is a whole number; None where the log does not say it."""
        value = self.facts.get(fact)
        return value if isinstance(value, int) else None

    @property
    def tokens_per_step(self) -> int | None:
        """Of the whole job, from its rate and step time."""
        return _whole(self.steady(self.tokens_per_s * self.step_s))

    @property
    def device_tokens_per_step(self) -> int | None:
        """The same of one GPU."""
        return _whole(self.steady(self.device_tokens_per_s * self.step_s))

    @property
    def warm_up(self) -> int:
        """Leading steps to leave out: the first one, and any that is still slower than the later half."""
        times = self.step_s
        known = np.flatnonzero(np.isfinite(times))
        if known.size <= LEAST_AFTER:
            return int(known[0]) if known.size else 0
        limit = (1 + SLOWER) * float(np.median(times[known[known.size // 2 :]]))
        most = known[int(WARM_UP * known.size)]
        return next(int(i) for i in known[1:] if times[i] <= limit or i >= most)

    def steady(self, values: FloatArray) -> FloatArray:
        """The values of steady steps that the log has."""
        after = values[self.warm_up :]
        found: FloatArray = after[np.isfinite(after)]
        return found

    @property
    def measured(self) -> MeasuredRun:
        """What it showed."""
        times = self.steady(self.step_s)
        return MeasuredRun(
            step_s=_median(times),
            spread=spread(times),
            num_steps=int(times.size),
            warm_up=self.warm_up,
            tokens_per_s=_median(self.steady(self.tokens_per_s)),
            flops_per_s=_median(self.steady(self.flops_per_s)),
            allocated_bytes=_highest(self.allocated_bytes),
            reserved_bytes=_highest(self.reserved_bytes),
        )


def spread(times: FloatArray) -> float:
    """Robust standard deviation of single steps over their median: 1.48 x median absolute deviation."""
    if not times.size:
        return 0.0
    middle = float(np.median(times))
    return float(1.4826 * np.median(np.abs(times - middle)) / middle)


def _filled(values: FloatArray, others: FloatArray) -> FloatArray:
    found: FloatArray = np.where(np.isnan(values), others, values)
    return found


def _number(facts: Mapping[str, int | str], name: str) -> float:
    value = facts.get(name)
    return float(value) if isinstance(value, int) and value > 0 else float("nan")


def _whole(values: FloatArray) -> int | None:
    return round(float(np.median(values))) if values.size else None


def _median(values: FloatArray) -> float:
    return float(np.median(values)) if values.size else float("nan")


def _highest(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(np.max(known)) if known.size else float("nan")
