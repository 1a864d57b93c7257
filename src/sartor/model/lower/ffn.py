"""Feed-forward parts: dense, and mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sartor.model.layer import DenseFfn, Linear, MoeFfn
from sartor.model.lower.linear import casts, linear_group, linears, region, widening
from sartor.model.lower.piece import Fork, Piece, activation, beside, chain, residual, streamed
from sartor.model.lower.setting import Setting
from sartor.operators import (
    Axis,
    Collective,
    CollectiveKind,
    DType,
    GroupedGemm,
    Layout,
    MemoryBoundKind,
    Operator,
    Pass,
    Role,
)
from sartor.units import Floats, Ints, ceil_div


def dense_ffn(setting: Setting, part: DenseFfn, shared: bool = False) -> Piece:
    """Up (and gate), activation and down projection on one device, without collectives. ``shared``: the shared
    expert's."""
    prefix = "shared" if shared else part.name
    up_role, down_role = (Role.SHARED_UP, Role.SHARED_DOWN) if shared else (Role.FFN_UP, Role.FFN_DOWN)
    *ups, down = part.linears(setting.hidden_size)
    width = ceil_div(part.ffn_hidden_size, setting.tp)
    return chain(
        beside(*linears(setting, _named_ups(ups, prefix), role=up_role)),
        activation(setting, setting.tokens, width, part.gated, f"{prefix}_activation", part.activation),
        linear_group(setting, f"{prefix}_down", [down], role=down_role),
    )


def _named_ups(ups: list[Linear], prefix: str) -> list[tuple[str, Linear]]:
    return [(f"{prefix}_{linear.fused or linear.name}", linear) for linear in ups]


def moe_ffn(setting: Setting, part: MoeFfn) -> Piece:
    """Router, top-k, permutation, all-to-all, experts as grouped GEMMs, and the way back; shared experts beside
    them."""
    routed = chain(
        *(linear_group(setting, linear.name, [linear]) for linear in _outer_linears(setting, part)),
        _top_k(setting, part),
        _routed(setting, part),
    )
    if part.shared is None:
        return routed
    shared = region(setting, "shared_expert", dense_ffn(setting, part.shared, shared=True))
    return chain(beside(routed, shared), residual(setting, setting.outer_tokens, setting.hidden_size, "shared_add"))


def _routed(setting: Setting, part: MoeFfn) -> Piece:
    """Tokens to their experts and back. If tensor parallelism splits experts, each sees the tokens of all its ranks;
    otherwise every rank sends its share of the tokens to whole experts."""
    inside = chain(_permute(setting, part), _experts(setting, part), _unpermute(setting, part))
    return region(setting, part.name, inside, wide=True) if setting.kernels.splits_experts else inside


def _sent_tokens(setting: Setting, part: MoeFfn) -> Ints:
    """Tokens this device permutes."""
    split = setting.kernels.splits_experts
    tokens: Ints = setting.tokens if split else ceil_div(setting.tokens, setting.tp)
    return tokens


def _expert_rows(setting: Setting, part: MoeFfn) -> Ints:
    """Rows of this device's experts: k per token it sends, which is also what it receives on average. With uneven
    routing, the rows of the most loaded device, which the others wait for."""
    rows: Ints = _sent_tokens(setting, part) * part.experts_per_token
    load = _fullest(setting, part)
    if isinstance(load, float) and load == 1.0:
        return rows
    fullest = np.ceil(rows * load - 1e-6).astype(np.int64)
    return int(fullest) if fullest.ndim == 0 else fullest


def _fullest(setting: Setting, part: MoeFfn) -> Floats:
    """Rows of the device with the largest expert, relative to the mean; its other experts get an average load."""
    skew, ep = setting.workload.routing_skew, setting.dims.ep
    if not setting.training or skew == 1.0 or (isinstance(ep, int) and ep == 1):
        return 1.0
    experts = np.asarray(part.num_experts, dtype=np.float64)
    per_rank = np.maximum(experts / ep, 1.0)
    return (skew + (per_rank - 1) * (experts - skew) / np.maximum(experts - 1, 1)) / per_rank


def _outer_linears(setting: Setting, part: MoeFfn) -> list[Linear]:
    """The linear layers every token passes besides the experts: router, shared-expert gate, latent projections."""
    return list(replace(part, shared=None).linears(setting.hidden_size))


def expert_width(setting: Setting, part: MoeFfn) -> Ints:
    """Width of the rows sent to the experts."""
    return setting.hidden_size if part.expert_hidden_size is None else part.expert_hidden_size


