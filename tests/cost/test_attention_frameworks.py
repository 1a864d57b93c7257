"""Attention's kernels are a framework's: named, its own network prices them; unnamed, the interval covers all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sartor import api
from sartor.cost.correction.attention import PARTS, _residual_of, frameworks_of
from sartor.cost.correction.calibration import ANY, Clock, load_calibration
from sartor.cost.correction.network import residual_records
from sartor.cost.gpu.attention import attention_cost
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.operators import Attention
from sartor.records.tables import read_table
from sartor.records.targets import targets_of
from sartor.validate.predictions import predict

DECODE = Attention(
    name="decode", batch=8, num_heads=32, num_kv_heads=8, seq_q=1, seq_kv=4097, head_dim=128, v_head_dim=128
)
MEASURED = sorted({record["gpu"] for record in residual_records().values() if "." in record.get("part", "")})


@pytest.mark.parametrize("name", MEASURED)
def test_an_unknown_framework_s_interval_is_wider_than_named_ones_are_on_average(name: str) -> None:
    known = load_calibration(load_gpu(name))
    frameworks = frameworks_of(known)
    assert frameworks == ("sglang", "trtllm", "vllm")
    for part in PARTS:
        unknown = _residual_of(known.with_kernels(ANY), part)
        named = [_residual_of(known.with_kernels(each), part) for each in frameworks]
        if unknown is None:
            continue
        assert np.mean([each.log_sigma for each in named if each]) < unknown.log_sigma


def test_a_framework_s_families_run_its_attention_and_a_stranger_s_interval_covers_all() -> None:
    gpu = load_gpu("h200_sxm")
    known = load_calibration(gpu)
    family, framework = (attention_cost(DECODE, gpu, known.with_kernels(each)) for each in ("vllm_triton", "vllm"))
    assert family.time_s == framework.time_s
    middle, unknown, stranger = (attention_cost(DECODE, gpu, known.with_kernels(w)) for w in ("", ANY, "nobody"))
    assert middle.time_s == unknown.time_s == stranger.time_s
    assert unknown.log_sigma == stranger.log_sigma > max(middle.log_sigma, framework.log_sigma)


@pytest.mark.parametrize("framework", ["sglang", "trtllm", "vllm"])
def test_an_entry_of_a_grid_equals_the_scalar_call_for_every_framework(framework: str) -> None:
    gpu = load_gpu("h200_sxm")
    known, lengths = load_calibration(gpu).with_kernels(framework), np.array([2, 500, 4097, 70000])
    many = attention_cost(replace(DECODE, seq_kv=lengths), gpu, known)
    for i, length in enumerate(lengths.tolist()):
        one = attention_cost(replace(DECODE, seq_kv=length), gpu, known)
        assert (many.time_s[i], many.log_sigma[i]) == (one.time_s, one.log_sigma)


def test_a_gpu_of_the_same_die_runs_the_framework_s_kernels_and_another_die_s_does_not() -> None:
    assert "vllm" in frameworks_of(load_calibration(load_gpu("h100_nvl")))
    assert frameworks_of(load_calibration(load_gpu("l40s"))) == ()


def test_an_estimate_takes_the_framework_or_says_which_it_assumes() -> None:
    question = {"phase": "decode", "microbatch_size": 64, "context_len": 32768}
    usual, named = (api.estimate("llama-3.1-8b", "h200", **question, kernels=each) for each in (None, "vllm"))
    assert usual.time_s == named.time_s
    assert any("kernels=vllm (default)" in line for line in usual.question.assumptions)
    assert usual.low_s < named.low_s < named.high_s < usual.high_s
    assert not any("kernels=" in line for line in named.question.assumptions)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"phase": "decode", "kernels": "vlm"}, "nearest: vllm"),
        ({"phase": "decode", "kernels": "tgi", "gpu": "l40s"}, "were measured on l40s"),
        ({"phase": "train", "kernels": "vllm"}, "applies to inference"),
    ],
)
def test_a_framework_nobody_measured_is_refused_with_those_that_were(words: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        api.estimate("llama-3.1-8b", **{"gpu": "h200", **words})  # type: ignore[arg-type]


def test_rows_of_one_framework_are_predicted_as_its_kernels_run_and_a_median_as_the_middle(tmp_path: Path) -> None:
    """Two kernels of 12 and 199 us have a median of 106 that neither takes (issue 17, point 4)."""
    head = "gpu,dtype,phase,batch,heads,kv_heads,head_dim,seq_q,seq_kv,framework,latency_us\n"
    row = "gb300,bfloat16,encoder,1,16,16,64,1024,1024"
    path = tmp_path / "attention.csv"
    path.write_text(head + f"{row},sglang,150\n{row},vllm,20\n")
    table, gpu = read_table(path), load_gpu("gb300")
    size = {"num_heads": 16, "num_kv_heads": 16, "head_dim": 64, "v_head_dim": 64, "seq_q": 1024, "seq_kv": 1024}
    op = Attention(name="encoder", batch=1, **size, causal=False)
    sglang, vllm, middle = (
        attention_cost(op, gpu, load_calibration(gpu).with_kernels(each), clock=Clock.BOOST).time_s
        for each in ("sglang", "vllm", "")
    )
    assert sglang > 2 * vllm
    assert predict(targets_of([table], ["framework"])).time_s.tolist() == [sglang, vllm]
    assert predict(targets_of([table])).time_s.tolist() == [middle]
