"""GEMMs of 8 and 4 bits are a framework's: named, its own time; unnamed, the middle's, and the interval covers all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sartor import api
from sartor.cost.correction.calibration import ANY, Calibration, Clock, load_calibration
from sartor.cost.correction.gemm import frameworks_of_gemms, kernel_of_quantizing, libraries_measured
from sartor.cost.correction.gemm_features import quantizing_of
from sartor.cost.correction.network import residual_records
from sartor.cost.cost import Z80
from sartor.cost.gpu.gemm import gemm_cost
from sartor.cost.price import operator_costs
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.zoo import load_model
from sartor.operators import DType, Gemm, Role
from sartor.records.tables import read_table
from sartor.records.targets import targets_of
from sartor.step.serving.batching import steady_state
from sartor.step.serving.engines import ENGINES
from sartor.step.serving.served import Load, Server
from sartor.validate.predictions import predict

H200 = load_gpu("h200_sxm")
SMALL = Gemm(name="small", m=64, n=4096, k=4096, dtype=DType.FP8)
TOLD = sorted(key for key, record in residual_records().items() if record.get("part") == "framework")


def known(gpu: str = "h200_sxm") -> Calibration:
    return load_calibration(load_gpu(gpu))


@pytest.mark.parametrize("gpu", ["b200_sxm", "b300_sxm", "gb200", "gb300"])
@pytest.mark.parametrize("kernels", ["vllm", ""])
def test_one_row_in_a_graph_waits_for_no_launch_by_the_host(gpu: str, kernels: str) -> None:
    """vLLM's table of fp8 on Blackwell holds it for one row alone: 15 to 28 us, with two rows 5 to 6."""
    device, calibration = load_gpu(gpu), known(gpu).with_kernels(kernels)
    linear = Gemm(name="qkv", role=Role.QKV, m=np.array([1, 2]), n=1280, k=8192, dtype=DType.FP8)
    one, two = np.asarray(operator_costs([linear], device, calibration)[0].time_s)
    assert one == two
    one, two = np.asarray(operator_costs([linear], device, replace(calibration, host_launches=True))[0].time_s)
    assert one > 1.5 * two


def test_tensorrt_llm_narrows_with_a_kernel_of_its_own_so_small_fp8_gemms_take_longer() -> None:
    trtllm, vllm, sglang = (
        gemm_cost(SMALL, H200, known().with_kernels(each)).time_s for each in ("trtllm", "vllm", "sglang")
    )
    assert 1.2 < trtllm / vllm < 1.8
    assert trtllm / sglang > 1.2


@pytest.mark.parametrize("key", TOLD)
def test_without_a_framework_the_middle_stays_and_its_interval_reaches_every_framework(key: str) -> None:
    record = residual_records()[key]
    gpu, dtype = load_gpu(record["gpu"]), DType(record["dtype"])
    calibration = load_calibration(gpu)
    gemm = replace(SMALL, m=np.array([1, 16, 129, 1024, 8192]), dtype=dtype)
    middle, unknown = (gemm_cost(gemm, gpu, calibration.with_kernels(each)) for each in ("", ANY))
    assert np.array_equal(unknown.time_s, middle.time_s)
    assert np.all(unknown.log_sigma >= middle.log_sigma)
    for framework in record["libraries"]:
        time_s = gemm_cost(gemm, gpu, calibration.with_kernels(framework)).time_s
        assert np.all(np.abs(np.log(time_s / middle.time_s)) <= Z80 * np.asarray(unknown.log_sigma) + 1e-9)


def test_a_family_runs_its_framework_s_gemms_and_one_that_was_not_timed_alone_has_the_interval_of_all() -> None:
    family, framework = (gemm_cost(SMALL, H200, known().with_kernels(each)) for each in ("vllm_triton", "vllm"))
    assert (family.time_s, family.log_sigma) == (framework.time_s, framework.log_sigma)
    blocks, calibration = replace(SMALL, dtype=DType.FP8_BLOCK), known()
    assert frameworks_of_gemms(calibration, DType.FP8_BLOCK) == ("sglang", "trtllm")
    unknown, other = (gemm_cost(blocks, H200, calibration.with_kernels(each).in_a_model()) for each in (ANY, "vllm"))
    assert (other.time_s, other.log_sigma) == (unknown.time_s, unknown.log_sigma)


