"""A training run from its log: seconds, rates and bytes per step, and facts about the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from sartor.step.measured_run import MeasuredRun, step_series
from sartor.units import BoolArray, FloatArray, IntArray, format_seconds

SLOWER = 0.05
"""A leading step this much slower than the median of the later half is warm-up (compilation, allocator, data)."""
WARM_UP, LONGEST = 0.5, 50
"""Largest share of a log, and most steps, that count as warm-up (published logs have 1 or 2). A run that becomes faster
later has changed its speed: its steps count, except the first."""
LEAST_HALVES = 8
"""Steady steps from which a change of speed is looked for."""
LEAST_AFTER = 2
"""With no more known steps than this, the first one is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """One run of a log; arrays have one entry per printed step, NaN where its line does not give it."""

    trainer: str
    """As ``--framework`` calls it."""
    title: str
    iteration: IntArray
    step_s: FloatArray
    tokens_per_s: FloatArray
    """Whole job."""
    device_tokens_per_s: FloatArray
    samples_per_s: FloatArray
    """Sequences per second, whole job."""
    flops_per_s: FloatArray
    """Per GPU, as the trainer counts FLOPs (`sartor diagnose` finds which terms it counts)."""
    allocated_bytes: FloatArray
    """Peak memory of allocated tensors on the device that prints."""
    reserved_bytes: FloatArray
    """Peak memory reserved by the allocator."""
    facts: Mapping[str, int | str] = field(default_factory=dict)
    """Facts about plan and job in the log, by the names of ``--fix`` and of the options."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """The dump of Megatron's arguments, if there is one."""
    units: tuple[str, ...] = ()
    """Sentences that explain this trainer's numbers."""
    prints_tokens: bool = False
    """Whether tokens per step are the log's own, not what its batch and length make."""
    printed: int = 0
    """Steps in the file, those of other batch sizes included."""
    no_number: int = 0
    """Of them, steps whose loss is not a number."""
    index: int = 0
    num_runs: int = 1
    """Number of runs in the file; ``index`` counts from 0."""

    def knowing(self, **facts: int | str | None) -> RunLog:
        """The run with facts from another source added, and the columns that follow from them."""
        all_facts = {**self.facts, **{name: value for name, value in facts.items() if value is not None}}
        batch, seq, devices = (_number(all_facts, name) for name in ("global_batch_size", "seq_len", "num_devices"))
        tokens = _filled(self.tokens_per_s, self.device_tokens_per_s * devices)
        step_s = _filled(self.step_s, batch / self.samples_per_s)
        tokens = _filled(tokens, _number(all_facts, "tokens_per_step") / step_s)
        step_s = _filled(step_s, batch * seq / tokens)
        tokens = _filled(tokens, batch * seq / step_s)
        return replace(self, facts=all_facts, step_s=step_s, tokens_per_s=tokens)

    def only(self, steps: BoolArray) -> RunLog:
        """The run with some of its steps alone; peak memory stays that of all."""
        if steps.all():
            return self
        columns = {name: getattr(self, name)[steps] for name in COLUMNS}
        for name in ("allocated_bytes", "reserved_bytes"):
            columns[name][:1] = _highest(getattr(self, name))
        return replace(self, iteration=self.iteration[steps], **columns)

    @property
    def others(self) -> int:
        """Steps left out because their batch is not the run's last (batch ramp-up)."""
        return max(self.printed - self.iteration.size, 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about the steps, in sentences."""
        sentences = []
        if self.others:
            batch = self.facts.get("global_batch_size", "its last size")
            sentences.append(
                f"{self.others} of {self.printed} steps had another batch and are left out: it ramps up to {batch}"
            )
        if self.no_number:
            sentences.append(
                f"{self.no_number} of {self.printed} steps have a loss that is not a number: what they compute may "
                "take another time"
            )
        return (*sentences, *self._uneven())

    @property
    def stalls(self) -> str:
        """How often slow steps come that count, and how long they take; empty if there are none."""
        times = self.steady(self.step_s)
        series = step_series(times) if times.size else None
        if series is None or not series.counts:
            return ""
        often = f"1 step in {series.period} takes"
        if not series.period:
            often = f"{int(series.slow.sum())} of {times.size} steps take"
        return f"{often} {format_seconds(series.slow_s)}, the others {format_seconds(series.middle_s)}"

    def _uneven(self) -> Iterator[str]:
        """How the steady steps differ from one another, in sentences."""
        times = self.steady(self.step_s)
        if not times.size:
            return
        series = step_series(times)
        count = int(series.slow.sum())
        if count and not series.counts:
            took = f"{'one step' if count == 1 else f'{count} steps'} of {format_seconds(series.slow_s)}"
            yield f"{took} (a checkpoint or an evaluation?) left out: {count} of {times.size} is too few to count"
        if self._halves:
            first, second = self._halves
            yield (
                f"the run changes its speed: the first half of its steps takes {format_seconds(first)}, the second "
                f"{format_seconds(second)} (medians)"
            )

    def number(self, fact: str) -> int | None:
        """A whole-number fact; None if the log does not give it."""
        value = self.facts.get(fact)
        return value if isinstance(value, int) else None

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens of the whole job, from rate times step time."""
        return _whole(self.steady(self.tokens_per_s * self.step_s))

    @property
    def device_tokens_per_step(self) -> int | None:
        """Tokens of one GPU, from rate times step time."""
        return _whole(self.steady(self.device_tokens_per_s * self.step_s))

    def sequences_per_step(self, seq_len: int) -> float | None:
        """Sequences of a step by the log's own rates; None if it prints none that tell."""
        tokens = self.tokens_per_step if self.prints_tokens else None
        if tokens is not None:
            return tokens / seq_len
        samples = self.steady(self.samples_per_s * self.step_s)
        return float(np.median(samples)) if samples.size else None

    @property
    def warm_up(self) -> int:
        """Leading steps to leave out: the first one, and any that is still slower than the later half."""
        times = self.step_s
        timed = np.flatnonzero(np.isfinite(times))
        if timed.size <= LEAST_AFTER:
            return int(timed[0]) if timed.size else 0
        limit = (1 + SLOWER) * float(np.median(times[timed[timed.size // 2 :]]))
        leading = timed[1 : 1 + min(int(WARM_UP * timed.size), LONGEST)]
        return next((int(i) for i in leading if times[i] <= limit), int(timed[1]))

    def steady(self, values: FloatArray) -> FloatArray:
        """The known values of steady steps."""
        after = values[self.warm_up :]
        seconds: FloatArray = after[np.isfinite(after)]
        return seconds

    @property
    def _halves(self) -> tuple[float, float] | None:
        """Medians of the first and of the second half of the steady steps, if the run changes its speed."""
        times = self.steady(self.step_s)
        if times.size < LEAST_HALVES:
            return None
        both = np.split(times, [times.size // 2])
        halves = np.split(step_series(times).kept_s, [times.size // 2])
        first, second = _median(both[0]), _median(both[1])
        threshold = max(SLOWER, 3 * _spread(both[1]))  # stalls move the medians or the means of halves, seldom both
        moved = (first / second - 1, float(np.mean(halves[0]) / np.mean(halves[1])) - 1)
        return (first, second) if min(moved) > threshold or max(moved) < -threshold else None

    @property
    def measured(self) -> MeasuredRun:
        """Medians over the steady steps, or means where many steps are slow, and peak memory."""
        times = self.steady(self.step_s)
        if not times.size:
            series, mean = None, False
        else:
            series = step_series(times)
            mean = series.counts or self._halves is not None
        typical = _harmonic if mean else _median
        return MeasuredRun(
            step_s=float(np.mean(times)) if mean else _median(times),
            is_mean=mean,
            usual_s=series.middle_s if series else float("nan"),
            stall_s=series.stall_s if series else 0.0,
            spread=_spread(times[~series.slow]) if series else 0.0,
            num_steps=int(times.size),
            warm_up=self.warm_up,
            tokens_per_s=typical(self.steady(self.tokens_per_s)),
            flops_per_s=typical(self.steady(self.flops_per_s)),
            allocated_bytes=_highest(self.allocated_bytes),
            reserved_bytes=_highest(self.reserved_bytes),
        )


COLUMNS = (
    *("step_s", "tokens_per_s", "device_tokens_per_s", "samples_per_s"),
    *("flops_per_s", "allocated_bytes", "reserved_bytes"),
)


def _spread(times: FloatArray) -> float:
    """Robust standard deviation of single steps over their median: 1.48 x median absolute deviation."""
    if not times.size:
        return 0.0
    middle = float(np.median(times))
    return float(1.4826 * np.median(np.abs(times - middle)) / middle)


def _filled(values: FloatArray, others: FloatArray) -> FloatArray:
    filled: FloatArray = np.where(np.isnan(values), others, values)
    return filled


def _number(facts: Mapping[str, int | str], name: str) -> float:
    value = facts.get(name)
    return float(value) if isinstance(value, int) and value > 0 else float("nan")


def _whole(values: FloatArray) -> int | None:
    return round(float(np.median(values))) if values.size else None


def _median(values: FloatArray) -> float:
    return float(np.median(values)) if values.size else float("nan")


def _harmonic(rates: FloatArray) -> float:
    """The rate over the whole time, of steps with the same work."""
    return float(1 / np.mean(1 / rates)) if rates.size else float("nan")


def _highest(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.max(finite)) if finite.size else float("nan")
