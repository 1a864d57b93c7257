"""Mixtures of experts of equal size: both equations hold, and what is said of them is fair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sartor import api
from sartor.hardware.catalog import load_gpu
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.workload import ModelReading, ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.read.huggingface import read_model
from sartor.shapes.mixes import equal_mixes
from sartor.shapes.near import build_space
from sartor.shapes.quality import QualityGuard
from sartor.shapes.search import search_shapes
from sartor.shapes.space import EXPERT_FIELDS
from sartor.web.answers import written_config

FAMILIES = ("mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b", "gpt-oss-120b")
SETTINGS = {"step": 1, "grain": 64, "finest": 2.0, "tolerance": 0.01}


def mixes_of(name: str, **changes: object) -> list[dict[str, int]]:
    shape = load_model(name)
    found = equal_mixes(shape, set(shape.fields()), **{**SETTINGS, **changes})  # type: ignore[arg-type]
    return [dict(zip(found, map(int, row), strict=True)) for row in zip(*found.values(), strict=True)]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("tolerance", [0.001, 0.01])
def test_every_mix_keeps_total_and_active_parameters(name: str, tolerance: float) -> None:
    shape, (own, *others) = load_model(name), mixes_of(name, tolerance=tolerance)
    base = count_params(shape)
    assert own == {field: shape.fields()[field] for field in own}
    assert others
    for mix in others:
        counts = count_params(edit(shape, **mix))
        assert counts.total == pytest.approx(base.total, rel=tolerance)
        assert counts.active == pytest.approx(base.active, rel=tolerance)
        assert mix["experts_per_token"] <= mix["num_experts"]


@pytest.mark.parametrize("field", EXPERT_FIELDS[:3])
def test_no_expert_field_changes_alone(field: str) -> None:
    # Experts, top-k and width are bound by two equations, so a lone change is no mix of the same size.
    own, *others = mixes_of("qwen3-30b-a3b")
    assert all({name for name in own if mix[name] != own[name]} != {field} for mix in others)


def test_a_field_that_is_frozen_stays_in_every_mix() -> None:
    shape = load_model("deepseek-v3")
    kept = set(shape.fields()) - {"experts_per_token"}
    found = equal_mixes(shape, kept, **SETTINGS)  # type: ignore[arg-type]
    assert set(found["experts_per_token"].tolist()) == {8}
    assert len(set(found["num_shared_experts"].tolist())) > 1


def test_experts_split_over_the_devices_that_share_them() -> None:
    workload = Workload(shape=load_model("deepseek-v3"))
    space = build_space(workload, ParallelDims(ep=48), QualityGuard())
    assert all(count % 48 == 0 for count in space.mixes["num_experts"][1:].tolist())


def test_shared_experts_are_traded_for_routed_ones_at_the_same_width() -> None:
    # k - 1 routed and s + 1 shared of the same width: active parameters equal, total by one expert of 257.
    traded = [mix for mix in mixes_of("deepseek-v3") if mix["expert_ffn_hidden_size"] == 2048]
    assert {(mix["experts_per_token"], mix["num_shared_experts"]) for mix in traded} >= {(8, 1), (7, 2), (6, 3)}


@pytest.mark.parametrize("phase", ["train", "decode"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_mix_shown_has_both_gains_evidence_and_a_config(name: str, phase: str) -> None:
    found = api.advise(name, "h100_sxm", objective=phase).search
    assert found.mixes
    for mix in found.mixes:
        assert set(mix.gains) >= {"train", "decode"}
        assert all(gain.low <= gain.speedup <= gain.high for gain in mix.gains.values())
        assert mix.quality.moved
        assert all(check.source for check in mix.quality.moved)
    sets = {field: new for field, (_, new) in found.mixes[0].changed.items()}
    assert api.read(name, sets).shape.fields().items() >= sets.items()
    assert written_config({"model": name, "set": sets, "config": None})


def test_coarser_experts_are_advised_only_when_asked_for() -> None:
    # Expert parallelism sends every token to fewer experts, so coarser ones surely gain; studies found them worse.
    workload = Workload(shape=load_model("qwen3-30b-a3b"), phase=Phase.TRAIN)
    kept, freed = (
        search_shapes(workload, [load_gpu("h100_sxm")], ParallelDims(ep=8), free=free)
        for free in ((), ("experts_per_token",))
    )
    assert any(mix.quality.adverse and mix.gains["train"].low > 1 for mix in kept.mixes)
    assert not any("experts_per_token" in each.changed for each in kept.candidates)
    best = freed.candidates[0]
    assert best.num_fields >= 3  # experts, top-k and width count each
    assert best.fields["experts_per_token"] < 8
    assert best.efficiency_low > 1
    assert any(check.adverse for check in best.quality.moved)


def test_ranks_of_latent_attention_change_only_when_asked_for() -> None:
    workload = Workload(shape=load_model("deepseek-v2-lite"), phase=Phase.DECODE, context_len=32768)
    kept = build_space(workload, ParallelDims())
    freed = build_space(workload, ParallelDims(), free=("kv_lora_rank",))
    assert kept.grid()["kv_lora_rank"].size == 1 < freed.grid()["kv_lora_rank"].size
    assert any("kv_lora_rank is kept" in line for line in kept.assumptions)


def test_a_rank_carries_its_norm() -> None:
    shape = load_model("deepseek-v3")
    narrow = edit(shape, kv_lora_rank=448, q_lora_rank=1472)
    h, layers, heads = 7168, 61, 128
    per_layer = 64 * (h + heads * 256 + 1) + 64 * (h + heads * 192 + 1)
    assert count_params(shape).total - count_params(narrow).total == layers * per_layer


@pytest.mark.parametrize("skew", [1.0, 2.0, 4.0])
def test_advice_under_uneven_routing_is_of_the_same_estimate(skew: float) -> None:
    asked = {"ep": 8, "routing_skew": skew}
    advised = api.advise("qwen3-30b-a3b", "h100_sxm", **asked)  # type: ignore[arg-type]
    estimated = api.estimate("qwen3-30b-a3b", "h100_sxm", **asked)
    assert advised.base.time_s == estimated.time_s
    even = api.estimate("qwen3-30b-a3b", "h100_sxm", ep=8)
    assert estimated.time_s >= even.time_s


def test_the_share_of_full_attention_changes_only_when_asked_for_and_can_be_written() -> None:
    shape = load_model("gpt-oss-20b")
    assert "num_full_layers" not in search_changes("gpt-oss-20b", ())
    found = search_changes("gpt-oss-20b", ("num_full_layers",))
    assert "num_full_layers" in found
    fewer = edit(shape, num_full_layers=6)
    assert [run.count for run in fewer.main.runs] == [18, 6]
    assert fewer.main.runs[1].positions == (3, 7, 11, 15, 19, 23)
    assert count_params(fewer).total == count_params(shape).total
    written = json.loads(written_config({"model": "gpt-oss-20b", "set": {"num_full_layers": 6}, "config": None}))
    assert written["layer_types"].count("full_attention") == 6


def search_changes(name: str, free: tuple[str, ...]) -> set[str]:
    workload = Workload(shape=load_model(name), phase=Phase.DECODE, context_len=32768, microbatch_size=32)
    found = search_shapes(workload, [load_gpu("h100_sxm")], free=free)
    return {field for each in found.candidates for field in each.changed}


CONFIGS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "configs"


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "qwen3_moe", "gpt_oss", "qwen2_moe", "llama4"])
def test_every_mix_of_a_real_file_can_be_written_to_it(family: str) -> None:
    path = next(CONFIGS.glob(f"{family}/*/config.json"), None)
    if path is None:
        pytest.skip("needs ../shared/data/configs")
    config, shape = json.loads(path.read_text()), api.read(path).shape
    mixes = build_space(Workload(shape=shape), ParallelDims()).mixes
    for row in zip(*(values.tolist() for values in mixes.values()), strict=True):
        sets = {name: new for name, new in zip(mixes, row, strict=True) if new != shape.fields()[name]}
        written = json.loads(written_config({"model": None, "name": "", "set": sets, "config": config}))
        assert read_model(written).shape.fields() == {**shape.fields(), **sets}


@pytest.mark.parametrize("ep", [1, 8])
@pytest.mark.parametrize("width", [700, 701])
def test_experts_that_no_grouped_gemm_takes_are_widened_to_the_nearest_tile(width: int, ep: int) -> None:
    """704 for 701 and 700, not 640 or 768: rounding up to a tile is not a coarser mixture."""
    ragged = ModelReading(shape=edit(load_model("qwen3-30b-a3b"), expert_ffn_hidden_size=width))
    found = next(each for each in api.lint(ragged, "h100", ep=ep).findings if each.rule == "ragged_experts")
    assert found.fix == {"expert_ffn_hidden_size": 704}
    advice = api.advise(ragged, "h100", ep=ep)
    shown = advice.search.smallest_edit or advice.search.unsure
    assert shown is not None
    assert shown.changed["expert_ffn_hidden_size"] == (width, 704)
    assert not shown.quality.adverse
    if (width, ep) == (701, 8):  # with ep=1 the plan recomputes everything, and padding costs it less than 1%
        assert shown is advice.search.smallest_edit
        assert set(shown.changed) == {"expert_ffn_hidden_size"}
