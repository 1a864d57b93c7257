"""Decoders that alternate between attention and a linear recurrence or a short convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sartor.model.layer import Linear, Mixer, Split, StateSpaceMixer, Vectors
from sartor.model.shape import TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import (
    Experts,
    Family,
    QkNorm,
    Sizes,
    assemble,
    attention,
    choose,
    latent_attention,
    layers_of,
    read_sizes,
)
from sartor.read.families.parts import Reach, all_sparse, dense_first, sparse_steps
from sartor.read.fields import Fields

QWEN_NEXT = Family(
    q_bias="attention_bias", out_bias="attention_bias", qk_norm=QkNorm.HEAD, attention_gate=True, rotary=0.25
)
QWEN_EXPERTS = Experts(
    sparse=sparse_steps,
    num=("num_experts",),
    shared_width=("shared_expert_intermediate_size",),
    shared_gate=True,
)


def alternating(
    f: Fields, family: Family, sizes: Sizes, kinds: Sequence[str], mixers: dict[str, Mixer]
) -> TransformerShape:
    """A decoder with the mixer of kind ``kinds[i]`` in layer ``i`` and the family's feed-forward parts."""
    unknown = next((kind for kind in kinds if kind not in mixers), None)
    if unknown is not None:
        raise f.refuse("layer_types", unknown, f"must be one of {', '.join(mixers)}")
    layers = layers_of(f, family, sizes, (mixers[kind] for kind in kinds))
    return assemble(f, family, sizes.hidden, layers)


def kinds_of(f: Fields, layers: int, period: int, *, last: str, others: str) -> list[str]:
    """``layer_types``, or by default ``others`` with every ``period``-th layer ``last``."""
    listed = f.words("layer_types", length=layers)
    return listed or [last if (i + 1) % period == 0 else others for i in range(layers)]


# -- Qwen3-Next and Qwen3.5 -------------------------------------------------------------------------------------


def qwen3_next(f: Fields) -> TransformerShape:
    """Three gated delta nets to one gated attention, experts in every layer (Qwen3-Next)."""
    family = replace(QWEN_NEXT, experts=QWEN_EXPERTS)
    sizes = read_sizes(f, family)
    return _qwen(f, family, sizes, fused=True)


def qwen3_5(f: Fields) -> TransformerShape:
    """Qwen3-Next with separate projections and a dense feed-forward part (Qwen3.5)."""
    return _qwen(f, QWEN_NEXT, read_sizes(f, QWEN_NEXT), fused=False)


def qwen3_5_moe(f: Fields) -> TransformerShape:
    """Qwen3.5 with experts in every layer."""
    family = replace(QWEN_NEXT, experts=replace(QWEN_EXPERTS, sparse=all_sparse))
    return _qwen(f, family, read_sizes(f, family), fused=False)


def _qwen(f: Fields, family: Family, sizes: Sizes, *, fused: bool) -> TransformerShape:
    period = f.optional_size("full_attention_interval") or 4
    kinds = kinds_of(f, sizes.layers, period, last="full_attention", others="linear_attention")
    mixers: dict[str, Mixer] = {
        "full_attention": attention(f, sizes, family, Reach()),
        "linear_attention": _gated_delta_net(f, sizes.hidden, fused=fused),
    }
    return alternating(f, family, sizes, kinds, mixers)


def _gated_delta_net(f: Fields, hidden: int, *, fused: bool) -> StateSpaceMixer:
    """Gated DeltaNet (arXiv 2412.06464) as Qwen builds it: keys, values, gate and two scalars per value head."""
    key_heads, value_heads = f.size("linear_num_key_heads"), f.size("linear_num_value_heads")
    d_key, d_value = f.size("linear_key_head_dim"), f.size("linear_value_head_dim")
    taps = f.size("linear_conv_kernel_dim")
    if value_heads % key_heads:
        raise f.refuse("linear_num_value_heads", value_heads, f"must be a multiple of linear_num_key_heads {key_heads}")
    keys, values = key_heads * d_key, value_heads * d_value
    channels = 2 * keys + values
    ins: tuple[Linear, ...] = (
        (
            Linear(name="in_qkvz", d_in=hidden, d_out=channels + values),
            Linear(name="in_ba", d_in=hidden, d_out=2 * value_heads),
        )
        if fused
        else (
            Linear(name="in_qkv", d_in=hidden, d_out=channels),
            Linear(name="in_z", d_in=hidden, d_out=values),
            Linear(name="in_b", d_in=hidden, d_out=value_heads),
            Linear(name="in_a", d_in=hidden, d_out=value_heads),
        )
    )
    return StateSpaceMixer(
        inner_size=values,
        state_size=d_key,
        num_heads=value_heads,
        conv_channels=channels,
        conv_size=taps,
        projections=(*ins, Linear(name="out", d_in=values, d_out=hidden, split=Split.ROW)),
        vectors=(
            Vectors(name="conv", fixed=channels * taps),
            Vectors(name="dt_bias_and_A", fixed=2 * value_heads),
            Vectors(name="norm", fixed=d_value),
        ),
        variant="gated_delta_net",
        name="linear_attention",
    )


