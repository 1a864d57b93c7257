"""Bytes of activations: what one layer keeps of one microbatch until backward, and what backward needs beside it.

Every operator keeps its inputs, once each (Korthikanti et al. 2022, sec. 4.1): of a layer with one norm per part, two
residual inputs and two normed ones [tokens outside the tensor-parallel region], queries, keys, values and the output of
attention, and the inputs of the activation function and of the last product [tokens inside it]. For f = 4h, plain
attention and dropout these are their s b h (34 + 5 a s / h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
from sartor.model.workload import AttentionKernel
from sartor.units import Floats, Ints, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of one block and one microbatch on one device; arrays over plans."""

    whole: Floats
    """Kept until backward where nothing is recomputed."""
    selective: Floats
    """Kept where the job's ``recompute_modules`` are recomputed."""
    operators: Floats
    """Kept where every second product's output and attention's are, and all else is recomputed (torchtitan's
    ``selective_ac_option = "op"``)."""
    inputs: Floats
    """Kept where the whole block is recomputed: its input."""
    backward: Floats
    """Needed at the peak of its backward, beside what is kept."""
    whole_offloaded: Floats = 0
    """Of ``whole`` what waits in host memory (the job's ``offload_modules``)."""
    selective_offloaded: Floats = 0
    """The same of ``selective``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What of a microbatch is on one device: tokens inside and outside the tensor-parallel region, and widths in bytes
    of an activation (``wide``), of the kept input of a linear layer (``narrow``)."""

    batch: Ints
    tokens: Ints
    outer: Ints
    keys: Ints
    tp: Ints
    ep: Ints
    wide: float
    narrow: float
    ffn_input: float
    """``narrow``, of what enters feed-forward products; 0 where weights are frozen, as none of their gradients needs it
    (adapters are taken to stand beside the products of attention, which keep theirs)."""
    flash: bool
    dropout: bool
    gathers: Floats
    """Whether an input is gathered over tensor ranks anew in backward."""
    entering: Floats
    """Tokens of the input of a tensor-parallel region as it is kept."""
    skew: float
    eager: bool
    splits_experts: bool
    again: frozenset[RecomputeModule]
    """What selective recomputation does not keep."""
    offload: frozenset[OffloadModule] = frozenset()
    """What waits in host memory."""

    @property
    def gathered(self) -> Floats:
        return np.where(self.gathers, self.tokens, 0)


def rows_of(job: TrainingJob, plan: TrainingPlan) -> Rows:
    """Rows of the main stack under arrays of plans."""
    d, habits = plan.dims, job.trainer.habits
    tokens = plan.microbatch_size * ceil_div(job.seq_len, d.cp)
    split = np.logical_and(d.sequence_parallel, np.greater(d.tp, 1))
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
        ffn_input=narrow if job.trains_weights else 0.0,
        flash=job.attention_kernel is AttentionKernel.FLASH,
        dropout=job.dropout,
        gathers=np.logical_and(split, habits.gathers_input),
        skew=job.routing_skew,
        eager=not job.trainer.fused_kernels,
        splits_experts=job.trainer.splits_experts,
        again=job.recompute_modules,
        offload=job.offload_modules,
    )


def layer_activations(rows: Rows, layer: Layer, hidden_size: Ints) -> Activations:
    """What one layer keeps and needs; of a traced one, as autograd kept it (recomputed whole, not in part)."""
    if layer.kept_bytes:
        kept, own = rows.batch * layer.kept_bytes, rows.outer * hidden_size * rows.wide
        away = kept if OffloadModule.LAYER in rows.offload else 0
        return Activations(
            whole=kept,
            selective=kept,
            operators=kept,
            inputs=own,
            backward=2 * own,
            whole_offloaded=away,
            selective_offloaded=away,
        )
    parts = (*layer.mixers, *layer.all_ffns)
    outer = rows.outer * hidden_size
    entries = 1 if layer.parallel else len(parts)
    masks = entries * outer if rows.dropout else 0
    entering = rows.entering * hidden_size * (len(layer.mixers) * rows.narrow + len(layer.all_ffns) * rows.ffn_input)
    entering = rows.entering * hidden_size * rows.narrow if layer.parallel else entering
    residual = _norm_inputs(rows, layer) * outer + entering + masks
    core = sum((_core(rows, mixer) for mixer in layer.mixers), 0)
    kept = sum((_mixer(rows, mixer, hidden_size) for mixer in layer.mixers), 0)
    inner = sum((_ffn(rows, part, hidden_size) for part in layer.all_ffns), 0)
    kept = kept + inner
    peaks = [_ffn_backward(rows, part, hidden_size) for part in layer.all_ffns]
    peaks += [_mixer_backward(rows, mixer, hidden_size, freed=inner) for mixer in layer.mixers]
    peak: Floats = 0
    for each in peaks:
        peak = np.maximum(peak, each)
    whole = residual + kept + core
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
"""Inputs that recomputing a module does not keep, so that there is nothing to move."""


