"""Traced models as files: what ``sartor extract --out graph.json`` writes, with the role of every operator.

The format is ``sartor/extract/1`` (docs/json.md). An operator's sizes are named as in its class in
``sartor.operators``; keys that are not needed for pricing (``flops``, ``versions``) are written but not read.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from sartor.bounded import MAX_BYTES, printable
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap, picked
from sartor.model.lower.traced import traced_shape
from sartor.model.traced import Grows, TracedCall, TracedLayer, TracedModel
from sartor.model.workload import ModelReading
from sartor.operators import (
    Attention,
    Collective,
    DType,
    Gemm,
    GroupedGemm,
    Layout,
    MemoryBound,
    MemoryBoundKind,
    Operator,
    OperatorGraph,
    Part,
    Pass,
    Role,
    kernel_role,
    kind_name,
)
from sartor.read.config_text import read_config

_PRODUCTS = {
    **dict.fromkeys(
        ("q", "k", "v", "qkv", "query", "key", "value", "q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn", "Wqkv",
         "query_key_value"),
        Role.QKV,
    ),
    "q_a_proj": Role.Q_DOWN,
    "q_b_proj": Role.Q_UP,
    "kv_a_proj_with_mqa": Role.KV_DOWN,
    "kv_b_proj": Role.KV_UP,
    "o_proj": Role.ATTENTION_OUTPUT,
    **dict.fromkeys(
        ("up_proj", "gate_proj", "gate_up_proj", "c_fc", "fc1", "w1", "w3", "dense_h_to_4h"),
        Role.FFN_UP,
    ),
    **dict.fromkeys(("down_proj", "fc2", "w2", "dense_4h_to_h"), Role.FFN_DOWN),
    **dict.fromkeys(("lm_head", "embed_out"), Role.LOGITS),
    "router": Role.ROUTER,
}  # fmt: skip
"""By the last part of the module's path: the usual names in Hugging Face and Megatron models."""


def traced_role(operator: Operator, module: str) -> Role:
    """The role of a traced operator, if its kind or module path shows it; else ``PROJECTION``."""
    if isinstance(operator, MemoryBound):
        return kernel_role(operator.kind)
    if isinstance(operator, Attention):
        return Role.ATTENTION
    return _PRODUCTS.get(module.rpartition(".")[2], Role.PROJECTION) if isinstance(operator, Gemm) else Role.PROJECTION


SCHEMA = "sartor/extract/1"
SIZES: dict[str, tuple[str, ...]] = {
    "gemm": ("batch", "m", "n", "k"),
    "grouped_gemm": ("groups", "rows", "n", "k"),
    "attention": ("batch", "num_heads", "num_kv_heads", "seq_q", "seq_kv", "head_dim", "v_head_dim"),
}
"""Sizes of each kind, all at least 1; all other kinds are memory-bound and have ``rows`` and ``cols``."""
NOUNS: dict[str, type] = {"gemm": Gemm, "grouped_gemm": GroupedGemm, "attention": Attention}
MEMORY_KINDS = tuple(kind.value for kind in MemoryBoundKind)
PHASES = ("train", "prefill")


def graph_body(model: TracedModel) -> JsonDict:
    """The JSON of a traced model, without the envelope."""
    graph = model.graph
    return {
        "model": {
            **picked(model, "name", "source", "module_class"),
            "model_type": model.model_type or None,
            "num_params": model.num_params,
            "trainable_params": model.num_params - model.frozen_params,
            "num_active_params": model.num_active_params,
            "embedding_params": model.embedding_params,
            "trainable_embedding_params": model.embedding_params - model.frozen_embedding_params,
            **picked(model, "head_params", "tied_params", "buffer_bytes", "hidden_size", "vocab_size"),
        },
        "workload": {
            **picked(model, "phase", "dtype", "microbatch_size", "seq_len"),
            "tokens": graph.tokens,
        },
        "inputs": [{"name": n, "shape": list(shape), "dtype": dtype} for n, shape, dtype in model.inputs],
        "layers": [_layer_body(layer) for layer in model.layers],
        "operators": [_operator_body(op, call) for op, call in zip(graph.operators, model.calls, strict=True)],
        "edges": [list(edge) for edge in graph.edges],
        "totals": _totals(graph),
        "versions": dict(model.versions),
        "notes": list(model.notes),
    }


def _totals(graph: OperatorGraph) -> JsonDict:
    products = (Gemm, GroupedGemm, Attention)
    forward = sum(
        op.flops * op.count for op in graph.operators if isinstance(op, products) and op.pass_ is Pass.FORWARD
    )
    return {"matmul_flops": graph.matmul_flops, "forward_matmul_flops": forward, "bytes_moved": graph.bytes_moved}