# -- Kimi Linear and Ling hybrid ----------------------------------------------------------------------------------


def kimi_linear(f: Fields) -> TransformerShape:
    """Kimi delta attention, every fourth layer latent attention, experts after the first layer."""
    family = _latent_hybrid(f)
    sizes = read_sizes(f, family)
    f.optional_size("head_dim")  # of neither mixer: both have heads of their own sizes
    nested = f.given("linear_attn_config")
    inner = replace(f, raw=nested, path=f"{f.path}linear_attn_config.") if isinstance(nested, dict) else f
    full, linear = inner.sizes("full_attn_layers", least=1), inner.sizes("kda_layers", least=1)
    if full is None and linear is not None:
        full = [i + 1 for i in range(sizes.layers) if i + 1 not in set(linear)]
    kinds = f.words("layer_types", length=sizes.layers)
    if kinds is None and full is not None:  # Counted from 1 in published files.
        kinds = ["full_attention" if i + 1 in set(full) else "linear_attention" for i in range(sizes.layers)]
    if kinds is None:
        kinds = ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(sizes.layers)]
    heads = inner.optional_size("linear_num_heads", "num_heads") or sizes.heads
    d = inner.optional_size("linear_head_dim", "head_dim") or 128
    taps = inner.optional_size("linear_conv_kernel_dim", "short_conv_kernel_size") or 4
    h = sizes.hidden
    delta = delta_attention(h, heads, d, taps)
    mixers: dict[str, Mixer] = {
        "linear_attention": delta,
        "full_attention": latent_attention(f, sizes, family, Reach()),
    }
    return alternating(f, family, sizes, kinds, mixers)


def bailing_hybrid(f: Fields) -> TransformerShape:
    """Ling hybrid: delta attention, latent attention with a gate per head every ``layer_group_size`` layers."""
    family = _latent_hybrid(f)
    sizes = read_sizes(f, family)
    kinds = kinds_of(
        f, sizes.layers, f.optional_size("layer_group_size") or 6, last="full_attention", others="linear_attention"
    )
    heads = f.optional_size("linear_num_heads") or sizes.heads
    d, h = f.optional_size("linear_head_dim") or 128, sizes.hidden
    wide = (Linear(name="forget", d_in=h, d_out=heads * d), Linear(name="gate", d_in=h, d_out=heads * d))
    taps = f.optional_size("linear_conv_kernel_dim", "short_conv_kernel_size") or 4
    mixer = latent_attention(f, sizes, family, Reach())
    mixers: dict[str, Mixer] = {
        "linear_attention": _delta_attention(h, heads, d, taps, wide),
        "full_attention": replace(mixer, projections=(parts.gate(h, sizes.heads),)),
    }
    return alternating(f, family, sizes, kinds, mixers)


def _latent_hybrid(f: Fields) -> Family:
    return Family(
        latent=True,
        q_bias="attention_bias",
        tied=False,
        experts=Experts(
            sparse=dense_first(otherwise=1),
            num=("num_experts",),
            top_k=("num_experts_per_token", "num_experts_per_tok"),
            shared_count=("num_shared_experts",),
        ),
    )


def delta_attention(h: int, heads: int, d: int, taps: int) -> StateSpaceMixer:
    """Kimi delta attention with forget and output gates through a bottleneck of one head's width."""
    width = heads * d
    narrow = (
        Linear(name="forget_down", d_in=h, d_out=d),
        Linear(name="forget_up", d_in=d, d_out=width),
        Linear(name="gate_down", d_in=h, d_out=d),
        Linear(name="gate_up", d_in=d, d_out=width),
    )
    return _delta_attention(h, heads, d, taps, narrow)


def _delta_attention(h: int, heads: int, d: int, taps: int, gates: tuple[Linear, ...]) -> StateSpaceMixer:
    """Kimi delta attention (arXiv 2510.26692): a decay per channel, a write strength per head."""
    width = heads * d
    qkv = tuple(Linear(name=name, d_in=h, d_out=width) for name in ("q", "k", "v"))
    strength = Linear(name="beta", d_in=h, d_out=heads)
    out = Linear(name="out", d_in=width, d_out=h, split=Split.ROW)
    return StateSpaceMixer(
        inner_size=width,
        state_size=d,
        num_heads=heads,
        conv_channels=3 * width,
        conv_size=taps,
        projections=(*qkv, strength, *gates, out),
        vectors=(
            Vectors(name="conv", fixed=3 * width * taps),
            Vectors(name="dt_bias", fixed=width),
            Vectors(name="A", fixed=heads),
            Vectors(name="norm", fixed=d),
        ),
        variant="delta_attention",
        name="linear_attention",
    )


# -- MiniMax ------------------------------------------------------------------------------------------------------


