"""Parts that every family reader uses: norms, heads, grouping of layers into runs, the model's head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum

from sartor.model.layer import Layer, Linear, Norm, NormKind, Split
from sartor.model.shape import LayerRun, Stack, TransformerShape
from sartor.operators import Role
from sartor.read.fields import Fields
from sartor.units import nearest_divisors

HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "dim", "model_dim", "embed_dim")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num")
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim", "d_kv", "head_size")
FFN = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff", "ffn_size", "decoder_ffn_dim")
VOCAB = ("vocab_size", "padded_vocab_size", "n_vocab")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")


class Head(Enum):
    """The head of the class named in ``architectures``."""

    LM = "lm"
    NONE = "none"
    SEQUENCE_CLASSIFICATION = "sequence"
    TOKEN_CLASSIFICATION = "token"
    QUESTION_ANSWERING = "question"
    MULTIPLE_CHOICE = "choice"


_SUFFIXES = (
    ("ForSequenceClassification", Head.SEQUENCE_CLASSIFICATION),
    ("ForTokenClassification", Head.TOKEN_CLASSIFICATION),
    ("ForQuestionAnswering", Head.QUESTION_ANSWERING),
    ("ForMultipleChoice", Head.MULTIPLE_CHOICE),
    ("ForNextSentencePrediction", Head.NONE),
    ("LMHeadModel", Head.LM),
    ("DoubleHeadsModel", Head.LM),
    ("RewardModel", Head.LM),
    ("Model", Head.NONE),
)


def head_of(f: Fields) -> Head:
    """The head by the architecture's suffix; a language-model head if no other is named."""
    return next((head for suffix, head in _SUFFIXES if f.architecture.endswith(suffix)), Head.LM)


def num_labels(f: Fields, default: int = 2) -> int:
    """Classes of a classification head: the labels listed, or 2 (the published default; 3 for BART's relatives)."""
    labels = f.given("id2label") or f.given("label2id")
    if isinstance(labels, dict) and labels:
        return len(labels)
    count = f.optional_size("num_labels") if f.has("num_labels") else None
    return default if count is None else count


def rms(name: str = "norm") -> Norm:
    """An RMS norm with a weight."""
    return Norm(name=name)


def layer_norm(name: str = "norm", *, weight: bool = True, bias: bool = True) -> Norm:
    """A layer norm, by default with weight and bias."""
    return Norm(name=name, kind=NormKind.LAYER_NORM, weight=weight, bias=bias)


def plain(name: str, d_in: int, d_out: int, *, bias: bool = False, rows: int | None = None) -> Linear:
    """A linear layer that tensor parallelism does not split."""
    return Linear(name=name, d_in=d_in, d_out=d_out, bias=bias, split=Split.REPLICATED, rows=rows)


def gate(d_in: int, d_out: int) -> Linear:
    """A gate on attention's output that tensor parallelism does not split."""
    return replace(plain("gate", d_in, d_out), gates=True)


ROLES = {
    **dict.fromkeys(("q", "k", "v", "kv", "v_delayed"), Role.QKV),
    "q_down": Role.Q_DOWN,
    "q_up": Role.Q_UP,
    **dict.fromkeys(("out", "out_down", "out_up"), Role.ATTENTION_OUTPUT),
    "up": Role.FFN_UP,
    "down": Role.FFN_DOWN,
}


def with_roles(linears: Iterable[Linear]) -> tuple[Linear, ...]:
    """Linear layers of an attention with its own list, with the role that each name stands for."""
    return tuple(replace(linear, role=ROLES.get(linear.name, linear.role)) for linear in linears)


def group_layers(layers: Sequence[Layer]) -> tuple[LayerRun, ...]:
    """Equal layers as runs, in order of first appearance; ``positions`` only if some run is not contiguous."""
    where: dict[int, list[int]] = {}
    seen: list[Layer] = []
    index: dict[int, int] = {}
    for position, layer in enumerate(layers):
        if id(layer) not in index:
            same = next((i for i, previous in enumerate(seen) if previous == layer), len(seen))
            if same == len(seen):
                seen.append(layer)
            index[id(layer)] = same
        where.setdefault(index[id(layer)], []).append(position)
    blocks = all(p[-1] - p[0] + 1 == len(p) for p in where.values())
    return tuple(
        LayerRun(layer=layer, count=len(where[i]), positions=() if blocks else tuple(where[i]))
        for i, layer in enumerate(seen)
    )


def heads(f: Fields, hidden_size: int, *, head_dim: int | None = None) -> tuple[int, int, int]:
    """Query heads, key/value heads and head dimension of a decoder, checked against each other."""
    num_heads = f.essential(*HEADS)
    num_kv_heads = f.optional_size(*KV_HEADS) or num_heads
    if head_dim is None:
        head_dim = f.optional_size(*HEAD_DIM)
    if head_dim is None:
        if hidden_size % num_heads:
            must = f"must divide hidden_size {hidden_size}, as there is no head_dim"
            raise f.refuse(HEADS[0], num_heads, must, nearest_divisors(hidden_size, num_heads))
        head_dim = hidden_size // num_heads
    check_kv_heads(f, num_heads, num_kv_heads)
    return num_heads, num_kv_heads, head_dim


def check_kv_heads(f: Fields, num_heads: int, num_kv_heads: int) -> None:
    """Raise unless every key/value head serves the same number of query heads."""
    if num_heads % num_kv_heads:
        must = f"must divide num_attention_heads {num_heads}"
        raise f.refuse(KV_HEADS[0], num_kv_heads, must, nearest_divisors(num_heads, num_kv_heads))


def check_experts(f: Fields, num_experts: int, experts_per_token: int, name: str = "num_experts_per_tok") -> None:
    """Raise if a token visits more experts than there are."""
    if experts_per_token > num_experts:
        must = f"must be at most the number of experts, {num_experts}"
        raise f.refuse(name, experts_per_token, must, str(num_experts))


def in_every_layer(stack: Stack, change: Callable[[Layer], Layer]) -> Stack:
    """The stack with ``change`` made to the layer of each run."""
    return replace(stack, runs=tuple(replace(run, layer=change(run.layer)) for run in stack.runs))


def in_main_layers(shape: TransformerShape, change: Callable[[Layer], Layer]) -> TransformerShape:
    """The model, of a single stack, with ``change`` made to every layer."""
    return replace(shape, stacks=(in_every_layer(shape.main, change),))
