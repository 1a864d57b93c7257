"""The sawtooth: what a sweep says is what one would be told asking value by value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sartor import api
from sartor.cost.price import price
from sartor.model.lower import lower
from sartor.model.zoo import load_model
from sartor.web.shape_view import MOST_VALUES, NEARLY, WORTH, shape_body, sweep_answer

ASKED: dict[str, Any] = {
    "moving": False,
    "gpu": "h100",
    "phase": "train",
    "tp": 1,
    "attention": "flash",
    "set": None,
    "around": None,
}


def asked(**words: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("config", "name", "seq_len", "microbatch_size", "context_len", "dtype", "values"))
    return {**empty, **ASKED, **words}


@pytest.mark.parametrize("model", ["gpt2-xl", "llama-2-70b", "mixtral-8x7b"])
def test_a_sweeps_times_are_those_of_single_questions(model: str) -> None:
    """Under the plan of the model as it is: a sweep compares shapes, not plans."""
    body = shape_body(asked(model=model))
    question = api.ask(model, "h100", tp=1)
    for one in body["sweeps"]:
        can = [i for i, t in enumerate(one["time_s"]) if t is not None]
        for i in {can[0], can[len(can) // 2], can[-1]}:
            changed = api.read(model, {one["field"]: one["values"][i]}).shape
            told = api.answer_question(question.with_shape(changed))
            assert one["time_s"][i] == pytest.approx(microbatch_s(told), rel=2e-6)


def microbatch_s(answer: Any) -> float:
    """Seconds of a microbatch of the shape as its trainer pads it through all stages of the plan."""
    question, run = answer.question, answer.run
    graph = lower(replace(question.workload, shape=question.trained_shape), question.dims, run.kernels)
    return float(price(graph, question.gpu, run.calibration).time_s)


def test_a_vocabulary_that_the_trainer_pads_has_no_better_value_and_takes_as_long_as_the_whole_shape() -> None:
    """Megatron pads 50,257 to 50,304; torchtitan does not."""
    pads, pads_not = (shape_body(asked(model="gpt3-2.7b", gpu="a100", framework=name)) for name in ("megatron", "fsdp"))
    for body in (pads, pads_not):
        (vocab,) = (one for one in body["sweeps"] if one["field"] == "vocab_size")
        now = vocab["time_s"][vocab["values"].index(50_257)]
        assert now == pytest.approx(body["totals"]["microbatch_s"], rel=1e-6)
        assert bool(vocab["better"]) == (body is pads_not)


def test_all_sweeps_of_a_drag_go_through_the_cost_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import sartor.shapes.evaluate as sweeps

    calls, real = [], sweeps.price_all
    monkeypatch.setattr(sweeps, "price_all", lambda *a, **k: calls.append(len(a[0])) or real(*a, **k))
    assert len(shape_body(asked(model="llama-2-70b"))["sweeps"]) == 7
    assert calls == [7]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-2-70b", "deepseek-v3", "t5-large"])
@pytest.mark.parametrize("phase", ["train", "decode"])
def test_sweeps_made_together_are_those_asked_for_one_by_one(model: str, phase: str) -> None:
    for one in shape_body(asked(model=model, phase=phase))["sweeps"]:
        assert sweep_answer(asked(model=model, phase=phase, field=one["field"])) == one


def test_values_that_cannot_be_have_no_time() -> None:
    body = sweep_answer(asked(model="gpt2-xl", field="num_heads", values=[24, 25, 26, 32]))
    assert [t is None for t in body["time_s"]] == [True, False, True, False]


@pytest.mark.parametrize("model", ["gpt2-xl", "llama-2-70b", "deepseek-v3", "qwen3-30b-a3b", "t5-large"])
def test_every_sweep_holds_the_models_own_value_and_at_most_a_thousand(model: str) -> None:
    own = load_model(model).fields()
    for one in shape_body(asked(model=model))["sweeps"]:
        assert len(one["values"]) <= MOST_VALUES
        assert int(own[one["field"]]) in one["values"]
        assert one["values"] == sorted(set(one["values"]))


def test_offers_are_faster_at_equal_work_and_nearly_the_best_of_their_side() -> None:
    for one in shape_body(asked(model="gpt2-xl"))["sweeps"]:
        here = one["values"].index(one["asked"])
        flops, params = np.array(one["flops"]), np.array(one["num_params"])
        work = np.minimum(flops / flops[here], params / params[here])
        per_work = np.array([np.inf if t is None else t for t in one["time_s"]]) / work
        for offer in one["better"]:
            at = one["values"].index(offer["value"])
            saving = 1 - per_work[at] / per_work[here]
            assert saving == pytest.approx(offer["saving"], abs=1e-5)
            assert saving >= WORTH
            near = np.abs(np.log(np.array(one["values"]) / one["asked"])) <= 0.2
            side = near & ((np.arange(len(near)) < here) == (at < here)) & (np.arange(len(near)) != here)
            assert saving >= NEARLY * (1 - per_work[side].min() / per_work[here]) - 1e-6


def test_a_ragged_vocabulary_is_offered_the_next_round_one() -> None:
    sweeps = {one["field"]: one for one in shape_body(asked(model="gpt2-xl", framework="torchtitan"))["sweeps"]}
    up = [offer for offer in sweeps["vocab_size"]["better"] if offer["value"] > 50257]
    assert up
    assert up[0]["value"] % 8 == 0
    assert up[0]["time_change"] < 0


def test_a_shape_that_does_not_split_is_shown_and_says_so() -> None:
    body = shape_body(asked(model="gpt2-xl", tp=10))
    assert body["runs"] is False
    assert body["split"] == {"tp": 5, "ep": 1}  # 25 heads
    assert any(finding["grade"] == "error" for finding in body["findings"])


def test_a_vocabulary_that_the_trainer_pads_splits() -> None:
    body = shape_body(asked(model="gpt2-xl", tp=5))
    assert body["runs"] is True
    assert body["split"] == {"tp": 5, "ep": 1}


def test_the_baseline_stays_when_sizes_change() -> None:
    plain = shape_body(asked(model="gpt2-xl"))
    changed = shape_body(asked(model="gpt2-xl", set={"num_heads": 20}))
    assert changed["baseline"]["time_s"] == plain["totals"]["time_s"]
    assert changed["baseline"]["fields"]["num_heads"] == 25
    assert changed["totals"]["time_s"] < plain["totals"]["time_s"]


def test_decoding_is_not_called_faster_for_computing_more_meanwhile() -> None:
    body = shape_body(asked(model="qwen3-30b-a3b", phase="decode"))
    offers = [offer for one in body["sweeps"] for offer in one["better"]]
    assert all(offer["time_change"] < 0.03 or offer["params_change"] > 0 for offer in offers)
    heads = next(one for one in body["sweeps"] if one["field"] == "num_heads")
    assert not [offer for offer in heads["better"] if offer["value"] > heads["asked"] and offer["saving"] > 0.05]
