"""``deploy``: the cheapest deployment is that of plain enumeration, costs are monotone, its price that of serving."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from sartor import api
from sartor.answers.serving import Choice
from sartor.api.traffic import recorded_requests, stated_request
from sartor.cli import run as sartor_command
from sartor.errors import InputError
from sartor.launch.serving import FILES, ServerPool, commands, left_to_do, server_command, serving_files
from sartor.report.table_serving import front_points
from sartor.step.serving.batching import disaggregated, steady_state
from sartor.step.serving.deploy import WORKERS, LatencyGoal, ServerLayout, servers_of, with_stages
from sartor.step.serving.served import Load, Server, capacity, server_memory

LENGTHS = {"input_len": 512, "output_len": 64}
MODEL, GPU = "llama-3.1-8b", "l4"


def fewest_devices(layout: ServerLayout, objective: LatencyGoal, requests_per_s: float) -> float:
    """GPUs of a layout by trying every number of requests in flight; infinite if none meets the objectives."""
    most = layout.most_in_flight(Load(concurrency=1, **LENGTHS))
    if not most or (layout.prefill is not None and not int(capacity(layout.prefill, 512))):
        return math.inf
    load = Load(concurrency=np.arange(1, most + 1), **LENGTHS)
    if layout.prefill is None:
        steady = steady_state(layout.server, load)
    else:
        steady = disaggregated(
            layout.prefill, layout.prefill_workers, layout.server, layout.decode_workers, load
        )  # fmt: skip
    met = (np.asarray(steady.ttft_s) <= objective.ttft_s) & (np.asarray(steady.tpot_s) <= objective.tpot_s)
    if not met.any():
        return math.inf
    most_per_s = float((np.asarray(steady.output_tokens_per_s) / 64)[met].max())
    return layout.num_devices * max(math.ceil(requests_per_s / most_per_s - 1e-9), 1)


def every_layout(server: Server, most: int) -> list[ServerLayout]:
    servers = servers_of(server, most)
    pools = [
        ServerLayout(server=then, prefill=first, prefill_workers=x, decode_workers=y)
        for first, then in itertools.product(servers, servers)
        for x, y in WORKERS
        if x * first.num_devices + y * then.num_devices <= most
    ]
    return [*(ServerLayout(server=one) for one in servers), *pools]


@settings(max_examples=times(3, 8), deadline=None)
@given(
    ttft_s=st.floats(0.3, 3.0),
    tpot_s=st.floats(0.045, 0.3),
    requests_per_s=st.floats(0.2, 12.0),
)
def test_the_cheapest_deployment_is_that_of_plain_enumeration(
    ttft_s: float, tpot_s: float, requests_per_s: float
) -> None:
    goal = {"ttft_s": ttft_s, "tpot_s": tpot_s}
    found = api.deploy(MODEL, GPU, **goal, requests_per_s=requests_per_s, most_devices=8, **LENGTHS)
    server = api.serving(MODEL, GPU, concurrency=1, tp=1).server
    counts = [fewest_devices(layout, LatencyGoal(**goal), requests_per_s) for layout in every_layout(server, 8)]
    fewest = min((count for count in counts if count <= 8), default=math.inf)
    assert (found.best.deployment.num_devices if found.best else math.inf) == fewest


def test_a_mixture_has_copies_of_attention_with_experts_split_or_whole() -> None:
    server = api.serving("mixtral-8x7b", "h100", concurrency=1, tp=2).server
    sizes = {(one.tp, one.copies, one.ep) for one in servers_of(server, 8)}
    assert {(8, 1, 1), (8, 1, 8), (2, 4, 1), (2, 4, 8), (1, 8, 8)} <= sizes
    assert all(tp * copies <= 8 and tp * copies % ep == 0 and 8 % ep == 0 for tp, copies, ep in sizes)


@pytest.mark.slow
@settings(max_examples=times(3, 6), deadline=None)
@given(rate=st.floats(0.5, 5.0), more=st.floats(1.0, 3.0), looser=st.floats(1.0, 4.0))
def test_more_load_or_a_tighter_objective_never_costs_less(rate: float, more: float, looser: float) -> None:
    def cost(per_s: float, tpot_s: float) -> float:
        found = api.deploy(MODEL, GPU, requests_per_s=per_s, tpot_s=tpot_s, pools=False, **LENGTHS)
        return math.inf if found.best is None else float(found.best.usd_per_hour or 0)

    assert cost(rate * more, 0.06) >= cost(rate, 0.06)
    assert cost(rate, 0.06 * looser) <= cost(rate, 0.06)


def test_a_deployment_has_the_price_of_serving_the_same_server() -> None:
    best = api.deploy(MODEL, "h100", requests_per_s=30, tpot_s=0.02, pools=False).best
    assert best is not None
    made = best.deployment
    load = api.serving(MODEL, "h100", concurrency=made.in_flight, tp=made.layout.server.tp).loads[0]
    assert (best.ttft_s, best.tpot_s) == (load.ttft_s, load.tpot_s)
    assert tuple(map(float, best.tpot_interval)) == (load.tpot_low_s, load.tpot_high_s)
    assert made.output_tokens_per_s == 30 * 1024 <= made.replicas * load.output_tokens_per_s


@pytest.mark.parametrize(("model", "gpu", "tp"), [(MODEL, "l4", 1), ("mixtral-8x7b", "h100", 2)])
def test_deploy_with_all_sizes_fixed_is_serving(model: str, gpu: str, tp: int) -> None:
    """Random layouts of each model, with and without servers for prompts: seconds, tokens and memory."""
    draw, lengths = np.random.default_rng(51), {"input_len": 512, "output_len": 128}
    layouts = every_layout(api.serving(model, gpu, concurrency=1, tp=tp).server, 8)
    tried = 0
    for i in draw.permutation(len(layouts)):
        layout = layouts[i]
        prompts, most = layout.prefill, layout.most_in_flight(Load(concurrency=1, **lengths))
        split = bool(prompts) and prompts.ep != (prompts.num_devices if layout.server.ep > 1 < prompts.copies else 1)
        if not most or split or (prompts and not int(capacity(prompts, 512))):
            continue  # holds no request, or `serving` divides the experts of prompts otherwise
        sizes = {"copies": layout.server.copies, "decode_workers": layout.decode_workers}
        sizes |= {"prefill_workers": layout.prefill_workers}
        sizes |= {"prefill_tp": prompts.tp, "prefill_copies": prompts.copies} if prompts else {}
        of_run = {"tp": layout.server.tp, "ep": layout.server.ep}
        users = int(draw.integers(1, most + 1))
        fix = {**of_run, **sizes, **({"prefill_ep": prompts.ep} if prompts else {})}
        best = api.deploy(model, gpu, users=users, most_devices=64, fix=fix, **lengths).best
        served = api.serving(model, gpu, concurrency=users, **lengths, **of_run, **sizes)
        load = served.loads[0]
        assert best is not None
        assert best.deployment.layout == layout
        assert best.deployment.num_devices == served.num_devices
        assert (best.ttft_s, best.tpot_s) == (load.ttft_s, load.tpot_s)
        bounds = (*best.ttft_interval, *best.tpot_interval)
        assert tuple(map(float, bounds)) == (load.ttft_low_s, load.ttft_high_s, load.tpot_low_s, load.tpot_high_s)
        assert best.deployment.output_tokens_per_s == pytest.approx(load.output_tokens_per_s, rel=1e-12)
        assert server_memory(best.deployment.layout.server) == served.memory
        tried += 1
        if tried == times(12, 30):
            break
    assert tried == times(12, 30)


def test_advice_on_serving_has_the_deployment_of_every_shape() -> None:
    found = api.advise(MODEL, "h100", objective="serve:tpot=0.02,rate=60,output_len=256,most_devices=16", top=3)
    asked = {"tpot_s": 0.02, "requests_per_s": 60, "output_len": 256, "most_devices": 16, "pools": False}
    usual, *others = found.served
    assert not usual.changed
    assert others
    assert others == sorted(others, key=lambda shape: shape.cost)
    for shape in found.served:
        alone = api.deploy(MODEL, "h100", set={name: new for name, (_, new) in shape.changed.items()}, **asked)
        assert alone.best is not None
        assert shape.deployment.best is not None
        assert alone.most_load == shape.deployment.most_load
        for name in ("ttft_s", "tpot_s", "usd_per_year"):
            assert getattr(alone.best, name) == getattr(shape.deployment.best, name)
    body = found.to_dict()["served"]
    assert body[0]["best"]["usd_per_year"] == usual.deployment.best.usd_per_year
    assert body[1]["loss"]["nats"] == others[0].loss.nats


def test_experts_are_split_over_devices_that_do_not_divide_the_heads() -> None:
    """20 heads on two copies of tp 4, whose eight devices split every expert."""
    sizes = {"num_heads": 20, "num_kv_heads": 4, "head_dim": 128}
    layout = {"concurrency": 16, "tp": 4, "copies": 2}
    uneven = api.serving("mixtral-8x7b", "h100", **layout, set=sizes).loads[0]
    even = api.serving("mixtral-8x7b", "h100", **layout, set={**sizes, "num_heads": 24}).loads[0]
    assert 0.9 * even.tpot_s < uneven.tpot_s < even.tpot_s


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("serve:speed=1", "must read serve:NAME=NUMBER"),
        ("serve:rate=fast", "must read serve:NAME=NUMBER"),
        ("serve:most_devices=1,input_len=100000", "no layout of up to 1 devices holds one request"),
    ],
)
def test_an_objective_that_cannot_be_served_is_refused(objective: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        api.advise(MODEL, "l4", objective=objective)


def test_where_no_shape_meets_the_objectives_advice_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code = sartor_command(["advise", MODEL, "--gpu", "l4", "--objective", "serve:tpot=0.001"])
    printed = " ".join(capsys.readouterr().out.split())
    assert code == 3
    assert "as it is no deployment. None of" in printed
    assert "None of the other shapes meets the objectives either." in printed


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        ({"tq": 2}, "is not a size of a layout"),
        ({"tp": 3}, "is no layout of up to"),
        ({"tp": "x"}, "must be an integer"),
        ({"tp": 4}, "and tp=2 are two sizes: give one of them"),
    ],
)
def test_sizes_that_no_layout_has_are_refused(fix: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        api.deploy(MODEL, "h100", fix=fix, **({"tp": 2} if "two sizes" in words else {}))


def test_a_wanted_probability_costs_more_and_is_kept() -> None:
    even, sure = (api.deploy(MODEL, "h100", tpot_s=0.02, probability=share, pools=False).best for share in (None, 0.95))
    assert even is not None
    assert sure is not None
    assert sure.deployment.likely >= 0.95 > even.deployment.likely
    assert even.usd_per_million_tokens is not None
    assert sure.usd_per_million_tokens is not None
    assert sure.usd_per_million_tokens > even.usd_per_million_tokens


def said_by(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    sartor_command(words)
    return " ".join(capsys.readouterr().out.split())


def test_where_only_the_probability_is_out_of_reach_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    goal = {"ttft_s": 0.1, "tpot_s": 0.03, "requests_per_s": 20, "probability": 0.9, "pools": False}
    answer = api.deploy("qwen2.5-32b", "h100", dtype="fp8", **goal)
    assert answer.best is None
    assert answer.most_likely is not None
    likely = answer.most_likely[1]
    assert 0.5 < likely < 0.9
    assert api.deploy(
        "qwen2.5-32b", "h100", dtype="fp8", **{**goal, "probability": likely - 0.02, "requests_per_s": 0}
    ).best
    words = "deploy qwen2.5-32b --gpu h100 --dtype fp8 --rate 20 --ttft .1 --tpot .03 --probability .9 --no-pools"
    said = said_by(words.split(), capsys)
    assert "with 90%, though the predictions of some do" in said
    assert "a token takes at least" not in said


def test_a_deployment_that_more_likely_misses_says_so_first_and_names_a_sure_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    goal = {"tpot_s": 0.0105, "ttft_s": 0.11, "pools": False}
    answer = api.deploy(MODEL, "h100", **goal)
    assert answer.best is not None
    assert answer.best.deployment.likely < 0.5
    assert answer.surer is not None
    assert answer.surer.deployment.likely >= 0.9
    assert answer.surer.usd_per_hour == api.deploy(MODEL, "h100", **goal, probability=0.9).best.usd_per_hour
    words = f"deploy {MODEL} --gpu h100 --tpot 0.0105 --ttft 0.11 --no-pools"
    said = said_by(words.split(), capsys)
    assert said.index("more likely to miss the objectives than to meet them") < said.index("First token")
    assert f"the cheapest that is 90% likely to: {answer.surer.deployment.num_devices} h100_sxm as" in said


def test_of_deployments_of_one_cost_the_faster_is_chosen() -> None:
    answer = api.deploy("qwen3-8b", "h100", requests_per_s=5, kernels="any", dtype="bf16,fp8", pools=False)
    assert answer.best is not None
    equal = [one for one in answer.choices if one.usd_per_hour == answer.best.usd_per_hour]
    assert len(equal) > 3
    assert answer.best.tpot_s == min(one.tpot_s for one in equal)


def test_one_gpu_without_a_price_leaves_the_others_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    answer = api.deploy(MODEL, ["l4", "h20"], users=8, pools=False)
    for one in answer.choices:
        assert (one.usd_per_hour is None) == (one.deployment.layout.server.gpu.name in answer.unpriced)
    assert len({one.usd_per_hour is None for one in answer.choices}) == 2
    counts = [one.deployment.num_devices for one in answer.choices]
    assert counts == sorted(counts)
    said = said_by(f"deploy {MODEL} --gpu l4,h20 --users 8 --no-pools".split(), capsys)
    assert "(no price of h20 is known)" in said


@pytest.mark.slow
def test_why_not_compares_the_best_with_the_sizes_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    goal = {"requests_per_s": 5, "tpot_s": 0.03, "pools": False}
    answer = api.deploy(MODEL, "h100", **goal, why_not={"tp": 8})
    assert answer.why_not is not None
    assert answer.best is not None
    fixed = api.deploy(MODEL, "h100", **goal, fix={"tp": 8})
    assert answer.why_not.best.tpot_s == fixed.best.tpot_s
    assert answer.to_dict()["why_not"]["best"]["tp"] == 8
    assert answer.best.tpot_s == api.deploy(MODEL, "h100", **goal).best.tpot_s
    said = said_by(f"deploy {MODEL} --rate 5 --tpot .03 --no-pools --why-not tp=8".split(), capsys)
    assert "The cheapest with the sizes of --why-not is 8 h100_sxm as tp 8 (bf16, vllm): 8 GPUs, 55.04 USD" in said
    assert "The best: 1 GPU, 6.88 USD per hour" in said
    with pytest.raises(InputError, match="is no layout of up to"):
        api.deploy(MODEL, "h100", **goal, why_not={"tp": 3})


def test_a_limit_of_money_is_kept_and_named_where_nothing_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    goal = {"requests_per_s": 5, "tpot_s": 0.03, "pools": False}
    assert api.deploy(MODEL, "h100", **goal, most_usd_per_hour=30).choices[-1].usd_per_hour <= 30
    said = said_by(f"deploy {MODEL} --rate 5 --tpot .03 --no-pools --most-usd-per-hour 5".split(), capsys)
    assert "no deployment. What meets the objectives costs at least 6.88 USD per hour." in said
    for gpu, usd, words in (("h20", 5, "needs a price of h20"), ("h100", 0, "must be USD per hour above 0")):
        with pytest.raises(InputError, match=words):
            api.deploy(MODEL, gpu, **goal, most_usd_per_hour=usd)


@pytest.mark.slow
def test_without_a_first_token_stated_the_front_has_no_load_that_mostly_waits() -> None:
    front = api.deploy(MODEL, "h100", users=64, most_devices=16).front
    split = [point for point in front if point.layout.prefill]
    assert split
    for point in split:
        layout, prompts = point.layout, point.layout.prefill
        sizes = {"tp": layout.server.tp, "decode_workers": layout.decode_workers, "prefill_tp": prompts.tp}
        alone = api.serving(MODEL, "h100", concurrency=1, prefill_workers=layout.prefill_workers, **sizes).loads[0]
        per_s = point.tokens_per_s_per_device * layout.num_devices / 1024
        assert per_s * (point.ttft_s - alone.ttft_s) < layout.prefill_workers


def test_the_front_holds_no_layout_that_another_beats() -> None:
    front = api.deploy("mixtral-8x7b", "h100", most_devices=16, pools=False).front
    points = [(point.tokens_per_s_per_device, point.tokens_per_s_per_request) for point in front]
    assert points == sorted(points, key=lambda point: -point[1])
    assert all(not (a >= c and b >= d) for (a, b), (c, d) in itertools.permutations(points, 2))


def test_several_devices_types_and_engines_are_compared_and_those_that_cannot_be_are_named() -> None:
    words = {"dtype": "bf16,nvfp4", "kernels": "any", "users": 64, "tpot_s": 0.02, "price": 2.0}
    found = api.deploy(MODEL, ["a100", "b200"], pools=False, **words)
    kinds = {(c.deployment.layout.server.gpu.name, c.deployment.layout.server.dtype.value) for c in found.choices}
    assert ("b200_sxm", "nvfp4") in kinds
    assert any("a100" in name and "nvfp4" in name for name in found.refused)


def test_engines_are_compared_with_keys_and_values_of_one_type() -> None:
    words = {"dtype": "fp8", "users": 64, "pools": False, "most_devices": 4}
    several = api.deploy(MODEL, "h100", kernels="any", **words)
    assert {choice.deployment.layout.server.cache.value for choice in several.choices} == {"bf16"}
    assert several.unstated["kv_dtype"] == "bf16"
    assert any("its own are fp8" in note for note in several.assumptions)
    own = api.deploy(MODEL, "h100", kernels="trtllm", **words)
    assert own.unstated["kv_dtype"] == "fp8"
    stated = api.deploy(MODEL, "h100", kernels="any", kv_dtype="fp8", **words)
    assert {choice.deployment.layout.server.cache.value for choice in stated.choices} == {"fp8"}
    assert "kv_dtype" not in stated.unstated


@pytest.mark.parametrize(
    ("model", "dtype", "fix", "near", "kept"),
    [
        ("qwen3-235b-a22b", "fp8_block", {"tp": 8, "ep": 1}, "ep=8 or tp=4", {"tp": 8, "ep": 8}),
        ("qwen2.5-72b", "int4_wo", {"tp": 2}, "tp=1", {"tp": 1}),
    ],
)
def test_layouts_that_cut_a_block_of_weights_with_one_scale_are_refused(
    model: str, dtype: str, fix: dict[str, int], near: str, kept: dict[str, int]
) -> None:
    words = {"dtype": dtype, "users": 8, "pools": False}
    for ask in (partial(api.deploy, fix=fix, **words), partial(api.serving, dtype=dtype, concurrency=8, **fix)):
        with pytest.raises(InputError, match="that share a scale") as refused:
            ask(model, "h100")
        assert (refused.value.field, refused.value.nearest) == ("tp", near)
    found = api.deploy(model, "h100", fix=kept, **words)
    assert found.best is not None
    everything = api.deploy(model, "h100", **words)
    assert any("that share a scale" in why for why in everything.refused.values())
    sizes = [(c.deployment.layout.server.tp, c.deployment.layout.server.ep) for c in everything.choices]
    assert (fix["tp"], fix.get("ep", 1)) not in sizes
    api.serving(model, "h100", dtype="bf16", concurrency=8, tp=8, ep=1)  # which has no such blocks
    for ask in (api.estimate, api.lint, partial(api.advise, objective="decode")):
        words = {"dtype": dtype, "tp": fix["tp"]} | ({"phase": "decode"} if ask in (api.estimate, api.lint) else {})
        answer = ask(model, "h100", **words)
        base = getattr(answer, "base", answer)
        assert base.infeasible
        assert "that share a scale" in answer.to_dict()["cannot_run"]


@pytest.mark.parametrize(
    ("gpu", "kernels", "dtype", "near"),
    [("a100", "vllm", "int4", "int4_wo"), ("a100", "trtllm", "int4", "int4_wo"), ("b200", "vllm", "int8", "fp8")],
)
def test_a_type_that_an_engine_has_no_kernel_for_is_refused(gpu: str, kernels: str, dtype: str, near: str) -> None:
    for ask in (partial(api.deploy, users=4), partial(api.serving, concurrency=4)):
        with pytest.raises(InputError, match="has no kernel") as refused:
            ask(MODEL, gpu, dtype=dtype, kernels=kernels)
        assert (refused.value.field, refused.value.nearest) == ("dtype", near)
    assert "has no kernel" in api.estimate(MODEL, gpu, phase="decode", dtype=dtype, kernels=kernels).stopped
    found = api.deploy(MODEL, gpu, dtype=f"{dtype},{near}", kernels=kernels, users=4, pools=False)
    assert found.best is not None
    assert any("has no kernel" in why for why in found.refused.values())


@pytest.mark.parametrize("fix", [{"tp": 1}, {"tp": 1, "prefill_workers": 1, "prefill_tp": 1, "decode_workers": 1}])
def test_tokens_in_and_out_cost_what_the_deployment_does(fix: dict[str, int]) -> None:
    best = api.deploy(MODEL, "h100", fix=fix, users=16, price=3.6, pools="prefill_tp" in fix, **LENGTHS).best
    assert best is not None
    per_s = best.deployment.output_tokens_per_s
    whole = best.usd_per_million_tokens_in * per_s * 512 / 64 + best.usd_per_million_tokens_out * per_s
    assert whole / 1e6 * 3600 == pytest.approx(3.6 * best.deployment.num_devices)
    if "prefill_tp" in fix:
        assert best.deployment.prompt_share == 0.5
    kwh_per_hour = best.kwh_per_million_tokens * per_s * 3600 / 1e6
    assert kwh_per_hour == pytest.approx(0.7 * best.deployment.num_devices)  # 700 W each


def test_an_engine_without_a_kernel_leaves_the_others_of_any() -> None:
    found = api.deploy(MODEL, "b200", dtype="int8", kernels="any", users=4, pools=False, **LENGTHS)
    assert {choice.deployment.layout.server.engine.name for choice in found.choices} == {"sglang", "trtllm"}
    assert list(found.refused) == ["b200 int8 vllm"]
    on_amd = api.deploy(MODEL, "mi300x", kernels="any", users=4, pools=False, **LENGTHS)
    assert {choice.deployment.layout.server.engine.name for choice in on_amd.choices} == {"vllm", "sglang"}


def test_the_answer_says_the_type_and_room_of_keys_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", "mixtral-8x7b", "--users", "64", "--no-pools", "--fix", "tp=2,copies=2"]
    assert sartor_command(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert sartor_command([*words, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    memory = api.serving("mixtral-8x7b", "h100", concurrency=1, tp=2, copies=2).memory
    assert best["kv_tokens"] == 2 * int(memory.kv_tokens)
    assert best["kv_bytes"] == 4 * float(memory.kv_room_bytes)
    assert f"Keys and values in bf16: {best['kv_tokens']:,} tokens a replica" in said
    assert f"{best['utilization']:.3g} of memory, {best['step_tokens']:,} tokens a step" in said


def test_the_command_says_what_cannot_be_met_and_exits_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sartor_command(["deploy", MODEL, "--gpu", "a100", "--tpot", "0.001", "--no-pools"]) == 3
    assert "a token takes at least" in " ".join(capsys.readouterr().out.split())
    out = tmp_path / "deploy.json"
    assert sartor_command(["deploy", MODEL, "--rate", "5", "--tpot", "0.03", "--json", "--out", str(out)]) == 0
    body = json.loads(out.read_text())
    assert body["best"]["tpot_s"] <= 0.03
    assert body["best"]["flags"][0].startswith("1 x: vllm serve MODEL --tensor-parallel-size 1")


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"tpot_s": 0.0}, "tpot_s"),
        ({"probability": 1.0}, "probability"),
        ({"requests_per_s": -1.0}, "requests_per_s"),
        ({"requests_per_s": 1.0, "users": 2}, "users"),
        ({"dtype": "fp9"}, "dtype"),
        ({"percentile": 100.0}, "percentile"),
        ({"cached": 1.0}, "cached"),
        ({"draft_tokens": 3}, "acceptance"),
        ({"draft_tokens": 99, "acceptance": 0.5}, "draft_tokens"),
        ({"input_len": {50: 800}}, "input_len"),
        ({"input_len": {50: 800, 95: 100}}, "input_len"),
        ({"percentile": 95.0, "requests_per_s": 10.0}, "percentile"),
        ({"probability": 0.9, "requests_per_s": 10.0}, "probability"),
        ({"input_len": 131_000, "output_len": 1000}, "output_len"),
    ],
)
def test_bad_objectives_and_loads_are_one_sentence(words: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        api.deploy(MODEL, "h100", **words)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_lengths_beyond_the_model_are_refused_with_the_longest_that_fits() -> None:
    for lengths, near in (((800, 1000), "input_len=800 with 224"), ((2000, 10), "input_len=512 with 512")):
        with pytest.raises(InputError, match="takes at most 1024") as caught:
            api.deploy("gpt2-xl", "h100", input_len=lengths[0], output_len=lengths[1])
        assert caught.value.nearest == near


def test_a_gpu_that_there_is_not_is_refused_beside_one_that_there_is() -> None:
    with pytest.raises(InputError, match="not in the catalogue") as caught:
        api.deploy(MODEL, ["h100", "h20x0"])
    assert "h20" in caught.value.nearest


QUICK = {"tp": 1, "pools": False, "tpot_s": 0.03}


def test_a_percentile_is_a_stricter_objective_than_the_mean() -> None:
    mean, most = (
        api.deploy(MODEL, "h100", **QUICK, users=64, percentile=percent).best for percent in (None, 99)
    )  # fmt: skip
    assert mean is not None
    assert most is not None
    assert mean.quantiles_s[0] > mean.ttft_s
    assert mean.quantiles_s[1] > mean.tpot_s
    assert most.deployment.most_in_flight < mean.deployment.most_in_flight


def test_cached_prefixes_and_right_drafts_make_requests_faster() -> None:
    def best(**words: float) -> Choice:
        choice = api.deploy(MODEL, "h100", **QUICK, users=16, input_len=8192, **words).best
        assert choice is not None
        return choice

    plain, prefix, drafts = best(), best(cached=0.75), best(draft_tokens=3, acceptance=0.8)
    assert prefix.ttft_s < 0.6 * plain.ttft_s
    assert prefix.tpot_s < plain.tpot_s
    assert plain.tpot_s / 2.95 < drafts.tpot_s < plain.tpot_s / 2  # 2.95 tokens of a step that takes longer
    assert best(draft_tokens=3, acceptance=0.01).tpot_s > plain.tpot_s


def test_quantiles_of_lengths_are_a_log_normal_distribution() -> None:
    request = stated_request({"input_len": {50: 1000, 84.134474: 2000}}, 0.5)
    sigma = math.log(2)
    assert (request.input_len, request.output_len) == (round(1000 * math.exp(sigma**2 / 2)), 1024)
    assert request.prompt_cv2 == pytest.approx(math.expm1(sigma**2), rel=1e-3)
    assert request.cached_len == request.input_len // 2


def recorded(folder: Path, lines: str) -> Path:
    file = folder / "requests.csv"
    file.write_text(f"time,in,out,cached\n{lines}")
    return file


def test_recorded_requests_state_rate_lengths_and_bursts(tmp_path: Path) -> None:
    even = recorded(tmp_path, "".join(f"{i},{100 + 100 * (i % 2)},10,50\n" for i in range(101)))
    request, per_s = recorded_requests(even)
    assert (per_s, request.output_len, request.cached_len, request.longest) == (1.0, 10, 50, 210)
    assert (request.arrival_cv2, request.answer_cv2) == (0, 0)
    assert request.prompt_cv2 > 0
    found = api.deploy(MODEL, "h100", **QUICK, traffic=even)
    assert found.load.requests_per_s == 1.0


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("-1,10,10,0\n2,5,5,0\n", "line 2.*time must be a number from 0"),
        ("0,10,10,0\n1,,5,0\n", "line 3.*in must be a number from 1"),
        ("0,10,10,0\nnan,5,5,0\n", "line 3.*time must be a number"),
        ("5,10,10,0\n2,5,5,0\n", "line 3.*sort the file"),
        ("0,10,10,10\n2,5,5,0\n", "line 2.*not cached"),
        ("0,10,10,0.5\n2,5,5,0\n", "line 2.*a share as cached: it must be tokens"),
        ("0,10,10,0\n", "has 1 requests"),
        ("7,10,10,0\n" * 30, "has 30 requests at one time, 7 s"),
        ("".join(f"{i + 900 * (i > 40)},10,10,0\n" for i in range(80)), "line 42.*901 s without a request"),
    ],
)
def test_a_recording_that_says_nothing_is_refused_by_its_line(tmp_path: Path, lines: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        api.deploy(MODEL, "h100", **QUICK, traffic=recorded(tmp_path, lines))


def in_bursts(folder: Path) -> Path:
    """50 requests within 0.1 s, every 10 s."""
    times = (10 * i + 0.002 * j for i in range(60) for j in range(50))
    return recorded(folder, "".join(f"{time:.3f},1000,300,0\n" for time in times))


def test_a_burst_waits_for_the_prompts_before_it_and_takes_more_replicas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All 50 prompts of a burst on one server wait for half of them; Kingman's formula said a quarter of that."""
    burst = {"traffic": in_bursts(tmp_path), "tp": 1, "pools": False, "percentile": 95, "tpot_s": 0.03}
    for limit, replicas in ((5.0, 1), (0.5, 3)):
        best = api.deploy("qwen3-8b", "h100", ttft_s=limit, **burst).best
        assert best is not None
        steady, size = best.deployment.steady, 50 / replicas
        prompt_s = float(np.ravel(steady.each_prompt_s)[0])
        assert best.deployment.replicas == replicas
        # a prompt more to wait for each, less the time in which the replica's next request comes
        behind_s, own_s = prompt_s - 0.002 * replicas, float(np.ravel(steady.ttft_s - steady.queue.mean_s)[0])
        assert best.ttft_s == pytest.approx(own_s + (size - 1) / 2 * behind_s, rel=0.02)
        assert best.quantiles_s[0] == pytest.approx(own_s + 0.95 * (size - 1) * behind_s, rel=0.02)
        assert best.quantiles_s[0] < limit
        assert int(best.commands[0].split("--max-num-seqs ")[1].split()[0]) >= size
    words = ["deploy", "qwen3-8b", "--traffic", str(burst["traffic"]), "--tp", "1", "--no-pools", "--ttft", "5"]
    assert sartor_command(words) == 0
    assert "first tokens wait as the recorded requests would" in " ".join(capsys.readouterr().out.split())


