"""Activation memory of one layer and one microbatch: bytes kept until backward, and bytes backward needs on top.

Every operator keeps its inputs, once each (Korthikanti et al. 2022, sec. 4.1). For a layer with one norm per part: two
residual and two normalized inputs [tokens outside the tensor-parallel region], queries, keys, values and the attention
output, and the inputs of the activation function and of the last linear layer [tokens inside it]. With f = 4h, unfused
attention and dropout this is their s b h (34 + 5 a s / h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    LatentAttentionMixer,
    Layer,
    Linear,
    Mixer,
    MoeFfn,
    NormKind,
    Split,
    StateSpaceMixer,
)
from sartor.model.lower.linear import local_width
from sartor.model.training import OffloadModule, Recipe, RecomputeModule, TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel, LoraTargets
from sartor.operators import Role
from sartor.units import Floats, Ints, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of one block and one microbatch on one device; arrays over plans."""

    whole: Floats
    """Kept until backward when nothing is recomputed."""
    selective: Floats
    """Kept when the job's ``recompute_modules`` are recomputed."""
    operators: Floats
    """Kept when only the outputs of attention and of every second GEMM are kept and all else is recomputed
    (torchtitan's ``selective_ac_option = "op"``)."""
    inputs: Floats
    """Kept when the whole block is recomputed: its input."""
    backward: Floats
    """Extra bytes at the peak of the block's backward, on top of what is kept."""
    whole_offloaded: Floats = 0
    """The part of ``whole`` that is offloaded to host memory (the job's ``offload_modules``)."""
    selective_offloaded: Floats = 0
    """The part of ``selective`` that is offloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One device's part of a microbatch: tokens inside and outside the tensor-parallel region, and bytes per element of
    an activation (``wide``) and of a linear layer's kept input (``narrow``)."""

    batch: Ints
    tokens: Ints
    outer: Ints
    keys: Ints
    tp: Ints
    ep: Ints
    wide: float
    narrow: float
    ffn_input: float
    """Bytes per element of the inputs of feed-forward GEMMs: ``narrow``, 0 if nothing needs them, more if adapters and
    4-bit kernels keep copies (`_kept_inputs`)."""
    attention_input: float
    """The same of attention's first GEMMs."""
    adapter_input: float
    """Bytes per element of a layer's input that adapters keep besides."""
    out_copies: float
    """Bytes per element of attention's output that are kept besides it."""
    gate_input: float
    """Bytes per element of a gated activation function's kept input."""
    flash: bool
    dropout: bool
    gathers: Floats
    """Whether backward gathers an input over tensor ranks again."""
    entering: Floats
    """Tokens of a tensor-parallel region's input as kept."""
    skew: float
    eager: bool
    expert_tp: Ints
    """Tensor-parallel devices that share an expert."""
    score_bytes: float
    """Bytes kept per element of the experts' output rows."""
    names_kept: bool
    """Of the norms' inputs only the layer's is kept."""
    again: frozenset[RecomputeModule]
    """Modules that selective recomputation runs again instead of keeping."""
    offload: frozenset[OffloadModule] = frozenset()
    """Modules whose activations are offloaded to host memory."""

    @property
    def gathered(self) -> Floats:
        return np.where(self.gathers, self.tokens, 0)