def minimax(f: Fields) -> TransformerShape:
    """MiniMax-01: lightning attention (a decayed linear attention with an output gate) and softmax attention."""
    family = Family(experts=Experts(sparse=all_sparse, width=("intermediate_size",)))
    sizes = read_sizes(f, family)
    kinds = f.words("layer_types", length=sizes.layers)
    listed = f.sizes("attn_type_list", length=sizes.layers, least=0)
    if kinds is None and listed is not None:
        kinds = ["full_attention" if x else "linear_attention" for x in listed]
    if kinds is None:
        kinds = kinds_of(f, sizes.layers, 2, last="linear_attention", others="full_attention")
    h, width = sizes.hidden, sizes.heads * sizes.head_dim
    lightning = StateSpaceMixer(
        inner_size=width,
        state_size=sizes.head_dim,
        num_heads=sizes.heads,
        projections=(
            Linear(name="qkv", d_in=h, d_out=3 * width),
            Linear(name="gate", d_in=h, d_out=width),
            Linear(name="out", d_in=width, d_out=h, split=Split.ROW),
        ),
        vectors=(Vectors(name="norm", fixed=width),),
        variant="lightning_attention",
        name="linear_attention",
    )
    mixers: dict[str, Mixer] = {
        "linear_attention": lightning,
        "full_attention": attention(f, sizes, family, Reach()),
    }
    return alternating(f, family, sizes, kinds, mixers)


# -- LFM ----------------------------------------------------------------------------------------------------------


def lfm2(f: Fields) -> TransformerShape:
    """LFM2: gated short convolutions with some attention layers; the feed-forward width is derived."""
    family = Family(qk_norm=QkNorm.HEAD)
    sizes = read_sizes(f, family)
    shape = alternating(_with_width(f), family, sizes, _lfm_kinds(f, sizes), _lfm_mixers(f, sizes, family))
    return _lfm_tied(f, shape)


def lfm2_moe(f: Fields) -> TransformerShape:
    """LFM2 with experts after the first ``num_dense_layers`` layers."""
    experts = Experts(sparse=dense_first("num_dense_layers"), num=("num_experts",))
    family = Family(qk_norm=QkNorm.HEAD, experts=experts)
    sizes = read_sizes(f, family)
    shape = alternating(f, family, sizes, _lfm_kinds(f, sizes), _lfm_mixers(f, sizes, family))
    return _lfm_tied(f, shape)


def lfm3(f: Fields) -> TransformerShape:
    """LFM3: LFM2 with sandwich norms, sliding windows and a gate per head."""
    gate = f.flag("use_attention_gate")
    family = Family(
        q_bias="attention_bias",
        out_bias="attention_bias",
        norms=4 if f.flag("use_sandwich_norm") else 2,
        qk_norm=QkNorm.HEAD,
        attention_linears=(lambda _, s: (parts.gate(s.hidden, s.heads),)) if gate else None,
    )
    sizes = read_sizes(f, family)
    return alternating(f, family, sizes, _lfm_kinds(f, sizes), _lfm_mixers(f, sizes, family))


def _with_width(f: Fields) -> Fields:
    """The fields with the feed-forward width that LFM2 derives from ``block_ff_dim``."""
    width = f.size("block_ff_dim", "intermediate_size")
    if f.flag("block_auto_adjust_ff_dim"):
        width = int(2 * width / 3)
        if (factor := f.number("block_ffn_dim_multiplier")) is not None:
            multiple = f.size("block_multiple_of")
            width = -(-int(factor * width) // multiple) * multiple
    return replace(f, raw={**f.raw, "intermediate_size": width})


def _lfm_kinds(f: Fields, sizes: Sizes) -> list[str]:
    listed = f.words("layer_types", length=sizes.layers)
    if listed is not None:
        return listed
    full = f.sizes("full_attn_idxs", least=0)
    if full is None and f.model_type == "lfm3":
        cycle = ("sliding_attention", "conv", "full_attention", "conv")
        return ["conv" if i == 0 else cycle[i % 4] for i in range(sizes.layers)]
    if full is None:
        if f.model_type != "lfm2":
            raise f.refuse("layer_types", "missing", "must list conv or full_attention for every layer")
        return ["full_attention"] * sizes.layers
    return ["full_attention" if i in set(full) else "conv" for i in range(sizes.layers)]


def _lfm_mixers(f: Fields, sizes: Sizes, family: Family) -> dict[str, Mixer]:
    h, taps, bias = sizes.hidden, f.size("conv_L_cache"), f.flag("conv_bias")
    conv = StateSpaceMixer(
        inner_size=h,
        state_size=1,
        conv_channels=h,
        conv_size=taps,
        projections=(
            Linear(name="in", d_in=h, d_out=3 * h, bias=bias),
            Linear(name="out", d_in=h, d_out=h, bias=bias, split=Split.ROW),
        ),
        vectors=(Vectors(name="conv", per_hidden=taps + int(bias)),),
        variant="short_conv",
        name="conv",
    )
    window = f.optional_size("sliding_window", least=0) or 0
    return {
        "conv": conv,
        "full_attention": attention(f, sizes, family, Reach()),
        "sliding_attention": attention(f, sizes, family, Reach(window)),
    }


def _lfm_tied(f: Fields, shape: TransformerShape) -> TransformerShape:
    """Older files use ``tie_embedding``."""
    tied = choose(f, "tie_embedding") if f.has("tie_embedding") else shape.tied_embeddings
    return replace(shape, tied_embeddings=tied or not shape.lm_head)
