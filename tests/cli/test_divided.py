"""Degrees that do not divide a model are a question: what would run instead, each with its price."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sartor import api
from sartor.errors import InputError

RUN = {"num_devices": 8, "global_batch_size": 64, "seq_len": 2048}
WORDS = ("qwen2.5-7b", "--gpu", "h100", "--tp", 8, "--num-devices", 8, "--global-batch-size", 64, "--seq-len", 2048)


@pytest.fixture(scope="module")
def answer() -> api.ModelEstimate:
    return api.estimate("qwen2.5-7b", "h100", tp=8, **RUN)


def test_heads_and_degrees_that_divide_are_priced_as_questions_of_their_own(answer: api.ModelEstimate) -> None:
    assert answer.cannot_run == "tp=8 does not split num_heads=28 (24 and 32 do)"
    fewer, more, narrower = answer.divided
    assert (fewer.change["num_heads"], more.change["num_heads"]) == (24, 32)
    assert narrower.change == {"tp": 4}
    for divided, stated in ((fewer, {"tp": 8, "set": dict(fewer.change)}), (narrower, {"tp": 4})):
        alone = api.estimate("qwen2.5-7b", "h100", **RUN, **stated)
        assert float(divided.answer.time_s) == pytest.approx(float(alone.time_s), rel=1e-9)
        assert divided.answer.peak_bytes == pytest.approx(alone.peak_bytes, rel=1e-9)


def test_no_figure_is_of_the_run_that_cannot_be(answer: api.ModelEstimate) -> None:
    four = api.estimate("qwen2.5-7b", "h100", tp=4, **RUN)
    assert float(answer.time_s) == pytest.approx(float(four.time_s), rel=1e-9)
    body = answer.to_dict()
    assert body["workload"]["tp"] == 4
    assert (body["run"]["tp"]["value"], body["run"]["tp"]["origin"]) == (4, "implied")
    assert body["cannot_run"] == answer.cannot_run
    assert [row["change"] for row in body["divided"]] == [dict(each.change) for each in answer.divided]


def test_the_first_lines_say_it_and_the_exit_code_is_that_of_nothing_feasible(sartor: Callable[..., Any]) -> None:
    ran = sartor("estimate", *WORDS)
    assert ran.code == 3
    assert ran.out.startswith("As stated it cannot run: tp=8 does not split num_heads=28 (24 and 32 do).")
    text = " ".join(ran.out.split())
    assert text.index("- num_heads=24, head_dim=128: ") < text.index("- num_heads=32, head_dim=128: ")
    assert "The rest of this answer is with tp=4: Qwen2.5 7B on 8 h100_sxm as tp 4" in text
    assert sartor("estimate", *WORDS, "--json").body["cannot_run"]
    assert sartor("estimate", *WORDS[:4], 4, *WORDS[5:]).code == 0


def test_advise_prices_them_too(sartor: Callable[..., Any]) -> None:
    ran = sartor("advise", *WORDS)
    assert ran.code == 0
    assert ran.out.startswith("As stated it cannot run: tp=8 does not split num_heads=28 (24 and 32 do).")
    assert "- tp=4: " in ran.out


def test_inference_and_experts_are_asked_in_the_same_way() -> None:
    decoding = api.estimate("qwen2.5-7b", "h100", phase="decode", tp=8)
    assert [dict(each.change) for each in decoding.divided][-1] == {"tp": 4}
    assert decoding.to_dict()["workload"]["tp"] == 4
    experts = api.estimate("mixtral-8x7b", "h100", phase="prefill", ep=3, tp=2)
    assert [dict(each.change) for each in experts.divided] == [{"ep": 2}, {"ep": 4}]


def test_a_degree_that_divides_leaves_nothing_to_ask() -> None:
    answer = api.estimate("gpt2", "h100", tp=2, **RUN | {"seq_len": 1024})
    assert answer.cannot_run == ""
    assert answer.divided == ()
    with pytest.raises(InputError, match="does not split"):
        api.plan("gpt2", "dgx-h100", num_devices=8, global_batch_size=64, tp=8)