def rows_of(job: TrainingJob, plan: TrainingPlan) -> Rows:
    """Rows of the main stack under arrays of plans."""
    d, habits = plan.dims, job.trainer.habits
    tokens = plan.microbatch_size * ceil_div(job.seq_len, d.cp)
    split = np.logical_and(np.logical_or(d.sequence_parallel, habits.splits_stream), np.greater(d.tp, 1))
    outer = np.where(split, ceil_div(tokens, d.tp), tokens)
    wide = 4.0 if job.recipe in (Recipe.FP32, Recipe.TF32) else 2.0
    narrow = job.recipe.dtype.bytes if habits.narrow_inputs and job.recipe.dtype.bytes < wide else wide
    return Rows(
        batch=plan.microbatch_size,
        tokens=tokens,
        outer=outer,
        entering=outer if habits.gathers_input else tokens,
        keys=job.seq_len,
        tp=d.tp,
        ep=d.ep,
        wide=wide,
        narrow=narrow,
        **_kept_inputs(job, wide, narrow),
        gate_input=1.0 if habits.narrow_act else wide,
        flash=job.attention_kernel is AttentionKernel.FLASH,
        dropout=job.dropout,
        gathers=np.logical_and(split, habits.gathers_input),
        skew=job.routing_skew,
        eager=not job.trainer.fused_kernels,
        expert_tp=job.trainer.expert_tp(d.tp, d.ep),
        score_bytes=0.0 if job.trainer.fused_kernels else habits.score_bytes,
        names_kept=habits.names_kept,
        again=job.recompute_modules,
        offload=job.offload_modules,
    )


def _kept_inputs(job: TrainingJob, wide: float, narrow: float) -> dict[str, float]:
    """What keeps the inputs of GEMMs: weight gradients; adapters, which take them as they are, cast each for itself
    (fp32 weights under autocast; peft/tuners/lora/layer.py, ``_cast_input_dtype``; recalled, 2026-11-30), or after
    dropout, with a mask; and kernels of frozen 4-bit weights that save them, of the microbatch before too."""
    trainer, habits = job.trainer, job.trainer.memory
    out_copies = narrow if narrow < wide else 0.0
    if not job.lora_rank:
        own = narrow if job.trains_weights else 0.0
        return {"ffn_input": own, "attention_input": narrow, "adapter_input": 0.0, "out_copies": out_copies}
    every, attention = job.lora_targets is LoraTargets.ALL, job.lora_targets is not LoraTargets.QUERY_VALUE
    saved = habits.saved_4_bit_inputs * wide if job.frozen_bits == 4 else 0.0
    casts = habits.casts_weights and trainer.main_dtype.bytes > wide
    dropped = wide + 1 if habits.drops_adapter_inputs else 0.0
    own = dropped or (0.0 if saved else narrow)  # without dropout an adapter shares what a kernel saves
    return {
        "ffn_input": saved + own * every,
        "attention_input": 0.0 if casts else saved + own,
        "adapter_input": wide * (attention * 2 + every + 1) if casts else dropped * (attention + every),
        "out_copies": 0.0 if casts else out_copies + max(saved - wide, 0.0),
    }


def layer_activations(rows: Rows, layer: Layer, hidden_size: Ints) -> Activations:
    """Activations of one layer; for a traced layer, the bytes autograd kept (recomputed as a whole, not in part)."""
    if layer.kept_bytes:
        input_bytes, norm_bytes = rows.batch * layer.kept_bytes, rows.outer * hidden_size * rows.wide
        away = input_bytes if OffloadModule.LAYER in rows.offload else 0
        return Activations(
            whole=input_bytes,
            selective=input_bytes,
            operators=input_bytes,
            inputs=norm_bytes,
            backward=2 * norm_bytes + rows.batch * layer.again_bytes,
            whole_offloaded=away,
            selective_offloaded=away,
        )
    parts = (*layer.mixers, *layer.all_ffns)
    outer = rows.outer * hidden_size
    entries = 1 if layer.parallel else len(parts)
    masks = entries * outer if rows.dropout else 0
    inputs = len(layer.mixers) * rows.attention_input + len(layer.all_ffns) * rows.ffn_input
    inputs = rows.attention_input if layer.parallel else inputs
    entering = rows.entering * hidden_size * (inputs + rows.adapter_input)
    residual = _norm_inputs(rows, layer) * outer + entering + masks
    core = sum((_core(rows, mixer) for mixer in layer.mixers), 0)
    inner = sum((_ffn(rows, part, hidden_size) for part in layer.all_ffns), 0)
    input_bytes = inner + sum((_mixer(rows, mixer, hidden_size) for mixer in layer.mixers), 0)
    peaks = [_ffn_backward(rows, part, hidden_size) for part in layer.all_ffns]
    peaks += [_mixer_backward(rows, mixer, hidden_size, freed=inner) for mixer in layer.mixers]
    peak: Floats = 0
    for part_peak in peaks:
        peak = np.maximum(peak, part_peak)
    whole = residual + input_bytes + core
    selective = whole - _not_kept(rows, layer, hidden_size, entering, core)
    still = rows.offload - {module for again in rows.again for module in GONE.get(again, ())}
    return Activations(
        whole=whole,
        selective=selective,
        operators=np.minimum(_operators(rows, layer, hidden_size), whole),
        inputs=outer * rows.wide,
        backward=outer * rows.wide + peak,
        whole_offloaded=_offloaded(rows, layer, hidden_size, rows.offload, whole),
        selective_offloaded=_offloaded(rows, layer, hidden_size, still, selective),
    )