def _layer_body(layer: TracedLayer) -> JsonDict:
    return {
        **picked(layer, "name", "module", "count"),
        "positions": list(layer.positions),
        "num_params": layer.num_params,
        "trainable_params": layer.num_params - layer.frozen_params,
        **picked(
            layer, "buffer_bytes", "expert_params", "weight_sets", "stash_bytes", "recomputed_bytes", "output_bytes"
        ),
    }


def _operator_body(op: Operator, call: TracedCall) -> JsonDict:
    kind = kind_name(op)
    body: JsonDict = {
        "name": op.name,
        "kind": kind,
        "pass": op.pass_.value,
        "part": op.part.value,
        **picked(call, "layer", "module", "call"),
        "count": op.count,
    }
    for field in SIZES.get(kind, ("rows", "cols")):
        body[field] = getattr(op, field)
    body |= _habits(op)
    body |= {
        "dtype": "bf16" if isinstance(op, Collective) else op.dtype.value,
        "grows": call.grows.value,
        "inputs": [list(shape) for shape in call.inputs],
        "outputs": [list(shape) for shape in call.outputs],
        "flops": op.flops,
        "bytes_moved": op.bytes_moved,
    }
    return body


def _habits(op: Operator) -> JsonDict:
    """Fields of an operator other than its sizes."""
    if isinstance(op, Attention):
        return {"causal": op.causal, "window": op.window}
    if isinstance(op, MemoryBound):
        return {"kernels": op.kernels, "kernel": op.kernel}
    if not isinstance(op, (Gemm, GroupedGemm)):
        return {}
    return {"layout": op.layout.value, "out_dtype": (op.out_dtype or op.dtype).value, "quantized": op.quantized}


def is_graph(path: Path) -> bool:
    """Whether a file claims to be a traced model."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return False
        return SCHEMA.rpartition("/")[0].encode() in path.read_bytes()
    except (OSError, ValueError):
        return False


def read_graph(path: Path) -> TracedModel:
    """The traced model in a file. Raises ``InputError`` on anything that is not one."""
    return parse_graph(read_config(path), path.name)


def read_traced(path: Path) -> ModelReading:
    """The traced model in a file, as a ``ModelReading``. Raises ``InputError``."""
    return traced_reading(read_graph(path))


def traced_reading(traced: TracedModel) -> ModelReading:
    """A traced model as a ``ModelReading``: its counts are the module's own."""
    versions = ", ".join(f"{name} {version}" for name, version in traced.versions)
    source = f"operators as traced from {traced.source}" + (f" ({versions})" if versions else "")
    return ModelReading(shape=traced_shape(traced), notes=(source, *traced.notes), architecture=traced.module_class)


def not_traced(reading: ModelReading, what: str) -> None:
    """Raise ``InputError`` for a command that would change the shape of a traced model."""
    if reading.shape.traced is not None:
        must = (
            "the shape of an extracted graph is fixed: estimate, plan and design read it; for this, give a config.json"
        )
        raise InputError(what, reading.shape.name, must)


def parse_graph(body: JsonMap, name: str = "graph") -> TracedModel:
    """The traced model in a parsed file."""
    name = printable(name)
    schema = body.get("schema")
    if schema != SCHEMA:
        raise InputError(f"{name}: schema", schema, "must be that of an extracted graph", SCHEMA)
    read = _Reader(name)
    model, workload = read.table(body, "model"), read.table(body, "workload")
    layers = tuple(_layer(read, i, row) for i, row in enumerate(read.rows(body, "layers")))
    _check_layers(read, layers)
    pairs = [_operator(read, i, row, len(layers)) for i, row in enumerate(read.rows(body, "operators"))]
    if not pairs:
        raise InputError(f"{name}: operators", "[]", "must hold at least one operator")
    edges = tuple(read.edge(i, edge, len(pairs)) for i, edge in enumerate(read.rows(body, "edges")))
    tokens = read.whole(workload, "tokens", "workload")
    versions = body.get("versions") or {}
    return TracedModel(
        name=read.text(model, "name", "model"),
        source=read.text(model, "source", "model"),
        graph=OperatorGraph(operators=tuple(op for op, _ in pairs), edges=edges, tokens=tokens),
        calls=tuple(call for _, call in pairs),
        layers=layers,
        num_params=read.whole(model, "num_params", "model", least=0),
        num_active_params=read.whole(model, "num_active_params", "model", least=0),
        frozen_params=read.frozen(model, "num_params", "trainable_params", "model"),
        frozen_embedding_params=read.frozen(model, "embedding_params", "trainable_embedding_params", "model"),
        buffer_bytes=read.amount(model, "buffer_bytes", "model", default=0.0),
        embedding_params=read.whole(model, "embedding_params", "model", least=0),
        head_params=read.whole(model, "head_params", "model", least=0),
        tied_params=read.whole(model, "tied_params", "model", least=0, default=0),
        hidden_size=read.whole(model, "hidden_size", "model", least=0, default=0),
        vocab_size=read.whole(model, "vocab_size", "model", least=0, default=0),
        microbatch_size=read.whole(workload, "microbatch_size", "workload"),
        seq_len=read.whole(workload, "seq_len", "workload"),
        dtype=read.word(DType, workload, "dtype", "workload"),
        phase=read.one_of(PHASES, workload, "phase", "workload"),
        model_type=str(model.get("model_type") or ""),
        module_class=str(model.get("module_class") or ""),
        versions=tuple((str(k), str(v)) for k, v in versions.items()) if isinstance(versions, dict) else (),
        notes=tuple(printable(str(note)) for note in body.get("notes") or () if isinstance(note, str)),
    )


