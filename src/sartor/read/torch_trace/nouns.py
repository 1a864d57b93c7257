"""From PyTorch's dispatched operators to those of ``sartor.operators``: GEMMs, attention, convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from math import prod

from sartor.json_types import JsonDict
from sartor.model.traced import Grows
from sartor.operators import Attention, DType, Gemm, GroupedGemm, Layout, MemoryBound, MemoryBoundKind, Operator, Pass
from sartor.read.torch_trace.records import Record

DTYPES = {
    "float64": DType.FP64,
    "float32": DType.FP32,
    "bfloat16": DType.BF16,
    "float16": DType.FP16,
    "float8_e4m3fn": DType.FP8,
    "float8_e5m2": DType.FP8,
    "int8": DType.INT8,
    "float4_e2m1fn_x2": DType.NVFP4,
    "mx_float8_e4m3fn": DType.MXFP8,
    "mx_float8_e5m2": DType.MXFP8,
    "mx_float4_e2m1fn_x2": DType.MXFP4,
}
"""PyTorch's element types -> ours; other integers and booleans are indices, priced only by their bytes."""


@dataclass(frozen=True, slots=True)
class Made:
    """An operator made from a record, the suffix of its name, and the size that grows with the batch."""

    operator: Operator
    suffix: str
    grows: Grows


def is_product(record: Record) -> bool:
    """Whether a record is an operator of its own; others are memory-bound and may be fused with their neighbours."""
    return record.call in _MAKERS or "head_dim" in record.facts


def products(record: Record, records: list[Record]) -> tuple[Made, ...]:
    """The operators of a record for which ``is_product`` is true."""
    built = tuple(_MAKERS.get(record.call, _attention)(record, records))
    return built if record.pass_ is not Pass.RECOMPUTE else tuple(_again(product) for product in built)


def _again(built: Made) -> Made:
    """A forward operator that checkpointing runs once more."""
    return Made(replace(built.operator, pass_=Pass.RECOMPUTE), built.suffix + suffix_of(Pass.RECOMPUTE), built.grows)


def dtype_of(word: str) -> DType:
    return DTYPES.get(word, DType.FP32 if "32" in word or "64" in word else DType.BF16)


def _matrix_product(record: Record, records: list[Record]) -> Iterator[Made]:
    """``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``mv``, ``dot``, and those on integers and scaled narrow floats."""
    first, second = record.facts["operands"]
    a, b = record.reads[first], record.reads[second]
    (sa, sb) = record.facts["strides"]
    batch = a.shape[0] if len(a.shape) == 3 else 1
    m, k = (1, a.shape[0]) if len(a.shape) == 1 else a.shape[-2:]
    n = 1 if len(b.shape) == 1 else b.shape[-1]
    layout, swapped = _layout(sa[-2:], sb[-2:])
    pass_, grows = _pass_and_growth(record, records)
    if swapped:
        m, n = n, m
        grows = {Grows.M: Grows.N, Grows.N: Grows.M}.get(grows, grows)
    if record.call == "aten::addbmm":  # the sum over the batch
        batch, k = 1, k * batch
    sizes = {"m": m, "n": n, "k": k * _elements(record), "batch": batch}
    yield Made(Gemm(name="", **sizes, **_types(record), layout=layout, pass_=pass_), suffix_of(pass_), grows)


def _types(record: Record) -> JsonDict:
    """Element types of a product: of its operands and of its result. A trace has narrow operands quantized by operators
    of their own."""
    dtype = dtype_of(record.facts["dtype"])
    return {"dtype": dtype, "out_dtype": dtype_of(record.dtype), "quantized": dtype.bytes < 2}


def _elements(record: Record) -> int:
    """Elements in one of the tensor's: 2 where 4-bit ones are packed."""
    return 2 if record.facts["dtype"].endswith("_x2") else 1


def _weight_only(record: Record, records: list[Record]) -> Iterator[Made]:
    """Activations of 16 bits times packed weights of 4 or 8."""
    rows, k = prod(record.reads[0].shape[:-1]), record.reads[0].shape[-1]
    dtype = DType.INT4_WO if "int4" in record.call else DType.INT8_WO
    gemm = Gemm(name="", m=rows, n=record.outputs[0][-1], k=k, dtype=dtype, out_dtype=dtype_of(record.dtype))
    yield Made(gemm, "", Grows.M)