def test_pipelines_across_nodes_are_among_the_layouts_and_the_best_is_that_of_plain_enumeration() -> None:
    """A model that no node holds: tensor parallelism over nodes, or stages on them."""
    goal = {"tpot_s": 0.2, "ttft_s": 20.0}
    found = api.deploy("llama-3.1-405b", "h100", **goal, requests_per_s=2.0, most_devices=32, pools=False, **LENGTHS)
    assert found.best is not None
    server = replace(found.best.deployment.layout.server, tp=1, pp=1)
    stages = with_stages(servers_of(server, 8), 8, 32)
    assert {(one.tp, one.pp) for one in stages} == {(8, 2), (8, 4), (4, 4), (4, 8), (2, 8)}
    layouts = [ServerLayout(server=one) for one in (*servers_of(server, 8), *stages)]
    fewest = min(fewest_devices(layout, LatencyGoal(**goal), 2.0) for layout in layouts)
    assert found.best.deployment.num_devices == fewest
    assert found.best.deployment.layout.server.pp > 1
    assert "--pipeline-parallel-size" in found.best.commands[0]
    assert "--distributed-executor-backend ray" in found.best.commands[0]


def test_load_and_lengths_beside_a_recording_are_refused(tmp_path: Path) -> None:
    file = in_bursts(tmp_path)
    for words in ({"requests_per_s": 2.0}, {"users": 4}, {"input_len": 100}, {"cached": 0.5}):
        with pytest.raises(InputError, match="is in the traffic file"):
            api.deploy(MODEL, "h100", traffic=file, **words)


