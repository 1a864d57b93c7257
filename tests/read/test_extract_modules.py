"""Laws of extraction on hand-written modules: what ran is what is counted, layers fold, errors name their place."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sartor import api
from sartor.errors import InputError
from sartor.model.traced import TracedModel, products_dtype
from sartor.operators import Attention, DType, Gemm, MemoryBound, MemoryBoundKind, Part, Pass
from sartor.read.graph_json import graph_body, parse_graph, traced_reading

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed here: make test-torch"),
    pytest.mark.filterwarnings("ignore"),
]
MODULES = Path(__file__).with_name("torch_modules.py")


def traced(name: str, *inputs: str, **words: Any) -> TracedModel:
    from sartor.read.extract import extract

    return extract(f"{MODULES}:{name}", inputs=inputs, **words)


def products(model: TracedModel, pass_: Pass = Pass.FORWARD) -> list[Gemm]:
    return [op for op in model.graph.operators if isinstance(op, Gemm) and op.pass_ is pass_]


def test_a_linear_layer_is_three_products_with_the_layouts_of_a_linear_layer() -> None:
    model = traced("Mlp", "x=2x8x64")
    forward, dgrad, wgrad = (products(model, p) for p in (Pass.FORWARD, Pass.DGRAD, Pass.WGRAD))
    assert [(op.m, op.n, op.k, op.layout.value) for op in forward] == [(16, 256, 64, "TN"), (16, 64, 256, "TN")]
    assert [(op.m, op.n, op.k, op.layout.value) for op in dgrad] == [(16, 256, 64, "NN")]  # x wants no gradient
    assert {(op.m, op.n, op.k, op.layout.value) for op in wgrad} == {(64, 256, 16, "NT"), (256, 64, 16, "NT")}
    assert model.num_params == 64 * 256 * 2 + 256 + 64


def test_a_model_of_equal_blocks_folds_into_one_kind_and_loses_no_flop() -> None:
    model = traced("with_named_inputs")
    assert [(layer.count, layer.weight_sets) for layer in model.layers] == [(4, 4)]
    tokens, d = 64, 64
    linear = 2 * tokens * (d * 3 * d + d * d + 2 * d * 256) * 4 + 2 * tokens * d * 1000
    assert sum(op.flops * op.count for op in products(model)) == linear
    backward = sum(op.flops * op.count for p in (Pass.DGRAD, Pass.WGRAD) for op in products(model, p))
    assert backward == 2 * linear


def test_pytorchs_attention_is_one_operator_forward_and_backward() -> None:
    found = [op for op in traced("with_named_inputs").graph.operators if isinstance(op, Attention)]
    assert [(op.pass_, op.count) for op in found] == [(Pass.FORWARD, 4), (Pass.BACKWARD, 4)]
    assert all((op.batch, op.num_heads, op.seq_q, op.head_dim, op.causal) == (2, 4, 32, 16, True) for op in found)


def test_every_operator_names_the_module_it_ran_in() -> None:
    model = traced("with_named_inputs")
    of = {op.name: call.module for op, call in zip(model.graph.operators, model.calls, strict=True)}
    assert of["mlp.up"] == of["mlp.up.wgrad"] == of["mlp.up.dgrad"] == "blocks.*.mlp.up"
    assert of["head"] == "head"
    assert all(call.call for call in model.calls)


def test_parts_are_told_by_where_they_lie() -> None:
    parts = {op.name: op.part for op in traced("with_named_inputs").graph.operators}
    assert parts["table"] is parts["table.backward"] is Part.EMBEDDING
    assert parts["head"] is parts["head.wgrad"] is Part.HEAD
    assert parts["qkv"] is Part.LAYER


def test_a_layer_that_runs_again_counts_as_often_but_holds_its_weights_once() -> None:
    again, apart = traced("Shared", "ids=2x32:int64"), traced("with_named_inputs")
    assert [(layer.count, layer.weight_sets) for layer in again.layers] == [(4, 1)]
    assert again.graph.matmul_flops == apart.graph.matmul_flops
    assert apart.num_params - again.num_params == 3 * apart.layers[0].num_params


def test_layers_of_two_kinds_keep_their_places() -> None:
    model = traced("Mixed", "x=4x16x64")
    assert [(layer.name, layer.positions) for layer in model.layers] == [
        ("layers[0]", (0, 2, 4)),
        ("layers[1]", (1, 3, 5)),
    ]


def test_convolutions_are_the_products_they_amount_to() -> None:
    model = traced("Convolutions", "x=2x3x32x32")
    found = {op.name: (op.m, op.n, op.k) for op in products(model)}
    assert found == {"plain": (2048, 16, 27), "strided": (512, 32, 144)}
    kinds = {op.name: op.kind for op in model.graph.operators if isinstance(op, MemoryBound)}
    assert kinds["depthwise"] is MemoryBoundKind.CONV
    wgrad = {op.name: (op.m, op.n, op.k) for op in products(model, Pass.WGRAD)}
    assert wgrad == {"plain.wgrad": (16, 27, 2048), "strided.wgrad": (32, 144, 512)}


def test_a_transposed_convolution_counts_its_inputs_in_every_pass() -> None:
    model = traced("Transposed", "x=2x3x8x8")
    flops = 2 * (2 * 8 * 8) * 16 * (8 * 2 * 2)
    for pass_ in (Pass.FORWARD, Pass.DGRAD, Pass.WGRAD):
        assert [op.flops for op in products(model, pass_) if op.name.startswith("wide")] == [flops], pass_


def test_kernels_of_other_libraries_are_named_and_flash_attention_is_attention() -> None:
    model = traced("OwnKernels", "x=2x32x64", phase="prefill")
    assert "sartortest::mlp has no FLOP rule and is priced by its bytes" in model.notes
    (found,) = [op for op in model.graph.operators if isinstance(op, Attention)]
    assert (found.batch, found.num_heads, found.seq_q, found.head_dim, found.causal) == (2, 4, 32, 16, True)


def test_a_narrow_gemm_has_its_operands_type_and_its_results() -> None:
    found = [
        op
        for pass_ in (Pass.FORWARD, Pass.DGRAD, Pass.WGRAD)
        for op in products(traced("Narrow", "x=32x64:bf16"), pass_)
    ]
    narrow = [(op.pass_, op.m, op.n, op.k, op.out_dtype) for op in found if op.dtype is DType.FP8 and op.quantized]
    assert narrow == [
        (Pass.FORWARD, 32, 128, 64, DType.BF16),
        (Pass.DGRAD, 32, 64, 128, DType.BF16),
        (Pass.WGRAD, 128, 64, 32, DType.BF16),
    ]


def test_integer_and_bilinear_products_are_counted() -> None:
    found = [(op.m, op.n, op.k, op.dtype) for op in products(traced("Integers", "x=32x64", phase="prefill"))]
    assert found == [(32, 128, 64, DType.INT8), (32, 32, 128 * 16, DType.FP32)]


def test_packed_weights_and_a_summed_batch_are_one_gemm_each() -> None:
    found = [
        (op.m, op.n, op.k, op.batch, op.dtype) for op in products(traced("Packed", "x=16x1024:bf16", phase="prefill"))
    ]
    assert found == [(16, 256, 1024, 1, DType.INT4_WO), (16, 16, 4 * 64, 1, DType.BF16)]


@pytest.mark.parametrize("name", ["Checkpointed", "CheckpointedReentrant"])
def test_what_a_checkpoint_recomputes_is_named_priced_and_no_model_flop(name: str) -> None:
    plain, again = traced("with_named_inputs"), traced(name, "ids=2x32:int64")
    assert again.graph.matmul_flops == plain.graph.matmul_flops
    ran = {op.name: op for op in again.graph.operators if op.pass_ is Pass.RECOMPUTE}
    assert {"norm1.recomputed", "qkv.recomputed", "attention.recomputed", "mlp.up.recomputed"} <= set(ran)
    assert ran["attention.recomputed"].flops == next(op.flops for op in again.graph.operators if op.name == "attention")
    rest = [op for op in again.graph.operators if op.pass_ is not Pass.RECOMPUTE]
    assert rest == list(plain.graph.operators)
    assert parse_graph(json.loads(json.dumps({"schema": "sartor/extract/1", **graph_body(again)}))).graph == again.graph


def test_what_is_frozen_and_what_is_a_buffer_is_told() -> None:
    model = traced("Adapted", "ids=2x32:int64")
    for layer in model.layers:  # the first block needs no gradient of its input
        assert layer.num_params - layer.frozen_params == 4 * (64 + 256)
    kept = [layer.buffer_bytes for layer in model.layers]
    assert kept == [64 * 256, 64 * 256 * (1 + 4)]  # int8, and converted for the gradient of its input
    assert model.num_params - model.frozen_params == 4 * 4 * (64 + 256)
    assert model.frozen_embedding_params == model.embedding_params == 64000
    assert any("the others are frozen" in note for note in model.notes)
    assert not traced("with_named_inputs").frozen_params


@pytest.mark.parametrize("name", ["Autocasted", "autocasted_on_a_gpu"])
def test_autocast_runs_gemms_in_its_type_and_norms_in_fp32(name: str) -> None:
    model = traced(name, "x=2x8x64")
    every = [op for op in model.graph.operators if isinstance(op, Gemm)]
    assert {op.pass_ for op in every} == {Pass.FORWARD, Pass.RECOMPUTE, Pass.DGRAD, Pass.WGRAD}
    assert {op.dtype for op in every} == {DType.BF16}
    assert {op.dtype for op in model.graph.operators if op.name.startswith("norm")} == {DType.FP32}
    assert (model.dtype, products_dtype(model)) == (DType.FP32, DType.BF16)


def test_a_dtype_that_is_given_is_that_of_the_inputs_too() -> None:
    model = traced("with_inputs", dtype="bf16")
    assert {op.dtype for op in model.graph.operators} == {DType.BF16}


def test_a_file_imports_its_siblings() -> None:
    assert [(op.n, op.k) for op in products(traced("with_a_sibling"))] == [(64, 64)]


def kept_on_a_cpu(block: Any, x: Any) -> int:
    """Bytes of memory that autograd keeps of a module that really runs."""
    import torch

    own, kept = {p.untyped_storage().data_ptr() for p in block.parameters()}, {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage, storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x)
    return sum(size for _, size in kept.values())


def test_eager_kept_bytes_are_those_of_a_run_and_fused_kernels_keep_their_inputs_alone() -> None:
    import torch

    b, s, h = 2, 32, 64
    (layer,) = traced("with_named_inputs", eager=True).layers
    block = sys.modules["sartor_extracted_torch_modules"].Block()
    assert layer.stash_bytes == kept_on_a_cpu(block, torch.randn(b, s, h, requires_grad=True))
    eager, fused = (traced("GatedStack", "x=2x32x64", eager=e).layers[0].stash_bytes / 4 for e in (True, False))
    columns = b * s + b * 4 * s  # roots of the norm, sums of the softmax
    assert eager == b * s * h * (1 + 1 + 3 + 1 + 1 + 8 + 4 + 4) + columns
    assert fused == b * s * h * (1 + 1 + 3 + 1 + 1 + 8 + 4) + columns  # the gate's activation is computed again


def test_a_checkpoint_keeps_the_input_of_its_layer_and_computes_the_rest_again() -> None:
    (plain,) = traced("with_named_inputs").layers
    x = 2 * 32 * 64 * 4
    for name in ("Checkpointed", "CheckpointedReentrant"):
        (layer,) = traced(name, "ids=2x32:int64").layers
        assert layer.stash_bytes == x
        assert layer.recomputed_bytes == plain.stash_bytes - x
    assert plain.recomputed_bytes == 0


def test_a_layer_that_runs_again_keeps_as_much_each_time() -> None:
    again, apart = traced("Shared", "ids=2x32:int64"), traced("with_named_inputs")
    assert again.layers[0].stash_bytes == apart.layers[0].stash_bytes


def test_pytorchs_rms_norm_is_one_kernel_each_way() -> None:
    found = [op for op in traced("GatedStack", "x=2x32x64", eager=True).graph.operators if op.name.startswith("norm")]
    assert [(op.name, op.count) for op in found] == [("norm", 3), ("norm.backward", 3)]


def test_how_the_first_input_is_read_is_said_and_tokens_may_come_first() -> None:
    first, second = (traced("Mlp", "x=32x2x64", batch_axis=axis) for axis in (0, 1))
    assert (first.microbatch_size, first.seq_len) == (32, 2)
    assert any("read as 32 sequences of 2 tokens; --batch-axis 1" in note for note in first.notes)
    assert (second.microbatch_size, second.seq_len) == (2, 32)
    assert second.graph == first.graph
    with pytest.raises(InputError, match="must be 0"):
        traced("Mlp", "x=32x2x64", batch_axis=2)


def test_twice_the_batch_is_what_the_graph_says_it_grows_to() -> None:
    from sartor.model.lower.traced import grown

    small, large = traced("Gpt", "ids=2x32:int64"), traced("Gpt", "ids=4x32:int64")
    for op, call, real in zip(small.graph.operators, small.calls, large.graph.operators, strict=True):
        scaled = grown(op, call, 2.0)
        if not isinstance(op, MemoryBound):
            assert scaled == real, op.name
        else:  # weights and tables are read once however large the batch
            assert real.bytes_moved <= scaled.bytes_moved <= 2.1 * real.bytes_moved, op.name


def test_fused_kernels_move_no_more_than_eager_ones() -> None:
    fused, eager = traced("with_named_inputs"), traced("with_named_inputs", eager=True)
    assert fused.graph.matmul_flops == eager.graph.matmul_flops
    assert len(fused.graph.operators) < len(eager.graph.operators)
    assert fused.graph.bytes_moved <= eager.graph.bytes_moved


def test_edges_follow_the_data() -> None:
    model = traced("with_named_inputs")
    names = [op.name for op in model.graph.operators]
    edges = {(names[a], names[b]) for a, b in model.graph.edges}
    wanted = {("norm1", "qkv"), ("mlp.up", "mlp.activation"), ("mlp.activation", "mlp.down"), ("head", "head")}
    assert wanted - {("head", "head")} <= edges
    assert all(a < b for a, b in model.graph.edges)


def test_a_tied_head_is_counted_once() -> None:
    apart, tied = traced("Gpt", "ids=2x32:int64"), traced("tied", "ids=2x32:int64")
    assert apart.num_params - tied.num_params == 64000
    assert (tied.tied_params, apart.tied_params) == (64000, 0)
    assert traced_reading(tied).num_params == tied.num_params


def test_a_module_that_asks_for_values_while_it_is_made_is_made_on_the_host() -> None:
    assert [(op.n, op.k) for op in products(traced("AsksWhileMade", "x=4x64"))] == [(128, 64)]


def test_prefill_traces_forward_alone() -> None:
    model = traced("with_inputs", phase="prefill")
    assert {op.pass_ for op in model.graph.operators} == {Pass.FORWARD}
    assert model.layers[0].stash_bytes == 0


def test_a_graph_of_ones_own_module_is_written_read_and_priced(tmp_path: Path) -> None:
    model = traced("with_named_inputs", dtype="bf16")
    body = {"schema": "sartor/extract/1", **graph_body(model)}
    assert parse_graph(json.loads(json.dumps(body))).graph == model.graph
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(body))
    assert float(api.estimate(path, "a100").microbatch.time_s) > 0


@pytest.mark.parametrize(
    ("name", "inputs", "said"),
    [
        ("AsksForAValue", ("x=2x8x64",), r"_local_scalar_dense.*torch_modules\.py:\d+"),
        ("WrongSizes", ("x=4x8",), r"aten::addmm in module inner.*torch_modules\.py:\d+"),
        ("NoParameters", ("x=4x8",), "nothing that depends on a parameter"),
        ("Mlp", (), "needs its inputs"),
        ("Mlp", ("y=2x8x64",), "no such argument"),
        ("Mlp", ("x=2x8xsixty",), "NAME=SHAPE:DTYPE"),
        ("Mlp", ("x=2x8x64:float63",), "is not a PyTorch dtype"),
        ("Mlp", ("x=0x64",), "at least 1"),
        ("wants_an_argument", ("x=2x8x64",), "it takes width"),
        ("no_module", ("x=2x8x64",), "must return an nn.Module"),
        ("lazy", (), "is a lazy module's, without a size"),
        ("raises", ("x=2x8x64",), r"OSError: no weights here.*torch_modules\.py:\d+"),
        ("with_input", (), "nearest: with_inputs"),
    ],
)
def test_what_cannot_be_traced_is_said_with_its_place(name: str, inputs: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        traced(name, *inputs)


def test_a_module_that_cannot_be_imported_is_said() -> None:
    from sartor.read.extract import extract

    with pytest.raises(InputError, match="no module named nosuchpackage"):
        extract("nosuchpackage.models:make")
