"""From rows to operators: what each kind of row ran, checked against products written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sartor.cost.collective.collective import collective_cost
from sartor.cost.correction.calibration import load_calibration
from sartor.hardware.catalog import load_gpu
from sartor.hardware.cluster_catalog import load_cluster
from sartor.hardware.gpu import Gpu
from sartor.model.zoo import load_model
from sartor.operators import Attention, Collective, CollectiveKind, DType, Gemm, GroupedGemm, Layout, MemoryBoundKind
from sartor.records.rows import MEMORY_BOUND, Unexpressed, dtype_of, outside, work_of
from sartor.records.targets import model_work, named_model

GPU = load_gpu("h200_sxm")
MOE = {"num_tokens": 512, "hidden_size": 4096, "inter_size": 1536, "topk": 8, "num_experts": 128}


def only(kind: str, words: dict[str, Any], sizes: dict[str, Any]) -> Any:
    (op,) = work_of(kind, words, sizes, GPU).operators
    return op


@pytest.mark.parametrize(
    ("label", "dtype"),
    [("bfloat16", DType.BF16), ("half", DType.FP16), ("fp8_block", DType.FP8_BLOCK), ("sq", DType.INT8)],
)
def test_labels_of_dtypes_are_known(label: str, dtype: DType) -> None:
    assert dtype_of(label) is dtype


@pytest.mark.parametrize(
    ("words", "layout"), [({"layout": "NN"}, Layout.NN), ({}, Layout.TN), ({"op": "bmm"}, Layout.NN)]
)
def test_a_product_keeps_its_layout(words: dict[str, Any], layout: Layout) -> None:
    op = only("gemm", {"dtype": "float32", "layout": "", "op": "", **words}, {"m": 3, "n": 5, "k": 7, "batch": 2})
    assert isinstance(op, Gemm)
    assert (op.layout, op.flops) == (layout, 2 * 2 * 3 * 5 * 7)


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("h200_sxm", DType.FP8), ("arc_pro_b60", DType.INT8_WO), ("a100_sxm", DType.INT8_WO)]
)
def test_fp8_without_units_for_it_is_widened_weights(gpu: str, dtype: DType) -> None:
    """vLLM runs such models "as weight-only W8A16"."""
    words, sizes = {"dtype": "fp8", "layout": "TN", "op": ""}, {"m": 512, "n": 4096, "k": 4096, "batch": 1}
    (op,) = work_of("gemm", words, sizes, load_gpu(gpu)).operators
    assert isinstance(op, Gemm)
    assert op.dtype is dtype


@pytest.mark.parametrize(("phase", "causal"), [("context", True), ("generation", True), ("encoder", False)])
def test_a_phase_has_its_mask(phase: str, causal: bool) -> None:
    sizes = {"batch": 2, "heads": 32, "kv_heads": 8, "head_dim": 128, "seq_q": 64, "seq_kv": 64, "window": 0}
    op = only("attention", {"dtype": "bfloat16", "kv_dtype": "", "phase": phase, "causal": ""}, sizes)
    assert isinstance(op, Attention)
    assert op.causal is causal
    assert op.v_head_dim == 128


def test_a_generation_step_reads_narrower_keys_and_nothing_else_does() -> None:
    sizes = {"batch": 8, "heads": 32, "kv_heads": 8, "head_dim": 128, "seq_q": 1, "seq_kv": 4096, "window": 0}
    words = {"dtype": "bfloat16", "kv_dtype": "fp8", "phase": "generation", "causal": ""}
    narrow, wide = (only("attention", words | {"kv_dtype": each}, sizes) for each in ("fp8", "bfloat16"))
    assert narrow.bytes_moved / wide.bytes_moved == pytest.approx(0.5, abs=0.01)
    assert narrow.flops == wide.flops
    with pytest.raises(Unexpressed, match="kv_dtype fp8"):
        work_of("attention", words | {"phase": "context"}, sizes, GPU)


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (4, 1), (1, 8), (2, 4)])
@pytest.mark.parametrize("gated", [True, False])
def test_an_expert_layer_is_two_grouped_products_and_what_is_around_them(tp: int, ep: int, gated: bool) -> None:
    sizes = MOE | {"moe_tp_size": tp, "moe_ep_size": ep}
    ops = work_of("moe", {"dtype": "bfloat16", "distribution": "balanced", "gated": gated}, sizes, GPU).operators
    up, down = (op for op in ops if isinstance(op, GroupedGemm))
    width, rows = 1536 // tp, 512 * 8 // ep
    assert (up.groups, up.rows, up.n, up.k) == (128 // ep, rows, width * (2 if gated else 1), 4096)
    assert (down.groups, down.rows, down.n, down.k) == (128 // ep, rows, 4096, width)
    assert sum(op.flops for op in ops) == 2 * rows * width * 4096 * (3 if gated else 2)


def test_few_tokens_visit_few_experts() -> None:
    sizes = MOE | {"num_tokens": 2, "moe_tp_size": 1, "moe_ep_size": 1}
    ops = work_of("moe", {"dtype": "bfloat16", "distribution": "balanced", "gated": True}, sizes, GPU).operators
    assert next(op.groups for op in ops if isinstance(op, GroupedGemm)) == 16


def test_a_routing_nobody_named_is_not_expressed() -> None:
    sizes = MOE | {"moe_tp_size": 1, "moe_ep_size": 1}
    with pytest.raises(Unexpressed, match="distribution zipf"):
        work_of("moe", {"dtype": "bfloat16", "distribution": "zipf", "gated": True}, sizes, GPU)


def test_eager_launches_are_with_calls() -> None:
    words = {"dtype": "float32", "op": "softmax", "eager": True}
    work = work_of("memory_bound", words, {"rows": 8, "cols": 8, "bytes": 512}, GPU)
    assert work.eager
    assert MEMORY_BOUND["addu"] is MemoryBoundKind.RESIDUAL


def test_a_steeper_power_law_loads_the_busiest_expert_more() -> None:
    sizes = MOE | {"num_tokens": 4096, "moe_tp_size": 1, "moe_ep_size": 1}
    skews = [_grouped(f"power_law_{alpha}", sizes).skew for alpha in (0.8, 1.01, 1.2, 1.5)]
    assert skews == sorted(skews)
    assert skews[0] < skews[1] < skews[2]
    assert _grouped("balanced", sizes).skew == 1


@pytest.mark.parametrize("law", ["zipf", "power_law_0", "power_law_9", "power_law_x", "power_law_"])
def test_another_routing_is_not_expressed(law: str) -> None:
    with pytest.raises(Unexpressed, match="balanced, random or power_law"):
        _grouped(law, MOE | {"moe_tp_size": 1, "moe_ep_size": 1})


def test_random_choices_miss_some_experts_and_kernels_timed_by_stage_are_timed_alone() -> None:
    sizes = MOE | {"num_tokens": 16, "topk": 8, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 1}
    assert (
        _grouped("random", sizes).groups == round(128 * (1 - (1 - 1 / 128) ** 128)) < _grouped("balanced", sizes).groups
    )
    staged = {"dtype": "bfloat16", "distribution": "random", "gated": True, "one_stage": "False"}
    assert {type(op) for op in work_of("moe", staged, sizes, GPU).operators} == {GroupedGemm}


def test_a_gemm_is_written_in_the_type_that_its_row_names() -> None:
    words, sizes = {"dtype": "bfloat16", "out_dtype": "float32"}, {"m": 8, "n": 8, "k": 8, "batch": 1}
    assert work_of("gemm", words, sizes, GPU).operators[0].out_dtype is DType.FP32


@pytest.mark.parametrize(("bpreshuffle", "layout"), [("True", "TILED"), ("False", "TN"), ("", "TN"), (True, "TILED")])
def test_pre_shuffled_weights_are_a_layout(bpreshuffle: object, layout: str) -> None:
    words, sizes = {"dtype": "fp8_block", "bpreshuffle": bpreshuffle}, {"m": 8, "n": 8, "k": 8, "batch": 1}
    assert work_of("gemm", words, sizes, GPU).operators[0].layout.value == layout


@pytest.mark.parametrize(
    ("given", "library"), [({"libtype": "asm"}, "aiter_asm"), ({"libtype": "cktile"}, "aiter_ck"), ({}, "")]
)
def test_a_gemm_s_library_is_the_one_that_its_row_names(given: dict[str, str], library: str) -> None:
    sizes = {"m": 8, "n": 8, "k": 8, "batch": 1}
    assert work_of("gemm", {"dtype": "mxfp4"} | given, sizes, GPU).kernels == (library,)


def _grouped(distribution: str, sizes: dict[str, Any]) -> Any:
    words = {"dtype": "bfloat16", "distribution": distribution, "gated": True}
    return next(op for op in work_of("moe", words, sizes, GPU).operators if isinstance(op, GroupedGemm))


def reasons(words: dict[str, Any], sizes: dict[str, Any], gpu: Gpu) -> list[str]:
    return [reason for mask, reason in outside("collectives", words, sizes, gpu) if bool(mask)]


def test_a_collective_across_nodes_that_nobody_describes_is_not_expressed() -> None:
    words = {"dtype": "half", "op": "alltoall", "library": "NCCL", "system": "our basement"}
    (reason,) = reasons(words, {"gpus_per_node": 4, "n_gpus": 8}, GPU)
    assert reason == "group spans nodes: no cluster of the catalogue is called 'our basement'"
    inside = outside("collectives", words, {"gpus_per_node": 4, "n_gpus": 8}, load_gpu("gb200"))
    assert not any(bool(mask) for mask, _ in inside), "an NVLink rack joins more devices than a node has"
    op = only("collectives", words, {"n_gpus": 8, "bytes": 2**20})
    assert op.kind is CollectiveKind.ALL_TO_ALL


def test_a_row_that_names_a_cluster_of_the_catalogue_is_priced_as_that_cluster_is() -> None:
    words = {"dtype": "half", "op": "all_reduce", "library": "nccl", "system": "a100_pairwise_nvlink"}
    sizes = {"n_gpus": np.array([2, 4, 8]), "gpus_per_node": np.array([2, 4, 4]), "bytes": np.array([1e6, 1e6, 1e6])}
    a100 = load_gpu("a100_80gb_unspecified")
    assert not reasons(words, {name: values[2] for name, values in sizes.items()}, a100)
    work = work_of("collectives", words, sizes, a100)
    assert work.cluster == load_cluster("azure-nc96ads-a100-v4")
    op = work.operators[0]
    assert isinstance(op, Collective)
    assert op.alone, "a benchmark has no other groups at work"
    np.testing.assert_array_equal(op.stride, [1, 1, 1])
    time_s = collective_cost(op, work.cluster.gpu, load_calibration(work.cluster.gpu), work.cluster).time_s
    assert list(time_s) == sorted(time_s), "over the bridge, over PCIe, over the network"


def test_members_of_a_group_are_as_many_to_a_node_as_the_row_says() -> None:
    words = {"dtype": "half", "op": "all_reduce", "library": "nccl", "system": "dgx-a100"}
    sizes = {"n_gpus": np.array([8, 2, 4, 16]), "gpus_per_node": np.array([8, 1, 2, 8]), "bytes": 1e6}
    (op,) = work_of("collectives", words, sizes, load_gpu("a100")).operators
    assert isinstance(op, Collective)
    np.testing.assert_array_equal(op.stride, [1, 8, 4, 1])
    (reason,) = reasons(words, {"n_gpus": 6, "gpus_per_node": 3}, load_gpu("a100"))
    assert "equally many of its devices" in reason


def test_a_cluster_of_other_devices_than_the_row_is_refused() -> None:
    words = {"dtype": "half", "op": "all_reduce", "library": "nccl", "system": "dgx-a100"}
    with pytest.raises(Unexpressed, match="its devices are a100_sxm, the row's h100_sxm"):
        work_of("collectives", words, {"n_gpus": 2, "bytes": 1e6}, load_gpu("h100"))


@pytest.mark.parametrize("ep", [1, 4, 16])
def test_a_draw_hands_out_every_row_once(ep: int) -> None:
    sizes = MOE | {"num_tokens": 64, "moe_tp_size": 1, "moe_ep_size": ep}
    op = _grouped("power_law_1.01", sizes)
    assert op.rows >= 64 * 8 / ep
    assert op.rows + op.masked_rows == pytest.approx(64 * 8)
    assert op.groups <= 128 // ep
    assert (op.tokens, op.experts) == (64, 128 // ep)


def test_fewer_rows_than_experts_go_to_an_expert_each_evenly_over_devices() -> None:
    drawn = [
        _grouped("power_law_1.01", MOE | {"num_tokens": 1, "moe_tp_size": 1, "moe_ep_size": ep}) for ep in (1, 2, 8)
    ]
    assert [(op.groups, op.rows) for op in drawn] == [(8, 8), (4, 4), (1, 1)]


def test_draws_of_many_problems_are_those_of_each() -> None:
    sizes = MOE | {"num_tokens": np.array([1, 48, 4096]), "moe_tp_size": 1, "moe_ep_size": np.array([1, 8, 128])}
    many = _grouped("power_law_1.01", sizes)
    for i, (tokens, ep) in enumerate(zip(sizes["num_tokens"], sizes["moe_ep_size"], strict=True)):
        one = _grouped("power_law_1.01", MOE | {"num_tokens": int(tokens), "moe_tp_size": 1, "moe_ep_size": int(ep)})
        assert (many.rows[i], many.groups[i], many.skew[i]) == (one.rows, one.groups, one.skew)


def test_no_expert_takes_a_token_twice() -> None:
    sizes = {"num_tokens": 512, "hidden_size": 64, "inter_size": 64, "topk": 2, "num_experts": 4}
    op = _grouped("power_law_1.5", sizes | {"moe_tp_size": 1, "moe_ep_size": 1})
    assert op.skew * op.rows / op.groups <= 512


def test_a_compiled_model_runs_fewer_kernels_than_an_eager_one() -> None:
    words = {"model": "bert_large", "phase": "forward", "dtype": "float32"}
    sizes = {"batch": 8, "seq": 512}
    eager, fused = (model_work({**words, "part": part}, sizes) for part in ("total", "total_fusion"))
    kernels = [sum(int(op.count) * int(getattr(op, "kernels", 1)) for op in work.operators) for work in (fused, eager)]
    assert kernels[0] < kernels[1]
    with pytest.raises(Unexpressed, match="split runs"):
        model_work({**words, "part": "total_tp4"}, sizes)


def test_a_tables_model_has_the_tables_width() -> None:
    assert named_model("gpt3_xl").hidden_size == 3072
    assert named_model("bert_large") == load_model("bert-large")


def test_more_experts_than_any_layer_has_are_refused_before_loads_are_drawn() -> None:
    huge = MOE | {"num_experts": 10**9, "moe_tp_size": 1, "moe_ep_size": 1}
    found = [reason for is_odd, reason in outside("moe", {}, huge, GPU) if is_odd]
    assert found == ["num_experts above 65536"]


def test_devices_that_do_not_share_the_experts_evenly_are_not_expressed() -> None:
    sizes = MOE | {"num_experts": 128, "moe_tp_size": 1, "moe_ep_size": np.array([7, 8, 200])}
    told = {why: np.broadcast_to(mask, 3).tolist() for mask, why in outside("moe", {}, sizes, GPU)}
    assert told["moe_ep_size does not divide num_experts"] == [True, False, True]