def _trilinear(record: Record, records: list[Record]) -> Iterator[Made]:
    """``nn.Bilinear``: two inputs and a weight multiplied and summed, as the GEMM it amounts to."""
    facts, dtype = record.facts, dtype_of(record.dtype)
    pass_ = Pass.FORWARD if not record.backward else Pass.WGRAD if facts["over_batch"] else Pass.DGRAD
    gemm = Gemm(name="", m=facts["m"], n=facts["n"], k=facts["k"], dtype=dtype, out_dtype=dtype, pass_=pass_)
    yield Made(gemm, suffix_of(pass_), Grows.K if facts["over_batch"] else Grows.M)


def _layout(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Layout, bool]:
    """Layout from the strides of two matrices; True if the product is priced as its transpose (B' A')."""
    a_by_k = len(a) < 2 or a[-1] == 1 or a[-2] != 1
    b_by_n = len(b) < 2 or b[-1] == 1 or b[-2] != 1
    if a_by_k:
        return (Layout.NN, False) if b_by_n else (Layout.TN, False)
    return (Layout.NT, False) if b_by_n else (Layout.NN, True)


def _pass_and_growth(record: Record, records: list[Record]) -> tuple[Pass, Grows]:
    """A product with a weight computes outputs or, in backward, its input's gradient; it is the weight's gradient if
    both operands depend on the batch although the forward product had a weight."""
    first, second = record.facts["operands"]
    a, b = record.reads[first], record.reads[second]
    if not record.backward:
        return Pass.FORWARD, _growth(record)
    if not (a.varies and b.varies):
        return Pass.DGRAD, _growth(record)
    twin = _forward_product(record, records)
    if twin is None:
        return Pass.DGRAD, _growth(record)
    weight_at = [twin.reads[i] for i in twin.facts["operands"]]
    if all(read.varies for read in weight_at):
        return Pass.DGRAD, _growth(record)
    return Pass.WGRAD, Grows.BATCH if _growth(twin) is Grows.BATCH else Grows.K


def _forward_product(record: Record, records: list[Record]) -> Record | None:
    """The product whose gradient this is: the first one of its autograd node (one with a ``Function`` of its own may
    quantize first)."""
    if record.twin < 0:
        return None
    path = records[record.twin].path
    twins = takewhile(
        lambda candidate: candidate.path == path and not candidate.backward, islice(records, record.twin, None)
    )
    return next((candidate for candidate in twins if "operands" in candidate.facts), None)


def _growth(record: Record) -> Grows:
    first, second = record.facts["operands"]
    a, b = record.reads[first], record.reads[second]
    if not a.varies and not b.varies:
        return Grows.NOTHING
    if len(a.shape) == 3:
        weight = next((i for i, read in enumerate((a, b)) if not read.varies), None)
        if weight is None or record.facts["strides"][weight][0] == 0:
            return Grows.BATCH
        return Grows.N if weight == 0 else Grows.M
    if a.varies:
        return Grows.M if len(a.shape) == 2 else Grows.NOTHING
    return Grows.N


def _grouped(record: Record, records: list[Record]) -> Iterator[Made]:
    """``_grouped_mm``: rows of all experts times one weight each; with two 2-d operands the weights' gradients."""
    first, second = record.facts["operands"]
    a, b = record.reads[first].shape, record.reads[second].shape
    packed = _elements(record)
    if len(a) == 3 and len(b) == 3:
        sizes = {"batch": a[0], "m": a[1], "k": a[2] * packed, "n": b[2]}
        gemm = Gemm(name="", **sizes, **_types(record), pass_=_direction(record))
        yield Made(gemm, suffix_of(gemm.pass_), Grows.M)
        return
    if len(a) == 2 and len(b) == 2:
        groups, k, n = record.outputs[0]
        rows, pass_, layout = a[1], Pass.WGRAD, Layout.NT
    elif len(b) == 3:
        groups, k, n = b
        rows, pass_ = a[0], _direction(record)
        layout = Layout.TN if pass_ is Pass.FORWARD else Layout.NN
    else:
        groups, n, k = a
        rows, pass_ = b[1], _direction(record)
        layout = Layout.TN if pass_ is Pass.FORWARD else Layout.NN
    grouped = GroupedGemm(
        name="", groups=groups, rows=rows, n=n, k=k * packed, **_types(record), pass_=pass_, layout=layout
    )
    yield Made(grouped, suffix_of(pass_), Grows.ROWS)


def _direction(record: Record) -> Pass:
    return Pass.DGRAD if record.backward else Pass.FORWARD