GONE: Mapping[RecomputeModule, tuple[OffloadModule, ...]] = {
    RecomputeModule.LAYERNORM: (OffloadModule.QKV_LINEAR,),
    RecomputeModule.MLA_UP_PROJ: (OffloadModule.CORE_ATTN,),
    RecomputeModule.MOE: (OffloadModule.EXPERT_FC1, OffloadModule.MOE_ACT),
}
"""Inputs that recomputing a module does not keep, so they need no offloading."""


def _offloaded(
    rows: Rows, layer: Layer, hidden_size: Ints, modules: frozenset[OffloadModule], whole_bytes: Floats
) -> Floats:
    """Bytes of ``whole_bytes`` that are offloaded to host memory."""
    if not modules:
        return 0
    if OffloadModule.LAYER in modules:
        return whole_bytes
    norms = 1 if rows.names_kept else max(len(layer.norms), 1)
    norm = _norm_inputs(rows, layer) / norms * rows.outer * hidden_size
    first = OffloadModule.LAYER_INPUT if rows.names_kept else OffloadModule.ATTN_NORM
    moved: Floats = norm if first in modules and layer.mixers else 0
    moved = moved + (norm if OffloadModule.MLP_NORM in modules and layer.all_ffns and norms > 1 else 0)
    for mixer in layer.mixers:
        moved = moved + (
            rows.entering * hidden_size * rows.attention_input if OffloadModule.QKV_LINEAR in modules else 0
        )
        if isinstance(mixer, StateSpaceMixer):
            continue
        queries, out = _core_inputs(rows, mixer)
        moved = moved + (queries if OffloadModule.CORE_ATTN in modules else 0)
        moved = moved + (out if OffloadModule.ATTN_PROJ in modules else 0)
    for part in layer.all_ffns:
        if isinstance(part, MoeFfn):
            moved = moved + _expert_inputs(rows, part, hidden_size, modules)
    return np.minimum(moved, whole_bytes)


def _core_inputs(rows: Rows, mixer: AttentionMixer | LatentAttentionMixer) -> tuple[Floats, Floats]:
    """Bytes of queries, keys and values, and of the output with its low-precision copy if the projection keeps one."""
    heads, kv_heads = ceil_div(mixer.num_heads, rows.tp), ceil_div(mixer.num_kv_heads, rows.tp)
    kv_heads = heads if rows.eager else kv_heads  # keys and values are repeated for every query head
    out = heads * mixer.value_dim
    queries = rows.tokens * rows.wide * (heads * mixer.head_dim + kv_heads * (mixer.head_dim + mixer.value_dim))
    return queries, rows.tokens * out * (rows.wide + rows.out_copies)


def _expert_inputs(rows: Rows, part: MoeFfn, hidden_size: Ints, modules: frozenset[OffloadModule]) -> Floats:
    routed, width = _routed(rows, part), hidden_size if part.expert_hidden_size is None else part.expert_hidden_size
    inner = ceil_div(part.expert.ffn_hidden_size, rows.expert_tp)
    input_bytes = routed * width * rows.ffn_input if OffloadModule.EXPERT_FC1 in modules else 0
    if OffloadModule.MOE_ACT in modules:
        input_bytes = input_bytes + _inner(rows, part.expert, routed, rows.expert_tp) - routed * inner * rows.ffn_input
    return input_bytes


