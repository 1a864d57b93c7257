"""``sartor diagnose`` of traces: parts that add up, the seeded fault named first, no alarm on healthy runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Ran
from effort import times
from sartor import api
from sartor.answers.diagnosis import TraceDiagnosis
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.cluster_catalog import load_cluster
from sartor.step.measured_run import PartKind
from sartor.traces.attribute import Attributed, attribute, losses
from sartor.traces.kernel_trace import KernelKind, _kind_of, kernel_kinds, short_kernel
from sartor.traces.read import read_kineto
from sartor.traces.timeline import timeline
from traces.kineto_made import GPU, RANKS, Made, predicted, strength_for, write, write_ranks

CAUSE = {
    "slow_link": PartKind.SLOW_LINK,
    "straggler": PartKind.STRAGGLER,
    "prefetch_off": PartKind.COMMUNICATION,
    "host_gaps": PartKind.SYNC,
    "ragged_vocab": PartKind.SHAPE,
    "recompute": PartKind.RECOMPUTE,
}
"""A power cap is not among them: 5% is less than machines differ by, and a trace has no clocks."""
FUSED_NORM = (
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, float, int, int)"
)
WHOLE = "tp=1,pp=1,cp=1,microbatch_size=2,zero_stage=3,recompute=none"
"""A plan with every axis that such a run could have."""
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "traces"


def attributed(made: Made, folder: Path) -> Attributed:
    ranks = range(RANKS) if made.fault == "straggler" else (0,)
    traces = [read_kineto(write(replace(made, rank=rank), folder / f"{rank}.json")) for rank in ranks]
    cluster = load_cluster("dgx-h100").reached(RANKS)
    return attribute(traces[0], load_gpu(GPU), traces[1:], cluster, predicted().run.calibration)


def made(fault: str, seed: int) -> Made:
    return Made(fault=fault, strength=strength_for(fault), seed=seed, steps=3)


@pytest.mark.parametrize("fault", CAUSE)
def test_a_seeded_fault_of_5_percent_is_the_first_cause(fault: str, tmp_path: Path) -> None:
    found = attributed(made(fault, 100), tmp_path)
    named = losses(found)
    assert named[0].kind is CAUSE[fault]
    assert named[0].evidence
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.step_s)


@pytest.mark.slow
@pytest.mark.parametrize("fault", CAUSE)
def test_nine_of_ten_seeded_faults_are_the_first_cause(fault: str, tmp_path: Path) -> None:
    named = [losses(attributed(made(fault, seed), tmp_path)) for seed in range(200, 210)]
    assert sum(bool(each) and each[0].kind is CAUSE[fault] for each in named) >= 9


@pytest.mark.slow
def test_healthy_runs_raise_no_alarm(tmp_path: Path) -> None:
    assert not [seed for seed in range(times(20, 100)) if losses(attributed(made("", seed), tmp_path))]


def test_slow_shapes_are_no_loss_within_what_machines_differ_by_and_a_guess_behind_it(tmp_path: Path) -> None:
    small, large = (replace(made("", 100), fault="power_cap", strength=much) for much in (0.1, 1.0))
    assert not losses(attributed(small, tmp_path))
    (guess,) = losses(attributed(large, tmp_path))
    assert guess.kind is PartKind.SLOW_COMPUTE
    assert guess.evidence[0].startswith("nearly all shapes take longer, by 9")
    assert "the trace does not say" in guess.fix


def test_every_instant_belongs_to_a_kernel_or_to_a_gap(tmp_path: Path) -> None:
    trace = read_kineto(write(made("host_gaps", 1), tmp_path / "t.json"))
    line = timeline(trace, kernel_kinds(trace))
    gaps = sum(end - begin for begin, end in line.gaps)
    assert float(line.owned_s.sum()) + gaps == pytest.approx(line.span_s)
    assert (line.owned_s <= trace.end_s - trace.begin_s + 1e-12).all()


def test_what_runs_beside_compute_costs_nothing(tmp_path: Path) -> None:
    trace = read_kineto(write(made("", 1), tmp_path / "t.json"))
    kinds = kernel_kinds(trace)
    line = timeline(trace, kinds)
    of = [KernelKind(kind) for kind in ("communication", "matmul")]
    owned = [line.owned_s[kinds == list(KernelKind).index(kind)].sum() for kind in of]
    took = [(trace.end_s - trace.begin_s)[kinds == list(KernelKind).index(kind)].sum() for kind in of]
    assert owned[0] < 0.5 * took[0]
    assert owned[1] > 0.6 * took[1]  # all but the step that is left out


@pytest.mark.parametrize(
    ("kernel", "operator", "kind"),
    [
        ("ncclDevKernel_AllGather_RING_LL(...)", "record_param_comms", KernelKind.COLLECTIVE),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "aten::mm", KernelKind.MATMUL),
        ("Cijk_Alik_Bljk_BBS_BH_MT128x128x32", "aten::addmm", KernelKind.MATMUL),
        ("void pytorch_flash::flash_fwd_kernel<...>", "aten::_flash_attention_forward", KernelKind.ATTENTION),
        ("void at::native::vectorized_elementwise_kernel<4, ...>", "aten::mul", KernelKind.MEMORY_BOUND),
        ("Memcpy HtoD (Pageable -> Device)", "aten::copy_", KernelKind.COPY),
        ("my_own_kernel_42", "", KernelKind.UNKNOWN),
        (FUSED_NORM, "_C::fused_add_rms_norm", KernelKind.MEMORY_BOUND),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "_C::rotary_embedding", KernelKind.MEMORY_BOUND),
        ("batched_transpose_32x32_half", "", KernelKind.MEMORY_BOUND),
        ("batched_transpose_32x32_half", "aten::miopen_convolution", KernelKind.CONVOLUTION),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", "", KernelKind.CONVOLUTION),
        ("void cuda::per_token_cast_to_fp8<__nv_bfloat16>", "FlashAttnVarlenFunc", KernelKind.MEMORY_BOUND),
        ("triton_tem_fused_0", "FlashAttnFunc", KernelKind.ATTENTION),
        ("void split_embedding_codegen_forward_kernel<float>", "fbgemm::split_embedding_lookup", KernelKind.EMBEDDING),
        ("void fbgemm_gpu::_FP8rowwise_to_float<float>", "fbgemm::FP8RowwiseQuantized", KernelKind.MEMORY_BOUND),
        ("void cutlass::device_kernel<gemm::f8f8bf16>", "fbgemm::f8f8bf16_rowwise", KernelKind.MATMUL),
        ("void fast_hadamard_transform_kernel<64>", "", KernelKind.UNKNOWN),
        ("void at::native::upsample_bilinear2d_out_frame", "aten::upsample_bilinear2d", KernelKind.MEMORY_BOUND),
    ],
)
def test_kernels_are_told_by_their_names_and_operators(kernel: str, operator: str, kind: KernelKind) -> None:
    assert _kind_of(kernel, operator) is kind


def test_a_kernel_is_called_by_its_own_name() -> None:
    assert short_kernel(FUSED_NORM) == "fused_add_rms_norm_kernel"


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command_names_the_cause_and_its_remedy(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    path = write(made("ragged_vocab", 3), tmp_path / "t.json.gz")
    done = sartor("diagnose", path)
    assert done.code == 0
    assert "1. Ragged sizes" in done.out
    assert "128257" in done.out


def test_json_has_parts_that_add_up_and_the_prediction(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    path = write(made("", 3), tmp_path / "t.json")
    plan = ("--model", "llama-3.1-8b", "--set", "num_layers=8", "--seq-len", 4096, "--global-batch-size", 16)
    body = sartor("diagnose", path, *plan, "--json").body
    assert body["schema"] == "sartor/diagnose/1"
    assert sum(part["seconds"] for part in body["parts"]) == pytest.approx(body["measured"]["step_s"])
    points = sum(part["points_of_mfu"] for part in body["parts"])
    assert points == pytest.approx(100 * (1 - body["measured"]["mfu"]))
    assert body["predicted"]["low_s"] < body["predicted"]["step_s"] < body["predicted"]["high_s"]
    assert all(each["predicted"]["low_s"] < each["predicted"]["high_s"] for each in body["operators"])
    assert body["predicted"]["step_s"] == float(predicted().priced.step_s)


def test_the_points_below_prediction_are_shared_among_the_losses(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    slow = replace(made("host_gaps", 3), strength=12 * strength_for("host_gaps"))
    path = write(slow, tmp_path / "t.json")
    plan = ("--model", "llama-3.1-8b", "--set", "num_layers=8", "--seq-len", 4096, "--global-batch-size", 16)
    said = " ".join(sartor("diagnose", path, *plan, "--fix", WHOLE).out.split())
    found = re.search(r"Of the ([\d.]+) points between them: (.*?)\. \d+ loss", said)
    assert found is not None, said[:600]
    shares = [float(each.split()[0]) for each in found[2].split(", ")]
    assert sum(shares) == pytest.approx(float(found[1]), abs=0.3)
    assert "idle after calls that wait" in found[2]


def test_a_folder_of_ranks_is_one_run(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    body = sartor("diagnose", write_ranks(made("straggler", 4), tmp_path / "ranks"), "--json").body
    assert body["trace"]["num_ranks"] == RANKS
    assert "straggler" in body["losses"]
    straggler = next(part for part in body["parts"] if part["kind"] == "straggler")
    assert straggler["fix"].startswith("rank 3 computes")  # which its loss says too


def test_ranks_that_are_no_one_job_are_refused(tmp_path: Path) -> None:
    one, other = (write(made("", seed), tmp_path / f"{seed}.json") for seed in (1, 2))
    refused: list[tuple[Any, str]] = [
        ([one, other], "rank 0 is there twice"),
        ([one, tmp_path / "no.json"], "no such file"),
    ]
    for paths, sentence in refused:
        with pytest.raises(InputError, match=sentence):
            api.diagnose(paths)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="folder without traces"):
        api.diagnose(tmp_path / "empty")


def test_a_trace_of_another_model_is_said(tmp_path: Path) -> None:
    path = write(made("", 5), tmp_path / "t.json")
    found = api.diagnose(path, model="gpt2", num_devices=RANKS, global_batch_size=16, seq_len=512)
    assert any("hidden_size=768" in line for line in found.warnings)


def test_the_products_of_a_trace_are_records_for_calibrate(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    path, records, fitted = write(made("", 5), tmp_path / "t.json"), tmp_path / "r.csv", tmp_path / "c.toml"
    assert sartor("diagnose", path, "--records", records).code == 0
    header, *rows = records.read_text().splitlines()
    assert header.split(",")[-4:] == ["m", "n", "k", "latency_us"]
    assert len(rows) == 14
    assert sartor("calibrate", records, "--out", fitted).code == 0
    after = sartor("diagnose", path, "--calibration", fitted, "--json").body
    assert after["median_ratio"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published traces of ../shared are not here")
def test_95_percent_of_each_published_trace_is_assigned() -> None:
    for path in sorted(SHARED.glob("*.gz")):
        if path.stat().st_size < 8e5:
            found = api.diagnose(path)
            assert isinstance(found, TraceDiagnosis)
            assert sum(part.seconds for part in found.parts) == pytest.approx(found.step_s)
            assert found.unknown_share < 0.05


def test_a_launch_that_has_the_model_is_enough_to_predict_a_trace(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 4096 --ffn-hidden-size 14336 "
        "--num-attention-heads 32 --swiglu --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 "
        "--global-batch-size 16 --bf16 --use-distributed-optimizer --vocab-size 128256"
    )
    path = write(made("", 3), tmp_path / "t.json")
    found = api.diagnose(path, launch=tmp_path / "launch.sh", num_devices=8, best_plan=False, fix={"zero_stage": 0})
    assert isinstance(found, TraceDiagnosis)
    assert found.predicted is not None
    assert int(found.predicted.plan.zero_stage) == 0
    assert "zero_stage=0 as stated; the file says 1" in found.assumptions
