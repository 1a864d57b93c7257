"""From rows of a table to operators: what was measured, in the words of ``sartor.operators``.

Each kind of table has one reader. It takes the words a set of rows shares and their sizes (numbers, or arrays with an
entry per row) and gives the operators one row ran, or says why they cannot be expressed. Nothing is guessed silently:
what had to be assumed is in ``ASSUMED``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.hardware.gpu import Gpu
from sartor.operators import (
    Attention,
    Collective,
    CollectiveKind,
    DType,
    Gemm,
    GroupedGemm,
    Layout,
    MemoryBound,
    MemoryBoundKind,
    Operator,
)
from sartor.units import ceil_div


class Unexpressed(Exception):
    """These rows are not what an operator describes; the message is the reason they are counted under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The operators of a row, and whether the host waited for each kernel."""

    operators: tuple[Operator, ...]
    eager: bool = False


Words = Mapping[str, Any]
Sizes = Mapping[str, Any]


def work_of(kind: str, words: Words, sizes: Sizes, gpu: Gpu) -> Work:
    """What rows of one kind of table ran. Raises ``Unexpressed``."""
    return READERS[kind](words, sizes, gpu)


def outside(kind: str, words: Words, sizes: Sizes, gpu: Gpu) -> list[tuple[Any, str]]:
    """(mask, reason) of rows that differ from the rest in what can be expressed."""
    return _OUTSIDE[kind](words, sizes, gpu) if kind in _OUTSIDE else []


# ------------------------------------------------------------------------------------------- dtypes

DTYPES: Mapping[str, DType] = {
    **{dtype.value: dtype for dtype in DType},
    "bfloat16": DType.BF16,
    "float16": DType.FP16,
    "half": DType.FP16,
    "float32": DType.FP32,
    "float": DType.FP32,
    "float8": DType.FP8,
    "fp8_static": DType.FP8,
    "sq": DType.INT8,
}
"""Labels of the tables. ``sq`` is SmoothQuant: int8 operands on the int8 units."""


def dtype_of(label: Any) -> DType:
    """The element type of a label. Raises ``Unexpressed``."""
    word = str(label).strip().lower()
    if word.endswith("_wo"):
        raise Unexpressed(f"dtype {word}: weights narrower than activations, and a product here has one element type")
    if word not in DTYPES:
        raise Unexpressed(f"dtype {str(label)[:40]}: not one of {', '.join(d.value for d in DType)}")
    return DTYPES[word]


# ------------------------------------------------------------------------------------------- products


def _gemm(words: Words, sizes: Sizes, gpu: Gpu) -> Work:
    dtype = dtype_of(words["dtype"])
    given = str(words.get("layout", "")).upper()
    if given and given not in Layout.__members__:
        raise Unexpressed(f"layout {given[:20]}: must be TN, NN or NT")
    layout = Layout[given] if given else (Layout.NN if words.get("op") == "bmm" else Layout.TN)
    m, n, k, batch = (sizes[name] for name in ("m", "n", "k", "batch"))
    return Work(operators=(Gemm(name="gemm", m=m, n=n, k=k, batch=batch, dtype=dtype, layout=layout),))


def _max_matmul(words: Words, sizes: Sizes, gpu: Gpu) -> Work:
    return _gemm(words, {**sizes, "batch": 1}, gpu)


# ------------------------------------------------------------------------------------------- attention

_PHASES = {
    "context": "context",
    "prefill": "context",
    "generation": "generation",
    "decode": "generation",
    "encoder": "encoder",
}


def _attention(words: Words, sizes: Sizes, gpu: Gpu) -> Work:
    dtype = dtype_of(words["dtype"])
    kv = words.get("kv_dtype", "")
    if kv != "" and dtype_of(kv) is not dtype:
        raise Unexpressed(f"kv_dtype {kv}: attention here has one element type for queries, keys and values")
    phase = _PHASES.get(str(words["phase"]).lower())
    if phase is None:
        raise Unexpressed(f"phase {str(words['phase'])[:20]}: must be context, generation or encoder")
    causal = {"true": True, "false": False}.get(str(words.get("causal", "")).lower(), phase != "encoder")
    return Work(
        operators=(
            Attention(
                name="attention",
                batch=sizes["batch"],
                num_heads=sizes["heads"],
                num_kv_heads=sizes["kv_heads"],
                seq_q=sizes["seq_q"],
                seq_kv=sizes["seq_kv"],
                head_dim=sizes["head_dim"],
                v_head_dim=sizes["head_dim"],
                causal=causal,
                window=sizes["window"],
                dtype=dtype,
            ),
        )
    )


def _odd_attention(words: Words, sizes: Sizes, gpu: Gpu) -> list[tuple[Any, str]]:
    return [
        (sizes["kv_heads"] > sizes["heads"], "kv_heads above heads"),
        (sizes["seq_kv"] < sizes["seq_q"], "seq_kv below seq_q: fewer keys than queries"),
    ]


# ------------------------------------------------------------------------------------------- memory-bound kernels

_ELEMENTWISE = ("add", "mul", "div", "pow", "sub", "addu", "mulu", "divu", "powu", "subu")
MEMORY_BOUND: Mapping[str, MemoryBoundKind] = {
    "rmsnorm": MemoryBoundKind.NORM,
    "layernorm": MemoryBoundKind.NORM,
    "softmax": MemoryBoundKind.SOFTMAX,
    **dict.fromkeys(("silu_and_mul", "gelu", "gelu_new", "relu", "tanh", "silu"), MemoryBoundKind.ACTIVATION),
    **dict.fromkeys(("rope", "rope_partial"), MemoryBoundKind.ROTARY),
    **dict.fromkeys(_ELEMENTWISE, MemoryBoundKind.RESIDUAL),
    **{kind.value: kind for kind in MemoryBoundKind},
}
"""Kernels of the tables -> kinds. Elementwise ones (a trailing u: tensor with scalar) stream like a residual add."""


def _memory_bound(words: Words, sizes: Sizes, gpu: Gpu) -> Work:
    kind = MEMORY_BOUND.get(str(words["op"]).lower())
    if kind is None:
        raise Unexpressed(f"op {str(words['op'])[:40]}: no memory-bound kernel of that name")
    kernel = MemoryBound(
        name=kind.value, kind=kind, rows=sizes["rows"], cols=sizes["cols"], bytes_moved=sizes["bytes"] * 1.0
    )
    return Work(operators=(kernel,), eager=bool(words.get("eager", False)))


# ------------------------------------------------------------------------------------------- mixture of experts


def _moe(words: Words, sizes: Sizes, gpu: Gpu) -> Work:
    """One device's share of a fused layer: permute, gate and up, activation, down, and the weighted sum back.

    With ``moe_ep_size`` devices sharing the experts, this one holds experts / ep and does what ``num_tokens`` x topk
    routed rows leave it; the exchange between devices is not part of the row. With ``moe_tp_size``, the experts' width
    is split. Under a power law the loads of a row are not known (they were drawn): its mean load is expressed, and
    ``distribution`` is grouped by so that the difference is seen.
    """
    dtype = dtype_of(words["dtype"])
    tokens, hidden, k, experts = (sizes[name] for name in ("num_tokens", "hidden_size", "topk", "num_experts"))
    width, ep = ceil_div(sizes["inter_size"], sizes["moe_tp_size"]), sizes["moe_ep_size"]
    routed = ceil_div(tokens * k, ep)
    local = ceil_div(experts, ep)
    groups = np.minimum(local, routed)
    gated = bool(words.get("gated", True))
    _known_routing(str(words["distribution"]))
    wide = 2.0 if dtype.bytes < 2 else dtype.bytes

    def grouped(name: str, n: Any, d_in: Any) -> GroupedGemm:
        return GroupedGemm(name=name, groups=groups, rows=routed, n=n, k=d_in, dtype=dtype)

    def stream(name: str, kind: MemoryBoundKind, rows: Any, cols: Any, moved: Any) -> MemoryBound:
        return MemoryBound(name=name, kind=kind, rows=rows, cols=cols, bytes_moved=1.0 * moved * wide)

    moved = (tokens + routed) * hidden
    inputs = 2 if gated else 1
    return Work(
        operators=(
            stream("permute", MemoryBoundKind.ROUTING, routed, hidden, moved),
            grouped("expert_gate_up" if gated else "expert_up", inputs * width, hidden),
            stream("expert_activation", MemoryBoundKind.ACTIVATION, routed, width, (inputs + 1) * routed * width),
            grouped("expert_down", hidden, width),
            stream("unpermute", MemoryBoundKind.ROUTING, routed, hidden, moved),
        )
    )


def _known_routing(distribution: str) -> None:
    """Routings a row may have: ``balanced``, or ``power_law_<alpha>`` (loads drawn from a power law, another draw for
    every row). Raises ``Unexpressed``."""
    name, _, alpha = distribution.rpartition("_")
    drawn = name == "power_law" and alpha.replace(".", "", 1).isdigit()
    if not (drawn or distribution in ("balanced", "uniform", "")):
        raise Unexpressed(f"distribution {distribution[:30]}: must be balanced or power_law_<alpha>")


def _odd_moe(words: Words, sizes: Sizes, gpu: Gpu) -> list[tuple[Any, str]]:
    return [
        (sizes["topk"] > sizes["num_experts"], "topk above num_experts"),
        (sizes["moe_ep_size"] > sizes["num_experts"], "moe_ep_size above num_experts"),
        (sizes["moe_tp_size"] > sizes["inter_size"], "moe_tp_size above inter_size"),
    ]


# ------------------------------------------------------------------------------------------- collectives

COLLECTIVES: Mapping[str, CollectiveKind] = {
    **{kind.value: kind for kind in CollectiveKind},
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "p2p": CollectiveKind.SEND_RECV,
}


def _collective(words: Words, sizes: Sizes, gpu: Gpu) -> Work:
    kind = COLLECTIVES.get(str(words["op"]).lower())
    if kind is None:
        raise Unexpressed(f"op {str(words['op'])[:40]}: no collective of that name")
    if "eager" in str(words.get("library", "")).lower():
        raise Unexpressed("library launched eagerly: its rows carry 20 to 45 us of host launch")
    op = Collective(name=kind.value, kind=kind, group_size=sizes["n_gpus"], message_bytes=sizes["bytes"] * 1.0)
    return Work(operators=(op,))


def _odd_collective(words: Words, sizes: Sizes, gpu: Gpu) -> list[tuple[Any, str]]:
    per_node, n = sizes["gpus_per_node"], sizes["n_gpus"]
    reach = np.where(per_node > 0, np.maximum(per_node, gpu.link_domain), n)
    pairs = "pairwise" in str(words.get("system", ""))
    return [
        (n > reach, "group spans nodes: a collective here stays inside one scale-up network"),
        (pairs & (n > 2), "links join pairs of devices: a collective here has one link rate for all"),
        (n < 2, "group of one device"),
    ]


ASSUMED: Mapping[str, str] = {
    "gemm": "layout, where none is given: bmm NN, everything else TN (a linear layer's forward)",
    "attention": "values as wide as keys; the mask of the phase where no causal column says otherwise",
    "memory_bound": "framework torch means eager launches; elementwise kernels stream like a residual add",
    "moe": "gated unless a kernel of that shape says nongated; mean load per expert; router and top-k are not in a row",
    "collectives": "message_bytes = bytes; all libraries replayed from a graph",
    "layer_and_model": "",
    "max_matmul": "TN; sustained clock",
}

READERS: Mapping[str, Callable[[Words, Sizes, Gpu], Work]] = {
    "gemm": _gemm,
    "attention": _attention,
    "memory_bound": _memory_bound,
    "moe": _moe,
    "collectives": _collective,
    "max_matmul": _max_matmul,
}
_OUTSIDE: Mapping[str, Callable[[Words, Sizes, Gpu], list[tuple[Any, str]]]] = {
    "attention": _odd_attention,
    "moe": _odd_moe,
    "collectives": _odd_collective,
}
