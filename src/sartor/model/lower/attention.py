"""Attention: grouped-query and latent, self and cross, flash and unfused, and split over context-parallel devices.

Ring (Liu et al. 2023, arXiv 2310.01889): keys and values travel around a ring; each device attends to one part at a
time. All-to-all (DeepSpeed Ulysses, Jacobs et al. 2023, arXiv 2309.14509): each device trades its part of the sequence
for whole sequences of fewer heads, and back. All-gather (Llama 3, arXiv 2407.21783, sec. 3.3.2): keys and values are
gathered first. Under a causal mask, parts of the sequence are assigned so that all devices see the same number of keys.

Sparse (DeepSeek-V3.2, arXiv 2512.02556, sec. 2): an indexer scores every key that a query may see, and the query
attends to the best ``Selection.keys``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sartor.model.layer import AttentionMixer, LatentAttentionMixer, Linear, Split
from sartor.model.lower.linear import linear_group, linears, product, region
from sartor.model.lower.piece import Flow, Fork, Piece, activation, beside, chain, norm, repeat, streamed
from sartor.model.lower.setting import Setting, is_zero
from sartor.model.training import ContextParallel
from sartor.operators import (
    Attention,
    Axis,
    Collective,
    CollectiveKind,
    DType,
    Gemm,
    Layout,
    MemoryBoundKind,
    Pass,
    Role,
    attention_pairs,
)
from sartor.units import Floats, Ints, ceil_div, plain


def _share(setting: Setting, whole: Attention) -> Attention:
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


def _exchange(setting: Setting, whole: Attention, inside: Piece) -> Piece:
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


def attention(setting: Setting, mixer: AttentionMixer) -> Piece:
    """QKV projection, rotary embedding, attention and output projection of one layer on one device, without
    collectives."""
    prefix = "cross_" if mixer.cross else ""
    return chain(
        _projections(setting, mixer),
        attention_core(setting, mixer),
        *(linear_group(setting, prefix + name, [linear]) for name, linear in _named_outputs(setting, mixer)),
    )


def attention_core(setting: Setting, mixer: AttentionMixer) -> Piece:
    """Everything between the projections: query/key norms, rotary embedding, the attention itself."""
    prefix = "cross_" if mixer.cross else ""
    heads, kv_heads = _local_heads(setting, mixer)
    pieces = []
    if mixer.norms_heads:
        pieces.append(norm(setting, setting.tokens, (heads + kv_heads) * mixer.head_dim, f"{prefix}qk_norm"))
    if not is_zero(mixer.rotary_dim):
        pieces.append(_rotary(setting, setting.tokens, (heads + kv_heads) * mixer.rotary_dim, f"{prefix}rotary"))
    pieces.append(_scores(setting, mixer, prefix))
    if mixer.gated:  # read the output and its gate, write their product
        gate = heads * mixer.value_dim
        pieces.append(activation(setting, setting.tokens, gate, gated=True, name=f"{prefix}attn_gate"))
    return chain(*pieces)


def latent_attention(setting: Setting, mixer: LatentAttentionMixer) -> Piece:
    """Multi-head latent attention. Training and prefill expand keys and values from the latent. Decoding absorbs the
    up-projections into queries and outputs and attends over the latent itself (DeepSeek-V2, arXiv 2405.04434,
    sec. 2.1.2) in one fused kernel, with one key/value head of width kv_lora_rank + rope for all query heads."""
    linears = {
        linear.role: linear for linear in mixer.linears(setting.hidden_size) if linear.role is not Role.PROJECTION
    }
    downs = [linears[role] for role in (Role.Q_DOWN, Role.KV_DOWN) if role in linears]
    down = chain(*(linear_group(setting, linear.name, [linear]) for linear in downs))
    norms = chain(*(norm(setting, setting.outer_tokens, width, name) for name, width in _latent_norms(mixer)))
    query = linears[Role.Q_UP if Role.Q_UP in linears else Role.QKV]
    up = linear_group(setting, query.name, [query])
    attended = _absorbed(setting, mixer) if setting.decoding else _expanded(setting, mixer, linears[Role.KV_UP])
    inner = chain(_indexer(setting, mixer), attended)
    turned = _rotary(setting, setting.tokens, (ceil_div(mixer.num_heads, setting.tp) + 1) * mixer.qk_rope_head_dim)
    out = linear_group(setting, "attn_out", [linears[Role.ATTENTION_OUTPUT]])
    others = chain(*(linear_group(setting, linear.name, [linear]) for linear in mixer.projections))
    width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
    gathered = width + (mixer.q_lora_rank if Role.Q_DOWN in linears else setting.hidden_size)
    return chain(down, norms, region(setting, "attention", chain(up, others, turned, inner, out), gathered))


def _rotary(setting: Setting, rows: Ints, cols: Ints, name: str = "rotary") -> Piece:
    """Queries and keys are rotated in place, forward and backward: one read and write of the rotated part. Unfused, for
    queries and for keys: multiply by cosine (2), swap halves and negate one (3), multiply by sine (2), add (3)."""
    e = setting.element
    moved, kernels = (2 * e, 1) if setting.kernels.fused else (10 * e, 10)
    return streamed(setting, name, MemoryBoundKind.ROTARY, rows, cols, moved, moved, flops=3, kernels=kernels)


def _local_heads(setting: Setting, mixer: AttentionMixer) -> tuple[Ints, Ints]:
    """Query and key/value heads on one device; key/value heads are replicated when there are fewer than devices."""
    return ceil_div(mixer.num_heads, setting.tp), ceil_div(mixer.num_kv_heads, setting.tp)


def named_inputs(setting: Setting, mixer: AttentionMixer) -> list[tuple[str, Linear]]:
    """The projections before attention, each with the name of the GEMM it runs in."""
    prefix = "cross_" if mixer.cross else ""
    inputs = [linear for linear in mixer.linears(setting.hidden_size) if linear.role is not Role.ATTENTION_OUTPUT]
    return [(prefix + (linear.fused or linear.name), linear) for linear in inputs]


def output(setting: Setting, mixer: AttentionMixer) -> Linear:
    """The output projection of an attention that has a single one."""
    return next(linear for linear in mixer.linears(setting.hidden_size) if linear.role is Role.ATTENTION_OUTPUT)


def _named_outputs(setting: Setting, mixer: AttentionMixer) -> list[tuple[str, Linear]]:
    """The projections after attention: one, or a grouped down-projection and an up-projection (DeepSeek-V4)."""
    outputs = [linear for linear in mixer.linears(setting.hidden_size) if linear.role is Role.ATTENTION_OUTPUT]
    return [("attn_" + linear.name, linear) for linear in outputs]


def _projections(setting: Setting, mixer: AttentionMixer) -> Piece:
    """Fused or separate Q, K, V. Cross-attention projects keys and values from the encoder's tokens once; decoding
    reads them from the cache; without an image or audio input there are none."""
    named = named_inputs(setting, mixer)
    if not mixer.cross:
        return beside(*linears(setting, named, mixer.num_kv_heads))
    queries = [pair for pair in named if pair[1].split is not Split.KV_HEADS]
    nothing = setting.decoding or is_zero(setting.encoder_len)
    encoded = [] if nothing else [pair for pair in named if pair[1].split is Split.KV_HEADS]
    rows = setting.batch * setting.encoder_len
    return beside(
        *linears(setting, queries, mixer.num_kv_heads), *linears(setting, encoded, mixer.num_kv_heads, rows=rows)
    )


def _scores(setting: Setting, mixer: AttentionMixer, prefix: str) -> Piece:
    name = f"{prefix}attention"
    heads, kv_heads = _local_heads(setting, mixer)
    if mixer.cross:
        if is_zero(setting.encoder_len):
            return Piece()
        core = _core(setting, name, mixer, heads, kv_heads, setting.seq_q, setting.encoder_len, causal=False)
        return _shared(setting, core, prefix)
    full = _core(setting, name, mixer, heads, kv_heads, setting.seq_q, setting.seq_kv, causal=mixer.causal)
    if mixer.chunked and mixer.window:
        return chain(*(_kernels(setting, block) for block in _chunks(setting, full, mixer.window)))
    indexed, selection = _indexer(setting, mixer), mixer.selection
    if mixer.pooled:
        keys = selection.keys if selection else 0
        pooled = replace(_pooled(full, mixer.pooled, keys), name=f"{name}_pooled")
        return chain(indexed, _shared(setting, _windowed(full, mixer.window)), _shared(setting, pooled))
    chosen = _chosen(setting, full, selection.keys) if selection and setting.flash else _windowed(full, mixer.window)
    return chain(indexed, _shared(setting, chosen))


def _chosen(setting: Setting, full: Attention, keys: int) -> Attention:
    """The same over at most ``keys`` keys per query: as many pairs as in a window of that length. Decoding reads the
    chosen ones alone."""
    if setting.decoding:
        return replace(full, seq_kv=_least(full.seq_kv, keys))
    return replace(full, window=keys if np.any(np.less(keys, full.seq_kv)) else 0)


def _pooled(full: Attention, pool: int, keys: int = 0) -> Attention:
    """The same over keys of ``pool`` tokens each, as many as a query sees on average, at most ``keys`` (0: all)."""
    seen = attention_pairs(full.seq_q, full.seq_kv, full.causal, keys * pool) / full.seq_q / pool
    return replace(full, seq_kv=_whole_number(np.maximum(np.ceil(seen), 1)), causal=False, window=0)


def _least(sizes: Ints, most: int) -> Ints:
    return min(sizes, most) if isinstance(sizes, int) else np.minimum(sizes, most)


def _indexer(setting: Setting, mixer: AttentionMixer | LatentAttentionMixer) -> Piece:
    """Scores of every key that a query may see, and the choice of the best, on every tensor-parallel device. Scores are
    written and read once in fp32. Backward, the indexer learns from the chosen keys alone (DeepSeek-V3.2, sec. 2.1.1),
    in 16 bits."""
    index = mixer.selection
    if index is None or not index.heads:
        return Piece()
    whole = replace(
        _core(setting, "index_scores", mixer, index.heads, 1, setting.seq_q, setting.seq_kv, mixer.causal),
        role=Role.INDEX,
        head_dim=index.head_dim,
        v_head_dim=0,
        latent=True,
        dtype=DType.FP8 if index.narrow else setting.wide,
    )
    scores = _share(setting, whole if index.pool == 1 else _pooled(whole, index.pool))
    keys = _whole_number(np.ceil(scores.pairs / scores.seq_q * scores.count))
    moved = 2 * DType.FP32.bytes
    choice = streamed(
        setting, "index_choice", MemoryBoundKind.SOFTMAX, setting.tokens, keys, moved, flops=2, role=Role.INDEX
    )  # fmt: skip
    learned = replace(
        _share(setting, replace(whole, dtype=setting.wide, window=index.keys)),
        name="index_scores.backward",
        pass_=Pass.BACKWARD,
    )
    return Piece(forward=(scores, *choice.forward), backward=(learned,) if setting.training else ())


def _shared(setting: Setting, whole: Attention, prefix: str = "") -> Piece:
    return _exchange(setting, whole, _kernels(setting, _share(setting, whole), prefix))


def _core(
    setting: Setting,
    name: str,
    mixer: AttentionMixer | LatentAttentionMixer,
    heads: Ints,
    kv_heads: Ints,
    seq_q: Ints,
    seq_kv: Ints,
    causal: bool,
) -> Attention:
    """Attention over whole sequences, or over each of the documents packed into them, for the heads of one device."""
    documents = setting.documents
    return Attention(
        name=name,
        role=Role.ATTENTION,
        batch=setting.batch * documents,
        num_heads=heads,
        num_kv_heads=kv_heads,
        seq_q=seq_q // documents,
        seq_kv=seq_kv // documents,
        head_dim=mixer.head_dim,
        v_head_dim=mixer.value_dim,
        causal=causal,
        dtype=setting.wide,
    )


def _windowed(full: Attention, window: int) -> Attention:
    """The same with a sliding window; keys that no query sees are not read."""
    if not window or not full.causal:
        return replace(full, window=window)
    seen = full.seq_q + window - 1
    plain = isinstance(seen, int) and isinstance(full.seq_kv, int)
    return replace(full, window=window, seq_kv=min(full.seq_kv, seen) if plain else np.minimum(full.seq_kv, seen))


def _chunks(setting: Setting, full: Attention, window: int) -> Iterator[Attention]:
    """Chunked attention (Llama 4) as independent blocks of ``window`` tokens and a shorter last one. A decoding token
    sees its own chunk up to itself. A prefill's earlier context is assumed to end at a chunk border. Context
    parallelism splits at chunk borders, so nothing is exchanged."""
    if setting.decoding:
        yield replace(full, seq_kv=(full.seq_kv - 1) % window + 1)
        return
    if setting.is_shared:
        full = replace(full, seq_q=ceil_div(full.seq_q, setting.dims.cp))
    blocks, rest = full.seq_q // window, full.seq_q % window
    if np.any(np.greater(blocks, 0)):
        whole = full.batch * np.maximum(blocks, 1)  # count is 0 for sequences without a whole block
        count = np.asarray(blocks > 0).astype(int) if isinstance(blocks, np.ndarray) else 1
        yield replace(full, batch=whole, seq_q=window, seq_kv=window, count=count)
    if np.any(np.greater(rest, 0)):
        rest = np.maximum(rest, 1) if isinstance(rest, np.ndarray) else rest
        count = np.asarray(full.seq_q % window > 0).astype(int) if isinstance(rest, np.ndarray) else 1
        name = f"{full.name}_rest" if np.any(np.greater(blocks, 0)) else full.name
        yield replace(full, name=name, seq_q=rest, seq_kv=rest, count=count)


def _kernels(setting: Setting, core: Attention, prefix: str = "") -> Piece:
    """One flash kernel each way, or the GEMMs and softmax it fuses, with ``prefix`` before their names."""
    if not setting.flash:
        return _unfused(setting, core, prefix)
    backward = replace(core, name=f"{core.name}.backward", pass_=Pass.BACKWARD)
    return Piece(forward=(core,), backward=(backward,) if setting.training else ())


def _unfused(setting: Setting, core: Attention, prefix: str) -> Piece:
    """Score, softmax, over-value; backward dV, dP, softmax, dQ, dK (codesign digest sec. 1.1 and 1.2). Query heads that
    share a key/value head are packed into the rows. Masks and windows don't save work in the GEMMs."""
    batch, packed = core.batch * core.num_kv_heads, core.num_heads // core.num_kv_heads * core.seq_q
    kv, d, dv = core.seq_kv, core.head_dim, core.v_head_dim
    score, over_value = Role.SCORE, Role.OVER_VALUE

    dtype = DType.FP32 if _starts_ragged(setting, core) else core.dtype

    def gemm(name: str, role: Role, m: Ints, n: Ints, k: Ints, layout: Layout, pass_: Pass = Pass.BACKWARD) -> Gemm:
        return Gemm(name=prefix + name, role=role, m=m, n=n, k=k, batch=batch, dtype=dtype, layout=layout, pass_=pass_)

    rows, square = core.batch * core.num_heads * core.seq_q, setting.training and not core.window
    middle = _softmax(setting, rows, kv, f"{prefix}softmax", causal=core.causal and square)
    forward = (
        gemm("attn_score", score, packed, kv, d, Layout.TN, Pass.FORWARD),
        *middle.forward,
        gemm("attn_over_value", over_value, packed, dv, kv, Layout.NN, Pass.FORWARD),
    )
    scores: Flow = (
        gemm("attn_over_value.dp", over_value, packed, kv, dv, Layout.TN),
        *middle.backward,
        Fork(
            (
                (gemm("attn_score.dq", score, packed, d, kv, Layout.NN),),
                (gemm("attn_score.dk", score, kv, d, packed, Layout.NT),),
            )
        ),
    )
    values = (gemm("attn_over_value.dv", over_value, kv, dv, packed, Layout.NT),)
    return repeat(Piece(forward=forward, backward=(Fork((values, scores)),) if setting.training else ()), core.count)