def _offloaded(rows: Rows, layer: Layer, hidden_size: Ints, modules: frozenset[OffloadModule], kept: Floats) -> Floats:
    """Bytes of what is ``kept`` that wait in host memory."""
    if not modules:
        return 0
    if OffloadModule.LAYER in modules:
        return kept
    norms = max(len(layer.norms), 1)
    norm = _norm_inputs(rows, layer) / norms * rows.outer * hidden_size
    found: Floats = norm if OffloadModule.ATTN_NORM in modules and layer.mixers else 0
    found = found + (norm if OffloadModule.MLP_NORM in modules and layer.all_ffns and norms > 1 else 0)
    for mixer in layer.mixers:
        found = found + (rows.entering * hidden_size * rows.narrow if OffloadModule.QKV_LINEAR in modules else 0)
        if isinstance(mixer, StateSpaceMixer):
            continue
        queries, out = _core_inputs(rows, mixer)
        found = found + (queries if OffloadModule.CORE_ATTN in modules else 0)
        found = found + (out if OffloadModule.ATTN_PROJ in modules else 0)
    for part in layer.all_ffns:
        if isinstance(part, MoeFfn):
            found = found + _expert_inputs(rows, part, hidden_size, modules)
    return np.minimum(found, kept)


def _core_inputs(rows: Rows, mixer: AttentionMixer | LatentAttentionMixer) -> tuple[Floats, Floats]:
    """Queries, keys and values; and the output, with its narrow copy where the projection keeps one."""
    heads, kv_heads = ceil_div(mixer.num_heads, rows.tp), ceil_div(mixer.num_kv_heads, rows.tp)
    kv_heads = heads if rows.eager else kv_heads  # keys and values are repeated for every query head
    out = heads * mixer.value_dim
    queries = rows.tokens * rows.wide * (heads * mixer.head_dim + kv_heads * (mixer.head_dim + mixer.value_dim))
    return queries, rows.tokens * out * (rows.wide + (rows.narrow if rows.narrow < rows.wide else 0))


def _expert_inputs(rows: Rows, part: MoeFfn, hidden_size: Ints, modules: frozenset[OffloadModule]) -> Floats:
    routed, width = _routed(rows, part), hidden_size if part.expert_hidden_size is None else part.expert_hidden_size
    inner = ceil_div(part.expert.ffn_hidden_size, _expert_tp(rows))
    found = routed * width * rows.ffn_input if OffloadModule.EXPERT_FC1 in modules else 0
    if OffloadModule.MOE_ACT in modules:
        found = found + _inner(rows, part.expert, routed, _expert_tp(rows)) - routed * inner * rows.ffn_input
    return found


def _not_kept(rows: Rows, layer: Layer, hidden_size: Ints, entering: Floats, core: Floats) -> Floats:
    """Bytes that selective recomputation of the job's modules saves: the outputs of norms, what attention keeps of its
    core, queries, keys and values of latent attention, what a feed-forward part keeps, or its activated values."""
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
    width = ceil_div(part.expert.ffn_hidden_size, _expert_tp(rows))
    saved: Floats = _routed(rows, part) * width * rows.ffn_input if RecomputeModule.MOE_ACT in again else 0
    if part.shared is not None and RecomputeModule.SHARED_EXPERTS in again:
        saved = saved + _inner(rows, part.shared, rows.tokens, rows.tp)
    return saved