def _layer(read: _Reader, i: int, row: object) -> TracedLayer:
    where = f"layers[{i}]"
    row = read.object(row, where)
    count = read.whole(row, "count", where)
    return TracedLayer(
        name=read.text(row, "name", where),
        module=str(row.get("module") or ""),
        count=count,
        positions=tuple(read.numbers(row, "positions", where)),
        num_params=read.whole(row, "num_params", where, least=0),
        frozen_params=read.frozen(row, "num_params", "trainable_params", where),
        buffer_bytes=read.amount(row, "buffer_bytes", where, default=0.0),
        expert_params=read.whole(row, "expert_params", where, least=0, default=0),
        weight_sets=read.whole(row, "weight_sets", where, default=count),
        stash_bytes=read.amount(row, "stash_bytes", where, default=0.0),
        recomputed_bytes=read.amount(row, "recomputed_bytes", where, default=0.0),
        output_bytes=read.amount(row, "output_bytes", where, default=0.0),
    )


def _check_layers(read: _Reader, layers: tuple[TracedLayer, ...]) -> None:
    """Raise unless the positions of all layers form a permutation."""
    if not layers:
        raise InputError(f"{read.name}: layers", "[]", "must hold at least one kind of layer")
    for i, layer in enumerate(layers):
        if len(layer.positions) != layer.count:
            must = f"must be as many as count={layer.count}"
            raise InputError(f"{read.name}: layers[{i}].positions", len(layer.positions), must)
    all_positions = sorted(p for layer in layers for p in layer.positions)
    if all_positions != list(range(len(all_positions))):
        must = f"together must be 0 to {len(all_positions) - 1}, each once"
        raise InputError(f"{read.name}: layers.positions", str(all_positions)[:40], must)


def _operator(read: _Reader, i: int, row: object, num_layers: int) -> tuple[Operator, TracedCall]:
    where = f"operators[{i}]"
    row = read.object(row, where)
    kind = read.one_of((*SIZES, *MEMORY_KINDS), row, "kind", where)
    common: JsonDict = {
        "name": read.text(row, "name", where),
        "count": read.whole(row, "count", where),
        "dtype": read.word(DType, row, "dtype", where),
        "pass_": read.word(Pass, row, "pass", where),
        "part": read.word(Part, row, "part", where),
    }
    sizes: JsonDict = {field: read.whole(row, field, where) for field in SIZES.get(kind, ("rows", "cols"))}
    operator: Operator
    if kind == "attention":
        window = read.whole(row, "window", where, least=0, default=0)
        operator = Attention(**common, **sizes, causal=bool(row.get("causal", False)), window=window)
    elif kind in NOUNS:
        operator = NOUNS[kind](**common, **sizes, **_product(read, row, where, common["dtype"]))
    else:
        operator = MemoryBound(
            **common,
            **sizes,
            kind=MemoryBoundKind(kind),
            bytes_moved=read.amount(row, "bytes_moved", where),
            flops=read.amount(row, "flops", where, default=0.0),
            kernels=read.whole(row, "kernels", where, default=1),
            kernel=str(row.get("kernel") or ""),
        )
    layer = row.get("layer")
    if layer is not None and not (isinstance(layer, int) and 0 <= layer < num_layers):
        raise InputError(f"{read.name}: {where}.layer", layer, f"must be null or an index into {num_layers} layers")
    call = TracedCall(
        module=str(row.get("module") or ""),
        call=str(row.get("call") or ""),
        inputs=_shapes(row.get("inputs")),
        outputs=_shapes(row.get("outputs")),
        layer=layer,
        grows=read.word(Grows, row, "grows", where),
    )
    return replace(operator, role=traced_role(operator, call.module)), call


