"""A traced step and its MFU, on traces whose true step is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from sartor import api
from sartor.answers.diagnosis import TraceDiagnosis, part_words
from sartor.errors import InputError
from sartor.step.measured_run import PartKind
from sartor.units import format_seconds
from traces.kineto_hand import SIDE, Hand, steps

PEAK = {"bf16": 989.4e12, "fp8": 1978.9e12}
"""Dense FLOP/s of an H100 SXM."""
FLOPS = 2 * SIDE**3


def diagnosed(hand: Hand, folder: Path) -> TraceDiagnosis:
    found = api.diagnose(hand.write(folder / "t.json"))
    assert isinstance(found, TraceDiagnosis)
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.step_s)
    return found


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_a_step_has_as_many_gaps_as_steps(count: int, marked: bool, tmp_path: Path) -> None:
    found = diagnosed(steps(count + (not marked), load_us=20e3, marked=marked), tmp_path)
    (gap,) = (part for part in found.parts if part.kind is PartKind.DATA)
    assert found.step_s == pytest.approx(52.4e-3)
    assert found.mfu == pytest.approx(20 * FLOPS / PEAK["bf16"] / 52.4e-3, rel=1e-3)
    assert gap.seconds == pytest.approx(20e-3)
    assert gap.evidence[0] == "1 gap per step"
    assert gap.evidence[1] == "enumerate(DataLoader)#__next__: 20 ms"
    idle = sum(part.seconds for part in found.parts if "idle" in part_words(part.kind.value))
    assert idle == pytest.approx(20e-3)  # kernels back to back have no gap, whatever the clock rounds


def test_the_comparison_means_the_same_step_as_the_diagnosis(tmp_path: Path) -> None:
    one, other = (steps(6, load_us=load).write(tmp_path / f"{load}.json") for load in (10e3, 20e3))
    found = api.compare(one, other)
    assert (found.total.a, found.total.b) == pytest.approx((42.4e-3, 52.4e-3))


def test_steps_of_a_host_that_runs_ahead_last_as_long_as_their_kernels(tmp_path: Path) -> None:
    hand = steps(4, marked=False)
    for number in range(4):
        launched = Hand(at=1000 + number * 32400)
        launched.mark(number, launched.at)
        hand.events += [launched.events[-1] | {"dur": 32390}]
    for event in hand.events:  # launched at once, 20 ms before the first kernel
        if event["cat"] != "kernel":
            event["ts"] = (event["ts"] - 1000) / 3 - 19e3
            event["dur"] /= 3
    found = diagnosed(hand, tmp_path)
    assert found.step_s == pytest.approx(32.4e-3)


def test_mfu_is_of_the_peak_of_each_data_type(tmp_path: Path) -> None:
    whole = diagnosed(steps(4, products=0, fp8=30), tmp_path)
    assert whole.mfu == pytest.approx(30 * FLOPS / PEAK["fp8"] / 23.2e-3, rel=1e-3)
    mixed = diagnosed(steps(4, products=2, fp8=30), tmp_path)
    assert mixed.mfu == pytest.approx((30 * FLOPS / PEAK["fp8"] + 2 * FLOPS / PEAK["bf16"]) / 26.4e-3, rel=1e-3)
    assert all(part.gain_s >= 0 for part in mixed.losses)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.99951, "1 s"),
        (0.9994, "999 ms"),
        (0.99951e-3, "1 ms"),
        (0.9996e-6, "1 us"),
        (999.6, "1,000 s"),
        (5.2e-17, "0 s"),
    ],
)
def test_seconds_are_rounded_into_the_next_unit(seconds: float, words: str) -> None:
    assert format_seconds(seconds) == words


def test_steps_chosen_by_number_are_diagnosed_alone(tmp_path: Path) -> None:
    path = steps(6, load_us=20e3).write(tmp_path / "t.json")
    whole, some = api.diagnose(path), api.diagnose(path, steps="2:3")
    assert isinstance(whole, TraceDiagnosis)
    assert isinstance(some, TraceDiagnosis)
    assert (whole.num_steps > 2, some.num_steps) == (True, 2)
    assert some.step_s == pytest.approx(whole.step_s)
    with pytest.raises(InputError, match="the trace has steps"):
        api.diagnose(path, steps="70:80")
    with pytest.raises(InputError, match="first and a last step"):
        api.diagnose(path, steps="4:2")
