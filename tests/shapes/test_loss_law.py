"""The expected change of loss with shape: laws of the law, studies it was not fitted on, what advice makes of it."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.api.shapes import advise
from sartor.hardware.catalog import load_gpu
from sartor.model.editing import edit
from sartor.model.workload import Workload
from sartor.model.zoo import load_model
from sartor.report.verdict import advice_lines
from sartor.shapes.quality import LossChange, expected_loss, loss_change, nats_per_efold
from sartor.shapes.search import search_shapes
from sartor.shapes.space import Equal

LLAMA, GPT2, MIXTRAL = load_model("llama-3.1-8b"), load_model("gpt2"), load_model("mixtral-8x7b")


@given(layers=st.integers(8, 64), hidden=st.sampled_from([2048, 4096, 6144]), ffn=st.sampled_from([4096, 14336, 20480]))
def test_depth_and_narrowness_are_charged_and_never_credited(layers: int, hidden: int, ffn: int) -> None:
    change = loss_change(edit(LLAMA, num_layers=layers, hidden_size=hidden, ffn_hidden_size=ffn), LLAMA)
    assert min(change.terms.get(name, 0.0) for name in ("depth", "narrowness")) >= 0
    assert (change.terms.get("depth", 0.0) > 0) == (layers < 32)
    assert change.low_nats <= change.nats <= change.high_nats


def test_an_array_of_shapes_is_judged_as_each_of_them() -> None:
    layers, heads = np.asarray([24, 32, 40]), np.asarray([16, 32, 64])
    many = loss_change(edit(LLAMA, num_layers=layers, num_heads=heads, head_dim=4096 // heads), LLAMA)
    for i, (depth, count) in enumerate(zip(layers.tolist(), heads.tolist(), strict=True)):
        one = loss_change(edit(LLAMA, num_layers=depth, num_heads=count, head_dim=4096 // count), LLAMA)
        for end in ("nats", "low_nats", "high_nats"):
            assert float(getattr(many, end)[i]) == float(getattr(one, end))


def test_the_same_shape_changes_nothing_and_a_rank_is_not_covered() -> None:
    same = loss_change(LLAMA, LLAMA)
    assert (same.nats, same.low_nats, same.high_nats, same.terms) == (0, 0, 0, {})
    deepseek = load_model("deepseek-v3")
    assert loss_change(edit(deepseek, kv_lora_rank=448), deepseek).not_covered == ("kv_lora_rank",)


def test_one_term_by_hand() -> None:
    # 32 to 28 layers: 0.70 (1/28 - 1/32) = 0.003125; 8 to 4 key/value heads: one halving, 0.004
    assert loss_change(edit(LLAMA, num_layers=28), LLAMA).terms["depth"] == pytest.approx(0.003125)
    assert loss_change(edit(LLAMA, num_kv_heads=4), LLAMA).terms["kv_heads"] == pytest.approx(0.004)
    # heads of 256 are one doubling beyond 128: 0.017; 16 heads of 160 a third of one: 0.017 log2(1.25)^2 = 0.0018
    assert loss_change(edit(LLAMA, num_heads=16, head_dim=256), LLAMA).terms["heads"] == pytest.approx(0.017)
    gpt = load_model("gpt3-2.7b")
    wide = loss_change(edit(gpt, num_heads=16, num_kv_heads=16, head_dim=160), gpt)
    assert wide.terms["heads"] == pytest.approx(0.017 * math.log2(1.25) ** 2)


def _quality(shared: Path, source: str) -> list[dict[str, str]]:
    with (shared / "reference" / "quality.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["source"].startswith(source)]


def _t5(layers: int, heads: int, ffn: int) -> LossChange:
    """Narang et al. have ``layers`` in each of two stacks; a decoder of as many in all stands for both."""
    base = edit(GPT2, num_layers=24, ffn_hidden_size=3072)
    shape = edit(base, num_layers=2 * layers, num_heads=heads, num_kv_heads=heads, head_dim=64, ffn_hidden_size=ffn)
    return loss_change(shape, base)


def test_depth_at_equal_size_agrees_with_a_study_it_was_not_fitted_on(shared_dir: Path) -> None:
    rows = [row for row in _quality(shared_dir, "Narang") if row["axis"].startswith("depth") and row["layers"] != "12"]
    assert len(rows) == 4
    for row in rows:
        terms = _t5(int(row["layers"]), int(row["num_heads"]), int(row["ffn_hidden_size"])).terms
        charged = terms.get("depth", 0.0) + terms.get("narrowness", 0.0)
        measured = float(row["value"]) - float(row["baseline_value"])
        assert charged == pytest.approx(max(measured, 0.0), abs=0.012), row


def test_differences_of_shape_at_one_and_two_billion_agree_with_gemstones(shared_dir: Path) -> None:
    groups = defaultdict(list)
    for row in _quality(shared_dir, "Gemstones"):
        if "cool" in row["table_or_figure"] and float(row["model_params"]) > 4e8:
            groups[row["tokens"], row["baseline_value"]].append(row)
    off = []
    for rows in groups.values():
        best = min(rows, key=lambda row: float(row["value"]))
        for row in rows:
            sizes = [(float(r["model_params"]), int(r["layers"]), int(r["hidden_size"])) for r in (row, best)]
            (n, layers, hidden), (n0, layers0, hidden0) = sizes
            of_size = float(expected_loss(n, 1e11) - expected_loss(n0, 1e11))
            of_shape = 0.70 * (1 / layers - 1 / layers0) + 0.15 * (layers / hidden - layers0 / hidden0)
            off.append(of_size + of_shape - (float(row["value"]) - float(best["value"])))
    assert len(off) == 20
    assert float(np.sqrt(np.mean(np.square(off)))) < 0.012


def test_the_feed_forward_share_agrees_with_the_largest_models_of_its_study(shared_dir: Path) -> None:
    rows = [row for row in _quality(shared_dir, "Bian") if row["model_params"] == "3000000000"]
    wide, narrow = (float(row["value"]) for row in (rows[0], rows[-1]))
    attention = 2 * (24 + 8) * 128  # parameters over the hidden size
    before, after = (
        edit(load_model("llama-3.2-3b"), ffn_hidden_size=round(share * attention / 3)) for share in (4.8, 1.23)
    )
    change = loss_change(after, before)
    assert change.terms["feed_forward_share"] == pytest.approx(narrow - wide, abs=0.006)


def test_fewer_key_value_heads_and_finer_experts_agree_with_studies(shared_dir: Path) -> None:
    rows = _quality(shared_dir, "Shazeer")
    one = next(row for row in rows if row["num_kv_heads"] == "1")
    multi_query = float(one["value"]) - float(one["baseline_value"])
    fewer = loss_change(edit(GPT2, num_heads=8, num_kv_heads=1), edit(GPT2, num_heads=8, num_kv_heads=8))
    assert fewer.terms["kv_heads"] == pytest.approx(multi_query, abs=0.005)
    finer = loss_change(edit(MIXTRAL, num_experts=64, experts_per_token=16, expert_ffn_hidden_size=1792), MIXTRAL)
    coarse, fine = (row for row in _quality(shared_dir, "Krajewski 2025") if row["model_params"] == "56000000000")
    measured = float(fine["value"]) - float(coarse["value"])
    assert finer.low_nats < measured < finer.high_nats


def test_at_equal_loss_no_candidate_may_raise_it() -> None:
    workload, gpus = Workload(shape=LLAMA, seq_len=2048, microbatch_size=1), [load_gpu("h100")]
    found = search_shapes(workload, gpus, free=("num_layers",), params_tolerance=0.1, equal=Equal.LOSS)
    assert found.candidates
    for candidate in found.candidates:
        assert candidate.loss.high_nats <= 1e-9
        assert candidate.efficiency_gain == candidate.speedup


def test_what_a_gain_is_worth_follows_from_the_length_of_the_run() -> None:
    advice = advise("gpt3-2.7b", "a100", num_devices=8, tokens=1e12)
    worth, edit_ = advice.worth, advice.search.smallest_edit
    assert worth is not None
    assert edit_ is not None
    assert worth.stated
    share = 1 - 1 / edit_.speedup
    assert worth.share == pytest.approx(share)
    assert worth.restart_tokens == pytest.approx(share * 1e12)
    assert worth.gained_nats == pytest.approx(0.0640 * 10**-0.32 * math.log(edit_.speedup))  # 0.32 x 0.20 at 100B
    assert nats_per_efold(1e11) == pytest.approx(0.064)
    unstated = advise("gpt3-2.7b", "a100", num_devices=8).worth
    assert unstated is not None
    assert not unstated.stated
    assert unstated.tokens == pytest.approx(20 * 2.65e9, rel=0.01)


def test_a_gain_that_costs_more_loss_than_it_buys_is_no_advice_to_change() -> None:
    said = " ".join(advice_lines(advise("llama-3.1-8b", "h100", num_devices=64, free=("num_layers",))))
    assert "Keep this shape: the fastest tried, num_layers 32 -> 28" in said
    assert "less than that costs" in said


def test_a_plan_that_cannot_hold_the_recommended_shape_is_completed_anew() -> None:
    advice = advise("llama-3-8b", "h100", free=("num_layers",))  # its plan has a chunk for every layer
    assert advice.after is not None
    assert advice.after.fits


def test_of_several_phases_the_first_lines_speak_of_all_and_of_the_vocabulary_that_is_trained() -> None:
    advice = advise("gpt3-2.7b", "h200_sxm", objective="train:0.9,prefill:0.1")
    assert advice.codesign is not None
    assert "vocab_size" not in advice.codesign.changed
    assert advice.codesign.baseline_regret < 0.06
    assert "Change for train and prefill together: num_heads 32 -> 20" in " ".join(advice_lines(advice))
