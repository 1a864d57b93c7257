"""Before the first layer and after the last: token table, final norms, logits, loss."""

from __future__ import annotations

from sartor.model.lower.linear import linear_group, product, region
from sartor.model.lower.piece import Piece, chain, repeat
from sartor.model.lower.pointwise import norm, streamed
from sartor.model.lower.setting import Setting, is_zero
from sartor.model.shape import Stack, TransformerShape
from sartor.operators import Collective, CollectiveKind, MemoryBoundKind, Pass, Role
from sartor.units import Ints, ceil_div


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
    rows, vocab = logit_rows(setting, shape), ceil_div(shape.vocab_size, setting.tp)
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


def logit_rows(setting: Setting, shape: TransformerShape) -> Ints:
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