def _active_experts(setting: Setting, part: MoeFfn) -> Any:
    """Expected number of experts on this device that at least one token visits under uniform routing, at least 1:
    E/ep (1 - (1 - k/E)^T). All of them in training; a fraction when decoding a small batch, as the expected time of
    reading weights is that of the expected number."""
    experts, k = part.num_experts, part.experts_per_token
    tokens = _sent_tokens(setting, part) * setting.dims.ep
    share = 1.0 - (1.0 - k / np.asarray(experts, dtype=np.float64)) ** tokens
    groups = np.round(np.maximum(experts * share / setting.dims.ep, 1.0), _DECIMALS)
    if groups.ndim:
        return groups
    return int(groups) if float(groups).is_integer() else float(groups)


_DECIMALS = 6
"""Decimals of an expected number of experts: a power of an array differs from that of a number in its last bits."""


def _top_k(setting: Setting, part: MoeFfn) -> Piece:
    """Softmax or sigmoid over the experts in fp32, top-k, and the counts per expert: logits are read twice (8 bytes);
    weights and indices of k experts are small. Backward reads the probabilities and writes the logits' gradient."""
    return streamed(
        setting,
        "routing",
        MemoryBoundKind.ROUTING,
        setting.outer_tokens,
        part.num_experts,
        forward_bytes=8.0,
        backward_bytes=8.0,
        flops=5,
        kernels=3,
    )


def _permute(setting: Setting, part: MoeFfn) -> Piece:
    """Every token is read once and written k times; backward reads k gradients and writes their sum. If dispatch writes
    rows in expert order itself, its links are slower than memory and hide the permutation."""
    e, k, role = setting.element, part.experts_per_token, Role.DISPATCH
    if _arranged_on_the_way(setting):
        return _all_to_all(setting, part, "dispatch", role)
    moved, rows = (k + 1) * e, _sent_tokens(setting, part)
    permuted = streamed(setting, "permute", MemoryBoundKind.ROUTING, rows, setting.hidden_size, moved, moved, role=role)
    return chain(permuted, _all_to_all(setting, part, "dispatch", role), _sorted(setting, part, "expert_sort", role))


def _unpermute(setting: Setting, part: MoeFfn) -> Piece:
    """k expert outputs are read, weighted and summed into one; backward writes k gradients and reads the outputs again
    for the gradient of the weights."""
    e, k, role = setting.element, part.experts_per_token, Role.COMBINE
    if _arranged_on_the_way(setting):
        return _all_to_all(setting, part, "combine", role)
    merged = streamed(
        setting,
        "unpermute",
        MemoryBoundKind.ROUTING,
        _sent_tokens(setting, part),
        expert_width(setting, part),
        (k + 1) * e,
        (2 * k + 1) * e,
        flops=2,
        role=role,
    )
    unsorted = _sorted(setting, part, "expert_unsort", role)
    return chain(unsorted, _all_to_all(setting, part, "combine", role), merged)


def _arranged_on_the_way(setting: Setting) -> bool:
    ep = setting.dims.ep
    return setting.kernels.fused_experts and setting.training and not (isinstance(ep, int) and ep == 1)


def _sorted(setting: Setting, part: MoeFfn, name: str, role: Role) -> Piece:
    """Rows arrive ordered by sender. A device with several experts sorts them by expert, and back again afterwards: one
    read and write of every row each time (Megatron-Core's all-to-all dispatcher, ``sort_chunks_by_idxs``)."""
    ep, e = setting.dims.ep, setting.element
    if not setting.training or (isinstance(ep, int) and ep == 1):
        return Piece()
    several = np.logical_and(np.greater(ep, 1), np.greater(part.num_experts, ep))
    rows, moved = _expert_rows(setting, part), 2 * e * several
    width = expert_width(setting, part)
    kernels: Ints = 1 * several
    return streamed(setting, name, MemoryBoundKind.ROUTING, rows, width, moved, moved, kernels=kernels, role=role)


def _all_to_all(setting: Setting, part: MoeFfn, name: str, role: Role) -> Piece:
    """Expert parallelism sends every token's k copies to the devices of their experts, each way, both passes. Devices
    of one tensor-parallel group share the work: each sends 1/tp of the rows. Members of an expert-parallel group are
    one tensor-parallel group apart, or direct neighbours if experts are not split."""
    ep = setting.dims.ep
    if isinstance(ep, int) and ep == 1:
        return Piece()
    stride = setting.tp if setting.kernels.splits_experts else 1
    forward = Collective(
        name=f"{name}.all_to_all",
        role=role,
        kind=CollectiveKind.ALL_TO_ALL,
        group_size=ep,
        message_bytes=_sent_rows(setting, part, stride) * expert_width(setting, part) * setting.element,
        stride=stride,
        axis=Axis.EXPERT,
    )
    backward = replace(forward, name=f"{name}.grad_all_to_all", pass_=Pass.BACKWARD)
    return Piece(forward=(forward,), backward=(backward,) if setting.training else ())


