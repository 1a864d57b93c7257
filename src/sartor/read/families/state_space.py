"""State-space models and their hybrids with attention: Mamba, Mamba-2, Jamba, Nemotron-H, Griffin,
RWKV, xLSTM; Zamba, in which some Mamba layers are followed by a shared attention block.

Projections are `Linear` layers; the `StateSpaceMixer` describes the memory-bound scan between them.
"""

from __future__ import annotations

from dataclasses import replace

from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    Layer,
    Linear,
    Mixer,
    MoeFfn,
    Split,
    StateSpaceMixer,
    Vectors,
    mamba2_mixer,
)
from sartor.model.shape import TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import (
    Experts,
    Family,
    Sizes,
    assemble,
    attention,
    choose,
    dense_ffn,
    latent_projections,
    moe_ffn,
    read_sizes,
)
from sartor.read.families.parts import Reach, check_experts, layer_norm, plain, rms, with_roles
from sartor.read.fields import Fields
from sartor.units import ceil_div, nearest_divisors

INNER = ("mamba_expand", "expand")
STATE = ("state_size", "mamba_d_state", "ssm_state_size")
TAPS = ("conv_kernel", "mamba_d_conv", "conv_kernel_size", "d_conv")
GROUPS = ("n_groups", "mamba_n_groups", "mamba_ngroups")
CONV_BIAS = ("use_conv_bias", "mamba_conv_bias")
CHUNK = ("chunk_size", "mamba_chunk_size")
CHUNK_SIZE = 256
"""The default of the published classes (Mamba2Config, BambaConfig)."""


# -- mixers --------------------------------------------------------------------------------------------------


def mamba(f: Fields, hidden: int, *, bias: bool, normed: bool = False, inner: int | None = None) -> StateSpaceMixer:
    """Mamba (arXiv 2312.00752): selective scan with a low-rank step size per channel."""
    inner = f.size(*INNER) * hidden if inner is None else inner
    state, taps = f.size(*STATE), f.size(*TAPS)
    rank = _step_rank(f, hidden)
    heads = f.optional_size("n_mamba_heads") or 1
    conv_bias = inner if f.flag(*CONV_BIAS, default=True) else 0
    norms = (Vectors(name="dt_b_c_norms", fixed=rank + 2 * state),) if normed else ()
    width = inner // heads
    return StateSpaceMixer(
        inner_size=inner,
        state_size=state,
        num_heads=heads,
        conv_channels=inner,
        conv_size=taps,
        projections=(
            Linear(name="in", d_in=hidden, d_out=2 * inner, bias=bias),
            Linear(name="x", d_in=width, d_out=rank + 2 * state, count=heads, split=Split.ROW),
            Linear(name="dt", d_in=rank, d_out=width, bias=True, count=heads),
            Linear(name="out", d_in=inner, d_out=hidden, bias=bias, split=Split.ROW),
        ),
        vectors=(
            Vectors(name="A_and_D", fixed=inner * (state + 1)),
            Vectors(name="conv", fixed=inner * taps + conv_bias),
            *norms,
        ),
        variant="mamba",
    )


def _step_rank(f: Fields, hidden: int) -> int:
    """Rank of the step size's projection; ``auto`` (the default) is a sixteenth of the hidden size."""
    name = next((n for n in ("time_step_rank", "mamba_dt_rank") if f.given(n) not in (None, "auto")), "")
    return f.size(name) if name else int(ceil_div(hidden, 16))


def _mamba2(
    f: Fields, hidden: int, inner: int, heads: int, *, in_bias: bool, out_bias: bool, normed: bool = True
) -> StateSpaceMixer:
    """A Mamba-2 mixer from the config's fields; the chunk defaults to `CHUNK_SIZE`."""
    return mamba2_mixer(
        hidden,
        num_heads=heads,
        head_dim=inner // heads,
        state_size=f.size(*STATE),
        num_groups=f.size(*GROUPS),
        conv_size=f.size(*TAPS),
        chunk_size=f.optional_size(*CHUNK) or CHUNK_SIZE,
        conv_bias=f.flag(*CONV_BIAS, default=True),
        in_bias=in_bias,
        out_bias=out_bias,
        normed=normed,
    )