def pool_of(name: str, role: str = "", **sizes: int) -> ServerPool:
    words: dict[str, int] = {"tp": 2, "copies": 4, "ep": 8, **sizes}
    server = api.serving("mixtral-8x7b", "h100", concurrency=1, kernels=name, **words).server
    return ServerPool(server=server, count=3, role=role, running=8)


def test_every_engine_has_its_own_command() -> None:
    for name, sizes, words in (
        ("vllm", {}, "--data-parallel-size 4 --enable-expert-parallel --max-num-seqs 8"),
        ("sglang", {}, "--tp-size 8 --dp-size 4 --enable-dp-attention --ep-size 8 --max-running-requests 32"),
        ("trtllm", {"tp": 1, "copies": 8}, "--tp_size 8 --max_batch_size 8 --ep_size 8 --config config.yaml"),
    ):
        assert words in server_command(pool_of(name, **sizes))
    whole = shlex.split(server_command(pool_of("vllm", role="prefill"), 4096, whole=True))
    assert json.loads(whole[whole.index("--kv-transfer-config") + 1])["kv_connector"] == "NixlConnector"
    assert whole[whole.index("--max-model-len") + 1] == "4096"
    for name in ("sglang", "trtllm"):  # which listen to their own host alone unless told
        assert "--host 0.0.0.0 --port 8000" in server_command(pool_of(name), whole=True)


