"""A traced model as a `TransformerShape`: kinds of layers with their sizes, and the trace to lower from.

A layer's parameters are one number and its operators the traced ones (`sartor.model.lower.traced`), so a traced shape
can be priced, placed and counted, but not edited.
"""

from __future__ import annotations

from sartor.model.layer import Layer, Vectors
from sartor.model.shape import Run, Stack, TransformerShape
from sartor.model.traced import TracedLayer, TracedModel
from sartor.operators import Gemm, Part, Pass


def traced_shape(traced: TracedModel) -> TransformerShape:
    """The shape of a traced model.

    >>> from sartor.read.graph_json import read_graph                      # doctest: +SKIP
    >>> traced_shape(read_graph(Path("graph.json"))).num_layers               # doctest: +SKIP
    """
    table = traced.vocab_size * traced.hidden_size
    looked_up = 0 < table <= traced.embedding_params
    vocab = traced.vocab_size if looked_up else 0
    lm_head = looked_up and _has_head(traced)
    untied = lm_head and not traced.tied_params and traced.head_params >= table
    around = traced.embedding_params + traced.head_params - (table if looked_up else 0) - (table if untied else 0)
    idle = traced.num_params - traced.num_active_params
    experts = sum(layer.expert_params * layer.weight_sets for layer in traced.layers)
    stack = Stack(
        name="decoder",
        hidden_size=traced.hidden_size,
        runs=tuple(_run(traced, layer, idle / experts if experts else 0.0) for layer in traced.layers),
    )
    return TransformerShape(
        name=traced.name,
        stacks=(stack,),
        vocab_size=vocab,
        max_positions=traced.seq_len,
        tied_embeddings=not untied,
        lm_head=lm_head,
        vectors=(Vectors(name="around", fixed=around),) if around else (),
        model_type=traced.model_type,
        traced=traced,
    )


def _has_head(traced: TracedModel) -> bool:
    """Whether a GEMM outside the layers computes logits over the vocabulary."""
    sizes = (
        (op.m, op.n)
        for op in traced.graph.operators
        if isinstance(op, Gemm) and op.part is Part.HEAD and op.pass_ is Pass.FORWARD
    )
    return any(traced.vocab_size in pair for pair in sizes)


def _run(traced: TracedModel, layer: TracedLayer, idle: float) -> Run:
    asleep = round(layer.expert_params * idle)
    vectors = (
        Vectors(name="parameters", fixed=layer.num_params - asleep),
        *((Vectors(name="experts", fixed=asleep, idle=True),) if asleep else ()),
    )
    sequences = traced.microbatch_size
    return Run(
        layer=Layer(
            vectors=vectors,
            name=layer.name,
            kept_bytes=layer.stash_bytes / sequences,
            again_bytes=layer.recomputed_bytes / sequences,
        ),
        count=layer.count,
        positions=layer.positions,
        weight_sets=layer.weight_sets if layer.weight_sets != layer.count else None,
    )
