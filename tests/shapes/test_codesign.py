"""One shape for several devices and phases."""

from __future__ import annotations

import pytest

import sartor
from sartor.errors import InputError
from sartor.model.workload import Phase, phase_weights

ASKED = ("pythia-2.8b", ("a100", "h100"))


@pytest.mark.parametrize(
    ("words", "must"),
    [
        ("train:0.7,decode:0.5", "must sum to 1"),
        ("train:1.5,decode:-0.5", "weight above 0"),
        ("train:0,decode:1", "weight above 0"),
        ("train:0.5,train:0.5", "once"),
        ("train:a", "must read PHASE:WEIGHT"),
        ("serve:1", "must read PHASE:WEIGHT"),
        ("train:nan,decode:1", "weight above 0"),
    ],
)
def test_weights_are_positive_and_sum_to_one(words: str, must: str) -> None:
    with pytest.raises(InputError, match=must):
        phase_weights(words)


def test_weights_are_read() -> None:
    assert phase_weights("train:0.7, decode:0.3") == {Phase.TRAIN: 0.7, Phase.DECODE: 0.3}


@pytest.mark.parametrize("rule", ["weighted", "worst"])
def test_the_common_shape_regrets_less_than_the_shape_as_it_is(rule: str) -> None:
    model, gpus = ASKED
    found = sartor.advise(model, gpus, objective="train:0.7,decode:0.3", regret=rule, context_len=8192).codesign
    assert found is not None
    assert found.regret <= found.baseline_regret
    assert len({(want.gpu, want.phase) for want in found.wants}) == 4
    for want in found.wants:
        assert want.alone_gain >= want.common_gain * (1 - 1e-9)
        assert want.regret == pytest.approx(want.alone_gain / want.common_gain - 1, abs=1e-9)
    if rule == "worst":
        assert found.regret == pytest.approx(max(want.regret for want in found.wants))


@pytest.mark.parametrize("rule", ["weighted", "worst"])
@pytest.mark.parametrize("model", ["mixtral-8x7b", "llama-3.1-8b"])
def test_a_common_shape_that_may_be_no_better_is_not_advised(model: str, rule: str) -> None:
    # Whatever expert kernel runs, Mixtral's other mixtures differ by less than their intervals.
    found = sartor.advise(model, ["h100", "b200"], objective="train:0.7,decode:0.3", regret=rule).codesign
    assert found is not None
    assert found.changed == {}
    assert found.regret == found.baseline_regret


def test_a_common_shape_that_gains_on_most_devices_is_advised_though_one_was_never_measured() -> None:
    asked = {"objective": "train:0.7,decode:0.3", "context_len": 32768, "framework": "torchtitan"}
    found = sartor.advise("gpt3-2.7b", ["h100", "b200", "mi300x"], **asked).codesign  # type: ignore[arg-type]
    assert found is not None
    assert found.changed["head_dim"] == (80, 128)
    assert found.regret < 0.01 < found.baseline_regret