def test_vllm_takes_as_many_tokens_a_step_as_sequences() -> None:
    assert "--max-num-batched-tokens 8192" in server_command(pool_of("vllm"))
    many = replace(pool_of("vllm"), running=20_000)
    for whole in (False, True):
        assert server_command(many, whole=whole).count("--max-num-batched-tokens 20000") == 1
        assert server_command(many, whole=whole).count("--max-num-batched-tokens") == 1


def test_sglang_is_told_the_chunk_of_all_copies_of_attention_which_it_divides() -> None:
    pool = pool_of("sglang")
    assert f"--chunked-prefill-size {4 * pool.server.engine.step_tokens(pool.server.gpu)}" in server_command(pool)
    assert "--chunked-prefill-size 8192" in server_command(pool_of("sglang", tp=8, copies=1))


@pytest.mark.parametrize(
    ("model", "gpu", "words", "flags", "not_flags"),
    [
        (MODEL, "l4", {}, "--max-model-len 576 --max-num-batched-tokens 2048 --gpu-memory-utilization 0.9", "--dtype"),
        (MODEL, "h100", {"kv_dtype": "fp8", "utilization": 0.8}, "utilization 0.8 --kv-cache-dtype fp8", "-model-len"),
        (MODEL, "t4", {}, "--dtype half", "--kv-cache-dtype"),
        (
            MODEL,
            "h100",
            {"kernels": "sglang", "max_num_batched_tokens": 4096},
            "--chunked-prefill-size 4096",
            "--dtype",
        ),
        ("deepseek-v3", "h100", {"tp": 16, "kernels": "sglang"}, "--nnodes 2 --node-rank RANK --dist-init-addr", "Ray"),
        ("deepseek-v3", "h100", {"tp": 16}, "--distributed-executor-backend ray", "--data-parallel-backend"),
    ],
)
def test_the_command_starts_what_was_priced(
    model: str, gpu: str, words: dict[str, object], flags: str, not_flags: str
) -> None:
    best = api.deploy(model, gpu, users=4, pools=False, **LENGTHS, **words).best
    assert best is not None
    assert flags in best.commands[0]
    assert not_flags not in best.commands[0]
    of_nodes = [note for note in best.notes() if "A server spans 2 nodes" in note]
    assert len(of_nodes) == (best.deployment.layout.server.num_devices > 8)


