"""Patterns by which published classes vary their layers: attention windows, and which layers have experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sartor.read.fields import Fields


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
