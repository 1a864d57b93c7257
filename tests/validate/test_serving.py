"""Serving rows: two times of each, servers from their columns, and rows that cannot be used."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from records.made_tables import write_csv
from sartor.cost.cost import Z80
from sartor.errors import InputError
from sartor.validate.inference import inference_body, validate_serving

SHAPE = {"L": 32, "h": 4096, "a": 32, "kv": 8, "head_dim": 128, "d_ff": 14336, "gated": 1, "vocab": 128256}
ROW: dict[str, Any] = {
    "mode": "serving_agg", "model": "Llama-3.1-8B", "gpu": "H100-SXM-80GB", "n_gpu": 1, "weight_dtype": "fp8",
    "framework": "vllm", "concurrency": 16, "isl": 1024, "osl": 512, "tp": 1, "ep": 1, "attention_dp": 1,
    "prefill_workers": "", "prefill_tp": "", "prefill_dp": "", "decode_workers": "", "decode_tp": "", "decode_dp": "",
    "ttft_ms": 100.0, "tpot_ms": 8.0, **SHAPE,
}  # fmt: skip
APART = {"mode": "serving_disagg", "tp": "", "n_gpu": 3, "prefill_workers": 1, "prefill_tp": 1, "prefill_dp": 1,
         "decode_workers": 2, "decode_tp": 1, "decode_dp": 1}  # fmt: skip


def test_a_table_of_our_own_predictions_has_no_error(tmp_path: Path) -> None:
    rows = [{**ROW, "concurrency": n, **how} for n in (1, 16, 300) for how in ({}, APART)]
    found = validate_serving(write_csv(tmp_path / "x.csv", rows)).rows
    ours = [dict(row) for row in rows]
    for row, each in zip(ours * 2, sorted(found, key=lambda each: each.words["measure"]), strict=True):
        same = (row["mode"], str(row["concurrency"])) == (each.words["mode"], each.words["concurrency"])
        target = row if same else next(r for r in ours if (r["mode"], str(r["concurrency"])) == (
            each.words["mode"], each.words["concurrency"]))  # fmt: skip
        target[f"{each.words['measure']}_ms"] = each.predicted_s * 1e3
    groups = inference_body(validate_serving(write_csv(tmp_path / "y.csv", ours)))["groups"]
    assert {(g["mode"], g["measure"]) for g in groups} == {
        (mode, measure) for mode in ("serving_agg", "serving_disagg") for measure in ("tpot", "ttft")
    }
    assert {g["table"] for g in groups} == {"serving"}
    assert [g["mape"] for g in groups] == pytest.approx([0] * 4, abs=1e-9)
    assert {g["coverage_80"] for g in groups} == {1.0}


def test_a_row_that_gives_one_time_is_judged_by_that_alone(tmp_path: Path) -> None:
    (found,) = validate_serving(write_csv(tmp_path / "x.csv", [{**ROW, "ttft_ms": ""}])).rows
    assert found.words["measure"] == "tpot"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mode": "decode_batch1"}, "must be one of serving_agg"),
        ({"framework": "tgi"}, "must be one of vllm"),
        ({"gpu": "h100_sxn"}, "nearest: h100_sxm"),
        ({"weight_dtype": "int3"}, "not one of"),
        ({"concurrency": ""}, "concurrency is not a number"),
        ({"concurrency": 0}, "concurrency is not from 1"),
        ({"osl": "long"}, "osl is not a number"),
        ({"n_gpu": 4}, "tp x attention_dp is not n_gpu"),
        ({"tp": 3, "n_gpu": 3}, "does not split"),
        ({"tpot_ms": "", "ttft_ms": ""}, "neither tpot_ms nor ttft_ms"),
        ({"tpot_ms": -1}, "tpot_ms is not"),
        ({**APART, "prefill_workers": ""}, "prefill_workers is not given"),
        ({**APART, "decode_gpus": 5}, "decode_workers x tp x dp is not decode_gpus"),
        ({"model": "Nobody-7B", "L": ""}, "the zoo does not know it"),
        ({"weight_dtype": "bf16", "model": "llama-2-70b", "L": ""}, "do not fit in memory"),
    ],
)
def test_a_row_that_cannot_be_expressed_is_counted_and_the_rest_kept(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    rows = [{**ROW, "decode_gpus": ""}, {**ROW, "decode_gpus": "", **change}]
    body = inference_body(validate_serving(write_csv(tmp_path / "x.csv", rows)))
    assert body["expressed"] == 2
    (reason,) = body["not_expressed"]
    assert why in reason


def test_servers_that_no_row_counts_make_a_bracket_over_every_number(tmp_path: Path) -> None:
    unsaid = {**APART, "prefill_workers": "", "decode_workers": "", "n_gpu": ""}
    counted = [
        {**APART, "prefill_workers": x, "decode_workers": y, "n_gpu": x + y} for x in (1, 3, 7) for y in (1, 2, 9)
    ]
    rows = [{**ROW, **sizes} for sizes in (unsaid, *counted)]
    answer = validate_serving(write_csv(tmp_path / "x.csv", rows))
    for measure in ("tpot", "ttft"):
        (bracket,) = (row for row in answer.rows if row.bracket and row.words["measure"] == measure)
        wide = Z80 * bracket.log_sigma
        for row in answer.rows:
            if not row.bracket and row.words["measure"] == measure:
                assert abs(math.log(row.predicted_s / bracket.predicted_s)) + Z80 * row.log_sigma <= wide + 1e-9
    groups = {group["mode"]: group for group in inference_body(answer)["groups"] if group["measure"] == "tpot"}
    assert groups["serving_disagg_open"]["mape"] is None, "no error of what is no prediction"
    assert groups["serving_disagg_open"]["coverage_80"] in (0.0, 1.0)
    assert groups["serving_disagg"]["targets"] == len(counted)


def test_seconds_where_milliseconds_belong_are_named(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "tpot_ms": 0.008, "ttft_ms": ""}]
    body = inference_body(validate_serving(write_csv(tmp_path / "x.csv", rows)))
    assert ["in milliseconds" in reason for reason in body["not_expressed"]] == [True]


def test_the_zoos_model_is_taken_where_the_columns_agree_with_it(tmp_path: Path) -> None:
    """gpt-oss attends to 128 tokens in every other layer, which no column says."""
    oss = {"model": "GPT-OSS-120B", "L": 36, "h": 2880, "a": 64, "kv": 8, "head_dim": 64, "d_ff": 2880, "vocab": 201088,
           "experts": 128, "topk": 4, "moe_d_ff": 2880, "gpu": "h200", "isl": 60000, "concurrency": 1}  # fmt: skip
    rows = [{**ROW, **oss}, {**ROW, **oss, "model": "another mixture"}]
    found = validate_serving(write_csv(tmp_path / "x.csv", rows)).rows
    first, other = (next(r.predicted_s for r in found if r.words["model"] == row["model"]) for row in rows)
    assert first < other


def test_no_usable_row_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of its 1 rows can be predicted"):
        validate_serving(write_csv(tmp_path / "x.csv", [{**ROW, "framework": "tgi"}]))