def _not_kept(rows: Rows, layer: Layer, hidden_size: Ints, entering: Floats, core: Floats) -> Floats:
    """Bytes saved by selective recomputation of the job's modules: norm outputs, the attention core, queries, keys and
    values of latent attention, and a whole feed-forward part or its activated values."""
    again = rows.again
    saved = entering if RecomputeModule.LAYERNORM in again else 0
    saved = saved + (core if RecomputeModule.CORE_ATTN in again else 0)
    if RecomputeModule.MLA_UP_PROJ in again:
        saved = saved + sum((_queries(rows, m) for m in layer.mixers if isinstance(m, LatentAttentionMixer)), 0)
    return saved + sum((_ffn_not_kept(rows, part, hidden_size) for part in layer.all_ffns), 0)


def _queries(rows: Rows, mixer: LatentAttentionMixer) -> Floats:
    heads = ceil_div(mixer.num_heads, rows.tp)
    return rows.tokens * rows.wide * heads * (2 * mixer.head_dim + mixer.value_dim)


def _ffn_not_kept(rows: Rows, part: DenseFfn | MoeFfn, hidden_size: Ints) -> Floats:
    again = rows.again
    whole = RecomputeModule.MLP if isinstance(part, DenseFfn) else RecomputeModule.MOE
    if whole in again:
        return _ffn(rows, part, hidden_size)
    if isinstance(part, DenseFfn):
        return 0
    width = ceil_div(part.expert.ffn_hidden_size, rows.expert_tp)
    saved: Floats = _routed(rows, part) * width * rows.ffn_input if RecomputeModule.MOE_ACT in again else 0
    if part.shared is not None and RecomputeModule.SHARED_EXPERTS in again:
        saved = saved + _inner(rows, part.shared, rows.tokens, rows.tp)
    return saved


def _operators(rows: Rows, layer: Layer, hidden_size: Ints) -> Floats:
    """Bytes of the layer's input and of the outputs of its first, third, fifth ... GEMM, of its attention and of the
    exchanges of tokens with experts; routers and experts' GEMMs are run again (torchtitan 0.3.0,
    distributed/activation_checkpoint.py: its list of operators has no grouped product). A compiled layer keeps none
    that only enters the residual stream, as no gradient needs it (the compiler's partitioner)."""
    stashed: Floats = rows.outer * hidden_size * rows.wide
    products: list[tuple[Linear, Ints]] = [
        (x, 1) for part in layer.all_ffns for x in part.linears(hidden_size) if x.role is not Role.ROUTER
    ]
    for mixer in reversed(layer.mixers):
        heads = 1 if isinstance(mixer, StateSpaceMixer) else mixer.num_kv_heads
        products = [*((x, heads) for x in mixer.linears(hidden_size)), *products]
        if not isinstance(mixer, StateSpaceMixer):
            stashed = stashed + rows.tokens * ceil_div(mixer.num_heads, rows.tp) * (mixer.value_dim * rows.wide + 4)
    for linear, heads in products[::2]:
        if linear.split is Split.ROW and not rows.eager:
            continue
        tokens = rows.outer if linear.split is Split.REPLICATED else rows.tokens
        stashed = stashed + tokens * linear.count * local_width(linear, rows.tp, heads) * rows.wide
    mixtures = [part for part in layer.all_ffns if isinstance(part, MoeFfn)]
    return stashed + sum((_exchanged(rows, part, hidden_size) for part in mixtures), 0)


def _exchanged(rows: Rows, part: MoeFfn, hidden_size: Ints) -> Floats:
    """Bytes of token rows that came to a device's experts, and of those that came back."""
    width = hidden_size if part.expert_hidden_size is None else part.expert_hidden_size
    received = (_routed(rows, part) + _sent(rows, part)) * width * rows.wide
    return np.where(np.greater(rows.ep, 1), received, 0)


