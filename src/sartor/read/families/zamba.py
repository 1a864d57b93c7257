"""Zamba and Zamba2: Mamba layers, some of which follow a shared attention block."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Linear, Split, StateSpaceMixer, Vectors
from sartor.model.shape import TransformerShape
from sartor.read.families.decoder import assemble
from sartor.read.families.parts import plain, rms, with_roles
from sartor.read.families.state_space import PURE, expanded_mamba2, mamba
from sartor.read.fields import Fields


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
