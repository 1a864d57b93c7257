"""Parts that every family reader uses: norms, heads, grouping of layers into runs, the model's head; and the patterns
by which published classes vary their layers: attention windows, and which layers have experts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

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


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a layer's attention sees: everything (``window`` 0), a sliding window, or its own chunk."""

    window: int = 0
    chunked: bool = False


Spans: TypeAlias = Callable[[Fields, int], list[Reach]]
Sparse: TypeAlias = Callable[[Fields, int], list[bool]]


# -- spans ----------------------------------------------------------------------------------------------------


def everywhere(f: Fields, layers: int) -> list[Reach]:
    """Full attention in every layer, unless ``layer_types`` says otherwise."""
    return by_layer_types(f, layers) or [Reach()] * layers


def by_layer_types(f: Fields, layers: int) -> list[Reach] | None:
    """Spans from an explicit ``layer_types`` list, None if there is none."""
    types = f.words("layer_types", length=layers)
    if types is None:
        return None
    window = f.optional_size("sliding_window", least=0) or 0
    chunk = f.optional_size("attention_chunk_size", least=0) or 0
    kinds = {
        "full_attention": Reach(),
        "attention": Reach(),
        "sliding_attention": Reach(window),
        "chunked_attention": Reach(chunk, chunked=True),
    }
    unknown = next((t for t in types if t not in kinds), None)
    if unknown is not None:
        raise f.refuse("layer_types", unknown, f"must be one of {', '.join(kinds)} for model_type {f.model_type}")
    return [kinds[t] for t in types]


def window_everywhere(f: Fields, layers: int) -> list[Reach]:
    """``sliding_window`` in every layer when it is given (Mistral)."""
    window = f.optional_size("sliding_window", least=0) or 0
    return by_layer_types(f, layers) or [Reach(window)] * layers


def window_where_used(f: Fields, layers: int) -> list[Reach]:
    """Qwen2: windows from ``max_window_layers`` on, and only with ``use_sliding_window``."""
    if (spans := by_layer_types(f, layers)) is not None:
        return spans
    window = f.optional_size("sliding_window", least=0) if f.flag("use_sliding_window", default=False) else 0
    first = f.optional_size("max_window_layers", least=0) or 0
    return [Reach(window or 0) if i >= first else Reach() for i in range(layers)]


def window_pattern(usual: int, *names: str) -> Spans:
    """Windows in all layers except every ``every``-th (Gemma 2: 2, Cohere 2: 4, Gemma 3: 6), or as a field says."""

    def spans(f: Fields, layers: int) -> list[Reach]:
        if (listed := by_layer_types(f, layers)) is not None:
            return listed
        window = f.optional_size("sliding_window", least=0) or 0
        name = next((n for n in (*names, "sliding_window_pattern") if f.has(n)), "")
        letters = f.given(name) if name else None
        if isinstance(letters, str) and re.fullmatch("[LG]{1,64}", letters):  # EXAONE 4: local and global layers
            f.word(name)
            return [Reach(window) if letters[i % len(letters)] == "L" else Reach() for i in range(layers)]
        period = f.size(name) if name else usual
        return [Reach() if (i + 1) % period == 0 else Reach(window) for i in range(layers)]

    return spans


def flint_spans(f: Fields, layers: int) -> list[Reach]:
    """Flint: full attention in the first two layers, in every fourth and in the last."""
    if (spans := by_layer_types(f, layers)) is not None:
        return spans
    window = f.optional_size("sliding_window", least=0) or 0
    full = [i < 2 or i % 4 == 1 or i == layers - 1 for i in range(layers)]
    return [Reach() if x else Reach(window) for x in full]


def beam_spans(f: Fields, layers: int) -> list[Reach]:
    """Beam: full attention in every sixth layer and in the last."""
    if (spans := by_layer_types(f, layers)) is not None:
        return spans
    window = f.optional_size("sliding_window", least=0) or 0
    return [Reach() if (i + 1) % 6 == 0 or i == layers - 1 else Reach(window) for i in range(layers)]


def full_first_of_four(f: Fields, layers: int) -> list[Reach]:
    """Full attention in layers 0, 4, 8 ..., windows in the others (Granite with sliding windows)."""
    if (spans := by_layer_types(f, layers)) is not None:
        return spans
    window = f.optional_size("sliding_window", least=0) or 0
    return [Reach() if i % 4 == 0 else Reach(window) for i in range(layers)]


# -- which layers have experts --------------------------------------------------------------------------------


def all_sparse(f: Fields, layers: int) -> list[bool]:
    """Experts in every layer (Mixtral)."""
    return [True] * layers


def dense_first(*names: str, otherwise: int = 0) -> Sparse:
    """The first layers are dense (DeepSeek's ``first_k_dense_replace``), ``otherwise`` of them if no field says."""

    def sparse(f: Fields, layers: int) -> list[bool]:
        first = f.optional_size(*(names or ("first_k_dense_replace",)), least=0)
        if first is None and otherwise:
            f.ledger.assume(f"{f.path}first_k_dense_replace is not in the file: {otherwise}, as {f.model_type} has it")
        return [i >= (otherwise if first is None else first) for i in range(layers)]

    return sparse


def sparse_steps(f: Fields, layers: int) -> list[bool]:
    """Qwen: experts in every ``decoder_sparse_step``-th layer outside ``mlp_only_layers``, if there are any."""
    if (f.optional_size("num_experts", "num_local_experts", least=0) or 0) == 0:
        return [False] * layers
    step = f.optional_size("decoder_sparse_step") or 1
    dense = set(f.sizes("mlp_only_layers", least=0) or ())
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]


def ernie_moe_sparse(f: Fields, layers: int) -> list[bool]:
    """ERNIE 4.5: experts in every ``moe_layer_interval``-th layer within a range of layers."""
    first = f.optional_size("moe_layer_start_index", least=0) or 0
    last = f.optional_size("moe_layer_end_index", least=-1)
    last = layers - 1 if last is None or last == -1 else last
    period = f.optional_size("moe_layer_interval") or 1
    return [(i + 1) % period == 0 and first <= i <= last for i in range(layers)]


def flint_sparse(f: Fields, layers: int) -> list[bool]:
    """Flint: dense layers as listed, by default the first two."""
    dense = f.sizes("mlp_only_layers", least=0)
    return [i not in set(dense if dense is not None else (0, 1)) for i in range(layers)]


def first_three_dense(f: Fields, layers: int) -> list[bool]:
    """Three dense layers, then experts (Beam)."""
    return [i >= 3 for i in range(layers)]


# -- position tables ------------------------------------------------------------------------------------------


def positions(*names: str, extra: int = 0) -> Callable[[Fields], int]:
    """Rows of a learned position table: the field's value plus ``more`` for padding."""
    return lambda f: f.size(*names) + extra
