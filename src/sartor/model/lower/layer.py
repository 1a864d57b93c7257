"""The parts of a model in order: before the first layer, one layer, and after the last."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.model.layer import AttentionMixer, DenseFfn, Ffn, LatentAttentionMixer, Layer, Mixer, MoeFfn, Split
from sartor.model.lower.attention import attention, attention_core, latent_attention, named_inputs, output
from sartor.model.lower.ffn import dense_ffn, moe_ffn
from sartor.model.lower.linear import linear_group, local_inner, product, region
from sartor.model.lower.piece import Piece, activation, around, beside, chain, norm, repeat, residual, streamed
from sartor.model.lower.setting import Setting, is_zero
from sartor.model.lower.state_space import state_space
from sartor.model.shape import Stack, TransformerShape
from sartor.operators import Collective, CollectiveKind, MemoryBoundKind, Pass, Role
from sartor.units import Ints, ceil_div


def layer(setting: Setting, part: Layer) -> Piece:
    """A residual layer as `lower` counts it: its norms are one operator with a count, and so are its residual sums."""
    inside = [block.inside for block in _blocks_of(setting, part)]
    sums = len(inside) if part.mixers or part.all_ffns else 0
    counted = [repeat(_norm(setting, part), len(part.norms))] if part.norms else []
    return chain(*counted, *inside, *([repeat(_sum(setting), sums)] if sums else []))


def whole_layer(setting: Setting, part: Layer) -> Piece:
    """The same layer with each norm and each residual sum in its place."""
    layer = _sum(setting) if part.mixers or part.all_ffns else Piece()
    return chain(
        *(around(chain(*block.before, block.inside, *block.after), layer) for block in _blocks_of(setting, part))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualBlock:
    """A part of a layer between two points of the residual stream, with the norms before and after it."""

    before: tuple[Piece, ...]
    inside: Piece
    after: tuple[Piece, ...]


def _blocks_of(setting: Setting, part: Layer) -> list[ResidualBlock]:
    """A layer's residual blocks: one per mixer and feed-forward part, or a single one if they are parallel. Each block
    gets one of the layer's norms before it; if there are more norms, the others come after it."""
    if part.parallel:
        insides = [beside(*_parallel(setting, part))]
    else:
        insides = [_block(setting, x) for x in _parts(part)] or [Piece()]
    groups = (linear_group(setting, linear.name, [linear]) for linear in part.linears)
    insides[-1] = chain(insides[-1], *groups)
    count, rest = divmod(len(part.norms), len(insides))
    out = []
    for i, inside in enumerate(insides):
        mine = [_norm(setting, part) for _ in range(count + (i < rest))]
        before = len(mine) if part.parallel else 1
        out.append(ResidualBlock(before=tuple(mine[:before]), inside=inside, after=tuple(mine[before:])))
    return out


def _norm(setting: Setting, part: Layer) -> Piece:
    return norm(setting, setting.outer_tokens, setting.hidden_size, kind=part.norms[0].kind)


def _sum(setting: Setting) -> Piece:
    return residual(setting, setting.outer_tokens, setting.hidden_size)


def _parts(part: Layer) -> tuple[Mixer | Ffn, ...]:
    return (*part.mixers, *part.all_ffns)


def _block(setting: Setting, part: Mixer | Ffn) -> Piece:
    """One part with its collectives. Latent attention and experts place theirs further inside."""
    if isinstance(part, LatentAttentionMixer):
        return latent_attention(setting, part)
    if isinstance(part, MoeFfn):
        return moe_ffn(setting, part)
    cross = "cross_" if isinstance(part, AttentionMixer) and part.cross else ""
    return region(setting, cross + part.name, _inner(setting, part))


def _inner(setting: Setting, part: Mixer | Ffn) -> Piece:
    if isinstance(part, AttentionMixer):
        return attention(setting, part)
    return dense_ffn(setting, part) if isinstance(part, DenseFfn) else state_space(setting, part)  # type: ignore[arg-type]


def _parallel(setting: Setting, part: Layer) -> list[Piece]:
    """Parallel parts share the tensor-parallel region and therefore need one all-reduce (Chowdhery et al. 2022, PaLM,
    sec. 2). Some families also fuse all input projections into one GEMM and all output projections into another."""
    inside = [x for x in _parts(part) if not isinstance(x, (LatentAttentionMixer, MoeFfn))]
    apart = [_block(setting, x) for x in _parts(part) if isinstance(x, (LatentAttentionMixer, MoeFfn))]
    match inside:
        case [AttentionMixer() as mixer, DenseFfn() as ffn] if part.fuses_parallel:
            return [region(setting, "parallel", _fused(setting, mixer, ffn)), *apart]
        case []:
            return apart
        case _:
            return [region(setting, "parallel", beside(*(_inner(setting, x) for x in inside))), *apart]


