"""A training run from its log: seconds, rates and bytes per step, and facts about the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.step.measured_run import SLOW, MeasuredRun, Pause, step_series
from sartor.units import BoolArray, FloatArray, IntArray

SLOWER = 0.05
"""A leading step this much slower than the median of the later half is warm-up (compilation, allocator, data)."""
WARM_UP, LONGEST = 0.5, 50
"""Largest share of a log, and most steps, that count as warm-up (published logs have 1 or 2). A run that becomes faster
later has changed its speed: its steps count, except the first."""
UNKNOWN = "unknown trainer"
"""Title of a log that is read by its words alone."""
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
    open_tokens_per_s: FloatArray
    """Those of which the log doesn't say whether they are of one GPU or of all."""
    samples_per_s: FloatArray
    """Sequences per second, whole job."""
    flops_per_s: FloatArray
    """Per GPU, as the trainer counts FLOPs (`sartor diagnose` finds which terms it counts)."""
    allocated_bytes: FloatArray
    """Peak memory of allocated tensors on the device that prints."""
    reserved_bytes: FloatArray
    """Peak memory reserved by the allocator."""
    mfu: FloatArray
    """As the trainer prints it, a share."""
    loss: FloatArray
    clock_s: FloatArray
    """When the line was printed, since some time."""
    facts: Mapping[str, int | str] = field(default_factory=dict)
    """Facts about plan and job in the log, by the names of ``--fix`` and of the options."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """The dump of Megatron's arguments, if there is one."""
    config: JsonMap = field(default_factory=dict)
    """The model's configuration, if the log prints it."""
    units: tuple[str, ...] = ()
    """Sentences that explain this trainer's numbers."""
    prints_tokens: bool = False
    """Whether tokens per step are the log's own, not what its batch and length make."""
    printed: int = 0
    """Steps in the file, those of other batch sizes included."""
    ramps: bool = False
    """Whether the batch only ever grows."""
    no_number: tuple[int, ...] = ()
    """Those whose loss is not a number."""
    skipped: int = 0
    """Steps whose update was skipped."""
    causes: Mapping[int, str] = field(default_factory=dict)
    """What the lines behind a step say that the run does there (``checkpoint``), by the step's number."""
    times: str = ""
    """What a printed time is of: ``mean`` since the line before, ``smoothed``, ``whole`` run, or else of a step."""
    ranks_s: Mapping[int, float] = field(default_factory=dict)
    """Median step of each rank that prints its own."""
    rolls_out: bool = False
    """Whether a step holds rollouts (reinforcement learning)."""
    rank_skew: float = float("nan")
    """Compute of the slowest rank over that of the fastest, minus 1, by the trainer's timers."""
    whole_losses: tuple[float, ...] | None = None
    """The losses before the one line that stands for a whole run."""
    loaded: int | None = None
    """Step of the checkpoint that the run loads."""
    events: tuple[str, ...] = ()
    """What ended the run before its time, and how it resumes the one before, in sentences."""
    is_chosen: bool = False
    """Whether its steps were chosen by number."""
    index: int = 0
    num_runs: int = 1
    """Number of runs in the file; ``index`` counts from 0."""

    def knowing(self, **facts: int | str | None) -> RunLog:
        """The run with facts from another source added, and the columns that follow from them."""
        all_facts = {**self.facts, **{name: value for name, value in facts.items() if value is not None}}
        batch, seq, devices = (_number(all_facts, name) for name in ("global_batch_size", "seq_len", "num_devices"))
        per_step = _number(all_facts, "tokens_per_step")
        known = self._scoped(per_step if per_step > 0 else batch * seq, devices, log_s_own=per_step > 0)
        tokens = filled(known.tokens_per_s, known.device_tokens_per_s * devices)
        step_s = filled(self.step_s, batch / self.samples_per_s)
        tokens = filled(tokens, per_step / step_s)
        step_s = filled(filled(step_s, per_step / tokens), batch * seq / tokens)
        tokens = filled(tokens, batch * seq / step_s)
        return replace(known, facts=all_facts, step_s=step_s, tokens_per_s=tokens)

    def _scoped(self, per_step: float, devices: float, *, log_s_own: bool) -> RunLog:
        """The run with its open tokens/s as those of the job or of a GPU, by what a step has or where there is one."""
        rate = self.open_tokens_per_s
        ratio = _median((rate * self.step_s)[np.isfinite(rate * self.step_s)]) / per_step
        none = np.full(rate.size, np.nan)
        if devices == 1 or abs(ratio - 1) < SAME_TOKENS or (log_s_own and np.isnan(self.step_s).all()):
            return replace(self, tokens_per_s=filled(self.tokens_per_s, rate), open_tokens_per_s=none)
        if abs(ratio * devices - 1) < SAME_TOKENS:
            return replace(self, device_tokens_per_s=filled(self.device_tokens_per_s, rate), open_tokens_per_s=none)
        return self

    def between(self, first: int, last: int) -> RunLog:
        """The steps of these numbers alone, none of which is left out as warm-up. Raises ``InputError`` for none."""
        inside = (self.iteration >= first) & (self.iteration <= last)
        if not inside.any():
            least, most = int(self.iteration.min()), int(self.iteration.max())
            raise InputError("steps", f"{first}:{last}", f"the log has steps {least} to {most}", f"{least}:{most}")
        return replace(self.only(inside), printed=int(inside.sum()), is_chosen=True)

    def only(self, steps: BoolArray) -> RunLog:
        """The run with some of its steps alone; peak memory stays that of all."""
        if steps.all():
            return self
        columns = {name: getattr(self, name)[steps] for name in COLUMNS}
        for name in ("allocated_bytes", "reserved_bytes"):
            columns[name][:1] = _highest(getattr(self, name))
        return replace(self, iteration=self.iteration[steps], **columns)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about the steps, in sentences."""
        sentences = []
        if (left_out := self.printed - self.iteration.size) > 0:
            batch, what = (
                self.facts.get("global_batch_size", "its own"),
                "it ramps up to" if self.ramps else "most have",
            )
            sentences.append(f"{left_out} of {self.printed} steps had another batch and are left out: {what} {batch}")
        if self.rolls_out:
            sentences.append("a step of reinforcement learning is mostly rollouts; predictions are of training alone")
        if (rate := _median(self.steady(self.open_tokens_per_s))) > 0:
            words = f"its {rate:,.0f} tokens/s may be of one GPU or of all: the log does not say"
            step = _median(self.steady(self.open_tokens_per_s * self.step_s))
            sentences.append(words + (f"; they make {step:,.0f} tokens a step" if step > 0 else ""))
        if (rate := _median(self.steady(self.samples_per_s))) > 0 and self.number("global_batch_size") is None:
            step = _median(self.steady(self.samples_per_s * self.step_s))
            sentences.append(f"it prints {rate:,.3g} samples/s{f': {step:,.3g} samples a step' if step > 0 else ''}")
        if self.title == UNKNOWN:
            sentences.append(f"the trainer is not known, its lines are read by their words: {'; '.join(self.units)}")
        doubtful = self.title == UNKNOWN or self.times == "smoothed"
        if doubtful and 0 < np.diff(self.clock_s).sum() < CLOCKED * (np.diff(self.iteration) * self.step_s[1:]).sum():
            sentences.append(CONTRADICTED)
        return tuple(sentences)

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
        if timed.size <= LEAST_AFTER or self.is_chosen:
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
    def _drift(self) -> float:
        """The last third of the usual steps over the first, minus 1; 0 within their noise, or if the middle third does
        not lie between them."""
        times = self.steady(self.step_s)
        if times.size < LEAST_HALVES:
            return 0.0
        thirds = np.array_split(times, 3)
        first, middle, last = map(_median, thirds)
        noise = 3 * max(map(_spread, thirds)) / np.sqrt(thirds[0].size)
        moves = min(first, last) * (1 - noise) <= middle <= max(first, last) * (1 + noise)
        return last / first - 1 if moves and abs(last / first - 1) > max(LEAST_DRIFT, 2 * noise) else 0.0

    @property
    def _unseen(self) -> float:
        """Steps between two printed ones of which the log says nothing."""
        strides = np.diff(self.iteration)
        return max(_median(strides) - 1, 0.0) if strides.size and not self.times else 0.0

    def _intervals(self) -> tuple[IntArray, FloatArray, FloatArray, float]:
        """Between the printed steady steps: the step before, seconds, and number of steps; and how coarse the seconds
        are. By the clock of the lines, else by the times they print."""
        first = max(self.warm_up - 1, 0)
        before, steps = self.iteration[first:-1], np.diff(self.iteration[first:]).astype(float)
        passed, printed = np.diff(self.clock_s[first:]), self.step_s[first + 1 :] * np.ones(steps.size)
        whole = printed * steps
        clocked = passed.size and np.isfinite(passed).all() and passed.sum() > CLOCKED * np.nansum(whole)
        if not clocked:  # of steps that are not printed, no more is known than of the usual one
            steps = np.ones(steps.size) if self.times == "smoothed" else steps
            passed = whole if self.times == "mean" else printed + (steps - 1) * _median(self.steady(self.step_s))
        coarse = float(bool(clocked) and not np.any(self.clock_s[first:] % 1))
        timed = np.isfinite(passed) & (passed >= 0) & (steps > 0)
        return before[timed], passed[timed], steps[timed], coarse

    @property
    def measured(self) -> MeasuredRun:
        """Medians over the steady steps, or means where many steps are slow, and peak memory."""
        times = self.steady(self.step_s)
        if not times.size:
            series, mean = None, False
        else:
            series = step_series(times)
            mean = series.counts or self._halves is not None
        unseen = self._unseen
        typical = partial(_mean_rate, unseen=unseen) if mean else _median
        losses = self.loss[np.isfinite(self.loss)] if self.whole_losses is None else np.array(self.whole_losses)
        counts_flops = np.isfinite(self.flops_per_s).any()
        return MeasuredRun(
            step_s=_mean_step(times, unseen) if mean else _median(times),
            is_mean=mean or self.times == "whole",
            is_whole=self.times == "whole",
            usual_s=series.middle_s if series else float("nan"),
            stall_s=series.stall_s / (1 + unseen) if series else 0.0,
            spread=_spread(times[~series.slow]) if series else 0.0,
            num_steps=int(times.size),
            warm_up=self.warm_up,
            p90_s=float(np.quantile(times, 0.9)) if times.size and self.times != "smoothed" else float("nan"),
            drift=self._drift,
            work_drift=_moved(self.steady((self.flops_per_s if counts_flops else self.tokens_per_s) * self.step_s)),
            memory_drift=_moved(self.steady(filled(self.reserved_bytes, self.allocated_bytes))),
            events=self.events,
            **self._paused(),
            losses=tuple(losses[[0, -1]].tolist()) if losses.size > 1 else (),
            jumps=tuple(self.iteration[_jumps(self.loss)].tolist()),
            last_step=int(self.iteration[-1]),
            no_number=self.no_number,
            skipped=self.skipped,
            rank_skew=self.rank_skew,
            slow_rank=_slow(self.ranks_s),
            tokens_per_s=typical(self.steady(self.tokens_per_s)),
            device_tokens_per_s=typical(self.steady(self.device_tokens_per_s)),
            flops_per_s=typical(self.steady(self.flops_per_s)),
            printed_mfu=typical(self.steady(self.mfu)),
            allocated_bytes=_highest(self.allocated_bytes),
            reserved_bytes=_highest(self.reserved_bytes),
        )

    def _paused(self) -> dict[str, Any]:
        """The pauses between steps, and the time and steps among which they are."""
        before, passed, steps, coarse = self._intervals()
        if not passed.size:
            return {}
        rate = passed / steps
        trend = _trend(rate) if self._drift else np.ones(rate.size)  # steps that get slower are no pauses
        level = rate / trend
        slow = step_series(level, np.maximum(SLOW * _median(level), 2 * coarse / trend) / steps).slow
        usual_s = steps * trend
        excess = passed - usual_s * float(passed[~slow].sum() / usual_s[~slow].sum())
        slow &= excess > 0
        return {
            "wall_s": float(passed.sum()),
            "wall_steps": int(steps.sum()),
            "pauses": tuple(
                Pause(iteration=int(before[i]), seconds=float(excess[i]), cause=self.causes.get(int(before[i]), ""))
                for i in np.flatnonzero(slow)
            ),
        }


COLUMNS = (
    *("step_s", "tokens_per_s", "device_tokens_per_s", "open_tokens_per_s", "samples_per_s"),
    *("flops_per_s", "allocated_bytes", "reserved_bytes", "mfu", "loss", "clock_s"),
)
LEAST_DRIFT = 0.02
"""Least change of usual steps over a run that is called a drift: launches of the same run differ by about 1%."""
CONTRADICTED = (
    "by the time stamps of its lines, its steps take less than half of the time that is read: do not trust it"
)
SAME_TOKENS = 0.1
"""Tokens/s times step are a step's tokens up to this share: both are rounded, and the time may hold some logging."""
CLOCKED = 0.5
"""A clock that passes less than this share of the printed times is of other lines."""
BEFORE, RISE, DEVIATIONS = 8, 0.2, 8.0
"""A loss jumps that is above the median of the ``BEFORE`` steps before it by this share, and by so many of their
standard deviations."""
SLOW_RANK = 1.05
"""A rank is slow whose median step is longer than that of all ranks by this factor."""


