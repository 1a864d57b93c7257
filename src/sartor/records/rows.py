"""From rows of a table to the operators in ``sartor.operators`` that were measured.

Each kind of table has one reader. It takes the words that a set of rows shares and their sizes (numbers, or arrays with
an entry per row), and returns the operators that one row ran or raises ``Unexpressed``. Assumptions are listed in
``ASSUMED``. Loads of experts under a power law are drawn as those of the tables were.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from sartor.cost.gpu.rates import as_run
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import load_cluster
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.operators import (
    Attention,
    Collective,
    CollectiveKind,
    CollectiveLibrary,
    DType,
    Gemm,
    GroupedGemm,
    Layout,
    MemoryBound,
    MemoryBoundKind,
    Operator,
    Pass,
)
from sartor.units import Floats, Ints, ceil_div


class Unexpressed(Exception):
    """Rows that no operator describes; the message is the reason they are counted under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWork:
    """The operators of a row, and whether the host waited for each kernel."""

    operators: tuple[Operator, ...]
    eager: bool = False
    cluster: Cluster | None = None
    """Cluster whose links a collective crosses, if the row names a machine of the catalogue."""
    kernels: tuple[str, ...] = ("",)
    """Kernel families (MoE), frameworks (attention) or libraries (GEMMs) that the target is the median over; empty:
    unknown."""
    tokens: int = 0
    """Tokens of the pass, for whole models; 0 for single operators."""


Words = JsonMap
Sizes = JsonMap


def work_of(kind: str, words: Words, sizes: Sizes, gpu: Gpu) -> RowWork:
    """Operators that rows of one kind of table ran. Raises ``Unexpressed``."""
    return READERS[kind](words, sizes, gpu)


def outside(kind: str, words: Words, sizes: Sizes, gpu: Gpu) -> list[tuple[Any, str]]:
    """(mask, reason) of rows that cannot be expressed although the rest of the set can."""
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
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3", "fp8_e4m3", "e4m3", "float8_e5m2", "fp8_e5m2"), DType.FP8),
    "fp8_static": DType.FP8,
    "sq": DType.INT8,
}
"""Labels used by the tables. ``sq`` is SmoothQuant: int8 operands on the int8 units."""


def dtype_of(label: object) -> DType:
    """The element type of a label. Raises ``Unexpressed``."""
    word = re.sub(r"^torch\.", "", str(label).strip().lower())
    if word not in DTYPES:
        raise Unexpressed(_unknown("dtype", label, DTYPES, "not an element type"))
    return DTYPES[word]


def _unknown(field: str, value: object, names: Iterable[str], must: str) -> str:
    """The reason for rows with an unknown word, with the nearest known ones, or all if none is near."""
    near = difflib.get_close_matches(str(value).lower(), list(names), n=3, cutoff=0.4)
    return f"{field} {str(value)[:40]}: {must}; {'nearest' if near else 'known'}: {', '.join(near or names)}"


# ------------------------------------------------------------------------------------------- GEMMs


def _gemm(words: Words, sizes: Sizes, gpu: Gpu) -> RowWork:
    dtype = as_run(dtype_of(words["dtype"]), gpu)
    word = layout_word(words)
    if word not in Layout.__members__:
        raise Unexpressed(f"layout {word[:20]}: must be TN, NN, NT or TILED")
    layout = Layout[word]
    m, n, k, batch = (sizes[name] for name in ("m", "n", "k", "batch"))
    wide = dtype_of(words["out_dtype"]) if words.get("out_dtype", "") != "" else None
    gemm = Gemm(name="gemm", m=m, n=n, k=k, batch=batch, dtype=dtype, layout=layout, out_dtype=wide)
    return RowWork(operators=(gemm,), kernels=(library_of(words) or str(words.get("kernels", "")),))


def library_of(words: Words) -> str:
    """The library whose kernel a row ran, as calibrations call it: aiter's tables name it (``libtype``); empty if they
    don't.

    Examples
    --------
    >>> library_of({"libtype": "cktile"})
    'aiter_ck'
    """
    name = str(words.get("libtype", "")).lower()
    return f"aiter_{name.removesuffix('tile')}" if name else ""


def layout_word(words: Words) -> str:
    """A row's layout in capitals: as given, or NN for batched GEMMs and TN else (a linear layer's forward); TILED where
    aiter stored TN's weights in tiles (``bpreshuffle``)."""
    stated = str(words.get("layout", "")).upper() or ("NN" if words.get("op") == "bmm" else "TN")
    tiled = str(words.get("bpreshuffle", "")).lower() in ("true", "1")
    return Layout.TILED.value if tiled and stated == Layout.TN.value else stated