def _fused(setting: Setting, mixer: AttentionMixer, ffn: DenseFfn) -> Piece:
    """Q, K, V, up (and gate) as one GEMM, both output projections as another."""
    *ups, down = ffn.linears(setting.hidden_size)
    inputs = [linear for _, linear in named_inputs(setting, mixer)] + ups
    outputs = (output(setting, mixer), down)
    d_in = sum(local_inner(linear, setting.tp) for linear in outputs)
    width = ceil_div(ffn.ffn_hidden_size, setting.tp)
    return chain(
        linear_group(setting, "parallel_in", inputs, mixer.num_kv_heads, role=Role.PARALLEL_IN),
        beside(
            attention_core(setting, mixer),
            activation(setting, setting.tokens, width, ffn.gated, f"{ffn.name}_activation"),
        ),
        product(
            setting,
            "parallel_out",
            Role.PARALLEL_OUT,
            setting.tokens,
            setting.hidden_size,
            d_in,
            setting.dtype,
            Split.ROW,
        ),
    )


def embedding(setting: Setting, shape: TransformerShape) -> Piece:
    """Lookup in the vocabulary-parallel token table: one row read and written per token, and one more read for learned
    positions. Backward reads the gradient and adds it to fp32 rows. Partial rows are summed over tensor ranks."""
    e, width = setting.element, _table_width(setting, shape)
    positions = 0 if is_zero(shape.learned_positions) else 1
    moved = (2 + positions) * e
    gather = streamed(
        setting, "embedding", MemoryBoundKind.EMBEDDING, setting.tokens, width, moved, e + 8.0 * (1 + positions)
    )
    if not setting.is_split:
        return gather
    message = setting.tokens * width * e
    kind = CollectiveKind.REDUCE_SCATTER if setting.sequence_parallel else CollectiveKind.ALL_REDUCE
    out = Collective(
        name=f"embedding.{kind.value}",
        role=Role.OUTPUT_REDUCE,
        kind=kind,
        group_size=setting.tp,
        message_bytes=message,
    )
    back = Collective(
        name="embedding.grad_all_gather",
        role=Role.GRAD_GATHER,
        kind=CollectiveKind.ALL_GATHER,
        group_size=setting.tp,
        message_bytes=message,
        pass_=Pass.BACKWARD,
    )
    return chain(gather, Piece(forward=(out,), backward=(back,) if setting.sequence_parallel else ()))


def head(setting: Setting, shape: TransformerShape) -> Piece:
    """Final norms, the head's own linears, logits and (training) the loss."""
    groups = [linear_group(setting, linear.name, [linear]) for linear in shape.linears]
    final = [logits(setting, shape), cross_entropy(setting, shape)] if shape.lm_head else []
    return chain(final_norms(setting, shape.main), *groups, *final)


def final_norms(setting: Setting, stack: Stack) -> Piece:
    """A stack's norms outside its layers."""
    if not stack.norms:
        return Piece()
    final_norm = norm(setting, setting.outer_tokens, setting.hidden_size, "final_norm", stack.norms[0].kind)
    return repeat(final_norm, len(stack.norms))


def logits(setting: Setting, shape: TransformerShape, name: str = "logits") -> Piece:
    """The vocabulary-parallel output projection, and the all-gather that a sampler needs when generating.

    Training and encoder-only models need logits for every token, generation only for the last one of each sequence.
    """
    rows, vocab = _logit_rows(setting, shape), ceil_div(shape.vocab_size, setting.tp)
    width = _table_width(setting, shape) if shape.tied_embeddings else setting.hidden_size
    inside = product(setting, name, Role.LOGITS, rows, vocab, width, setting.wide)
    piece = region(setting, name, inside, gathered=width, reduced=False, wide=True)
    if setting.training or not setting.is_split:
        return piece
    message = rows * shape.vocab_size * setting.element
    gather = Collective(
        name=f"{name}.all_gather",
        role=Role.OUTPUT_GATHER,
        kind=CollectiveKind.ALL_GATHER,
        group_size=setting.tp,
        message_bytes=message,
    )
    return chain(piece, Piece(forward=(gather,)))


def _logit_rows(setting: Setting, shape: TransformerShape) -> Ints:
    return setting.tokens if setting.training or shape.encoder_only else setting.batch


def cross_entropy(setting: Setting, shape: TransformerShape, name: str = "cross_entropy") -> Piece:
    """Loss over vocabulary shards in fp32, after Megatron-LM's core/tensor_parallel/cross_entropy.py with the chain
    between its reductions fused: forward upcasts (e + 4), finds the maximum (4), subtracts, exponentiates and sums in
    place (8), and normalises in place (8); backward scales the kept probabilities in place (8) and casts them to the
    logits' type (4 + e). Three fp32 numbers per token are all-reduced: maximum, target logit, sum."""
    if not setting.training:
        return Piece()
    e, vocab = setting.element, ceil_div(shape.vocab_size, setting.tp)
    loss = streamed(
        setting,
        name,
        MemoryBoundKind.CROSS_ENTROPY,
        setting.tokens,
        vocab,
        e + 24.0,
        e + 12.0,
        flops=5,
        kernels=4,
    )
    if not setting.is_split:
        return loss
    reduce = Collective(
        name=f"{name}.all_reduce",
        role=Role.LOSS,
        kind=CollectiveKind.ALL_REDUCE,
        group_size=setting.tp,
        message_bytes=4.0 * setting.tokens,
        count=3,
    )
    return Piece(forward=(*loss.forward, reduce), backward=loss.backward)


def _table_width(setting: Setting, shape: TransformerShape) -> Ints:
    return setting.hidden_size if shape.embedding_size is None else shape.embedding_size