def _product(read: _Reader, row: JsonMap, where: str, dtype: DType) -> JsonDict:
    """Fields of a GEMM besides its sizes; files of before 2026-11-27 have the layout alone."""
    out_dtype = read.word(DType, row, "out_dtype", where) if "out_dtype" in row else dtype
    return {
        "layout": read.word(Layout, row, "layout", where),
        "out_dtype": out_dtype,
        "quantized": bool(row.get("quantized", False)),
    }


def _shapes(value: object) -> tuple[tuple[int, ...], ...]:
    """Shapes, which are only informative; malformed ones are left out."""
    if not isinstance(value, list):
        return ()
    return tuple(tuple(shape) for shape in value if isinstance(shape, list) and all(isinstance(x, int) for x in shape))


class _Reader:
    """Reads the fields of one file; errors name the field's place."""

    def __init__(self, name: str) -> None:
        self.name = name

    def table(self, body: JsonMap, key: str) -> JsonMap:
        return self.object(self._field(body, key, ""), key)

    def object(self, value: object, where: str) -> JsonMap:
        if not isinstance(value, dict):
            raise InputError(f"{self.name}: {where}", value, "must be an object { ... }")
        return value

    def rows(self, body: JsonMap, key: str) -> list[Any]:
        value = self._field(body, key, "")
        if not isinstance(value, list):
            raise InputError(f"{self.name}: {key}", value, "must be a list")
        return value

    def text(self, row: JsonMap, key: str, where: str) -> str:
        value = self._field(row, key, where)
        if not isinstance(value, str) or len(value) > 500:
            raise InputError(f"{self.name}: {where}.{key}", value, "must be a short text")
        return printable(value)

    def whole(self, row: JsonMap, key: str, where: str, *, least: int = 1, default: int | None = None) -> int:
        value = row.get(key, default) if default is not None else self._field(row, key, where)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**60:
            raise InputError(f"{self.name}: {where}.{key}", value, f"must be an integer from {least} to 2^60")
        return value

    def frozen(self, row: JsonMap, total_key: str, trainable: str, where: str) -> int:
        """Parameters that are not trained; none in files of before 2026-11-27, which do not say."""
        total = self.whole(row, total_key, where, least=0)
        trained = self.whole(row, trainable, where, least=0, default=total)
        if trained > total:
            raise InputError(f"{self.name}: {where}.{trainable}", trained, f"must be at most {total_key}={total}")
        return total - trained

    def numbers(self, row: JsonMap, key: str, where: str) -> list[int]:
        value = self._field(row, key, where)
        if not isinstance(value, list) or not all(isinstance(x, int) and not isinstance(x, bool) for x in value):
            raise InputError(f"{self.name}: {where}.{key}", value, "must be a list of integers")
        return value

    def amount(self, row: JsonMap, key: str, where: str, *, default: float | None = None) -> float:
        value = row.get(key, default) if default is not None else self._field(row, key, where)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not (isfinite(value) and value >= 0):
            raise InputError(f"{self.name}: {where}.{key}", value, "must be a number of at least 0")
        return float(value)

    def word(self, enum: Any, row: JsonMap, key: str, where: str) -> Any:
        return enum(self.one_of(tuple(member.value for member in enum), row, key, where))

    def one_of(self, words: tuple[str, ...], row: JsonMap, key: str, where: str) -> str:
        value = self._field(row, key, where)
        if not isinstance(value, str) or value not in words:
            near = difflib.get_close_matches(str(value), words, 3, 0.3)
            raise InputError(
                f"{self.name}: {where}.{key}", value, f"must be one of {', '.join(words)}", ", ".join(near)
            )
        return value

    def edge(self, i: int, value: Any, count: int) -> tuple[int, int]:
        fine = isinstance(value, list) and len(value) == 2 and all(type(x) is int for x in value)
        if not fine or not 0 <= value[0] < value[1] < count:
            must = f"must be two indices a < b of the {count} operators"
            raise InputError(f"{self.name}: edges[{i}]", value, must)
        return value[0], value[1]

    def _field(self, row: JsonMap, key: str, where: str) -> Any:
        if key not in row:
            place = f"{where}.{key}" if where else key
            near = difflib.get_close_matches(key, [str(name) for name in row], n=1)
            raise InputError(f"{self.name}: {place}", "missing", "must be given", printable(near[0]) if near else "")
        return row[key]
