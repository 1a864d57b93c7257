"""Hypothesis strategies for the nouns that every room's laws are about: shapes, workloads, ways to split them.

``from strategies import shapes, workloads, parallel_dims`` (tests/conftest.py puts this folder on the path). Every
shape splits over 1, 2 or 4 tensor ranks unless said otherwise, and is small enough to count exactly in a float.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sartor.model.layer import AttentionMixer, DenseFfn, LatentAttentionMixer, Layer, MoeFfn, Norm
from sartor.model.shape import LayerRun, Stack, TransformerShape
from sartor.model.workload import ParallelDims, Phase, Workload

TP_DEGREES = (1, 2, 4)


def multiples(of: int, low: int, high: int) -> st.SearchStrategy[int]:
    """Whole multiples of ``of`` between ``low * of`` and ``high * of``."""
    return st.integers(low, high).map(lambda n: n * of)


def grouped_attention() -> st.SearchStrategy[AttentionMixer]:
    """Multi-head, grouped-query and multi-query attention; key/value heads split over every degree or divide it."""

    def build(kv_heads: int, group: int, head_dim: int, rotary: bool, fused: bool) -> AttentionMixer:
        return AttentionMixer(
            num_heads=4 * kv_heads * group if kv_heads < 4 else kv_heads * group,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rotary_dim=head_dim if rotary else 0,
            fused_qkv=fused,
        )

    kv_heads = st.sampled_from((1, 2, 4, 8, 12))
    return st.builds(build, kv_heads, st.integers(1, 4), multiples(8, 1, 16), st.booleans(), st.booleans())


def latent_attention() -> st.SearchStrategy[LatentAttentionMixer]:
    return st.builds(
        LatentAttentionMixer,
        num_heads=multiples(4, 1, 8),
        q_lora_rank=multiples(8, 1, 16),
        kv_lora_rank=multiples(8, 1, 16),
        qk_nope_head_dim=multiples(8, 1, 8),
        qk_rope_head_dim=multiples(8, 1, 4),
        v_head_dim=multiples(8, 1, 8),
    )


def dense_ffns(name: str = "mlp") -> st.SearchStrategy[DenseFfn]:
    return st.builds(
        DenseFfn,
        ffn_hidden_size=multiples(4, 1, 512),
        gated=st.booleans(),
        fused_gate=st.booleans(),
        name=st.just(name),
    )


@st.composite
def moe_ffns(draw: Any) -> MoeFfn:
    experts = draw(st.sampled_from((4, 8, 16)))
    return MoeFfn(
        num_experts=experts,
        experts_per_token=draw(st.integers(1, 4)),
        expert=draw(dense_ffns()),
        shared=draw(st.none() | dense_ffns()),
    )


@st.composite
def one_kind_shapes(draw: Any, mixers: Any = None, ffns: Any = None) -> TransformerShape:
    """A decoder whose layers are all alike."""
    layer = Layer(
        mixers=(draw(grouped_attention() if mixers is None else mixers),),
        ffn=draw(dense_ffns() if ffns is None else ffns),
        norms=(Norm(), Norm()),
        parallel=draw(st.booleans()),
    )
    stack = Stack(
        name="decoder",
        hidden_size=draw(multiples(8, 1, 128)),
        runs=(LayerRun(layer=layer, count=draw(st.integers(1, 48))),),
        norms=(Norm(),),
    )
    return TransformerShape(
        name="drawn", stacks=(stack,), vocab_size=draw(multiples(4, 1, 4096)), tied_embeddings=draw(st.booleans())
    )


def dense_shapes() -> st.SearchStrategy[TransformerShape]:
    """Grouped-query decoders with a plain or gated feed-forward part."""
    return one_kind_shapes()


def moe_shapes() -> st.SearchStrategy[TransformerShape]:
    return one_kind_shapes(ffns=moe_ffns())


def latent_shapes() -> st.SearchStrategy[TransformerShape]:
    """Latent attention with dense or expert feed-forward parts."""
    return one_kind_shapes(mixers=latent_attention(), ffns=st.one_of(dense_ffns(), moe_ffns()))


def shapes() -> st.SearchStrategy[TransformerShape]:
    """Any of the above."""
    return st.one_of(dense_shapes(), moe_shapes(), latent_shapes())


@st.composite
def workloads(draw: Any, of: Any = None, phases: tuple[Phase, ...] = tuple(Phase)) -> Workload:
    """A shape at work; sequences are multiples of 4 so that every degree of sequence parallelism divides them."""
    phase = draw(st.sampled_from(phases))
    return Workload(
        shape=draw(shapes() if of is None else of),
        phase=phase,
        microbatch_size=draw(st.integers(1, 8)),
        seq_len=draw(multiples(4, 1, 512)),
        context_len=draw(st.integers(0, 4096)) if phase is Phase.DECODE else 0,
    )


def parallel_dims() -> st.SearchStrategy[ParallelDims]:
    return st.builds(ParallelDims, tp=st.sampled_from(TP_DEGREES), sequence_parallel=st.booleans())
