"""Inference rows: shapes from their columns, modes as they say, and hostile files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from records.made_tables import write_csv
from sartor.errors import InputError
from sartor.model.counts import count_params
from sartor.model.zoo import load_model
from sartor.validate.inference import inference_body, validate_inference
from sartor.validate.row_shapes import shape_of

LLAMA = {"L": 32, "h": 4096, "a": 32, "kv": 8, "head_dim": 128, "d_ff": 14336, "gated": 1, "vocab": 128256}
ROW: dict[str, Any] = {
    "mode": "decode_batch1", "model": "Llama-3.1-8B", "gpu": "A100-SXM-80GB", "weight_dtype": "bf16", "batch": 1,
    "isl": "", "osl": 200, "tp": 1, "pp": 1, "tpot_ms": 10.65, "output_tokens_per_s": "", "latency_ms": "", **LLAMA,
}  # fmt: skip


def predicted(tmp_path: Path, row: dict[str, Any]) -> float:
    (found,) = validate_inference(write_csv(tmp_path / "one.csv", [row])).rows
    assert not found.reason
    return found.predicted_s


def test_a_shape_from_columns_is_the_zoos() -> None:
    shape = shape_of({**{k: str(v) for k, v in ROW.items()}})
    assert count_params(shape).total == count_params(load_model("llama-3.1-8b")).total


def test_a_table_of_our_own_predictions_has_no_error(tmp_path: Path) -> None:
    time_s = predicted(tmp_path, ROW)
    rows = [{**ROW, "tpot_ms": time_s * 1e3}, {**ROW, "tpot_ms": time_s * 1.25e3, "gpu": "a100"}]
    groups = inference_body(validate_inference(write_csv(tmp_path / "x.csv", rows)))["groups"]
    assert [group["mape"] for group in groups] == pytest.approx([0, 0.2], abs=1e-9)
    assert groups[1]["bias"] == pytest.approx(-0.2)


def test_the_worst_say_what_their_time_is_made_of_and_groups_whose_coefficients_they_have(tmp_path: Path) -> None:
    rows = [{**ROW, "tpot_ms": 100.0}, {**ROW, "tpot_ms": 100.0, "gpu": "gh200"}]
    groups = inference_body(validate_inference(write_csv(tmp_path / "x.csv", rows)))["groups"]
    assert {group["calibration"] for group in groups} == {"own", "borrowed from h200_sxm"}
    (case,) = groups[0]["worst"]
    shares = [int(part.rsplit(" ", 1)[1].rstrip("%")) for part in case["largest_parts"].split(", ")]
    assert case["largest_parts"].startswith("products ")
    assert shares == sorted(shares, reverse=True)
    assert 90 <= sum(shares) <= 101


def test_steps_in_another_unit_are_counted_or_remarked(tmp_path: Path) -> None:
    time_ms = predicted(tmp_path, ROW) * 1e3
    rows = [{**ROW, "tpot_ms": time_ms * 1e3} for _ in range(5)]
    body = inference_body(validate_inference(write_csv(tmp_path / "x.csv", rows)))
    assert ["as if they were microseconds" in remark for remark in body["remarks"]] == [True]
    with pytest.raises(InputError, match="are times in milliseconds"):
        validate_inference(write_csv(tmp_path / "y.csv", [{**ROW, "tpot_ms": time_ms / 1e3}]))


def test_a_decoding_step_reads_at_least_the_weights(tmp_path: Path) -> None:
    assert predicted(tmp_path, ROW) > 7.5e9 * 2 / 2039e9


def test_throughput_is_the_prefill_and_steps_of_a_full_batch(tmp_path: Path) -> None:
    row = {**ROW, "mode": "offline_max_throughput", "isl": 1000, "osl": 1000, "output_tokens_per_s": 5000}
    (found,) = validate_inference(write_csv(tmp_path / "x.csv", [row])).rows
    kv = 2 * 32 * 8 * 128 * 2 * 2000
    assert found.batch == int((0.9 * 80 * 2**30 - 8_030_261_248 * 2) // kv)
    assert found.measured_s == 1 / 5000
    longer = {**row, "osl": 100, "output_tokens_per_s": 1000}
    assert predicted(tmp_path, longer) > found.predicted_s, "a prompt shared by fewer tokens costs more per token"


QWEN = {"L": 48, "h": 2048, "a": 32, "kv": 4, "head_dim": 128, "d_ff": 6144, "gated": 1, "vocab": 151936,
        "experts": 128, "topk": 8, "moe_d_ff": 768}  # fmt: skip
LOAD = {**ROW, "mode": "offline_max_throughput", "isl": 1000, "osl": 1000, "output_tokens_per_s": 5000}


def test_a_cache_in_8_bits_is_read_in_half_the_time_of_one_in_16(tmp_path: Path) -> None:
    """Of the attention of a full batch, nearly; weights and products are the 8-bit ones'."""
    row = {**LOAD, "gpu": "H100-SXM-80GB", "weight_dtype": "fp8", "isl": 128, "osl": 4096}
    (found,) = validate_inference(write_csv(tmp_path / "x.csv", [row])).rows
    kv_bytes = 2 * 32 * 8 * 128 * (128 + 4096 // 2) * found.batch
    step_s = found.predicted_s * found.batch
    assert kv_bytes / 3.35e12 < step_s < 2 * kv_bytes / 3.35e12


def test_experts_over_a_slow_network_are_served_with_heads_apart_unless_the_row_says_not(tmp_path: Path) -> None:
    row = {**LOAD, **QWEN, "model": "a mixture", "gpu": "RTX-PRO-6000-Blackwell-Server-96GB", "weight_dtype": "fp4"}
    rows = [{**row, "tp": 8, "attention_dp": said} for said in ("", "1", "0")]
    chosen, apart, split = validate_inference(write_csv(tmp_path / "x.csv", rows)).rows
    assert chosen.predicted_s == apart.predicted_s < split.predicted_s
    assert apart.batch > split.batch, "keys and values of four heads are held once, not on all eight devices"


def test_a_pipeline_of_n_stages_gives_nearly_n_times_the_tokens_and_holds_more_sequences(tmp_path: Path) -> None:
    """Each device has half the weights to hold, so more sequences fit, and half the layers to run."""
    row = {**LOAD, "gpu": "RTX-PRO-6000-Blackwell-Server-96GB", "weight_dtype": "fp4"}
    alone, two = validate_inference(write_csv(tmp_path / "x.csv", [row, {**row, "pp": 2}])).rows
    assert 1.5 < alone.predicted_s / two.predicted_s <= 2.2
    assert two.batch > 2 * alone.batch


def test_a_token_that_passes_two_stages_in_turn_takes_as_long_and_a_transfer_more(tmp_path: Path) -> None:
    alone, two = validate_inference(write_csv(tmp_path / "x.csv", [ROW, {**ROW, "pp": 2}])).rows
    assert alone.predicted_s < two.predicted_s < 1.02 * alone.predicted_s


def test_another_word_for_attention_dp_is_not_guessed(tmp_path: Path) -> None:
    row = {**LOAD, **QWEN, "model": "a mixture", "gpu": "b200", "weight_dtype": "fp4", "tp": 2}
    rows = [{**row, "attention_dp": said} for said in ("", "maybe")]
    body = inference_body(validate_inference(write_csv(tmp_path / "x.csv", rows)))
    assert body["not_expressed"] == {"attention_dp maybe: must be 0 or 1": 1}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mode": "serving_agg"}, "`sartor validate serving` reads it"),
        ({"gpu": "h100_sxn"}, "nearest: h100_sxm"),
        ({"weight_dtype": "int3"}, "not one of"),
        ({"tpot_ms": "fast"}, "tpot_ms is not a number"),
        ({"tpot_ms": ""}, "none of tpot_ms"),
        ({"L": "", "model": "Nobody-7B"}, "the zoo does not know it"),
        ({"h": "x"}, "is not a number"),
        ({"L": "0"}, "is below 1"),
        ({"pp": 0}, "pp is below 1"),
        ({"tp": 3}, "does not split"),
        ({"tp": 0}, "tp is below 1"),
        ({"batch": "-1"}, "batch is not"),
    ],
)
def test_a_row_that_cannot_be_expressed_is_counted_and_the_rest_kept(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    body = inference_body(validate_inference(write_csv(tmp_path / "x.csv", [ROW, {**ROW, **change}])))
    assert body["expressed"] == 1
    ((reason, count),) = body["not_expressed"].items()
    assert (why in reason, count) == (True, 1)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"a,b\n1,2\n", b"mode,model\n"])
