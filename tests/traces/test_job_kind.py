"""What a trace is of, read from its kernels: work, data types, frozen weights, adapters, its device."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sartor import api
from sartor.answers.diagnosis import TraceDiagnosis
from sartor.errors import InputError
from sartor.report.diagnose_words import diagnose_answer
from sartor.step.measured_run import JobKind, PartKind
from sartor.traces.attribute import attribute
from sartor.traces.kernel_trace import HostOperator, Recorded, kernel_trace
from traces.kineto_hand import Hand, steps
from traces.sample_trace import OF_PAGE, PATH, sample

TOKENS, HIDDEN, FFN = 8192, 4096, 14336
Product = tuple[int, int, int]
"""m, n, k"""
BF16, KERNEL = "c10::BFloat16", "nvjet_tst_128x256_64x4_2x1_v_bz_TNT"
FORWARD: tuple[Product, ...] = ((TOKENS, FFN, HIDDEN), (TOKENS, HIDDEN, FFN))
INPUTS: tuple[Product, ...] = ((TOKENS, FFN, HIDDEN), (TOKENS, HIDDEN, FFN))
WEIGHTS: tuple[Product, ...] = ((FFN, HIDDEN, TOKENS), (HIDDEN, FFN, TOKENS))
ADAPTER: tuple[Product, ...] = ((TOKENS, 16, HIDDEN), (TOKENS, FFN, 16))
ADAPTER_WEIGHTS: tuple[Product, ...] = ((16, HIDDEN, TOKENS), (FFN, 16, TOKENS))


def kind_of(*products: Product, backward: bool = True, dtype: str = BF16, kernel: str = KERNEL) -> JobKind:
    """The kind of a trace of these products, each as long as it has FLOPs."""
    kept, now = Recorded(), 0.0
    for number, (m, n, k) in enumerate(products):
        kept.operators[number] = HostOperator(name="aten::mm", dims=((m, k), (k, n)), dtype=dtype)
        kept.kernels.append((now, m * n * k / 3e14, kernel, 7, number, number))
        now += m * n * k / 3e14
    if backward:
        kept.operators[len(products)] = HostOperator(name="autograd::engine::evaluate_function: MmBackward0")
    kept.threads += [1] * len(kept.operators)
    return attribute(kernel_trace("made", kept)).job


def test_a_forward_pass_alone_is_inference() -> None:
    kind = kind_of(*FORWARD, backward=False)
    assert (kind.words, kind.trained) == ("inference in bf16", "")


def test_a_step_of_an_engine_decodes_and_is_bound_by_the_weights_that_it_reads(tmp_path: Path) -> None:
    hand = Hand()
    for number in range(4):
        begin = hand.at
        for _ in range(20):
            hand.kernel("aten::mm", KERNEL, 16.0, dims=((16, HIDDEN), (HIDDEN, HIDDEN)))
        hand.at += 900.0
        hand._event("user_annotation", f"execute_context_0(0)_generation_16({16})", begin - 15, hand.at - begin, {})
        hand.at += number
    found = api.diagnose(hand.write(tmp_path / "t.json"))
    assert isinstance(found, TraceDiagnosis)
    assert found.num_steps == 3
    assert (found.kind.tokens, found.kind.read_bytes) == (16, 20 * 2 * HIDDEN**2)
    assert all(part.points_of_mfu is None for part in found.run_parts)
    assert "memory-bound" in str(diagnose_answer(found))
    assert found.losses[0].fix.startswith("let the engine prepare the next step")


@pytest.mark.parametrize("forwards", [1, 2])
def test_weight_gradients_tell_that_all_weights_are_trained_with_and_without_recomputation(forwards: int) -> None:
    kind = kind_of(*FORWARD * forwards, *INPUTS, *WEIGHTS)
    assert (kind.words, kind.trained) == ("training in bf16", "all")


def test_all_weights_are_trained_though_as_many_tokens_as_the_model_is_wide() -> None:
    square = [
        tuple(HIDDEN if size == TOKENS else size for size in product) for product in (*FORWARD, *INPUTS, *WEIGHTS)
    ]
    assert kind_of(*[(m, n, k) for m, n, k in square]).trained == "all"


def test_no_weight_gradient_means_frozen_weights_and_low_ranks_mean_adapters() -> None:
    assert kind_of(*FORWARD, *INPUTS).words == "training in bf16, most weights frozen"
    lora = kind_of(*FORWARD, *ADAPTER, *INPUTS, *ADAPTER, *ADAPTER_WEIGHTS)
    assert (lora.trained, lora.rank) == ("adapters", 16)
    assert lora.words == "training in bf16, LoRA of rank 16 (other weights frozen)"
    partly = kind_of(*FORWARD * 3, *INPUTS * 3, *WEIGHTS)
    assert partly.words == "training in bf16, a part of the weights frozen"


def test_products_without_sizes_tell_no_frozen_weights() -> None:
    kept = Recorded()
    for number, (m, n, k) in enumerate((*FORWARD, *INPUTS, *WEIGHTS)):
        dims = ((m, k), (k, n)) if number < 4 else ()
        kept.operators[number] = HostOperator(name="aten::mm" if dims else "FusedLinearBackward", dims=dims)
        kept.kernels.append((number * 1e-3, 1e-3, KERNEL, 7, number, number))
        kept.threads.append(1)
    assert attribute(kernel_trace("made", kept)).job.words == "training in bf16"


def test_data_types_are_those_of_the_products() -> None:
    assert kind_of(*FORWARD, dtype="float", kernel="ampere_sgemm_128x64_tn").precision[0].value == "fp32"
    assert kind_of(*FORWARD, dtype="float", kernel="cutlass_80_tensorop_s1688gemm").precision[0].value == "tf32"
    assert kind_of(*FORWARD, dtype="", kernel="sm90_xmma_gemm_e4m3bf16_e4m3f32").precision[0].value == "fp8"
    blocks = kind_of(*FORWARD, backward=False, kernel="bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3")
    assert blocks.words == "inference in mxfp8, weights in 4 bits"


# -------------------------------------------------------------------------------------------------------- the answer


def diagnosed(path: Path, **options: str) -> TraceDiagnosis:
    found = api.diagnose(path, gpu=options.get("gpu"))
    assert isinstance(found, TraceDiagnosis)
    return found


def traced(path: Path, gpu: str) -> Path:
    hand = steps(4)
    text = hand.write(path).read_text().replace("NVIDIA H100 80GB HBM3", gpu)
    path.write_text(text)
    return path


def test_the_first_line_says_what_was_traced(tmp_path: Path) -> None:
    found = diagnosed(traced(tmp_path / "t.json", "NVIDIA H100 80GB HBM3"))
    assert ": training in bf16 on NVIDIA H100 80GB HBM3, 3 steady steps" in diagnose_answer(found)[0]
    assert found.to_dict()["trace"]["work"] == "training"


def test_a_device_that_is_not_in_the_catalogue_is_not_priced_and_never_without_loss(tmp_path: Path) -> None:
    found = diagnosed(traced(tmp_path / "t.json", "NVIDIA H7777"))
    said = " ".join(diagnose_answer(found)[1])
    assert "Nothing could be priced" in said
    assert "No loss" not in said
    assert all(part["points_of_mfu"] is None for part in found.to_dict()["parts"])


def test_a_device_that_contradicts_the_trace_is_refused_and_a_relative_is_said(tmp_path: Path) -> None:
    path = traced(tmp_path / "t.json", "NVIDIA H7777")
    assert any("of NVIDIA H7777, priced as h100_sxm" in line for line in diagnosed(path, gpu="h100").warnings)
    with pytest.raises(InputError, match="the trace is of NVIDIA H7777; must be the device of the trace"):
        diagnosed(path, gpu="mi300x")
    with pytest.raises(InputError, match="a GPU of NVIDIA"):
        diagnosed(traced(tmp_path / "u.json", ""), gpu="mi300x")
    with pytest.raises(InputError, match="not from a100_sxm"):
        diagnosed(traced(tmp_path / "v.json", "NVIDIA H100 80GB HBM3"), gpu="a100_sxm")


def test_the_sample_trace_is_the_one_that_its_script_makes_and_has_the_two_losses_put_into_it() -> None:
    made = gzip.decompress(sample())
    assert [gzip.decompress(path.read_bytes()) for path in (PATH, OF_PAGE)] == [made, made]
    found = diagnosed(PATH)
    assert [part.kind for part in found.losses] == [PartKind.UNFUSED_ATTENTION, PartKind.DATA]
    assert found.kind.trained == "all"