def _norm_inputs(rows: Rows, layer: Layer) -> float:
    """Bytes per residual element that norms keep: each keeps its input. An RMS norm of elementwise kernels keeps it in
    fp32, plus the normalized values (PyTorch's saved-tensor hooks on a layer with nn.RMSNorm, 2026-11-21)."""
    if rows.names_kept:
        return rows.wide
    eager = [8.0 if norm.kind is NormKind.RMS_NORM and rows.eager else rows.wide for norm in layer.norms]
    return sum(eager) or rows.wide


def _mixer(rows: Rows, mixer: Mixer, hidden_size: Ints) -> Floats:
    """Bytes a mixer keeps besides its core: queries, keys, values, and the output (the projection's input)."""
    if isinstance(mixer, StateSpaceMixer):
        return _state_space(rows, mixer, hidden_size)
    stashed = sum(_core_inputs(rows, mixer))
    if isinstance(mixer, LatentAttentionMixer):
        latent = mixer.q_lora_rank + mixer.kv_lora_rank
        if rows.eager:  # values are a view of the up-projection, so what became keys stays with them
            keys = ceil_div(mixer.num_heads, rows.tp) * (mixer.head_dim - mixer.qk_rope_head_dim)
            stashed = stashed + rows.tokens * keys * rows.wide
        return stashed + rows.outer * (latent * (rows.wide + rows.narrow) + mixer.qk_rope_head_dim * rows.wide)
    if mixer.norms_heads:
        heads, kv_heads = ceil_div(mixer.num_heads, rows.tp), ceil_div(mixer.num_kv_heads, rows.tp)
        stashed = stashed + rows.tokens * rows.wide * (heads + (heads if rows.eager else kv_heads)) * mixer.head_dim
    gates = rows.tokens * rows.wide * 2 * ceil_div(mixer.num_heads, rows.tp) * mixer.value_dim if mixer.gated else 0
    return stashed + gates


def _core(rows: Rows, mixer: Mixer) -> Floats:
    """Bytes saved by recomputing the attention core: fp32 row sums of a flash kernel, or the probabilities, their
    dropout mask and the masked probabilities (5 a s^2 b bytes in all in 16 bits)."""
    if isinstance(mixer, StateSpaceMixer):
        return 0
    heads = ceil_div(mixer.num_heads, rows.tp)
    if rows.flash:
        return 4 * heads * rows.tokens
    return heads * rows.tokens * rows.keys * (rows.wide + (rows.wide + 1 if rows.dropout else 0))


def _state_space(rows: Rows, mixer: StateSpaceMixer, hidden_size: Ints) -> Floats:
    """Outputs of the input projections, of the scan and of the gated norm, and one fp32 state for every 256 tokens (the
    chunk of Mamba-2's scan, arXiv 2405.21060, sec. 6)."""
    inner = ceil_div(mixer.inner_size, rows.tp)
    ups = [x for x in mixer.linears(hidden_size) if x.split is not Split.ROW]
    width = sum((x.count * (x.d_out if x.split is Split.REPLICATED else ceil_div(x.d_out, rows.tp)) for x in ups), 0)
    states = 4 * inner * mixer.state_size / 256
    return rows.tokens * ((width + inner) * rows.wide + inner * rows.narrow + states)


def _ffn(rows: Rows, part: DenseFfn | MoeFfn, hidden_size: Ints) -> Floats:
    """Bytes of the inputs of the activation function and of the last GEMM; with experts also their gathered inputs and
    the router's probabilities."""
    if isinstance(part, DenseFfn):
        return _inner(rows, part, rows.tokens, rows.tp)
    routed, width = _routed(rows, part), hidden_size if part.expert_hidden_size is None else part.expert_hidden_size
    stashed = routed * width * rows.ffn_input + _inner(rows, part.expert, routed, rows.expert_tp) + 4 * routed
    stashed = stashed + 8 * rows.outer * part.num_experts + _sent(rows, part) * width * rows.score_bytes
    return stashed if part.shared is None else stashed + _inner(rows, part.shared, rows.tokens, rows.tp)