@pytest.mark.parametrize(
    ("gpu", "few_us", "many_us"), [("h200_sxm", 59, 89), ("b200_sxm", 226, 226), ("gb200", 405, 405)]
)
def test_vllm_s_block_scaled_gemms_wait_for_the_host_alone_and_not_in_a_model(
    gpu: str, few_us: float, many_us: float
) -> None:
    """Medians of measured rows shorter than 30 us on other frameworks, with fewer than 32 rows and more; the fit saw
    only weights narrower than a block."""
    device, vllm = load_gpu(gpu), known(gpu).with_kernels("vllm")
    few, many, long = (
        replace(SMALL, m=m, n=n, dtype=DType.FP8_BLOCK) for m, n in ((8, 2048), (64, 2048), (32768, 16384))
    )
    assert 1e6 * gemm_cost(few, device, vllm).time_s == pytest.approx(few_us, rel=0.08)
    assert 1e6 * gemm_cost(many, device, vllm).time_s == pytest.approx(many_us, rel=0.08)
    inside, middle = (gemm_cost(many, device, each).time_s for each in (vllm.in_a_model(), known(gpu)))
    assert inside == middle
    alone, middle = (gemm_cost(long, device, each).time_s for each in (vllm, known(gpu)))
    assert alone == middle
    assert gemm_cost(replace(many, dtype=DType.FP8), device, vllm).time_s < 30e-6


def test_tensorrt_llm_s_fp8_rows_are_the_gemm_and_three_kernels() -> None:
    """The 16-bit coefficients at fp8's peak and bytes, with two fitted numbers, are nearer than the whole formula."""
    for key in (key for key in TOLD if ".fp8." in key):
        record = residual_records()[key]
        assert record["quantizing_mape"] < 0.5 * record["formula"]["mape"]
    bare, alone = (
        gemm_cost(replace(SMALL, quantized=each), H200, known().with_kernels("trtllm"), clock=Clock.BOOST).time_s
        for each in (True, False)
    )
    kernels = quantizing_of("trtllm", DType.FP8, alone=True)
    chain_s = kernels.time_s(SMALL.m * SMALL.k, *kernel_of_quantizing(known(), DType.FP8))
    assert alone == pytest.approx(bare + chain_s, rel=0.1)


@pytest.mark.parametrize(("dtype", "saved"), [(DType.FP8, 2), (DType.NVFP4, 1)])
def test_in_a_model_tensorrt_llm_keeps_one_kernel_of_fp8_and_none_of_nvfp4(dtype: DType, saved: int) -> None:
    gpu = load_gpu("b200_sxm")
    gemm, trtllm = replace(SMALL, dtype=dtype), known("b200_sxm").with_kernels("trtllm")
    alone, inside = (gemm_cost(gemm, gpu, each, clock=Clock.BOOST) for each in (trtllm, trtllm.in_a_model()))
    kernel_s, byte_s = kernel_of_quantizing(trtllm, dtype)
    element_bytes = {DType.FP8: 2.0, DType.NVFP4: 2.0 + DType.NVFP4.bytes}[dtype]
    saved_s = saved * kernel_s + element_bytes * byte_s * gemm.m * gemm.k
    assert alone.time_s - inside.time_s == pytest.approx(saved_s)
    assert alone.time_s * alone.log_sigma == pytest.approx(inside.time_s * inside.log_sigma)


@pytest.mark.parametrize("dtype", [DType.FP8, DType.NVFP4, DType.BF16])
@pytest.mark.parametrize("framework", ["vllm", "sglang", ""])
def test_others_quantize_in_one_kernel_everywhere(framework: str, dtype: DType) -> None:
    gemm, calibration = replace(SMALL, dtype=dtype), known("b200_sxm").with_kernels(framework)
    alone, inside = (gemm_cost(gemm, load_gpu("b200_sxm"), each) for each in (calibration, calibration.in_a_model()))
    assert inside.time_s == alone.time_s


def test_a_long_gemm_in_a_model_is_no_shorter_than_the_roofline() -> None:
    gpu, trtllm = load_gpu("b200_sxm"), known("b200_sxm").with_kernels("trtllm").in_a_model()
    gemm = replace(SMALL, m=np.array([1, 512, 32768]), n=128, k=np.array([128, 65536, 16384]))
    assert np.all(gemm_cost(gemm, gpu, trtllm).time_s > gemm.flops / gpu.peak_flops_per_s[DType.FP8])