def _operators(rows: Rows, layer: Layer, hidden_size: Ints) -> Floats:
    """The layer's input, outputs of its first, third, fifth ... product, and of its attention."""
    kept: Floats = rows.outer * hidden_size * rows.wide
    products: list[tuple[Linear, Ints]] = [(x, 1) for part in layer.all_ffns for x in part.linears(hidden_size)]
    for mixer in reversed(layer.mixers):
        heads = 1 if isinstance(mixer, StateSpaceMixer) else mixer.num_kv_heads
        products = [*((x, heads) for x in mixer.linears(hidden_size)), *products]
        if not isinstance(mixer, StateSpaceMixer):
            kept = kept + rows.tokens * ceil_div(mixer.num_heads, rows.tp) * (mixer.value_dim * rows.wide + 4)
    for linear, heads in products[::2]:
        tokens = rows.outer if linear.split is Split.REPLICATED else rows.tokens
        kept = kept + tokens * linear.count * local_width(linear, rows.tp, heads) * rows.wide
    routed = [part for part in layer.all_ffns if isinstance(part, MoeFfn)]
    return kept + sum((_ffn(rows, replace(part, shared=None), hidden_size) for part in routed), 0)


def _norm_inputs(rows: Rows, layer: Layer) -> float:
    """Bytes per element of the residual that norms keep: each its input. An RMS norm of elementwise kernels keeps it in
    fp32, and once more normalised (counted by PyTorch's saved-tensor hooks on a layer of nn.RMSNorm, 2026-11-21)."""
    eager = [8.0 if norm.kind is NormKind.RMS_NORM and rows.eager else rows.wide for norm in layer.norms]
    return sum(eager) or rows.wide


def _mixer(rows: Rows, mixer: Mixer, hidden_size: Ints) -> Floats:
    """Everything a mixer keeps beyond its core: queries, keys, values, and the output (which the projection keeps)."""
    if isinstance(mixer, StateSpaceMixer):
        return _state_space(rows, mixer, hidden_size)
    kept = sum(_core_inputs(rows, mixer))
    if isinstance(mixer, LatentAttentionMixer):
        latent = mixer.q_lora_rank + mixer.kv_lora_rank
        return kept + rows.outer * (latent * (rows.wide + rows.narrow) + mixer.qk_rope_head_dim * rows.wide)
    if any("norm" in vector.name for vector in mixer.vectors):
        heads, kv_heads = ceil_div(mixer.num_heads, rows.tp), ceil_div(mixer.num_kv_heads, rows.tp)
        kept = kept + rows.tokens * rows.wide * (heads + (heads if rows.eager else kv_heads)) * mixer.head_dim
    gates = rows.tokens * rows.wide * 2 * ceil_div(mixer.num_heads, rows.tp) * mixer.value_dim if mixer.gated else 0
    return kept + gates


def _core(rows: Rows, mixer: Mixer) -> Floats:
    """What recomputing the attention core saves: row sums of a flash kernel in fp32, or the probabilities, their
    dropout mask and what it leaves (5 a s^2 b bytes in all in 16 bits)."""
    if isinstance(mixer, StateSpaceMixer):
        return 0
    heads = ceil_div(mixer.num_heads, rows.tp)
    if rows.flash:
        return 4 * heads * rows.tokens
    return heads * rows.tokens * rows.keys * (rows.wide + (rows.wide + 1 if rows.dropout else 0))


def _state_space(rows: Rows, mixer: StateSpaceMixer, hidden_size: Ints) -> Floats:
    """Outputs of its input projections, the scan's and the gated norm's output, and a state of fp32 numbers for every
    256 tokens (the chunk of Mamba-2's scan, arXiv 2405.21060, sec. 6)."""
    inner = ceil_div(mixer.inner_size, rows.tp)
    ups = [x for x in mixer.linears(hidden_size) if x.split is not Split.ROW]
    width = sum((x.count * (x.d_out if x.split is Split.REPLICATED else ceil_div(x.d_out, rows.tp)) for x in ups), 0)
    states = 4 * inner * mixer.state_size / 256
    return rows.tokens * ((width + inner) * rows.wide + inner * rows.narrow + states)