def _inner(rows: Rows, part: DenseFfn, tokens: Floats, tp: Ints) -> Floats:
    width = ceil_div(part.ffn_hidden_size, tp)
    ups = 2 if part.gated else 1
    ups += 1 if part.gated and rows.eager else 0
    return tokens * width * (ups * (rows.gate_input if part.gated else rows.wide) + rows.ffn_input)


def _routed(rows: Rows, part: MoeFfn) -> Floats:
    """Token rows in the experts of the fullest device: k per token sent, and more if this device holds the busiest
    expert (counted as `lower` does)."""
    experts = float(part.num_experts) if isinstance(part.num_experts, int) else part.num_experts
    local_experts = np.maximum(experts / np.asarray(rows.ep, dtype=np.float64), 1.0)
    fullest = (rows.skew + (local_experts - 1) * (experts - rows.skew) / np.maximum(experts - 1, 1)) / local_experts
    return _sent(rows, part) * fullest


def _sent(rows: Rows, part: MoeFfn) -> Floats:
    """Token rows that a device sends to experts: one for each expert of a token."""
    return ceil_div(rows.tokens, rows.tp // rows.expert_tp) * part.experts_per_token


def _ffn_backward(rows: Rows, part: DenseFfn | MoeFfn, hidden_size: Ints) -> Floats:
    """Peak bytes on top of what is kept: the gradient of the last GEMM's input with its gathered output gradient; then
    the activation input's gradient; then the gathered input and its gradient, with the last GEMM's input freed."""
    if isinstance(part, MoeFfn):
        routed = _routed(rows, part)
        expert_peaks = _peaks(rows, part.expert, routed, routed * hidden_size, routed * hidden_size, rows.expert_tp)
        expert_peaks = np.maximum(expert_peaks, 2 * routed * hidden_size * rows.wide)  # on their way between devices
        if rows.score_bytes > rows.wide:  # all rows at once: their gradient, and its products with scores and rows
            expert_peaks = np.maximum(expert_peaks, 3 * _sent(rows, part) * hidden_size * rows.score_bytes)
        if part.shared is None:
            return expert_peaks
        return np.maximum(expert_peaks, _ffn_backward(rows, part.shared, hidden_size))
    return _peaks(
        rows, part, rows.tokens, rows.gathered * hidden_size, (rows.tokens + rows.gathered) * hidden_size, rows.tp
    )


def _peaks(rows: Rows, part: DenseFfn, tokens: Floats, grad_in: Floats, grad_out: Floats, tp: Ints) -> Floats:
    width = tokens * ceil_div(part.ffn_hidden_size, tp) * rows.wide
    ups = width * (2 if part.gated else 1)
    first = grad_in * rows.wide + width
    return np.maximum(np.maximum(first, ups), grad_out * rows.wide - width)


def _mixer_backward(rows: Rows, mixer: Mixer, hidden_size: Ints, *, freed: Floats) -> Floats:
    """Gradients of queries, keys, values and output, with an fp32 sum for queries in flash kernels, or the scores'
    gradient in unfused ones. What the layer's feed-forward parts kept (``freed``) is free again by then."""
    if isinstance(mixer, StateSpaceMixer):
        return np.maximum(2 * _state_space(rows, mixer, hidden_size) - freed, 0)
    heads, kv_heads = ceil_div(mixer.num_heads, rows.tp), ceil_div(mixer.num_kv_heads, rows.tp)
    grads = heads * (mixer.head_dim + mixer.value_dim) + kv_heads * (mixer.head_dim + mixer.value_dim)
    vectors = rows.tokens * (grads * rows.wide + (4 * heads * mixer.head_dim if rows.flash else 0))
    # fused softmax writes the scores' gradient in place (Megatron-LM, scaled_masked_softmax.h); dropped scores are free
    grown = 2 if rows.eager and not rows.dropout else 1
    scores = 0 if rows.flash else grown * heads * rows.tokens * rows.keys * rows.wide
    cross = isinstance(mixer, AttentionMixer) and mixer.cross
    return np.maximum(vectors + scores - (0 if cross else freed), 0)