_CAUSAL_SOFTMAX_KEYS = 2048
"""Most keys that Megatron's causal softmax kernel supports; with more, the masked softmax reads every score
(Megatron-LM, fused_softmax.py and scaled_upper_triang_masked_softmax.h, read 2026-11-24)."""


def _softmax(setting: Setting, rows: Ints, cols: Ints, name: str = "softmax", *, causal: bool = False) -> Piece:
    """Fused scale, mask and softmax: reads scores, writes probabilities; backward reads probabilities and their
    gradient and writes the scores'. Under a causal mask it reads only the visible half and writes zeros to the rest
    (Megatron-LM, scaled_upper_triang_masked_softmax.h; read 2026-11-24), up to ``_CAUSAL_SOFTMAX_KEYS``. Dropout is an
    elementwise kernel after it: read, write, and a one-byte mask each way. Unfused, scale and mask are separate kernels
    each way (2 elements each)."""
    e, apart = setting.element, 0 if setting.kernels.fused else 2
    halved = np.logical_and(causal and setting.kernels.fused, np.less_equal(cols, _CAUSAL_SOFTMAX_KEYS))
    read = plain(np.where(halved, 0.5, 1.0))
    moved, back = (1 + read + 2 * apart) * e, (1 + 2 * read + 2 * apart) * e
    probabilities = streamed(
        setting, name, MemoryBoundKind.SOFTMAX, rows, cols, moved, back, flops=5, kernels=1 + apart
    )
    if not setting.dropout:
        return probabilities
    bytes_each, role = 2 * e + 1, Role.SOFTMAX
    dropped = streamed(
        setting, f"{name}_dropout", MemoryBoundKind.RESIDUAL, rows, cols, bytes_each, bytes_each, flops=1, role=role
    )
    return chain(probabilities, dropped)