def _ffn(rows: Rows, part: DenseFfn | MoeFfn, hidden_size: Ints) -> Floats:
    """Inputs of the activation function and of the last product; with experts also their gathered inputs and the
    router's probabilities."""
    if isinstance(part, DenseFfn):
        return _inner(rows, part, rows.tokens, rows.tp)
    routed, width = _routed(rows, part), hidden_size if part.expert_hidden_size is None else part.expert_hidden_size
    kept = routed * width * rows.ffn_input + _inner(rows, part.expert, routed, _expert_tp(rows)) + 4 * routed
    kept = kept + 8 * rows.outer * part.num_experts
    return kept if part.shared is None else kept + _inner(rows, part.shared, rows.tokens, rows.tp)


def _inner(rows: Rows, part: DenseFfn, tokens: Floats, tp: Ints) -> Floats:
    width = ceil_div(part.ffn_hidden_size, tp)
    ups = 2 if part.gated else 1
    ups += 1 if part.gated and rows.eager else 0
    return tokens * width * (ups * rows.wide + rows.ffn_input)


def _expert_tp(rows: Rows) -> Ints:
    return rows.tp if rows.splits_experts else 1


def _routed(rows: Rows, part: MoeFfn) -> Floats:
    """Token rows of the experts on the fullest device: k for every token it sends, more where it has the most visited
    expert (as `lower` counts them)."""
    sent = rows.tokens if rows.splits_experts else ceil_div(rows.tokens, rows.tp)
    experts = float(part.num_experts) if isinstance(part.num_experts, int) else part.num_experts
    here = np.maximum(experts / np.asarray(rows.ep, dtype=np.float64), 1.0)
    fullest = (rows.skew + (here - 1) * (experts - rows.skew) / np.maximum(experts - 1, 1)) / here
    return sent * part.experts_per_token * fullest


def _ffn_backward(rows: Rows, part: DenseFfn | MoeFfn, hidden_size: Ints) -> Floats:
    """Beside what is kept: gradient of the last product's input with its gathered gradient; then that of the activation
    function's; then the gathered input and its gradient, whole, where the last product's input is already gone."""
    if isinstance(part, MoeFfn):
        routed = _routed(rows, part)
        own = _peaks(rows, part.expert, routed, routed * hidden_size, routed * hidden_size, _expert_tp(rows))
        own = np.maximum(own, 2 * routed * hidden_size * rows.wide)  # on their way between devices
        if part.shared is None:
            return own
        return np.maximum(own, _ffn_backward(rows, part.shared, hidden_size))
    return _peaks(
        rows, part, rows.tokens, rows.gathered * hidden_size, (rows.tokens + rows.gathered) * hidden_size, rows.tp
    )


def _peaks(rows: Rows, part: DenseFfn, tokens: Floats, grad_in: Floats, grad_out: Floats, tp: Ints) -> Floats:
    width = tokens * ceil_div(part.ffn_hidden_size, tp) * rows.wide
    ups = width * (2 if part.gated else 1)
    first = grad_in * rows.wide + width
    return np.maximum(np.maximum(first, ups), grad_out * rows.wide - width)


def _mixer_backward(rows: Rows, mixer: Mixer, hidden_size: Ints, *, freed: Floats) -> Floats:
    """Gradients of queries, keys, values and output, with an fp32 sum of the queries' in flash kernels; the scores' in
    unfused ones. What feed-forward parts of the layer kept (``freed``) is free again by then."""
    if isinstance(mixer, StateSpaceMixer):
        return np.maximum(2 * _state_space(rows, mixer, hidden_size) - freed, 0)
    heads, kv_heads = ceil_div(mixer.num_heads, rows.tp), ceil_div(mixer.num_kv_heads, rows.tp)
    grads = heads * (mixer.head_dim + mixer.value_dim) + kv_heads * (mixer.head_dim + mixer.value_dim)
    vectors = rows.tokens * (grads * rows.wide + (4 * heads * mixer.head_dim if rows.flash else 0))
    # fused softmax turns the scores' gradient in place (Megatron-LM, scaled_masked_softmax.h); dropped scores are free
    grown = 2 if rows.eager and not rows.dropout else 1
    scores = 0 if rows.flash else grown * heads * rows.tokens * rows.keys * rows.wide
    cross = isinstance(mixer, AttentionMixer) and mixer.cross
    return np.maximum(vectors + scores - (0 if cross else freed), 0)