def _jumps(loss: FloatArray) -> IntArray:
    """Printed steps at which the loss jumps, the first of each jump."""
    if loss.size <= BEFORE:
        return np.zeros(0, dtype=int)
    before = np.lib.stride_tricks.sliding_window_view(loss, BEFORE)[:-1]
    middle = np.median(before, axis=1)
    spread = 1.4826 * np.median(np.abs(before - middle[:, None]), axis=1)
    high = loss[BEFORE:] - middle > np.maximum(RISE * np.abs(middle), DEVIATIONS * spread)
    return BEFORE + np.flatnonzero(high & ~np.concatenate(([False], high[:-1])))


def _slow(ranks_s: Mapping[int, float]) -> int | None:
    """The slowest rank, if it is slower than the others."""
    if len(ranks_s) < LEAST_RANKS:
        return None
    rank = max(ranks_s, key=lambda rank: ranks_s[rank])
    return rank if ranks_s[rank] > SLOW_RANK * _median(np.array([*ranks_s.values()])) else None


LEAST_RANKS = 3
"""Ranks that must print their own step for one to be called slow."""


def _spread(times: FloatArray) -> float:
    """Robust standard deviation of single steps over their median: 1.48 x median absolute deviation."""
    if not times.size:
        return 0.0
    middle = float(np.median(times))
    return float(1.4826 * np.median(np.abs(times - middle)) / middle)