def test_a_server_runs_the_gemms_of_its_framework() -> None:
    server = Server(shape=load_model("llama-3.1-8b"), gpu=H200, dtype=DType.FP8, engine=ENGINES["trtllm"])
    step = steady_state(server, Load(concurrency=8, input_len=128, output_len=128)).step
    pairs = [(op, cost) for op, cost in zip(step.graph.operators, step.costs, strict=True) if op.role is Role.QKV]
    (qkv, served), trtllm = pairs[0], known().with_kernels("trtllm")
    assert isinstance(qkv, Gemm)
    assert served.time_s == gemm_cost(qkv, H200, trtllm.in_a_model(), clock=Clock.BOOST).time_s


def test_each_framework_has_the_interval_that_its_own_unseen_weights_need() -> None:
    for key in TOLD:
        record = residual_records()[key]
        assert all(0.75 <= each["coverage"] <= 0.85 for each in record["each"].values())
        calibration = load_calibration(load_gpu(record["gpu"]))
        long = replace(SMALL, m=4096, n=8192, k=8192, dtype=DType(record["dtype"]))
        for name, (sigma, _) in zip(record["libraries"], record["each_log_sigma"], strict=True):
            cost = gemm_cost(long, load_gpu(record["gpu"]), calibration.with_kernels(name), clock=Clock.BOOST)
            assert cost.log_sigma == pytest.approx(sigma)


def test_a_gpu_of_the_same_die_borrows_the_framework_with_a_wider_interval() -> None:
    assert "trtllm" in libraries_measured(load_calibration(load_gpu("h100_nvl")))
    assert libraries_measured(load_calibration(load_gpu("l40s"))) == ()


def test_gemm_and_estimate_take_the_framework_or_say_that_it_would_narrow_the_interval() -> None:
    unknown, named = (api.gemm(64, 4096, 4096, "h200", dtype="fp8", kernels=each) for each in (None, "trtllm"))
    assert "kernels=sglang|trtllm|vllm narrows them" in unknown.assumptions[0]
    assert named.assumptions == ("includes 3 kernels that quantize the input (trtllm); in a model 1, 6.61 us less",)
    assert named.cost.high_s / named.cost.low_s < unknown.cost.high_s / unknown.cost.low_s
    waits = api.gemm(64, 4096, 4096, "h200", dtype="fp8_block", kernels="vllm")
    assert waits.assumptions == (
        "vllm's fp8_block GEMMs were timed call by call: they wait for the host, in a model they do not",
    )
    assert api.gemm(64, 8192, 4096, "h200").assumptions == ()  # weights larger than L2
    question = {"phase": "decode", "dtype": "fp8", "microbatch_size": 16}
    first, second = (api.estimate("llama-3.1-8b", "h200", **question, kernels=each) for each in ("trtllm", "vllm"))
    gemms = [
        sum(
            float(c.time_s * op.count)
            for op, c in zip(each.graph.operators, each.costs, strict=True)
            if isinstance(op, Gemm)
        )
        for each in (first.microbatch, second.microbatch)
    ]
    assert 0.9 < gemms[0] / gemms[1] < 1.1  # with all three kernels 1.16
    for answer in (first, second):
        assert answer.question.assumptions[-1].endswith("GEMMs include 1 kernel that quantizes the input")
    with pytest.raises(InputError, match="nearest: vllm"):
        api.gemm(64, 4096, 4096, "h200", dtype="fp8", kernels="vlm")


def test_rows_grouped_by_framework_are_predicted_as_its_kernels_run_and_a_median_as_the_middle(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gemm.csv"
    row = "h200_sxm,fp8,64,4096,4096"
    path.write_text(f"gpu,dtype,m,n,k,framework,latency_us\n{row},trtllm,17\n{row},vllm,12\n")
    table = read_table(path, ["framework"])
    trtllm, vllm, middle = (
        gemm_cost(SMALL, H200, known().with_kernels(each), clock=Clock.BOOST).time_s for each in ("trtllm", "vllm", "")
    )
    assert predict(targets_of([table], ["framework"])).time_s.tolist() == [trtllm, vllm]
    assert predict(targets_of([read_table(path)])).time_s.tolist() == [middle]