def _max_matmul(words: Words, sizes: Sizes, gpu: Gpu) -> RowWork:
    """Searches for the best rate time the GEMM alone: narrow operands are stored narrow, with no kernel to quantize
    them."""
    dtype = dtype_of(words["dtype"])
    gemm = Gemm(name="gemm", **{name: sizes[name] for name in "mnk"}, dtype=dtype, quantized=dtype.bytes < 2)
    return RowWork(operators=(gemm,))


# ------------------------------------------------------------------------------------------- attention

_PHASES = {
    "context": "context",
    "prefill": "context",
    "generation": "generation",
    "decode": "generation",
    "encoder": "encoder",
}


def _attention(words: Words, sizes: Sizes, gpu: Gpu) -> RowWork:
    dtype = dtype_of(words["dtype"])
    kv = dtype_of(words["kv_dtype"]) if words.get("kv_dtype", "") != "" else dtype
    phase = _PHASES.get(str(words["phase"]).lower())
    if phase is None:
        raise Unexpressed(f"phase {str(words['phase'])[:20]}: must be context, generation or encoder")
    if kv is not dtype and phase != "generation":
        raise Unexpressed(f"kv_dtype {kv.value}: only a generation step reads keys and values from a cache of its own")
    causal = {"true": True, "false": False}.get(str(words.get("causal", "")).lower(), phase != "encoder")
    return RowWork(
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
                kv_dtype=None if kv is dtype else kv,
                pass_=_pass(words),
            ),
        ),
        kernels=tuple(str(words.get("kernels", "")).split("+")),
    )


def _pass(words: Words) -> Pass:
    """Backward if the row says so, else forward."""
    return Pass.BACKWARD if str(words.get("pass", "")).lower() == "backward" else Pass.FORWARD


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


def _memory_bound(words: Words, sizes: Sizes, gpu: Gpu) -> RowWork:
    kind = MEMORY_BOUND.get(str(words["op"]).lower())
    if kind is None:
        raise Unexpressed(_unknown("op", words["op"], MEMORY_BOUND, "no memory-bound kernel of that name"))
    kernel = MemoryBound(
        name=kind.value,
        kind=kind,
        rows=sizes["rows"],
        cols=sizes["cols"],
        bytes_moved=sizes["bytes"] * 1.0,
        kernel=str(words["op"]).lower(),
        dtype=_stored(words),
        pass_=_pass(words),
    )
    return RowWork(operators=(kernel,), eager=bool(words.get("eager", False)), kernels=(str(words.get("kernels", "")),))


def _odd_memory_bound(words: Words, sizes: Sizes, gpu: Gpu) -> list[tuple[Any, str]]:
    once = sizes["rows"] * sizes["cols"] * _stored(words).bytes
    return [(sizes["bytes"] < 0.99 * once, "bytes is less than one read of its rows x cols")]


def _stored(words: Words) -> DType:
    return DTYPES.get(str(words["dtype"]).strip().lower(), DType.BF16)


# ------------------------------------------------------------------------------------------- mixture of experts