def expanded_mamba2(f: Fields, hidden: int, *, in_bias: bool, out_bias: bool) -> StateSpaceMixer:
    """A Mamba-2 mixer with an inner width that is a multiple of the hidden size."""
    inner = f.size(*INNER) * hidden
    heads = f.size("mamba_n_heads", "num_heads", "n_mamba_heads")
    if inner % heads:
        raise f.refuse("mamba_n_heads", heads, f"must divide the inner width {inner}", nearest_divisors(inner, heads))
    return _mamba2(f, hidden, inner, heads, in_bias=in_bias, out_bias=out_bias)


# -- pure state-space models ---------------------------------------------------------------------------------

PURE = Family()


def read_mamba(f: Fields) -> TransformerShape:
    """Mamba and Falcon Mamba: only mixers, no feed-forward parts."""
    hidden, count = f.essential("hidden_size", "d_model"), f.layers("num_hidden_layers", "n_layer")
    mixer = mamba(
        f, hidden, bias=f.flag("use_bias", default=False), inner=f.optional_size("intermediate_size", "d_inner")
    )
    return assemble(f, PURE, hidden, [Layer(mixers=(mixer,), norms=(rms(),))] * count)


def read_mamba2(f: Fields) -> TransformerShape:
    """Mamba-2: only mixers, no feed-forward parts."""
    hidden, count = f.essential("hidden_size", "d_model"), f.layers("num_hidden_layers", "n_layer")
    heads, bias = f.size("num_heads"), f.flag("use_bias", default=False)
    inner = heads * f.size("head_dim")
    mixer = _mamba2(f, hidden, inner, heads, in_bias=bias, out_bias=bias)
    return assemble(f, PURE, hidden, [Layer(mixers=(mixer,), norms=(rms(),))] * count)


def read_rwkv(f: Fields) -> TransformerShape:
    """RWKV-4 (arXiv 2305.13048): a decayed running mean instead of attention, squared ReLU with a gate."""
    hidden, count = f.essential("hidden_size"), f.layers()
    inner, width = (
        f.optional_size("attention_hidden_size") or hidden,
        f.optional_size("intermediate_size") or 4 * hidden,
    )
    mixer = StateSpaceMixer(
        inner_size=inner,
        state_size=1,
        projections=(
            *(Linear(name=name, d_in=hidden, d_out=inner, fused="kvr") for name in ("key", "value", "receptance")),
            Linear(name="out", d_in=inner, d_out=hidden, split=Split.ROW),
        ),
        vectors=(Vectors(name="decay_and_first", fixed=2 * inner), Vectors(name="time_mix", per_hidden=3)),
        variant="rwkv",
    )
    ffn = DenseFfn(
        ffn_hidden_size=width, gated=False, activation="relu2", vectors=(Vectors(name="time_mix", per_hidden=2),)
    )
    gate = plain("ffn_receptance", hidden, hidden)
    layer = Layer(mixers=(mixer,), ffn=ffn, norms=(layer_norm(), layer_norm()), linears=(gate,))
    first = replace(layer, norms=(*layer.norms, layer_norm("pre_norm")))
    return assemble(f, Family(norm=layer_norm()), hidden, [first] + [layer] * (count - 1))


def read_xlstm(f: Fields) -> TransformerShape:
    """xLSTM with matrix memory only (arXiv 2405.04517)."""
    hidden, count, heads = (
        f.essential("hidden_size", "embedding_dim"),
        f.layers("num_hidden_layers", "num_blocks"),
        f.size("num_heads"),
    )
    keys = int(hidden * (f.number("qk_dim_factor") or 0.5))
    values = int(hidden * (f.number("v_dim_factor") or 1.0))
    multiple = f.size("ffn_round_up_to_multiple_of")
    width = int(ceil_div(int(hidden * (f.number("ffn_proj_factor") or 2.667)), multiple)) * multiple
    bias = f.flag("use_bias", default=False)
    mixer = StateSpaceMixer(
        inner_size=values,
        state_size=keys // heads,
        num_heads=heads,
        projections=(
            *(Linear(name=n, d_in=hidden, d_out=keys, bias=bias, fused="qkvo") for n in ("q", "k")),
            *(Linear(name=n, d_in=hidden, d_out=values, bias=bias, fused="qkvo") for n in ("v", "output_gate")),
            *(plain(f"{n}_gate", hidden, heads, bias=True) for n in ("input", "forget")),
            Linear(name="out", d_in=values, d_out=hidden, bias=bias, split=Split.ROW),
        ),
        vectors=(Vectors(name="head_norm", fixed=values * (2 if bias else 1)),),
        variant="mlstm",
    )
    norm = replace(rms(), bias=bias)
    ffn = DenseFfn(ffn_hidden_size=width, up_bias=bias, down_bias=bias)
    family = Family(norm=norm, final_norm=f.flag("add_out_norm", default=True))
    return assemble(f, family, hidden, [Layer(mixers=(mixer,), ffn=ffn, norms=(norm, norm))] * count)