@pytest.mark.parametrize(
    ("gpu", "kernels", "image", "resource"),
    [
        ("mi300x", "vllm", "rocm/vllm:", "amd.com/gpu"),
        ("mi355x", "sglang", "-mi35x", "amd.com/gpu"),
        ("h100", "vllm@0.10.1", "vllm/vllm-openai:v0.10.1", "nvidia.com/gpu"),
        ("h100", "trtllm", "release:1.2.0", "nvidia.com/gpu"),
        ("h100", "vllm", "vllm/vllm-openai:v0.11.0", "nvidia.com/gpu"),
        ("tpu_v5e", "vllm", "", ""),
        ("mi300x", "vllm@0.10.1", "", ""),
    ],
)
def test_manifests_ask_for_the_devices_and_the_image_that_run_it(
    gpu: str, kernels: str, image: str, resource: str
) -> None:
    best = api.deploy(MODEL, gpu, users=4, pools=False, kernels=kernels, **LENGTHS).best
    assert best is not None
    files = serving_files(best.deployment, MODEL, 576)
    assert ("kubernetes.yaml" in files) == bool(image)
    if not image:
        assert any("no image of vllm" in note for note in best.notes())
        return
    manifests = [one for one in yaml.safe_load_all(files["kubernetes.yaml"]) if one["kind"] == "Deployment"]
    (container,) = manifests[0]["spec"]["template"]["spec"]["containers"]
    assert image in container["image"]
    engine = best.deployment.layout.server.engine
    written = re.findall(r"(?:v|vllm_|release:)(\d+\.\d+[.\d]*)", container["image"])[-1]
    assert engine.at_release(written).sizing == engine.sizing, "memory is priced as the image divides it"
    assert list(container["resources"]["limits"]) == [resource]