def _starts_ragged(setting: Setting, core: Attention) -> bool:
    """Whether a strided layout starts heads at addresses that are not multiples of 16 bytes. GEMMs then run at the fp32
    rate of the general cores (about 12 TFLOP/s on an A100 at head dimensions 108 and 225: BigScience's published sweeps
    of plans, data/end_to_end, 2026-11-21)."""
    strided = setting.training and setting.kernels.strided_heads and np.ndim(core.head_dim) == 0
    return strided and core.dtype.bytes == 2 and int(core.head_dim) * 2 % 16 != 0


def _latent_norms(mixer: LatentAttentionMixer) -> Iterator[tuple[str, Ints]]:
    if not is_zero(mixer.q_lora_rank):
        yield "q_norm", mixer.q_lora_rank
    yield "kv_norm", mixer.kv_lora_rank


def _expanded(setting: Setting, mixer: LatentAttentionMixer, kv_up: Linear) -> Piece:
    """Attention over expanded keys. Where keys are chosen and that is less work, over their latents, as in decoding:
    one kernel for all heads of a query, whose up-projections cost as much as expanding its own key."""
    heads = ceil_div(mixer.num_heads, setting.tp)
    core = _core(setting, "attention", mixer, heads, heads, setting.seq_q, setting.seq_kv, mixer.causal)
    rows = setting.batch * ceil_div(setting.seq_kv, setting.dims.cp)
    dense = chain(linear_group(setting, "kv_up", [kv_up], rows=rows), _shared(setting, _windowed(core, mixer.window)))
    if mixer.selection is None or not setting.flash:
        return dense
    chosen = replace(
        _of_latents(core, mixer), num_heads=ceil_div(heads, HEADS_AT_ONCE) * HEADS_AT_ONCE, window=mixer.selection.keys
    )
    sparser = np.less(chosen.flops, core.flops)
    up = linear_group(setting, "kv_up", [kv_up])
    sparse = chain(up, _shared(setting, chosen))
    if np.all(sparser) or not np.any(sparser):
        return sparse if np.any(sparser) else dense
    return chain(repeat(dense, 1 - sparser.astype(int)), repeat(sparse, sparser.astype(int)))