# -- hybrids -------------------------------------------------------------------------------------------------


def read_jamba(f: Fields) -> TransformerShape:
    """Jamba (arXiv 2403.19887): one attention to seven Mamba layers, experts in every other layer."""
    experts = Experts(sparse=lambda _f, n: [False] * n, num=("num_experts", "num_local_experts"), width=parts.FFN)
    family = Family(experts=experts)
    sizes = read_sizes(f, family)
    period, offset = f.size("attn_layer_period"), f.size("attn_layer_offset", least=0)
    step, first = f.size("expert_layer_period"), f.size("expert_layer_offset", least=0)
    num = f.size("num_experts", "num_local_experts")
    parts_of: dict[bool, Mixer] = {
        True: attention(f, sizes, family, Reach()),
        False: mamba(f, sizes.hidden, bias=f.flag("mamba_proj_bias", default=False), normed=True),
    }
    dense, moe = dense_ffn(f, sizes, family), moe_ffn(f, sizes, family) if num > 1 else None
    layers = []
    for i in range(sizes.layers):
        sparse = moe if moe and i % step == first else dense
        layers.append(Layer(mixers=(parts_of[i % period == offset],), ffn=sparse, norms=(rms(), rms())))
    return assemble(f, family, sizes.hidden, layers)


BAMBA = Family(q_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")


def read_bamba(f: Fields) -> TransformerShape:
    """Bamba: Mamba-2 layers with attention at ``attn_layer_indices``."""
    sizes = read_sizes(f, BAMBA)
    attention_layers = set(f.sizes("attn_layer_indices", least=0) or ())
    bias = f.flag("mamba_proj_bias", default=False)
    ssm = expanded_mamba2(f, sizes.hidden, in_bias=bias, out_bias=bias)
    attends, ffn = attention(f, sizes, BAMBA, Reach()), dense_ffn(f, sizes, BAMBA)
    layers = [
        Layer(mixers=(attends if i in attention_layers else ssm,), ffn=ffn, norms=(rms(), rms()))
        for i in range(sizes.layers)
    ]
    return assemble(f, BAMBA, sizes.hidden, layers)


def read_falcon_h1(f: Fields) -> TransformerShape:
    """Falcon-H1 (arXiv 2507.22448): attention and Mamba-2 side by side in every layer."""
    sizes = read_sizes(f, BAMBA)
    inner = f.optional_size("mamba_d_ssm") or f.size(*INNER) * sizes.hidden
    ssm = _mamba2(
        f,
        sizes.hidden,
        inner,
        f.size("mamba_n_heads"),
        in_bias=f.flag("mamba_proj_bias", default=False),
        out_bias=f.flag("projectors_bias", default=False),
        normed=f.flag("mamba_rms_norm", default=False),
    )
    mixers = (attention(f, sizes, BAMBA, Reach()), ssm)
    layer = Layer(mixers=mixers, ffn=dense_ffn(f, sizes, BAMBA), norms=(rms(), rms()))
    return assemble(f, BAMBA, sizes.hidden, [layer] * sizes.layers)


def read_granite_hybrid(f: Fields) -> TransformerShape:
    """Granite 4: Mamba-2 and attention by ``layer_types``, a shared feed-forward part, with or without experts."""
    family = Family(q_bias="attention_bias", out_bias="attention_bias", ffn=("shared_intermediate_size",))
    sizes = read_sizes(f, family)
    kinds = f.words("layer_types", "layers_block_type", length=sizes.layers) or ["linear_attention"] * sizes.layers
    bias = f.flag("mamba_proj_bias", default=False)
    ssm = expanded_mamba2(f, sizes.hidden, in_bias=bias, out_bias=bias) if any(_is_ssm(k) for k in kinds) else None
    attends = attention(f, sizes, family, Reach())
    num = f.optional_size("num_local_experts", least=0) or 0
    shared = dense_ffn(f, sizes, family)
    top_k = f.size("num_experts_per_tok") if num else 0
    if num:
        check_experts(f, num, top_k)
    expert = DenseFfn(ffn_hidden_size=f.size("intermediate_size")) if num else shared
    ffn = MoeFfn(num_experts=num, experts_per_token=top_k, expert=expert, shared=shared) if num else shared
    layers = []
    for kind in kinds:
        mixer = ssm if ssm and _is_ssm(kind) else attends
        layers.append(Layer(mixers=(mixer,), ffn=ffn, norms=(rms(), rms())))
    return assemble(f, family, sizes.hidden, layers)


def _is_ssm(kind: str) -> bool:
    """Whether a layer type is the recurrent mixer, by its old or new name."""
    return kind in ("mamba", "mamba2", "linear_attention", "recurrent")


_NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def read_nemotron_h(f: Fields) -> TransformerShape:
    """Nemotron-H (arXiv 2504.03624): one part per layer, Mamba-2, attention, feed-forward or experts by a pattern."""
    family = Family(mlp_bias="mlp_bias", gated=False, tied=False)
    kinds = _nemotron_kinds(f)
    hidden = f.essential("hidden_size")
    num_heads, num_kv_heads, head_dim = parts.heads(f, hidden)
    sizes = Sizes(hidden=hidden, layers=len(kinds), heads=num_heads, kv_heads=num_kv_heads, head_dim=head_dim)
    bias = f.flag("use_bias", default=False)
    heads = f.size("mamba_num_heads")
    layers: dict[str, Layer] = {}
    for kind in dict.fromkeys(kinds):
        if kind == "attention":
            layer = Layer(mixers=(attention(f, sizes, family, Reach()),), norms=(rms(),))
        elif kind == "mlp":
            layer = Layer(ffn=dense_ffn(f, sizes, family), norms=(rms(),))
        elif kind == "moe":
            layer = Layer(ffn=_nemotron_experts(f, sizes, family), norms=(rms(),))
        else:
            inner = heads * f.size("mamba_head_dim")
            layer = Layer(mixers=(_mamba2(f, hidden, inner, heads, in_bias=bias, out_bias=bias),), norms=(rms(),))
        layers[kind] = layer
    return assemble(f, family, hidden, [layers[kind] for kind in kinds])


def _nemotron_kinds(f: Fields) -> list[str]:
    """The kind of each layer, from ``hybrid_override_pattern`` (letters) or ``layers_block_type`` (words)."""
    pattern = f.given("hybrid_override_pattern")
    if pattern is not None and f.given("layers_block_type") is None:
        if not isinstance(pattern, str) or not pattern or len(pattern) > 65536 or set(pattern) - set(_NEMOTRON_LETTERS):
            raise f.refuse("hybrid_override_pattern", pattern, "must be a word of the letters M, *, - and E")
        count = f.given("num_hidden_layers")
        if isinstance(count, int) and count != len(pattern):
            must = f"must be the {len(pattern)} letters of hybrid_override_pattern"
            raise f.refuse("num_hidden_layers", count, must, str(len(pattern)))
        return [_NEMOTRON_LETTERS[letter] for letter in pattern]
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    words = f.words("layers_block_type", "layer_types") or ["mamba", "moe", "attention", "mlp"]
    kinds = [names.get(word, word) for word in words]
    unknown = next((k for k in kinds if k not in _NEMOTRON_LETTERS.values()), None)
    if unknown is not None:
        raise f.refuse("layers_block_type", unknown, "must be one of mamba, attention, mlp, moe")
    return kinds


def _nemotron_experts(f: Fields, sizes: Sizes, family: Family) -> MoeFfn:
    """Experts without a gate, on a latent width if ``moe_latent_size`` is given, and shared ones."""
    num, top_k, bias = f.size("n_routed_experts"), f.size("num_experts_per_tok"), choose(f, family.mlp_bias)
    check_experts(f, num, top_k)
    latent = f.optional_size("moe_latent_size")
    expert = DenseFfn(
        ffn_hidden_size=f.size("moe_intermediate_size"), gated=False, up_bias=False, down_bias=False, activation="relu2"
    )
    width = (f.optional_size("n_shared_experts", least=0) or 0) and f.size("moe_shared_expert_intermediate_size")
    shared = replace(expert, ffn_hidden_size=width, up_bias=bias, down_bias=bias) if width else None
    return MoeFfn(
        num_experts=num,
        experts_per_token=top_k,
        expert=expert,
        shared=shared,
        expert_hidden_size=latent,
        projections=latent_projections(sizes.hidden, latent or 0, bias=bias),
    )


def read_griffin(f: Fields) -> TransformerShape:
    """RecurrentGemma (Griffin, arXiv 2402.19427): gated linear recurrences and local attention by ``block_types``."""
    family = Family(q_bias="attention_bias", out_bias=True, mlp_bias=True)
    sizes = read_sizes(f, family)
    pattern = f.words("block_types", "_block_types") or ["recurrent", "recurrent", "attention"]
    width = f.optional_size("lru_width") or sizes.hidden
    window = f.optional_size("attention_window_size", least=0) or 0
    mixers: dict[str, Mixer] = {
        "recurrent": _gated_recurrence(f, sizes, width),
        "attention": attention(f, sizes, family, Reach(window)),
    }
    half = DenseFfn(
        ffn_hidden_size=f.size("intermediate_size") // 2, up_bias=True, down_bias=True, activation="gelu_pytorch_tanh"
    )
    layers = []
    for i in range(sizes.layers):
        kind = pattern[i % len(pattern)]
        if kind not in mixers:
            raise f.refuse("block_types", kind, "must be recurrent or attention")
        layers.append(Layer(mixers=(mixers[kind],), ffn=half, norms=(rms(), rms())))
    return assemble(f, family, sizes.hidden, layers)


def _gated_recurrence(f: Fields, sizes: Sizes, width: int) -> StateSpaceMixer:
    """Griffin's recurrent block: two branches, a short convolution, gates that are block-diagonal over heads."""
    taps, heads = f.size("conv1d_width"), sizes.heads
    block = width // heads
    return StateSpaceMixer(
        inner_size=width,
        state_size=1,
        num_heads=heads,
        conv_channels=width,
        conv_size=taps,
        projections=(
            *(Linear(name=n, d_in=sizes.hidden, d_out=width, bias=True, fused="yx") for n in ("y", "x")),
            *(
                Linear(name=f"{n}_gate", d_in=block, d_out=block, bias=True, count=heads)
                for n in ("input", "recurrent")
            ),
            Linear(name="out", d_in=width, d_out=sizes.hidden, bias=True, split=Split.ROW),
        ),
        vectors=(Vectors(name="conv", fixed=width * (taps + 1)), Vectors(name="recurrence", fixed=width)),
        variant="rg_lru",
    )


def read_zamba(f: Fields, *, second: bool) -> TransformerShape:
    """Zamba (arXiv 2405.16712) and Zamba2 (2411.15242): Mamba layers, some after a shared block."""
    hidden, count = f.essential("hidden_size"), f.layers()
    kinds = f.words("layers_block_type", "layer_types", length=count) or _zamba_kinds(f, count, second=second)
    ssm = _zamba_mixer(f, hidden, second=second)
    plain_layer = Layer(mixers=(ssm,), norms=(rms(),))
    blocks = (f.optional_size("num_mem_blocks") or 1) if second else 1
    hybrids = sum(kind == "hybrid" for kind in kinds)
    shared, ffn, adapters = _zamba_block(f, hidden, second=second)
    hybrid = Layer(
        mixers=(shared, ssm),
        ffn=ffn,
        norms=(rms(), rms()),
        linears=(plain("from_block", hidden, hidden),),
        vectors=(Vectors(name="concatenated_norm", per_hidden=2),),
    )
    common = _zamba_common(hybrid, hidden)
    stack_vectors = [Vectors(name="held_in_common", fixed=-max(0, hybrids - blocks) * common)]
    layers = [hybrid if kind == "hybrid" else plain_layer for kind in kinds]
    if adapters:
        layers = _zamba_adapters(layers, kinds, adapters, blocks)
        adapter_params = sum(int(x.params) for x in adapters)
        counted = sum(-(-(hybrids - i % blocks) // blocks) for i in range(hybrids))
        stack_vectors.append(Vectors(name="adapters_in_common", fixed=-(counted - hybrids) * adapter_params))
    shape = assemble(f, PURE, hidden, layers)
    return replace(shape, stacks=(replace(shape.main, vectors=tuple(stack_vectors)),))


def _zamba_kinds(f: Fields, count: int, *, second: bool) -> list[str]:
    """The published layout, for files that give none."""
    if second:
        raise f.refuse("layers_block_type", "missing", "must be given as a list of words, one per layer")
    period, offset = f.size("attn_layer_period"), f.size("attn_layer_offset", least=0)
    rest = ["hybrid" if i % period == offset else "mamba" for i in range(count - 3)]
    return ["mamba", "mamba", "hybrid", *rest]


def _zamba_mixer(f: Fields, hidden: int, *, second: bool) -> StateSpaceMixer:
    """The Mamba mixer of either generation."""
    if not second:
        return mamba(f, hidden, bias=f.flag("mamba_proj_bias", default=False))
    bias = f.flag("add_bias_linear", default=False)
    return expanded_mamba2(f, hidden, in_bias=bias, out_bias=bias)


def _zamba_block(f: Fields, hidden: int, *, second: bool) -> tuple[AttentionMixer, DenseFfn, tuple[Linear, ...]]:
    """The shared block: attention over layer input and embedding concatenated, feed-forward, adapters (Zamba2)."""
    heads = f.size("num_attention_heads")
    kv_heads = f.optional_size("num_key_value_heads") or heads
    head_dim = (None if second else f.optional_size("attention_head_dim")) or 2 * hidden // heads
    wide = 2 * hidden
    self_mixer = (
        Linear(name="q", d_in=wide, d_out=heads * head_dim, fused="qkv"),
        Linear(name="k", d_in=wide, d_out=kv_heads * head_dim, fused="qkv", split=Split.KV_HEADS),
        Linear(name="v", d_in=wide, d_out=kv_heads * head_dim, fused="qkv", split=Split.KV_HEADS),
        Linear(name="out", d_in=heads * head_dim, d_out=hidden, split=Split.ROW),
    )
    mixer = AttentionMixer(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, own_linears=with_roles(self_mixer)
    )
    width = f.optional_size("intermediate_size") or 4 * hidden
    bias = second and f.flag("add_bias_linear", default=False)
    ffn = DenseFfn(ffn_hidden_size=width, up_bias=bias, down_bias=bias, activation="gelu")
    if not second:
        return mixer, ffn, ()
    rank = f.size("adapter_rank")
    adapters = [plain("gate_up_adapter_down", hidden, rank), plain("gate_up_adapter_up", rank, 2 * width)]
    if f.flag("use_shared_attention_adapter", default=False):
        for name in ("q", "k", "v"):
            adapters += [plain(f"{name}_adapter_down", wide, rank), plain(f"{name}_adapter_up", rank, wide)]
    return mixer, ffn, tuple(adapters)


def _zamba_common(hybrid: Layer, hidden: int) -> int:
    """Parameters of the block that hybrid layers share."""
    block = [*hybrid.mixers[0].linears(hidden)]
    block += hybrid.ffn.linears(hidden) if hybrid.ffn else ()
    return sum(int(x.params) for x in block) + 3 * hidden


def _zamba_adapters(layers: list[Layer], kinds: list[str], adapters: tuple[Linear, ...], blocks: int) -> list[Layer]:
    """Every hybrid layer runs its own adapter, but a shared block stores those of all its layers."""
    hybrids = sum(kind == "hybrid" for kind in kinds)
    out, seen = [], 0
    for layer, kind in zip(layers, kinds, strict=True):
        if kind != "hybrid":
            out.append(layer)
            continue
        count = -(-(hybrids - seen % blocks) // blocks)
        others = (
            tuple(replace(x, name=f"other_{x.name}", count=count - 1, rows=0) for x in adapters) if count > 1 else ()
        )
        out.append(replace(layer, linears=(*layer.linears, *adapters, *others)))
        seen += 1
    return out
