"""What an interval is made of, and which question would narrow it."""

from __future__ import annotations

import pytest

from sartor.api import estimate
from sartor.cli import run
from sartor.cost.cost import PASS_LOG_SIGMA, Source
from sartor.cost.uncertainty import IntervalPart, Narrows


def parts_of(model: str, gpu: str, **asked: object) -> dict[str, IntervalPart]:
    return {part.kind: part for part in estimate(model, gpu, **asked).interval_parts}  # type: ignore[arg-type]


def test_parts_of_an_interval_and_what_lies_beyond_operators_add_up_to_it() -> None:
    found = estimate("llama-3-8b", "h100_sxm", phase="decode", kernels="vllm")
    shares = [part.share for part in found.interval_parts]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) < 1
    of_operators = sum(found.microbatch.variance_shares)
    beyond = (PASS_LOG_SIGMA / found.microbatch.log_sigma) ** 2
    assert of_operators + beyond == pytest.approx(1.0)


def test_an_unnamed_framework_is_what_would_narrow_attention_and_a_named_one_is_not() -> None:
    unnamed = parts_of("llama-3-8b", "h100_sxm", phase="decode", context_len=8192)["attention"]
    named = parts_of("llama-3-8b", "h100_sxm", phase="decode", context_len=8192, kernels="vllm")["attention"]
    assert unnamed.narrows is Narrows.KERNELS
    assert "vllm" in unnamed.kernels
    assert named.narrows is Narrows.NOTHING
    assert named.share < unnamed.share


def test_a_gpu_that_nobody_measured_asks_to_be_measured() -> None:
    assert parts_of("llama-3-8b", "l40s", phase="prefill")["gemm"].narrows is Narrows.MEASURE


@pytest.mark.slow
def test_no_measurement_is_asked_for_of_a_chip_that_nobody_can_measure() -> None:
    parts = parts_of("llama-3-8b", "tpu_v4_like")
    assert {part.narrows for part in parts.values()} == {Narrows.NOTHING}


def test_a_misaligned_vocabulary_is_said_to_be_assumed_in_a_model_as_alone() -> None:
    found = estimate("gpt2", "b200_sxm", framework="torchtitan")
    said = {op.name: cost.stated_source for op, cost in zip(found.graph.operators, found.microbatch.costs, strict=True)}
    assert said["logits"] is Source.ASSUMED
    assert said["mlp_down"] is Source.CALIBRATED


def test_a_misaligned_vocabulary_s_operands_are_named_pass_by_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "gpt2", "--gpu", "h200", "--framework", "torchtitan", "--verbose"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "logits fwd: n=50257 (contiguous in C)" in told
    assert "logits dgrad: k=50257" in told
    assert "logits wgrad: m=50257" in told


def test_a_framework_with_two_families_of_experts_kernels_is_asked_for_one_of_them() -> None:
    asked = {"phase": "decode", "microbatch_size": 32}
    unnamed, framework, family, one = (
        parts_of("mixtral-8x7b", "h100_sxm", **asked, kernels=kernels)["grouped_gemm"]
        for kernels in (None, "sglang", "sglang_triton", "vllm")
    )
    assert {"sglang_triton", "sglang_cutlass", "vllm"} <= {*unnamed.kernels}
    assert "sglang" not in unnamed.kernels
    assert {*framework.kernels} == {"sglang_triton", "sglang_cutlass"}
    assert family.narrows is one.narrows is Narrows.NOTHING
