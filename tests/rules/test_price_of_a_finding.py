"""What a finding says its fix gains, by hand: of a pass, of a step, of devices that it frees."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sartor.cost.cost import Source
from sartor.model.workload import Phase
from sartor.rules import lint
from sartor.rules.rule import Finding, Grade, Suspicion

RULE: Any = SimpleNamespace(name="rule", code="S999", remark="")
SUSPICION = Suspicion(grade=Grade.WARN, message="", field="ffn_hidden_size", value=1)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "as_set", lambda shape, fix: dict(fix))
    monkeypatch.setattr(lint, "_params_change", lambda context, fix: 0.0)


def priced(
    relative: float, *, step: tuple[float, float] | None = None, phase: Phase = Phase.TRAIN,
    suspicion: Suspicion = SUSPICION, **choice: Any,
) -> Finding | None:  # fmt: skip
    """The finding of a fix that takes ``relative`` of the time, known within 10%; the pass takes 10 s, or a step its
    (busy, whole) seconds."""
    context: Any = SimpleNamespace(
        baseline=SimpleNamespace(time_s=10.0, source=Source.ANALYTIC),
        run=step and SimpleNamespace(whole=SimpleNamespace(busy_s=step[0], step_s=step[1])),
        workload=SimpleNamespace(phase=phase),
        shape=None,
    )
    fix = {"fix": {"ffn_hidden_size": 2}, "offer": lint._Offer(relative=relative, spread=1.1, kept=1.0)}
    return lint._finding(context, RULE, suspicion, lint._Choice(**{**fix, **choice}))


def numbers(found: Finding | None) -> tuple[Any, ...]:
    assert found is not None
    return found.gain_s, found.gain_fraction, found.gain_low_s, found.gain_high_s, found.device_seconds_spared


def test_the_gain_is_the_time_saved_of_the_pass() -> None:
    assert numbers(priced(0.9)) == pytest.approx((1.0, 0.1, 10 * (1 - 0.99), 10 * (1 - 0.9 / 1.1), 0))
    assert numbers(priced(1.5, reference=2.0)) == pytest.approx(
        (20 * 0.25, 0.25, 20 * (1 - 1.65 / 2), 20 * (1 - 1.5 / 1.1 / 2), 0)
    )


def test_the_gain_of_a_step_is_of_its_busy_part_or_as_the_step_with_the_fix_says() -> None:
    assert numbers(priced(0.9, step=(6.0, 8.0)))[:2] == pytest.approx((0.6, 0.6 / 8))
    stepped = priced(0.9, step=(6.0, 8.0), step_s=7.0)
    assert numbers(stepped) == pytest.approx((1.0, 1 / 8, 8 - 7 * 1.1, 8 - 7 / 1.1, 0))


def test_devices_that_a_pass_of_inference_frees_are_spared_and_gain_no_time() -> None:
    freed = {"phase": Phase.PREFILL, "fix": {"tp": 4}}
    assert numbers(priced(0.75, **freed)) == pytest.approx((0, 0, 0, 0, 0.25))
    assert numbers(priced(1.5, reference=2.0, **freed))[-1] == pytest.approx(0.25)
    assert numbers(priced(1.25, **freed))[-1] == 0


def test_a_gain_at_the_threshold_counts_and_one_below_it_is_a_remark() -> None:
    reached, below = ({"step": (100.0, 100.0), "step_s": step_s} for step_s in (99.0, 99.01))
    assert priced(0.5, **reached).grade is Grade.WARN  # type: ignore[union-attr]
    assert priced(0.5, **below).grade is Grade.INFO  # type: ignore[union-attr]
    advisory = replace(SUSPICION, advisory=True)
    assert priced(0.5, suspicion=advisory, **reached) is not None
    assert priced(0.5, suspicion=advisory, **below) is None
    required = priced(0.5, suspicion=replace(SUSPICION, required=True), **below)
    assert required is not None
    assert required.grade is Grade.WARN


def test_a_gain_of_rounding_alone_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "ROUNDING", 0.5)
    assert numbers(priced(0.5, step=(8.0, 8.0), step_s=4.0))[0] == 0
    assert numbers(priced(0.5, step=(8.0, 8.0), step_s=3.75))[0] == 4.25


def test_what_cannot_run_has_no_gain() -> None:
    assert numbers(priced(0.9, suspicion=replace(SUSPICION, blocking=True)))[:4] == (None,) * 4
