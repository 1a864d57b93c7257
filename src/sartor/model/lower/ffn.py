"""Feed-forward parts: dense, and mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sartor.model.lower.linear import casts, linear_group, linears, region
from sartor.model.lower.pointwise import activation, residual, streamed
from sartor.model.lower.setting import Piece, Setting, chain
from sartor.model.shape import DenseFfn, Linear, MoeFfn
from sartor.operators import Collective, CollectiveKind, GroupedGemm, Layout, MemoryBoundKind, Operator, Pass
from sartor.units import Ints, ceil_div


def dense_ffn(setting: Setting, part: DenseFfn, prefix: str = "") -> Piece:
    """Up (and gate), activation, down on one device, without collectives."""
    prefix = prefix or part.name
    *ups, down = part.linears(setting.hidden_size)
    width = ceil_div(part.ffn_hidden_size, setting.tp)
    return chain(
        linears(setting, named_ups(ups, prefix)),
        activation(setting, setting.tokens, width, part.gated, f"{prefix}_activation"),
        linear_group(setting, f"{prefix}_down", [down]),
    )


def named_ups(ups: list[Linear], prefix: str) -> list[tuple[str, Linear]]:
    return [(f"{prefix}_{linear.fused or linear.name}", linear) for linear in ups]


def moe_ffn(setting: Setting, part: MoeFfn) -> Piece:
    """Router, top-k, permutation, (all-to-all,) the experts as grouped GEMMs, and back; shared experts beside them."""
    pieces = [
        *(linear_group(setting, linear.name, [linear]) for linear in outer_linears(setting, part)),
        _top_k(setting, part),
        region(setting, part.name, chain(_permute(setting, part), _experts(setting, part), _unpermute(setting, part))),
    ]
    if part.shared is not None:
        pieces.append(region(setting, "shared_expert", dense_ffn(setting, part.shared, "shared")))
        pieces.append(residual(setting, setting.outer_tokens, setting.hidden_size, "shared_add"))
    return chain(*pieces)


def outer_linears(setting: Setting, part: MoeFfn) -> list[Linear]:
    """The linears all tokens pass beside the experts: router, gate of the shared expert, latent projections."""
    return list(replace(part, shared=None).linears(setting.hidden_size))


def expert_width(setting: Setting, part: MoeFfn) -> Ints:
    """Width of what is sent to the experts."""
    return setting.hidden_size if part.expert_hidden_size is None else part.expert_hidden_size


def active_experts(setting: Setting, part: MoeFfn) -> Any:
    """Experts on this device that at least one token visits, expected under uniform routing: E/ep (1 - (1 - k/E)^T),
    rounded up. All of them in training; few when decoding a small batch."""
    experts, k = part.num_experts, part.experts_per_token
    tokens = setting.tokens * setting.dims.ep
    expected = experts * (1.0 - (1.0 - k / np.asarray(experts, dtype=np.float64)) ** tokens) / setting.dims.ep
    groups = np.maximum(np.ceil(expected - 1e-6), 1).astype(np.int64)
    return int(groups) if groups.ndim == 0 else groups


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
    """Every token is read once and written k times; backward reads k gradients and writes their sum."""
    e, k = setting.element, part.experts_per_token
    moved = (k + 1) * e
    permuted = streamed(setting, "permute", MemoryBoundKind.ROUTING, setting.tokens, setting.hidden_size, moved, moved)
    return chain(permuted, _all_to_all(setting, part, "dispatch"))


def _unpermute(setting: Setting, part: MoeFfn) -> Piece:
    """k expert outputs are read, weighted and summed into one; backward writes k gradients and reads the outputs again
    for the gradient of the weights."""
    e, k = setting.element, part.experts_per_token
    merged = streamed(
        setting,
        "unpermute",
        MemoryBoundKind.ROUTING,
        setting.tokens,
        expert_width(setting, part),
        (k + 1) * e,
        (2 * k + 1) * e,
        flops=2,
    )
    return chain(_all_to_all(setting, part, "combine"), merged)


def _all_to_all(setting: Setting, part: MoeFfn, name: str) -> Piece:
    """Expert parallelism sends every token's k copies to the devices of their experts, each way, both passes. Devices
    of one tensor-parallel group share the work: each sends 1/tp of the rows."""
    ep = setting.dims.ep
    if isinstance(ep, int) and ep == 1:
        return Piece()
    rows = ceil_div(setting.tokens * part.experts_per_token, setting.tp)
    message = rows * expert_width(setting, part) * setting.element
    kind = CollectiveKind.ALL_TO_ALL
    forward = Collective(name=f"{name}.all_to_all", kind=kind, group_size=ep, message_bytes=message)
    backward = Collective(
        name=f"{name}.grad_all_to_all", kind=kind, group_size=ep, message_bytes=message, pass_=Pass.BACKWARD
    )
    return Piece(forward=(forward,), backward=(backward,) if setting.training else ())


def _experts(setting: Setting, part: MoeFfn) -> Piece:
    expert, h = part.expert, expert_width(setting, part)
    width = ceil_div(expert.ffn_hidden_size, setting.tp)
    if expert.gated and expert.fused_gate:
        ups = _grouped(setting, part, "expert_gate_up", 2 * width, h)
    elif expert.gated:
        ups = chain(_grouped(setting, part, "expert_gate", width, h), _grouped(setting, part, "expert_up", width, h))
    else:
        ups = _grouped(setting, part, "expert_up", width, h)
    rows = setting.tokens * part.experts_per_token
    return chain(
        ups,
        activation(setting, rows, width, expert.gated, "expert_activation"),
        _grouped(setting, part, "expert_down", h, width),
    )


def _grouped(setting: Setting, part: MoeFfn, name: str, d_out: Ints, d_in: Ints) -> Piece:
    rows, groups = setting.tokens * part.experts_per_token, active_experts(setting, part)
    skew, dtype = setting.workload.routing_skew, setting.dtype

    def gemm(suffix: str, n: Ints, k: Ints, layout: Layout, pass_: Pass) -> GroupedGemm:
        return GroupedGemm(
            name=name + suffix, groups=groups, rows=rows, n=n, k=k, dtype=dtype, skew=skew, layout=layout, pass_=pass_
        )

    forward: tuple[Operator, ...] = (
        *casts(setting, name, rows, d_in, dtype, Pass.FORWARD),
        gemm("", d_out, d_in, Layout.TN, Pass.FORWARD),
    )
    if not setting.training:
        return Piece(forward=forward)
    dgrad = gemm(".dgrad", d_in, d_out, Layout.NN, Pass.DGRAD)
    wgrad = gemm(".wgrad", d_out, d_in, Layout.NT, Pass.WGRAD)
    grad_casts = casts(setting, name, rows, d_out, dtype, Pass.BACKWARD)
    return Piece(forward=forward, backward=(*grad_casts, dgrad, wgrad))
