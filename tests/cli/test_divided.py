"""Degrees that do not divide a model are a question: what would run instead, each with its price."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sartor import api
from sartor.errors import InputError
from sartor.model.editing import edit
from sartor.model.lower import feasible
from sartor.model.workload import ParallelDims
from sartor.web.work import Answerer

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


@pytest.mark.slow
def test_advise_prices_them_too(sartor: Callable[..., Any]) -> None:
    first = [sartor(command, *WORDS).out.split(", 4")[0] for command in ("estimate", "lint", "advise")]
    assert len(set(first)) == 1
    ran = sartor("advise", *WORDS)
    assert ran.code == 3
    assert sartor("lint", *WORDS).code == 1
    assert ran.out.startswith("As stated it cannot run: tp=8 does not split num_heads=28 (24 and 32 do).")
    assert "- tp=4: " in ran.out
    assert "lint calls" not in ran.out


PLAN = ("qwen2.5-7b", "--cluster", "dgx-h100", *WORDS[3:])


@pytest.mark.slow
def test_plan_answers_them_as_the_other_commands_do(sartor: Callable[..., Any], answer: api.ModelEstimate) -> None:
    ran, estimated = sartor("plan", *PLAN), sartor("estimate", *WORDS)
    assert (ran.code, estimated.code) == (3, 3)
    lines = [text.out.split("The rest of this answer is with tp=4:")[0] for text in (ran, estimated)]
    assert lines[0] == lines[1]
    body = sartor("plan", *PLAN, "--json").body
    assert (body["status"], body["cannot_run"], body["best"]["tp"]) == ("infeasible", answer.cannot_run, 4)
    assert body["divided"] == answer.to_dict()["divided"]
    assert (body["run"]["tp"]["value"], body["run"]["tp"]["origin"]) == (4, "implied")
    assert sartor("plan", *PLAN[:3], "--fix", "tp=8", *PLAN[5:], "--json").body["divided"] == body["divided"]


def test_the_plan_in_place_of_one_that_does_not_divide_is_that_of_the_smaller_degree() -> None:
    divided = api.plan("qwen2.5-7b", "dgx-h100", tp=8, **RUN)
    four = api.plan("qwen2.5-7b", "dgx-h100", tp=4, **RUN)
    assert divided.best is not None
    assert divided.best == four.best
    (alone,) = (each.answer for each in divided.divided if each.change == {"tp": 4})
    assert float(alone.time_s) == divided.best.step_s
    assert (four.cannot_run, four.status) == ("", "optimal")


def test_a_plan_whose_degrees_do_not_divide_is_answered_over_http_too() -> None:
    body = {"model": "qwen2.5-7b", "cluster": "dgx-h100", "tp": 8, **RUN}
    reply = Answerer().fresh("plan", {}, json.dumps(body).encode())
    answered = json.loads(reply.body)
    assert (reply.status, answered["status"]) == (200, "infeasible")
    assert answered["cannot_run"].startswith("tp=8 does not split num_heads=28")
    assert [row["change"].get("tp") for row in answered["divided"]] == [None, None, 4]


def test_no_file_is_written_of_a_plan_that_cannot_run(sartor: Callable[..., Any], tmp_path: Path) -> None:
    ran = sartor("plan", *PLAN, "--write", "megatron", tmp_path / "launch")
    assert (ran.code, ran.err) == (3, "sartor: no file is written: as stated it cannot run\n")
    assert not (tmp_path / "launch").exists()
    with pytest.raises(InputError, match="as stated it cannot run: tp=8 does not split num_heads=28"):
        api.launch(api.plan("qwen2.5-7b", "dgx-h100", tp=8, **RUN), "megatron")


@pytest.mark.parametrize(("words", "nearest"), [({"ep": 2}, "1"), ({"pp": 3}, "2 or 4")])
def test_a_degree_that_no_model_of_this_kind_has_is_refused(words: dict[str, int], nearest: str) -> None:
    with pytest.raises(InputError, match=f"nearest: {nearest}"):
        api.plan("qwen2.5-7b", "dgx-h100", **words, **RUN)


MAMBA = {
    "model_type": "mamba2",
    "hidden_size": 2560,
    "num_heads": 80,
    "head_dim": 64,
    "expand": 2,
    "num_hidden_layers": 64,
    "vocab_size": 50288,
    "state_size": 128,
    "n_groups": 1,
    "chunk_size": 256,
    "conv_kernel": 4,
}


def test_heads_of_a_state_space_model_that_do_not_split_are_an_error(
    sartor: Callable[..., Any], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MAMBA))
    ran = sartor("lint", str(config), "--tp", 3)
    assert ran.code == 1
    assert ran.out.startswith("As stated it cannot run: tp=3 does not split ssm_num_heads=80 (tp=2 and tp=4 do).")
    assert "vocab_size" not in ran.out  # the trainer pads it
    (fault,) = (finding for finding in api.lint(MAMBA, "h100", tp=3).findings if finding.axis)
    assert (fault.rule, dict(fault.fix)) == ("unsplit_heads", {"tp": 2})


@pytest.mark.slow
def test_only_sizes_that_the_model_can_have_are_proposed() -> None:
    answer = api.estimate("qwen2.5-7b", "h100", tp=3)
    said = "tp=3 does not split num_heads=28 (27 with num_kv_heads=3 and 30 with num_kv_heads=3 do)"
    assert answer.cannot_run == said
    shape = answer.question.reading.shape
    for divided in answer.divided:
        sizes = {name: size for name, size in divided.change.items() if name != "tp"}
        assert feasible(edit(shape, **sizes), ParallelDims(tp=divided.change.get("tp", 3)))
    nano = api.lint("nemotron-3-nano", "h100", tp=3).findings[0]
    assert dict(nano.fix) == {"tp": 2}  # no other heads of its state-space mixers can be set


@pytest.mark.parametrize(("stated", "smaller"), [(16, 8), (3, 2)])
def test_the_rest_is_completed_at_the_largest_smaller_degree(stated: int, smaller: int) -> None:
    answer = api.estimate("mixtral-8x7b", "h100", ep=stated)
    assert answer.question.dims.ep == smaller
    (alone,) = (each.answer for each in answer.divided if each.change == {"ep": smaller})
    assert float(answer.time_s) == float(alone.time_s)


def test_a_point_of_a_grid_says_why_it_cannot_run() -> None:
    grid = api.estimate("qwen2.5-7b", "h100", tp=[1, 3], num_devices=24, global_batch_size=48)
    reasons = [point["cannot_run"] for point in grid.to_dict()["points"]]
    assert reasons[0] is None
    assert reasons[1].startswith("tp=3 does not split num_heads=28")
    assert reasons[1] in repr(grid)


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
    assert api.plan("gpt2", "dgx-h100", num_devices=8, global_batch_size=64, tp=2).divided == ()


@pytest.mark.parametrize("command", ["estimate", "lint", "advise", "plan"])
def test_a_degree_that_does_not_divide_the_devices_is_refused(sartor: Callable[..., Any], command: str) -> None:
    words = ("--cluster", "dgx-h100", "--num-devices", 16, "--global-batch-size", 64, "--tp", 3)
    ran = sartor(command, "qwen2.5-7b", *words)
    assert (ran.code, ran.err) == (2, "sartor: --tp=3: must divide --num-devices=16; nearest: 2 or 4\n")
