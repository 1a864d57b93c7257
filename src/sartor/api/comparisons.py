"""Two runs side by side: what changed from A to B, and whether it is more than noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sartor.answers import RunComparison
from sartor.errors import InputError
from sartor.step.run_change import LEAST_STEPS, RunChange, run_change

if TYPE_CHECKING:
    from sartor.traces.logs.run_log import RunLog
    from sartor.units import FloatArray

THRESHOLD = 0.02
"""Smallest relative change that matters where nobody says: launches of one run differ by about 1%."""


def compare(a: str | Path, b: str | Path, *, threshold: float = THRESHOLD) -> RunComparison:
    """What changed from run ``a`` to run ``b`` (two training logs): step time, memory, facts of the plan, each beside
    the noise that the steps of a run show. A change counts beyond noise and ``threshold``. Raises ``InputError``."""
    from sartor.traces.logs.read import read_log

    if not 0 <= threshold < 10:
        raise InputError("threshold", threshold, "must be a share from 0 to 10", str(THRESHOLD))
    run_a, run_b = read_log(a, "A")[-1], read_log(b, "B")[-1]
    per_token = _other_tokens(run_a, run_b)
    times = [_times(run, str(path), name, per_token) for run, path, name in ((run_a, a, "A"), (run_b, b, "B"))]
    return RunComparison(
        kind="log",
        a=str(a),
        b=str(b),
        threshold=threshold,
        total=run_change("token" if per_token else "step", *times),
        memory=tuple(_memory(run_a, run_b)),
        facts=_facts(run_a, run_b),
        per_token=per_token,
        warnings=tuple(_warnings(run_a, run_b, per_token)),
    )


def _other_tokens(a: RunLog, b: RunLog) -> bool:
    """Whether the runs' steps hold different numbers of tokens."""
    one, other = a.tokens_per_step, b.tokens_per_step
    return one is not None and other is not None and abs(one / other - 1) > 0.005


def _times(run: RunLog, path: str, name: str, per_token: bool) -> FloatArray:
    seconds: FloatArray = 1 / run.tokens_per_s if per_token else run.step_s
    found = run.steady(seconds)
    if found.size < LEAST_STEPS:
        must = (
            f"has {found.size} steady steps with a time; at least {LEAST_STEPS} are needed to tell a change from noise"
        )
        raise InputError(name, path, must)
    return found


def _memory(a: RunLog, b: RunLog) -> Iterator[RunChange]:
    for name in ("allocated_bytes", "reserved_bytes"):
        one, other = getattr(a.measured, name), getattr(b.measured, name)
        if np.isfinite(one) and np.isfinite(other):
            yield RunChange(name=name, a=one, b=other, low=other / one, high=other / one)


NOT_THE_PLAN = {"tokens_per_step", "device_tokens_per_step"}
ELSEWHERE = ("path", "save", "load", "dir", "seed", "file", "rank", "port", "addr", "name", "iters", "samples")
"""Parts of the names of arguments that differ from run to run without changing it."""


def _facts(a: RunLog, b: RunLog) -> dict[str, tuple[str, str]]:
    """Facts and arguments that differ; what only one of the logs says is none."""
    found = dict(_differing(a.facts, b.facts))
    found |= {
        name: both for name, both in _differing(a.arguments, b.arguments) if not any(word in name for word in ELSEWHERE)
    }
    if a.trainer != b.trainer:
        found["framework"] = a.trainer, b.trainer
    return found


def _differing(a: Mapping[str, int | str], b: Mapping[str, int | str]) -> Iterator[tuple[str, tuple[str, str]]]:
    for name in a:
        if name in b and a[name] != b[name] and name not in NOT_THE_PLAN:
            yield name, (str(a[name]), str(b[name]))
    only = [name for name in (*a, *b) if (name in a) != (name in b)] if a and b else []
    for name in dict.fromkeys(only):  # dumps that leave out what is not set
        yield name, (str(a.get(name, "not said")), str(b.get(name, "not said")))


def _warnings(a: RunLog, b: RunLog, per_token: bool) -> Iterator[str]:
    if per_token:
        yield f"a step has {a.tokens_per_step:,} tokens in A and {b.tokens_per_step:,} in B: compared per token"
    for name, run in (("A", a), ("B", b)):
        if run.num_runs > 1:
            yield f"{name} holds {run.num_runs} runs; the last one is compared"
        if run.measured.num_steps < 8:
            yield f"{name} has {run.measured.num_steps} steady steps: small changes cannot be told from noise"