HEADS_AT_ONCE = 64
"""Query heads of a sparse kernel's tile, which holds one query (FlashMLA's sparse prefill takes 64 or 128; recalled,
2025-09-29, when its README stated 640 TFLOP/s on H800 for it)."""


def _of_latents(core: Attention, mixer: LatentAttentionMixer) -> Attention:
    """Attention with one key/value head, the latent with its rotary part, for all query heads."""
    width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
    return replace(core, num_kv_heads=1, head_dim=width, v_head_dim=mixer.kv_lora_rank, latent=True)


def _absorbed(setting: Setting, mixer: LatentAttentionMixer) -> Piece:
    heads, latent = ceil_div(mixer.num_heads, setting.tp), mixer.kv_lora_rank
    absorb_q = product(setting, "q_absorb", Role.KV_UP, setting.tokens, latent, mixer.qk_nope_head_dim, setting.wide)
    absorb_v = product(setting, "v_absorb", Role.KV_UP, setting.tokens, mixer.v_head_dim, latent, setting.wide)
    core = _core(setting, "attention", mixer, heads, 1, setting.seq_q, setting.seq_kv, mixer.causal)
    core = _windowed(_of_latents(core, mixer), mixer.window)
    if mixer.selection is not None:
        core = _chosen(setting, core, mixer.selection.keys)
    return chain(_per_head(absorb_q, heads), Piece(forward=(core,)), _per_head(absorb_v, heads))


def _per_head(piece: Piece, heads: Ints) -> Piece:
    return piece.mapped(lambda op: replace(op, batch=heads) if isinstance(op, Gemm) else op)