def test_pools_on_several_machines_are_started_with_what_they_need() -> None:
    """vLLM's side of a transfer listens on its own machine alone by default; TensorRT-LLM's servers for prompts alone
    have no overlap scheduler."""
    pools = {"requests_per_s": 20, "fix": {"prefill_workers": 1, "decode_workers": 1}, **LENGTHS}
    for kernels in ("vllm", "trtllm"):
        best = api.deploy(MODEL, "h100", kernels=kernels, **pools).best
        assert best is not None
        files = serving_files(best.deployment, "org/model", 576)
        (first, then) = [one for one in yaml.safe_load_all(files["kubernetes.yaml"]) if one["kind"] == "Deployment"]
        for one in (first, then):
            (container,) = one["spec"]["template"]["spec"]["containers"]
            variables = [variable["name"] for variable in container.get("env", [])]
            assert variables == (["VLLM_NIXL_SIDE_CHANNEL_HOST"] if kernels == "vllm" else [])
        if kernels == "vllm":
            assert all("VLLM_NIXL_SIDE_CHANNEL_HOST=ADDRESS vllm serve" in command for command in best.commands)
            assert "ADDRESS" in best.to_replace()
            assert "export VLLM_NIXL_SIDE_CHANNEL_HOST=" in files["prefill.sh"]
        else:
            assert yaml.safe_load(files["prefill-config.yaml"])["disable_overlap_scheduler"] is True
            assert "disable_overlap_scheduler" not in files["decode-config.yaml"]