def _moe(words: Words, sizes: Sizes, gpu: Gpu) -> RowWork:
    """One device's share of a fused layer: permute, gate and up, activation, down, and the weighted sum back.

    With ``moe_ep_size`` devices sharing the experts, this one holds experts / ep and its share of the ``num_tokens`` x
    topk routed rows; the exchange between devices is not part of the row. With ``moe_tp_size``, the experts' width is
    split. Under a power law the table drew random loads and timed the most loaded device; here the expected loads of
    such draws are used (``_drawn_loads``). With ``random`` routing, the expected number of experts with rows is used.
    Rows with a ``one_stage`` column timed only the two grouped GEMMs.
    """
    dtype = as_run(dtype_of(words["dtype"]), gpu)
    tokens, hidden, k, experts = (sizes[name] for name in ("num_tokens", "hidden_size", "topk", "num_experts"))
    width, ep = ceil_div(sizes["inter_size"], sizes["moe_tp_size"]), sizes["moe_ep_size"]
    routed = ceil_div(tokens * k, ep)
    local = ceil_div(experts, ep)
    groups: Any = np.minimum(local, routed)
    skew: Floats = 1.0
    gated = bool(words.get("gated", True))
    exponent = _exponent(str(words["distribution"]))
    if exponent:
        groups, routed, skew = _drawn_loads(tokens, k, experts, ep, exponent)
    if words["distribution"] == RANDOM:
        groups = np.clip(np.rint(local * (1 - (1 - 1 / np.maximum(local, 2)) ** routed)), 1, groups).astype(np.int64)
    masked = np.maximum(tokens * k - routed, 0)
    wide = 2.0 if dtype.bytes < 2 else dtype.bytes

    def grouped(name: str, n: Any, d_in: Any) -> GroupedGemm:
        return GroupedGemm(
            name=name,
            groups=groups,
            rows=routed,
            n=n,
            k=d_in,
            skew=skew,
            masked_rows=masked,
            tokens=tokens,
            experts=local,
            dtype=dtype,
        )

    def stream(name: str, kind: MemoryBoundKind, rows: Any, cols: Any, moved: Any) -> MemoryBound:
        return MemoryBound(name=name, kind=kind, rows=rows, cols=cols, bytes_moved=1.0 * moved * wide)

    moved = (tokens + routed) * hidden
    inputs = 2 if gated else 1
    stages = (
        grouped("expert_gate_up" if gated else "expert_up", inputs * width, hidden),
        grouped("expert_down", hidden, width),
    )
    around = (
        stream("permute", MemoryBoundKind.ROUTING, routed, hidden, moved),
        stream("expert_activation", MemoryBoundKind.ACTIVATION, routed, width, (inputs + 1) * routed * width),
        stream("unpermute", MemoryBoundKind.ROUTING, routed, hidden, moved),
    )
    alone = str(words.get("one_stage", "")) != ""
    kernels = tuple(str(words.get("kernels", "")).split("+"))
    return RowWork(operators=stages if alone else (*stages, *around), kernels=kernels)


def kernel_family(kernel: str) -> str:
    """The family of grouped kernels that a label names, as calibrations call it; empty if it names none.

    Examples
    --------
    >>> kernel_family("sglang_fused_moe_triton")
    'sglang_triton'
    """
    label = kernel.lower()
    if label.startswith("moe_torch_flow"):
        return "trtllm"
    framework = next((word for word in ("sglang", "vllm") if label.startswith(word)), "")
    if label == "vllm_fused_moe":
        return "vllm_triton"
    kind = next((word for word in ("triton", "cutlass", "trtllm", "xpu") if word in label.removeprefix("vllm")), "")
    return f"{framework}_{kind}" if framework and kind else ""


def _exponent(distribution: str) -> float:
    """Exponent of the power law of loads, ``power_law_<alpha>``; 0 for ``balanced``, ``uniform`` and ``random``. Raises
    ``Unexpressed`` for any other routing."""
    name, _, alpha = distribution.rpartition("_")
    if name == "power_law" and alpha.replace(".", "", 1).isdigit() and 0 < float(alpha) <= MOST_UNEVEN:
        return float(alpha)
    if distribution not in ("balanced", "uniform", RANDOM, ""):
        must = f"must be balanced, {RANDOM} or power_law_<alpha>, alpha above 0 and at most {MOST_UNEVEN:g}"
        raise Unexpressed(f"distribution {distribution[:30]}: {must}")
    return 0.0


RANDOM = "random"
"""Every token chooses experts uniformly at random."""

MOST_UNEVEN = 4.0
"""Largest exponent of a power law that is accepted."""

MOST_EXPERTS = 65_536
"""Largest number of experts in a layer that loads are drawn for; published models have up to a few thousand."""


def _odd_moe(words: Words, sizes: Sizes, gpu: Gpu) -> list[tuple[Any, str]]:
    return [
        (sizes["num_experts"] > MOST_EXPERTS, f"num_experts above {MOST_EXPERTS}"),
        (sizes["topk"] > sizes["num_experts"], "topk above num_experts"),
        (sizes["moe_ep_size"] > sizes["num_experts"], "moe_ep_size above num_experts"),
        (sizes["num_experts"] % sizes["moe_ep_size"] != 0, "moe_ep_size does not divide num_experts"),
        (sizes["moe_tp_size"] > sizes["inter_size"], "moe_tp_size above inter_size"),
    ]


# ------------------------------------------------------------------------------------------- collectives

COLLECTIVES: Mapping[str, CollectiveKind] = {
    **{kind.value: kind for kind in CollectiveKind},
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "p2p": CollectiveKind.SEND_RECV,
}


