"""Text parts of composite models: decoder families with model types of their own."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.layer import AttentionMixer, Linear
from sartor.model.shape import TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import (
    Experts,
    Family,
    QkNorm,
    Sizes,
    attention,
    read_decoder,
    read_sizes,
)
from sartor.read.families.mixtures import layered
from sartor.read.families.parts import check_kv_heads
from sartor.read.families.patterns import (
    Reach,
    all_sparse,
    by_layer_types,
    dense_first,
    sparse_steps,
    window_everywhere,
    window_where_used,
)
from sartor.read.fields import Fields

LLAMA = Family(q_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
ATTENTION_BIAS = Family(q_bias="attention_bias", out_bias="attention_bias")
QWEN2 = Family(q_bias=True, spans=window_where_used)
QWEN3 = replace(ATTENTION_BIAS, qk_norm=QkNorm.HEAD)
QWEN3_MOE = replace(QWEN3, experts=Experts(sparse=sparse_steps))
SHARED = Experts(
    sparse=dense_first(otherwise=1),
    num=("n_routed_experts", "num_experts"),
    shared_count=("n_shared_experts",),
)


def step3(f: Fields) -> TransformerShape:
    """Step 3.5: a gate per head; sliding layers may have more heads; experts except in the first three layers."""
    family = replace(
        LLAMA,
        qk_norm=QkNorm.HEAD,
        experts=Experts(
            sparse=all_sparse,
            num=("n_routed_experts", "moe_num_experts"),
            top_k=("num_experts_per_tok", "moe_top_k"),
            width=("moe_intermediate_size",),
            shared_width=("share_expert_dim",),
        ),
    )
    sizes = read_sizes(f, family)
    n = sizes.layers
    other = f.given("attention_other_setting")
    said = other.get("num_attention_heads") if isinstance(other, dict) else None
    wide = f.optional_size("num_sliding_attention_heads") or (said if isinstance(said, int) else None) or sizes.heads
    trimmed = replace(f, raw={k: v[:n] if isinstance(v, list) and len(v) > n else v for k, v in f.raw.items()})
    spans = by_layer_types(trimmed, n) or [Reach()] * n
    kinds = trimmed.words("mlp_layer_types", length=n)
    listed = f.given("moe_layers_enum")
    chosen = range(3, n) if not isinstance(listed, str) else {int(x) for x in listed.split(",") if x.strip().isdigit()}
    sparse = [kind != "dense" for kind in kinds] if kinds else [i in chosen for i in range(n)]

    def mixer(i: int) -> AttentionMixer:
        one = replace(sizes, heads=wide if spans[i].window else sizes.heads)
        check_kv_heads(f, one.heads, one.kv_heads)
        return replace(attention(f, one, family, spans[i]), projections=(per_head_gate(f, one)))

    return layered(f, family, sizes, mixer, sparse)


def per_head_gate(f: Fields, sizes: Sizes) -> tuple[Linear, ...]:
    """A scalar gate for every head."""
    return (parts.plain("gate", sizes.hidden, sizes.heads),)


def voxtral_realtime(f: Fields) -> TransformerShape:
    """Voxtral realtime's text part: Mistral with a second norm modulated through a bottleneck of 32."""
    shape = read_decoder(f, Family(spans=window_everywhere))
    main = shape.main
    h = int(main.hidden_size)
    inner = 32
    linears = (parts.plain("norm_down", h, inner, rows=1), parts.plain("norm_up", inner, h, rows=1))
    return parts.in_main_layers(shape, lambda layer: replace(layer, linears=linears))


def reference_window(f: Fields, layers: int) -> list[Reach]:
    """Unlimited-OCR: windows that also always see the reference tokens."""
    window = f.optional_size("sliding_window", least=0) or 0
    kinds = f.words("layer_types", length=layers) or ["reference_sliding_attention"] * layers
    return [Reach(window) if "sliding" in kind else Reach() for kind in kinds]
