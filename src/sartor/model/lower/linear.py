"""Linear layers: a GEMM forward, one for the input gradient and one for the weight gradient, and the collectives of
tensor parallelism around them.

For Y[T,out] = X[T,in] W^T with W stored [out,in] as PyTorch does (NVIDIA Linear/Fully-Connected Layers User's Guide,
table 1, in BLAS letters; codesign digest sec. 1.2):

    forward   Y  = X W^T    m=T    n=out  k=in    TN
    dgrad     dX = dY W     m=T    n=in   k=out   NN
    wgrad     dW = dY^T X   m=out  n=in   k=T     NT, added to an fp32 main gradient (Megatron's
                                                  gradient_accumulation_fusion)

The input gradient of the first layer is counted too, because the embedding needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sartor.model.layer import Linear, Split
from sartor.model.lower.piece import Flow, Fork, Gathered, Piece, repeat
from sartor.model.lower.setting import Narrowing, Setting
from sartor.operators import (
    Collective,
    CollectiveKind,
    CollectiveLibrary,
    DType,
    Gemm,
    Layout,
    MemoryBound,
    MemoryBoundKind,
    Pass,
    Role,
)
from sartor.units import Floats, Ints, ceil_div


def linears(
    setting: Setting,
    parts: Sequence[tuple[str, Linear]],
    kv_heads: Ints = 1,
    rows: Ints | None = None,
    role: Role | None = None,
) -> list[Piece]:
    """Named linear layers; those with the same name run as one GEMM."""
    groups: dict[str, list[Linear]] = {}
    for name, linear in parts:
        groups.setdefault(name, []).append(linear)
    return [linear_group(setting, name, group, kv_heads, rows, role) for name, group in groups.items()]


def linear_group(
    setting: Setting,
    name: str,
    group: Sequence[Linear],
    kv_heads: Ints = 1,
    rows: Ints | None = None,
    role: Role | None = None,
) -> Piece:
    """Linear layers with the same input as one GEMM of their summed local widths; nothing if they have no rows.
    ``role`` defaults to that of the first."""
    first = group[0]
    role = role or first.role
    if first.rows is not None:
        rows = setting.batch * first.rows
    elif rows is None:
        rows = setting.outer_tokens if first.split is Split.REPLICATED else setting.tokens
    if any(isinstance(size, int) and size == 0 for size in (first.rows, rows)):
        return Piece()
    d_out = sum(local_width(linear, setting.tp, kv_heads) for linear in group)
    dtype = setting.wide if role is Role.ROUTER else setting.dtype
    piece = product(setting, name, role, rows, d_out, local_inner(first, setting.tp), dtype, first.split)
    return repeat(piece, first.count)


def local_inner(linear: Linear, tp: Ints) -> Ints:
    """Input width on one device."""
    width: Ints = ceil_div(linear.d_in, tp) if linear.split is Split.ROW else linear.d_in
    return width


def local_width(linear: Linear, tp: Ints, kv_heads: Ints = 1) -> Ints:
    """Output width on one device. Key/value heads are not split: if there are fewer than devices, they are
    replicated."""
    width: Ints = linear.d_out
    if linear.split is Split.COLUMN:
        width = ceil_div(linear.d_out, tp)
    elif linear.split is Split.KV_HEADS:
        width = linear.d_out // kv_heads * ceil_div(kv_heads, tp)
    return width


def product(
    setting: Setting,
    name: str,
    role: Role,
    rows: Ints,
    d_out: Ints,
    d_in: Ints,
    dtype: DType,
    split: Split = Split.REPLICATED,
) -> Piece:
    """The GEMMs of one linear layer [d_in, d_out] on ``rows`` rows, and the casts that an 8- or 4-bit ``dtype`` needs.
    A tensor that is gathered over tensor ranks (``split``) is quantized first, each rank its own part."""
    habits, narrowed = setting.kernels, setting.kernels.narrowing is not None and dtype.bytes < 2
    weights = 1.0 * d_out * d_in
    forward = Gemm(name=name, role=role, m=rows, n=d_out, k=d_in, dtype=dtype, quantized=narrowed)
    local_rows = ceil_div(rows, setting.tp) if _gathers_narrow(setting) else rows
    entering, leaving = (rows if split is Split.ROW else local_rows), (local_rows if split is Split.ROW else rows)
    if split is Split.REPLICATED:
        entering = leaving = rows
    cast = (
        *casts(setting, name, entering, d_in, dtype, Pass.FORWARD, weights),
        *widening(setting, name, role, d_out, d_in, Pass.FORWARD),
    )
    if not setting.training:
        return Piece(forward=(*cast, forward))
    dgrad = replace(forward, name=f"{name}.dgrad", n=d_in, k=d_out, layout=Layout.NN, pass_=Pass.DGRAD)
    wgrad = replace(
        forward,
        name=f"{name}.wgrad",
        m=d_out,
        n=d_in,
        k=rows,
        out_dtype=habits.main_grad if habits.accumulates else setting.wide,
        layout=Layout.NT,
        pass_=Pass.WGRAD,
        accumulates=habits.accumulates,
    )
    grad_cast = (
        *casts(setting, name, leaving, d_out, dtype, Pass.BACKWARD, weights),
        *widening(setting, name, role, d_out, d_in, Pass.BACKWARD),
    )
    flows: tuple[Flow, ...] = ((wgrad, *_accumulation(setting, name, d_out, d_in)),) if habits.weight_gradients else ()
    return Piece(forward=(*cast, forward), backward=(*grad_cast, Fork(((dgrad,),), flows)))


def _accumulation(setting: Setting, name: str, d_out: Ints, d_in: Ints) -> tuple[MemoryBound, ...]:
    """The kernel that adds a weight gradient to that of earlier microbatches if the GEMM does not."""
    element = setting.kernels.gradient_bytes
    if not element:
        return ()
    kind, size = MemoryBoundKind.RESIDUAL, 1.0 * d_out * d_in * element
    return (
        MemoryBound(
            name=f"{name}.accumulate",
            role=Role.GRAD_ACCUMULATION,
            kind=kind,
            rows=d_out,
            cols=d_in,
            bytes_moved=size,
            pass_=Pass.WGRAD,
        ),
    )


def widening(setting: Setting, name: str, role: Role, rows: Ints, cols: Ints, pass_: Pass) -> tuple[MemoryBound, ...]:
    """The kernel that converts frozen 4-bit weights to 16 bits before a GEMM; the head is stored in 16 bits."""
    element = setting.kernels.widened_bytes
    if not element or role is Role.LOGITS:
        return ()
    return (
        MemoryBound(
            name=f"{name}.widen" if pass_ is Pass.FORWARD else f"{name}.grad_widen",
            role=Role.CAST,
            kind=MemoryBoundKind.CAST,
            rows=rows,
            cols=cols,
            bytes_moved=1.0 * rows * cols * (element + setting.element),
            dtype=setting.wide,
            pass_=pass_,
        ),
    )


def _gathers_narrow(setting: Setting) -> bool:
    """Whether sequence parallelism gathers quantized tensors (Transformer Engine)."""
    how = setting.kernels.narrowing
    return setting.sequence_parallel and how is not None and how.gathered and setting.dtype.bytes < 2


def casts(
    setting: Setting, name: str, rows: Ints, cols: Ints, dtype: DType, pass_: Pass, weights: Floats = 0.0
) -> tuple[MemoryBound, ...]:
    """Quantizes a 16-bit activation to 8 or 4 bits. Training also writes the transposed copy that the weight gradient
    contracts over tokens (Hopper multiplies FP8 in layout TN only). A recipe may read twice, write once, or quantize
    ``weights`` (elements) as well."""
    if dtype.activation_bytes >= 2:
        return ()
    how = setting.kernels.narrowing or Narrowing(copies=1)
    bytes_each = how.reads * setting.element + how.copies * dtype.bytes
    weights = weights * (how.reads * setting.element + dtype.bytes) if how.weights else 0.0
    suffix = "cast" if pass_ is Pass.FORWARD else "grad_cast"
    return (
        MemoryBound(
            name=f"{name}.{suffix}",
            role=Role.CAST,
            kind=MemoryBoundKind.CAST,
            rows=rows,
            cols=cols,
            bytes_moved=1.0 * rows * cols * bytes_each + weights,
            kernels=how.kernels * (2 if how.weights else 1),
            dtype=dtype,
            pass_=pass_,
        ),
    )


def region(
    setting: Setting,
    name: str,
    inside: Piece,
    gathered: Ints | None = None,
    reduced: bool = True,
    wide: bool = False,
) -> Piece:
    """A tensor-parallel region: column-parallel linears first, a row-parallel one last (if ``reduced``).

    Without sequence parallelism the output is all-reduced forward and the input's gradient backward (Shoeybi et al.
    2019, fig. 3). With it (Korthikanti et al. 2022, sec. 4.2.2) the input is all-gathered and the output
    reduce-scattered; backward mirrors that and gathers the input once more for the weight gradient. Messages are the
    whole [tokens, width] activation; ``gathered`` is the width of the input if it is not the residual's. Inputs of 8-
    and 4-bit GEMMs are gathered in that type, unless ``wide``.
    """
    if not setting.is_split:
        return inside
    width = setting.hidden_size if gathered is None else gathered
    entering = setting.tokens * width * setting.element
    leaving = setting.tokens * setting.hidden_size * setting.element
    kinds, sent = CollectiveKind, partial(_collective, setting, name)
    if not setting.sequence_parallel:
        out = (sent("all_reduce", Role.OUTPUT_REDUCE, kinds.ALL_REDUCE, leaving),) if reduced else ()
        back = sent("grad_all_reduce", Role.GRAD_REDUCE, kinds.ALL_REDUCE, entering, Pass.BACKWARD)
        return Piece(
            forward=(*inside.forward, *out), backward=(*inside.backward, *((back,) if setting.training else ()))
        )
    narrow = setting.dtype.bytes / setting.element if _gathers_narrow(setting) and not wide else 1.0
    gather = sent("all_gather", Role.INPUT_GATHER, kinds.ALL_GATHER, entering * narrow)
    scatter = sent("reduce_scatter", Role.OUTPUT_REDUCE, kinds.REDUCE_SCATTER, leaving)
    grad_gather = sent("grad_all_gather", Role.GRAD_GATHER, kinds.ALL_GATHER, leaving * narrow, Pass.BACKWARD)
    regather = sent("input_all_gather", Role.INPUT_GATHER, kinds.ALL_GATHER, entering * narrow, Pass.BACKWARD)
    grad_scatter = sent("grad_reduce_scatter", Role.GRAD_REDUCE, kinds.REDUCE_SCATTER, entering, Pass.BACKWARD)
    return Piece(
        forward=(gather, *inside.forward, *((scatter,) if reduced else ())),
        backward=(*((grad_gather,) if reduced else ()), Gathered(regather, inside.backward), grad_scatter),
    )


def _collective(
    setting: Setting,
    region: str,
    way: str,
    role: Role,
    kind: CollectiveKind,
    message: Floats,
    pass_: Pass = Pass.FORWARD,
) -> Collective:
    """Training runs NCCL. Serving engines replay their own all-reduce from a CUDA graph if it is faster."""
    library = CollectiveLibrary.NCCL if setting.training else CollectiveLibrary.CUSTOM
    return Collective(
        name=f"{region}.{way}",
        role=role,
        kind=kind,
        group_size=setting.tp,
        message_bytes=message,
        library=library,
        pass_=pass_,
    )