def _sent_rows(setting: Setting, part: MoeFfn, stride: Ints) -> Any:
    """Rows a device sends, including those to itself: k per token. If copies are made on arrival, one per group of
    devices that holds any of the token's experts: with k experts drawn evenly from P groups, P (1 - (1 - 1/P)^k); P are
    those its routing can reach. Traffic inside a group is left out: its links are an order of magnitude faster."""
    ep, k, near = setting.dims.ep, part.experts_per_token, setting.kernels.dispatch_once_per
    tokens, load = setting.tokens, _fullest(setting, part)
    if near == 0:
        return ceil_div(tokens * k, setting.tp) * load
    groups = np.ceil(np.asarray(ep) / np.maximum(near // stride, 1))
    groups = _reachable(np.where(groups > 1, groups, ep) * 1.0, part)
    return ceil_div(tokens, setting.tp) * (groups * (1 - (1 - 1 / groups) ** k)) * load


def _reachable(groups: Ints, part: MoeFfn) -> Any:
    """Expected number of device groups with experts that a token may choose: of the G routing groups it takes M; each
    of P device groups has G / P of them or part of one, and is missed with C(G - G/P, M) / C(G, M)."""
    whole, chosen = part.routing_groups, part.groups_per_token
    per_group, missed = np.maximum(whole / groups, 1.0), 1.0
    for i in range(chosen):
        missed = missed * np.maximum(whole - per_group - i, 0.0) / (whole - i)
    return groups * (1 - missed)


def _experts(setting: Setting, part: MoeFfn) -> Piece:
    expert, h = part.expert, expert_width(setting, part)
    width = ceil_div(expert.ffn_hidden_size, setting.tp if setting.kernels.splits_experts else 1)
    up = Role.EXPERT_UP
    if _one_kernel(setting, expert, width, h):
        ups = _grouped(setting, part, "expert_gate_up", up, 2 * width, h, grad_cast=False)
        return chain(ups, _grouped(setting, part, "expert_down", Role.EXPERT_DOWN, h, width, cast=False))
    if expert.gated and expert.fused_gate:
        ups = _grouped(setting, part, "expert_gate_up", up, 2 * width, h)
    else:
        names = ("expert_gate", "expert_up") if expert.gated else ("expert_up",)
        ups = beside(*(_grouped(setting, part, name, up, width, h) for name in names))
    rows = _expert_rows(setting, part)
    return chain(
        _padded(setting, part, "expert_pad", Role.DISPATCH),
        ups,
        _clamped(setting, rows, 2 * width),
        activation(setting, rows, width, expert.gated, "expert_activation", expert.activation),
        _grouped(setting, part, "expert_down", Role.EXPERT_DOWN, h, width),
        _bias_of_outputs(setting, part),
        _padded(setting, part, "expert_unpad", Role.COMBINE),
    )


def _padded(setting: Setting, part: MoeFfn, name: str, role: Role) -> Piece:
    """8- and 4-bit GEMMs need a multiple of 16 or 32 rows per expert. Unless dispatch pads them, rows are copied to a
    zero-padded buffer and back afterwards (Megatron-Core, transformer/moe/experts.py, ``TEGroupedMLP.fp8_padding``;
    read 2026-11-25)."""
    habits = setting.kernels
    if not (habits.pads_experts and setting.training and setting.dtype.bytes < 2) or habits.fused_experts:
        return Piece()
    moved = 2 * setting.element
    rows, width = _expert_rows(setting, part), expert_width(setting, part)
    return streamed(setting, name, MemoryBoundKind.ROUTING, rows, width, moved, moved, role=role)


def _one_kernel(setting: Setting, expert: DenseFfn, width: Ints, h: Ints) -> bool:
    """Whether the first GEMM also applies the activation and quantizes for the second, and the second's backward does
    so for the first: MXFP8, gated without bias, widths that are multiples of 256 (Transformer Engine,
    ops/fused/forward_grouped_mlp.py, read 2026-11-25)."""
    plain = expert.gated and expert.fused_gate and not (expert.up_bias or expert.down_bias)
    fused = plain and setting.kernels.fused_experts and setting.dtype is DType.MXFP8 and setting.training
    return bool(fused and np.all(np.mod(width, 256) == 0) and np.all(np.mod(h, 256) == 0))


def _clamped(setting: Setting, rows: Any, cols: Ints) -> Piece:
    """A limit on gates and values is applied before the fused activation: both halves are clamped (read, written) and
    joined (read, written); backward reads the clamped values and their gradient, writes one, and joins the halves
    (Megatron-Core 0.15, fusions/fused_bias_geglu.py, ``weighted_bias_quick_geglu_impl``, read 2026-11-24)."""
    numerics = setting.workload.shape.numerics
    limited = numerics is not None and numerics.get("glu_limit")
    if not (limited and setting.training and setting.kernels.expert_bias_apart):
        return Piece()
    e, kind, role = setting.element, MemoryBoundKind.ACTIVATION, Role.ACTIVATION
    return streamed(setting, "expert_clamp", kind, rows, cols, 4 * e, 5 * e, flops=1, kernels=3, role=role)


def _bias_of_outputs(setting: Setting, part: MoeFfn) -> Piece:
    """The bias of experts' outputs is weighted by each row's fp32 probability, so no GEMM can add it: for each expert
    bias x probability (written in fp32) and its sum with the output (read and written in fp32), then all are joined
    (read, written) and converted to 16 bits. Backward converts the gradient to fp32 and, for the outputs, back, joins
    the parts, and multiplies and sums twice: over rows for the bias, over columns for the probabilities (Megatron-Core
    0.15, transformer/moe/experts.py, ``TEGroupedMLP._apply_bias``, read 2026-11-24)."""
    if not (part.expert.down_bias and setting.training and setting.kernels.expert_bias_apart):
        return Piece()
    e, active = setting.element, _active_experts(setting, part)
    return streamed(
        setting,
        "expert_bias",
        MemoryBoundKind.RESIDUAL,
        _expert_rows(setting, part),
        expert_width(setting, part),
        24 + 2 * e,
        32 + 4 * e,
        flops=2,
        kernels=2 * active + 2,
        backward_kernels=5 * active + 2,
        role=Role.EXPERT_DOWN,
    )


def _grouped(
    setting: Setting,
    part: MoeFfn,
    name: str,
    role: Role,
    d_out: Ints,
    d_in: Ints,
    *,
    cast: bool = True,
    grad_cast: bool = True,
) -> Piece:
    """A grouped GEMM and its gradients. Without ``cast`` its input is already quantized, without ``grad_cast`` its
    output's gradient."""
    rows, groups = _expert_rows(setting, part), _active_experts(setting, part)
    skew, dtype, habits = setting.workload.routing_skew, setting.dtype, setting.kernels
    weights = 1.0 * groups * d_out * d_in
    narrowed = habits.narrowing is not None and dtype.bytes < 2

    def gemm(suffix: str, n: Ints, k: Ints, layout: Layout, pass_: Pass) -> GroupedGemm:
        return GroupedGemm(
            name=name + suffix,
            role=role,
            groups=groups,
            rows=rows,
            n=n,
            k=k,
            dtype=dtype,
            skew=skew,
            visited_evenly=True,
            tokens=np.minimum(_sent_tokens(setting, part) * setting.dims.ep, rows),
            experts=ceil_div(part.num_experts, setting.dims.ep),
            layout=layout,
            pass_=pass_,
            quantized=narrowed,
            apart=habits.grouped_apart,
        )

    forward: tuple[Operator, ...] = (
        *(casts(setting, name, rows, d_in, dtype, Pass.FORWARD, weights) if cast else ()),
        *widening(setting, name, role, groups * d_out, d_in, Pass.FORWARD),
        gemm("", d_out, d_in, Layout.TN, Pass.FORWARD),
    )
    if not setting.training:
        return Piece(forward=forward)
    dgrad = gemm(".dgrad", d_in, d_out, Layout.NN, Pass.DGRAD)
    wgrad = replace(
        gemm(".wgrad", d_out, d_in, Layout.NT, Pass.WGRAD),
        out_dtype=habits.main_grad if habits.accumulates else setting.wide,
        accumulates=habits.accumulates,
    )
    grad_casts = (
        *(casts(setting, name, rows, d_out, dtype, Pass.BACKWARD, weights) if grad_cast else ()),
        *widening(setting, name, role, groups * d_out, d_in, Pass.BACKWARD),
    )
    flows = ((wgrad,),) if habits.weight_gradients else ()
    return Piece(forward=forward, backward=(*grad_casts, Fork(((dgrad,),), flows)))