def test_a_file_that_is_no_table_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match="data=") as caught:
        validate_inference(path)
    assert "\n" not in str(caught.value)


def test_nothing_usable_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of its 1 rows"):
        validate_inference(write_csv(tmp_path / "x.csv", [{**ROW, "gpu": "abacus"}]))


@pytest.mark.slow
def test_the_published_rows_are_mostly_expressed(shared_dir: Path) -> None:
    found = validate_inference(shared_dir / "data" / "end_to_end")
    good = [row for row in found.rows if not row.reason]
    assert len(good) == len(found.rows) == 291
    assert all(row.predicted_s > 0 for row in good)
    assert replace(found, worst=1).worst == 1


def test_a_compiled_pass_fuses_what_an_eager_one_runs_step_by_step(tmp_path: Path) -> None:
    row = {**ROW, "mode": "prefill_forward", "weight_dtype": "fp32", "isl": 512, "latency_ms": 900, "tpot_ms": ""}
    eager = {**row, "framework": "PyTorch / HF transformers", "note": "eager"}
    rows = [eager, {**eager, "note": "torch.compile"}, {**row, "framework": "a server", "note": ""}]
    slow, fused, served = validate_inference(write_csv(tmp_path / "x.csv", rows)).rows
    assert fused.predicted_s == served.predicted_s < slow.predicted_s


def test_an_encoder_has_no_head_over_the_vocabulary() -> None:
    sizes = {"L": "24", "h": "1024", "a": "16", "kv": "16", "head_dim": "64", "d_ff": "4096", "gated": "0"}
    shape = shape_of({**sizes, "vocab": "30522", "model": "bert_large"})
    assert shape.encoder_only
    assert not shape.lm_head


def test_a_switch_transformer_has_a_decoder_as_deep_as_its_encoder() -> None:
    sizes = {"L": "24", "h": "1024", "a": "32", "kv": "32", "head_dim": "32", "d_ff": "16384", "gated": "0"}
    experts = {"experts": "4", "topk": "1", "moe_d_ff": "16384", "arch": "moe"}
    shape = shape_of({**sizes, **experts, "vocab": "32128", "model": "switchxl4"})
    assert [stack.num_layers for stack in shape.stacks] == [24, 24]
    assert shape.stacks[1].runs[0].layer.mixers[1].cross