def test_what_the_files_of_a_deployment_leave_to_do_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "deploy",
        "deepseek-v3",
        "--gpu",
        "h100",
        "--users",
        "64",
        "--tp",
        "16",
        "--kernels",
        "trtllm",
        "--no-pools",
    ]
    assert sartor_command([*words, "--write", str(tmp_path)]) == 0
    assert "kubernetes.yaml" not in {file.name for file in tmp_path.iterdir()}
    said = " ".join(capsys.readouterr().err.split())
    assert "A server spans 2 nodes" in said
    assert "router" not in said
    pools = api.deploy(MODEL, "h100", dtype="fp8", kernels="trtllm", users=64).best
    assert pools is not None
    layout = replace(pools.deployment.layout, prefill=pools.deployment.layout.server, prefill_workers=1)
    left = " ".join(left_to_do(replace(pools.deployment, layout=layout)))
    assert "trtllm-serve disaggregated" in left
    assert "does not quantize weights to fp8 itself" in left
    assert any("does not quantize weights to fp8 itself" in note for note in pools.notes())


def test_a_model_without_a_layer_that_drafts_is_started_with_a_draft_model_to_be_named() -> None:
    def started(model: str, engine: str) -> str:
        server = replace(api.serving(model, "h200", concurrency=1, kernels=engine).server, draft_tokens=4)
        layout = replace(drafting.deployment.layout, server=replace(server, acceptance=0.7))
        choice = replace(drafting, deployment=replace(drafting.deployment, layout=layout))
        assert ("DRAFT_MODEL" in choice.to_replace("org/model")) == (model == MODEL)
        return "".join([*commands(choice.deployment, 2048), *serving_files(choice.deployment, model, 2048).values()])

    drafting = api.deploy(MODEL, "h100", **QUICK, users=4, draft_tokens=4, acceptance=0.7).best
    assert drafting is not None
    assert "DRAFT_MODEL" in drafting.commands[0]
    for engine, words, own in (
        ("vllm", '"method": "eagle3", "model": "DRAFT_MODEL"', '"method": "mtp", "num_speculative_tokens": 4'),
        ("sglang", "EAGLE3 --speculative-draft-model-path DRAFT_MODEL", "--speculative-algorithm EAGLE --spec"),
        ("trtllm", "speculative_model_dir: DRAFT_MODEL", "num_nextn_predict_layers: 4"),
    ):
        text, text_of_own = started(MODEL, engine), started("deepseek-v3", engine)
        assert words in text
        assert own not in text
        assert own in text_of_own
        assert "DRAFT_MODEL" not in text_of_own