def _collective(words: Words, sizes: Sizes, gpu: Gpu) -> RowWork:
    kind = COLLECTIVES.get(str(words["op"]).lower())
    if kind is None:
        raise Unexpressed(_unknown("op", words["op"], COLLECTIVES, "no collective of that name"))
    cluster = _machine(str(words.get("system", "")))
    if cluster and cluster.gpu.generation != gpu.generation:
        raise Unexpressed(f"system {cluster.name}: its devices are {cluster.gpu.name}, the row's {gpu.name}")
    op = Collective(
        name=kind.value,
        kind=kind,
        group_size=sizes["n_gpus"],
        message_bytes=sizes["bytes"] * 1.0,
        stride=_stride(sizes, cluster),
        alone=True,
        library=_library(str(words.get("library", ""))),
        eager="eager" in str(words.get("library", "")).lower(),
    )
    return RowWork(operators=(op,), cluster=cluster)


@cache
def _machine(system: str) -> Cluster | None:
    """The catalogue's cluster of a row's system, by name or alias; None if it has none."""
    try:
        return load_cluster(system) if system and "/" not in system and not system.endswith(".toml") else None
    except InputError:
        return None


def _stride(sizes: Sizes, cluster: Cluster | None) -> Any:
    """Spacing of the group's device numbers: 1 (adjacent), or as the row's number of members per node demands."""
    n, per_node = np.asarray(sizes["n_gpus"]), np.asarray(sizes.get("gpus_per_node", 0))
    if cluster is None:
        return np.ones_like(n)
    return np.where((per_node > 0) & (n > per_node), cluster.devices_per_node // np.maximum(per_node, 1), 1)


def _library(label: str) -> CollectiveLibrary:
    if "custom" in label.lower():
        return CollectiveLibrary.CUSTOM
    return CollectiveLibrary.TRTLLM if label.lower() == "trtllm" else CollectiveLibrary.NCCL


def _odd_collective(words: Words, sizes: Sizes, gpu: Gpu) -> list[tuple[Any, str]]:
    per_node, n = sizes["gpus_per_node"], sizes["n_gpus"]
    cluster, system = _machine(str(words.get("system", ""))), str(words.get("system", ""))[:40]
    reach = np.where(per_node > 0, np.maximum(per_node, gpu.link_domain), n)
    return [
        (n < 2, "n_gpus below 2: a group of one device"),
        ((n > reach) & (cluster is None), f"group spans nodes: no cluster of the catalogue is called {system!r}"),
        *([((n > per_node) & (per_node > 0) & _uneven(n, per_node, cluster), UNEVEN)] if cluster else []),
    ]


UNEVEN = "group spans nodes unevenly: all nodes must hold equally many of its devices, a divisor of a node's"


def _uneven(n: object, per_node: Ints, cluster: Cluster) -> Any:
    near = np.maximum(per_node, 1)
    return (n % near != 0) | (cluster.devices_per_node % near != 0)


ASSUMED: Mapping[str, str] = {
    "gemm": "layout, where none is given: bmm NN, everything else TN (a linear layer's forward)",
    "attention": "values as wide as keys; the mask of the phase where no causal column says otherwise",
    "memory_bound": "rows with framework=torch are launched by the host, which waits for each (kernels=torch: the same "
    "kernels in a queue); elementwise kernels stream like a residual add",
    "moe": "gated unless a kernel of that shape says nongated; predicted for the kernels that its rows name; "
    "power-law loads as expected of their draw; router and top-k are not in a row",
    "collectives": "message_bytes = bytes; replayed from a graph unless the library's name says eager; "
    "NCCL's algorithms unless it says custom or TRTLLM; the only "
    "group at work; links of the catalogue's cluster of the row's system, else the device's own",
    "layer_and_model": "",
    "max_matmul": "TN; sustained clock; narrow operands come quantized",
}

READERS: Mapping[str, Callable[[Words, Sizes, Gpu], RowWork]] = {
    "gemm": _gemm,
    "attention": _attention,
    "memory_bound": _memory_bound,
    "moe": _moe,
    "collectives": _collective,
    "max_matmul": _max_matmul,
}
_OUTSIDE: Mapping[str, Callable[[Words, Sizes, Gpu], list[tuple[Any, str]]]] = {
    "attention": _odd_attention,
    "memory_bound": _odd_memory_bound,
    "moe": _odd_moe,
    "collectives": _odd_collective,
}


SPAN = 0.8
"""Loads are assumed to be drawn between one row and this share of the tokens (0.01 to 2 rows if there are no more
routed rows than experts) and rounded; rows left over by rounding go to the least loaded experts, evenly spread. This is
a guess at how the power-law tables were made (the generator was not read), kept because it predicts those rows as well
as the balanced ones (2026-11-21)."""

DRAWS = 16
"""Number of draws that expected loads are averaged over; the seed is fixed."""


def _drawn_loads(tokens: Ints, k: Ints, experts: Ints, ep: Ints, exponent: float) -> tuple[Floats, Floats, Floats]:
    """(experts with rows, total rows, largest rows of an expert over the mean), as expected of the most loaded of
    ``ep`` devices when loads follow a power law."""
    sizes = np.broadcast_arrays(tokens, k, experts, ep)
    distinct, which = np.unique(np.reshape(sizes, (4, -1)).astype(np.int64), axis=1, return_inverse=True)
    loads = np.asarray([_expected_loads(*map(int, problem), exponent) for problem in distinct.T])
    groups, rows, skew = loads[np.ravel(which)].reshape(*np.shape(sizes[0]), 3).transpose(-1, *range(np.ndim(sizes[0])))
    return groups, rows, skew


@lru_cache(maxsize=1 << 16)
def _expected_loads(tokens: int, k: int, experts: int, ep: int, exponent: float) -> tuple[float, float, float]:
    """``_drawn_loads`` of one problem: means over ``DRAWS``."""
    local = ceil_div(experts, ep)
    loads = np.zeros((DRAWS, ep * local))
    loads[:, :experts] = _draws(tokens, k, experts, exponent)
    by_device = loads.reshape(DRAWS, ep, local)
    busiest = by_device[np.arange(DRAWS), by_device.sum(axis=-1).argmax(axis=-1)]
    rows, groups = busiest.sum(axis=-1), (busiest > 0).sum(axis=-1)
    skew = busiest.max(axis=-1) * groups / rows
    return float(groups.mean()), float(rows.mean()), float(skew.mean())


def _draws(tokens: int, k: int, experts: int, exponent: float) -> Any:
    """Rows of every expert, [draws, experts]: ``tokens`` x ``k`` in all, none above ``tokens``."""
    lowest, highest = (1.0, max(SPAN * tokens, 2.0)) if tokens * k > experts else (0.01, 2.0)
    share = np.random.default_rng(0).random((DRAWS, experts))
    drawn = _scaled(_power_law(share, lowest, highest, exponent), tokens, tokens * k)
    loads = np.rint(drawn)
    left = tokens * k - loads.sum(axis=1, keepdims=True)
    spread = _evenly(experts)
    place = np.argsort(np.argsort(loads + spread, axis=1), axis=1)
    loads = loads + ((left > 0) & (place < left)) - ((left < 0) & (experts - 1 - place < -left))
    return np.clip(loads, 0, tokens)


def _power_law(share: Any, lowest: float, highest: float, exponent: float) -> Any:
    """Quantile ``share`` of the density x^-exponent on [least, most]."""
    falls = 1 - exponent
    if abs(falls) <= LOG_UNIFORM:
        return lowest * (highest / lowest) ** share
    return (lowest**falls + share * (highest**falls - lowest**falls)) ** (1 / falls)


def _scaled(drawn: Any, cap: int, total: int) -> Any:
    """``drawn`` scaled to sum to ``total``, with no entry above ``cap``."""
    scale = total / drawn.sum(axis=1, keepdims=True)
    for _ in range(_CAPPINGS):
        full = drawn * scale >= cap
        rest = np.where(full, 0.0, drawn).sum(axis=1, keepdims=True)
        scale = np.maximum(total - cap * full.sum(axis=1, keepdims=True), 0) / np.maximum(rest, 1e-9)
    return np.minimum(drawn * scale, cap)


def _evenly(count: int) -> Floats:
    """Numbers below 1, one per place; the places of the smallest are evenly spread (van der Corput 1935)."""
    places, numbers = np.arange(count), np.zeros(count)
    for bit in range(count.bit_length()):
        numbers += (places >> bit & 1) / 2 ** (bit + 1)
    return numbers


_CAPPINGS = 4
"""Rounds of capping; each catches entries that the previous rescaling pushed above the cap."""

LOG_UNIFORM = 0.02
"""An exponent this close to 1 is treated as 1, where loads are uniform on a logarithmic scale."""
