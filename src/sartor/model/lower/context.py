"""Context parallelism: a sequence is split over ``cp`` devices. What each one attends to, and what they exchange.

Ring (Liu et al. 2023, arXiv 2310.01889): keys and values travel around a ring; each device attends to one part at a
time. All-to-all (DeepSpeed Ulysses, Jacobs et al. 2023, arXiv 2309.14509): each device trades its part of the sequence
for whole sequences of fewer heads, and back. All-gather (Llama 3, arXiv 2407.21783, sec. 3.3.2): keys and values are
gathered first. Under a causal mask, parts of the sequence are assigned so that all devices see the same number of keys.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sartor.model.lower.piece import Piece, chain
from sartor.model.lower.pointwise import streamed
from sartor.model.lower.setting import Setting
from sartor.model.training import ContextParallel
from sartor.operators import Attention, Axis, Collective, CollectiveKind, MemoryBoundKind, Pass, Role
from sartor.units import Floats, Ints, ceil_div


def share(setting: Setting, whole: Attention) -> Attention:
    """One device's share of an attention over whole sequences.

    Ring: ``cp`` kernels (the operator's count), each over 1/cp of the keys a query sees on average. All-to-all: whole
    sequences, fewer heads. All-gather: one kernel for the device's queries.
    """
    if not setting.is_shared:
        return whole
    cp, kind = setting.dims.cp, setting.kernels.context_parallel
    if kind is ContextParallel.ALL_TO_ALL:
        return replace(whole, num_heads=ceil_div(whole.num_heads, cp), num_kv_heads=ceil_div(whole.num_kv_heads, cp))
    seen = _whole_number(np.maximum(whole.pairs // whole.seq_q, 1))
    mine = replace(whole, seq_q=ceil_div(whole.seq_q, cp), seq_kv=seen, causal=False, window=0)
    return replace(mine, seq_kv=ceil_div(seen, cp), count=whole.count * cp) if kind is ContextParallel.RING else mine


def exchange(setting: Setting, whole: Attention, inside: Piece) -> Piece:
    """One device's attention (``inside``) with its communication; ``whole`` is the attention over whole sequences."""
    if not setting.is_shared:
        return inside
    ways = {
        ContextParallel.RING: _ring,
        ContextParallel.ALL_TO_ALL: _swap,
        ContextParallel.ALL_GATHER: _gather,
    }
    return ways[setting.kernels.context_parallel](setting, whole, inside)


def swapped(setting: Setting, inside: Piece, entering: Ints, leaving: Ints, name: str) -> Piece:
    """A part that needs whole sequences, between two all-to-alls that trade sequence for channels (rows x width
    each)."""
    if not setting.is_shared:
        return inside

    def swap(way: str, width: Ints, backward: bool = False) -> Collective:
        message = 1.0 * setting.tokens * width * setting.element
        return _collective(setting, f"{name}.cp_{way}", CollectiveKind.ALL_TO_ALL, message, backward=backward)

    forward = (swap("scatter", entering), *inside.forward, swap("gather", leaving))
    back = (swap("grad_scatter", leaving, True), *inside.backward, swap("grad_gather", entering, True))
    return Piece(forward=forward, backward=back if setting.training else ())


def _swap(setting: Setting, whole: Attention, inside: Piece) -> Piece:
    """Queries, keys and values in, outputs back. Key/value heads are copied if there are fewer than devices."""
    kv_heads = np.maximum(whole.num_kv_heads, setting.dims.cp)
    entering = whole.num_heads * whole.head_dim + _whole_number(kv_heads) * (whole.head_dim + whole.v_head_dim)
    return swapped(setting, inside, entering, whole.num_heads * whole.v_head_dim, whole.name)


def _ring(setting: Setting, whole: Attention, inside: Piece) -> Piece:
    """Keys and values travel in cp - 1 steps; backward their gradients travel with them, and one step further to
    return. Outputs of all steps are scaled and summed in fp32 (each: one 16-bit read, one 32-bit read and write);
    backward sums the queries' gradients (Transformer Engine's ring, context_parallel.py)."""
    steps, kv = setting.dims.cp - 1, _kv_bytes(setting, whole)
    name, e, kind = whole.name, setting.element, CollectiveKind.SEND_RECV
    forward = _collective(setting, f"{name}.cp_ring", kind, kv, count=steps * whole.count)
    back = _collective(setting, f"{name}.cp_grad_ring", kind, 2 * kv, count=steps * whole.count, backward=True)
    home = _collective(setting, f"{name}.cp_grad_home", kind, kv, count=whole.count, backward=True)
    width = whole.num_heads * whole.v_head_dim
    moved = setting.dims.cp * (e + 8.0)
    merged = streamed(
        setting, f"{name}.cp_sum", MemoryBoundKind.RESIDUAL, setting.tokens, width, moved, 3.0 * e * setting.dims.cp,
        kernels=setting.dims.cp, role=Role.CONTEXT_EXCHANGE,
    )  # fmt: skip
    core = chain(inside, merged)
    return Piece(forward=(forward, *core.forward), backward=(back, *core.backward, home) if setting.training else ())


def _gather(setting: Setting, whole: Attention, inside: Piece) -> Piece:
    """Keys and values of the whole sequence are gathered forward and, because they are not kept, again backward; their
    gradients are reduce-scattered."""
    kv, name = _kv_bytes(setting, whole) * setting.dims.cp, whole.name
    gather = _collective(setting, f"{name}.cp_all_gather", CollectiveKind.ALL_GATHER, kv, count=whole.count)
    again = replace(gather, name=f"{name}.cp_grad_all_gather", pass_=Pass.BACKWARD)
    scatter = replace(again, name=f"{name}.cp_grad_reduce_scatter", kind=CollectiveKind.REDUCE_SCATTER)
    return Piece(
        forward=(gather, *inside.forward),
        backward=(again, *inside.backward, scatter) if setting.training else (),
    )


def _kv_bytes(setting: Setting, whole: Attention) -> Floats:
    """Bytes of the keys and values of one device's part of the sequences."""
    rows = whole.batch * ceil_div(whole.seq_kv, setting.dims.cp)
    moved: Floats = 1.0 * rows * whole.num_kv_heads * (whole.head_dim + whole.v_head_dim) * setting.element
    return moved


def _collective(
    setting: Setting, name: str, kind: CollectiveKind, message: Floats, count: Ints = 1, backward: bool = False
) -> Collective:
    return Collective(
        name=name,
        role=Role.CONTEXT_EXCHANGE,
        kind=kind,
        group_size=setting.dims.cp,
        message_bytes=message,
        count=count,
        stride=setting.tp,
        axis=Axis.CONTEXT,
        pass_=Pass.BACKWARD if backward else Pass.FORWARD,
    )


def _whole_number(value: Floats) -> Ints:
    return int(value) if np.ndim(value) == 0 else np.asarray(value).astype(np.int64)