def test_tensorrt_llm_copies_attention_over_single_devices_only() -> None:
    server = api.serving("mixtral-8x7b", "h100", concurrency=1, tp=1, kernels="trtllm").server
    assert {(one.tp, one.copies) for one in servers_of(server, 8) if one.tp > 1 < one.copies} == set()
    assert any(one.copies == 8 for one in servers_of(server, 8))


def test_a_deployment_is_written_whole_and_over_files_only_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "deploy",
        MODEL,
        "--users",
        "8",
        "--kernels",
        "trtllm",
        "--dtype",
        "fp8",
        "--no-pools",
        "--write",
        str(tmp_path),
    ]
    assert sartor_command(words) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"server.sh", "server-config.yaml", "kubernetes.yaml"}
    manifests = list(yaml.safe_load_all((tmp_path / "kubernetes.yaml").read_text()))
    assert [one["kind"] for one in manifests] == ["ConfigMap", "Deployment", "Service"]
    (container,) = manifests[1]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "/config/server-config.yaml" in container["command"][2]
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(api, "deploy", lambda *_, **__: pytest.fail("the folder is looked at before the search"))
        assert sartor_command(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert sartor_command([*words, "--overwrite"]) == 0
    assert all(FILES.fullmatch(file.name) for file in tmp_path.iterdir())


def test_the_front_is_drawn_with_the_chosen_deployment(tmp_path: Path) -> None:
    answer = api.deploy(MODEL, "h100", **QUICK, users=16)
    points = front_points(answer)
    assert points.best is not None
    assert len(points.layouts) == len(answer.front) == points.per_device.size
    words = ["deploy", MODEL, "--users", "16", "--tp", "1", "--no-pools", "--html", str(tmp_path / "page.html")]
    assert sartor_command([*words, "--png", str(tmp_path)]) == 0
    assert "figure-front" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_where_a_gpu_has_no_price_the_first_sentence_says_that_gpus_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for load, unit in (["--users", "100"], "GPUs"), ([], "GPUs per token"):
        words = ["deploy", "mixtral-8x7b", "--gpu", "h20", "--tpot", "0.03", *load, "--most-devices", "4"]
        assert sartor_command(words) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert f"the fewest {unit} of" in said
        assert "layouts (no price of h20 is known)." in said
        assert "in cost)" not in said
        assert (f"% in {unit}, " in said) == (unit != "GPUs")  # of as many GPUs the simpler is the best itself
        assert "Name the checkpoint where it says MODEL." in said


def test_intervals_cover_the_engines_that_a_question_leaves_open() -> None:
    open_, stated = (api.deploy(MODEL, "h100", **QUICK, users=16, kernels=name).best for name in (None, "vllm"))
    assert open_ is not None
    assert stated is not None
    assert open_.elsewhere
    assert not stated.elsewhere
    others = [float(np.ravel(there.ttft_s)[0]) for there in open_.elsewhere]
    assert open_.ttft_interval[0] <= min(others) <= max(others) <= open_.ttft_interval[1]
    assert open_.tpot_s == stated.tpot_s


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_memory_that_is_printed_is_that_of_the_servers_that_are_started(tmp_path: Path, engine: str) -> None:
    best = api.deploy(MODEL, "h100", users=90, tpot_s=0.03, kernels=engine, pools=False).best
    assert best is not None
    for name, text in serving_files(best.deployment, MODEL, 2048).items():
        (tmp_path / name).write_text(text)
    server = api.serving(MODEL, "h100", launch=tmp_path)
    assert best.kv_tokens == int(server.memory.kv_tokens)
