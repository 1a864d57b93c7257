"""Latent attention with extras: indexers that choose keys (DeepSeek sparse attention), gates, shared indexers."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.layer import Linear, Vectors
from sartor.model.shape import TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import (
    Experts,
    Family,
    assemble,
    latent_attention,
    layers_of,
    read_sizes,
)
from sartor.read.families.patterns import Reach, dense_first
from sartor.read.fields import Fields

SPARSE = Family(
    latent=True,
    q_bias="attention_bias",
    experts=Experts(
        sparse=dense_first("first_k_dense_replace"),
        num=("n_routed_experts", "num_experts"),
        shared_count=("n_shared_experts",),
    ),
)


def indexer(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """The lightning indexer (DeepSeek-V3.2): narrow queries from the latent, one key, a weight per head."""
    num, d, rank = f.size("index_n_heads"), f.size("index_head_dim"), f.size("q_lora_rank")
    linears = (
        parts.plain("index_q", rank, num * d),
        parts.plain("index_k", hidden, d),
        parts.plain("index_weights", hidden, num),
    )
    return linears, (Vectors(name="index_norm", fixed=2 * d),)


def sparse_latent(f: Fields) -> TransformerShape:
    """DeepSeek-V3.2 and GLM-5: latent attention over the keys an indexer chose; some layers reuse the choice."""
    sizes = read_sizes(f, SPARSE)
    plain = latent_attention(f, sizes, SPARSE, Reach())
    linears, vectors = indexer(f, sizes.hidden)
    choosing = replace(plain, projections=linears, vectors=(*plain.vectors, *vectors))
    kinds = indexer_kinds(f, sizes.layers)
    mixers = [choosing if kind == "full" else plain for kind in kinds]
    return assemble(f, SPARSE, sizes.hidden, layers_of(f, SPARSE, sizes, mixers))


def indexer_kinds(f: Fields, layers: int) -> list[str]:
    """For each layer "full" (has its own indexer) or "shared" (reuses an earlier layer's choice)."""
    said = f.words("indexer_types", length=layers)
    if said is not None:
        return said
    if f.model_type != "glm_moe_dsa":
        return ["full"] * layers
    pattern = f.given("index_topk_pattern")
    if isinstance(pattern, str) and len(pattern) == layers:
        return ["full" if c == "F" else "shared" for c in pattern]
    every = f.optional_size("index_topk_freq") or 1
    offset = f.given("index_skip_topk_offset", 2)
    offset = offset if isinstance(offset, int) else 2
    return ["full" if max(i - offset + 1, 0) % every == 0 else "shared" for i in range(layers)]