def _attention(record: Record, records: list[Record]) -> Iterator[Made]:
    """A fused attention kernel; the operator itself says whether it is a gradient's."""
    facts = dict(record.facts)
    dtype = facts.pop("dtype", record.dtype)
    backward = facts.pop("backward", record.call.endswith("_backward"))
    again = Pass.RECOMPUTE if record.backward else Pass.FORWARD
    operator = Attention(name="", dtype=dtype_of(dtype), pass_=Pass.BACKWARD if backward else again, **facts)
    yield Made(operator, ".attention" + suffix_of(operator.pass_), Grows.BATCH)


def _scan(record: Record, records: list[Record]) -> Iterator[Made]:
    """A selective scan reads and writes each tensor once; about 9 FLOPs per channel and state
    (github.com/state-spaces/mamba, issue 110), twice that backward."""
    elements = float(prod(record.reads[0].shape))
    channels = record.facts["channels"]
    yield Made(
        MemoryBound(
            name="",
            kind=MemoryBoundKind.SCAN,
            rows=int(elements) // channels,
            cols=channels,
            bytes_moved=sum(read.bytes for read in record.reads) + record.output_bytes,
            flops=elements * 9.0 * record.facts["states"] * (2 if record.backward else 1),
            dtype=dtype_of(record.dtype),
            pass_=Pass.BACKWARD if record.backward else Pass.FORWARD,
        ),
        ".scan.backward" if record.backward else ".scan",
        Grows.ROWS,
    )


def _convolution(record: Record, records: list[Record]) -> Iterator[Made]:
    """A convolution as its equivalent GEMM: rows are output positions, k the inputs under the kernel. With one filter
    per channel (depthwise) it is memory-bound instead."""
    facts = record.facts
    shape = facts["grad"] if record.backward else record.outputs[0]
    groups, (outs, ins, *kernel) = facts["groups"], facts["weight"]
    if facts["transposed"]:
        outs, ins = ins * groups, outs // groups
        shape = facts["data"] if record.backward else record.reads[0].shape
    rows, k = shape[0] * prod(shape[2:]), ins * prod(kernel)
    dtype = dtype_of(record.dtype)
    if ins == 1 and outs == groups:
        elements = float(rows) * outs
        yield Made(
            MemoryBound(
                name="",
                kind=MemoryBoundKind.CONV,
                rows=rows,
                cols=outs,
                bytes_moved=sum(read.bytes for read in record.reads) + record.output_bytes,
                flops=2.0 * elements * prod(kernel) * (2 if record.backward else 1),
                dtype=dtype,
                pass_=Pass.BACKWARD if record.backward else Pass.FORWARD,
            ),
            ".backward" if record.backward else "",
            Grows.ROWS,
        )
        return
    n, common = outs // groups, {"batch": groups, "dtype": dtype, "out_dtype": dtype}
    if not record.backward:
        yield Made(Gemm(name="", m=rows, n=n, k=k, **common), "", Grows.M)
        return
    if facts["mask"][0]:
        gemm = Gemm(name="", m=rows, n=k, k=n, layout=Layout.NN, pass_=Pass.DGRAD, **common)
        yield Made(gemm, ".dgrad", Grows.M)
    if facts["mask"][1]:
        gemm = Gemm(name="", m=n, n=k, k=rows, layout=Layout.NT, pass_=Pass.WGRAD, **common)
        yield Made(gemm, ".wgrad", Grows.K)


def suffix_of(pass_: Pass) -> str:
    """What an operator's name ends in, by its pass."""
    words = {Pass.DGRAD: ".dgrad", Pass.WGRAD: ".wgrad", Pass.BACKWARD: ".backward", Pass.RECOMPUTE: ".recomputed"}
    return words.get(pass_, "")


_MAKERS: JsonDict = {
    **dict.fromkeys(
        ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::dot", "aten::addmv",
         "aten::addbmm", "aten::_int_mm", "aten::_scaled_mm", "aten::_scaled_mm_v2"),
        _matrix_product,
    ),
    **dict.fromkeys(
        ("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2"),
        _grouped,
    ),
    **dict.fromkeys(
        ("aten::_weight_int4pack_mm", "aten::_weight_int8pack_mm"),
        _weight_only,
    ),
    "aten::_trilinear": _trilinear,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution,
    "sartor::attention": _attention,
    "sartor::attention_backward": _attention,
    "sartor::scan": _scan,
    "sartor::scan_backward": _scan,
}  # fmt: skip