def _trend(rate: FloatArray) -> FloatArray:
    """Median of the ``NEIGHBOURS`` around each value."""
    width = min(NEIGHBOURS, 2 * ((rate.size - 1) // 2) + 1)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(rate, width // 2, mode="reflect"), width)
    medians: FloatArray = np.median(windows, axis=1)
    return medians


NEIGHBOURS = 9
"""Printed steps whose median is the pace at the middle one, in a run that changes its speed: four pauses don't move
it, and it follows a run that slows by a tenth in as many lines within 1%."""


def _moved(values: FloatArray) -> float:
    """The last third over the first, minus 1."""
    thirds = np.array_split(values, 3)
    return _median(thirds[2]) / _median(thirds[0]) - 1


def filled(values: FloatArray, others: FloatArray) -> FloatArray:
    """The values, and the others where they are not known."""
    both: FloatArray = np.where(np.isnan(values), others, values)
    return both


def _number(facts: Mapping[str, int | str], name: str) -> float:
    value = facts.get(name)
    return float(value) if isinstance(value, int) and value > 0 else float("nan")


def _whole(values: FloatArray) -> int | None:
    return round(float(np.median(values))) if values.size else None


def _median(values: FloatArray) -> float:
    return float(np.median(values)) if values.size else float("nan")


def _mean_step(times: FloatArray, unseen: float) -> float:
    """The mean step, if beside every printed one there are so many usual ones that are not."""
    return (float(np.mean(times)) + unseen * _median(times)) / (1 + unseen)


def _mean_rate(rates: FloatArray, unseen: float) -> float:
    """The rate over the whole time, of steps with the same work."""
    return 1 / _mean_step(1 / rates, unseen) if rates.size else float("nan")


def _highest(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.max(finite)) if finite.size else float("nan")
