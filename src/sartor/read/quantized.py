"""The type of a checkpoint's weights, module by module, from the ``quantization_config`` of its file.

Formats: Hugging Face's fp8, AWQ, GPTQ, bitsandbytes and MXFP4; compressed-tensors (groups with targets and
``ignore``); AMD Quark (read as such groups); NVIDIA ModelOpt (``exclude_modules``, ``quantized_layers``). Tables, norms
and routers are never quantized, the head only where the file says so. A list names modules by their path, a part of it,
a wildcard, or ``re:`` and an expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from types import MappingProxyType

from sartor.json_types import JsonDict, JsonMap
from sartor.model.layer import LatentAttentionMixer, Layer, Linear, MoeFfn, Split, StateSpaceMixer
from sartor.model.shape import TransformerShape
from sartor.model.workload import WIDE_BYTES, StoredTypes
from sartor.operators import DType, Role

NAMED: Mapping[str, DType] = MappingProxyType(
    {
        "fp8": DType.FP8,
        "fbgemm_fp8": DType.FP8,
        "fp8_pb_wo": DType.FP8_BLOCK,
        "fp8_block_scales": DType.FP8_BLOCK,
        "mxfp8": DType.MXFP8,
        "mxfp4": DType.MXFP4,
        "nvfp4": DType.NVFP4,
        "nvfp4_awq": DType.NVFP4,
        "w4a16_awq": DType.INT4_WO,
    }
)
"""Values of ``quant_method`` (transformers' ``QuantizationMethod``) and ``quant_algo`` (NVIDIA ModelOpt) that are a
type, recalled."""

OF_BITS: Mapping[int, DType] = MappingProxyType({4: DType.INT4_WO, 8: DType.INT8_WO})
"""Weights of so many bits that are multiplied in 16 (GPTQ, AWQ, bitsandbytes)."""
TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where a file with several models has its text model, which may say how it was quantized."""

KEPT_LISTS = (
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "exclude",
    "llm_int8_skip_modules",
)
"""Lists of modules that are not quantized (transformers; vLLM's fp8; compressed-tensors; ModelOpt; Quark;
bitsandbytes)."""


def quantization_of(config: JsonMap) -> JsonDict | None:
    """The section that says how a checkpoint was quantized; None if there is none."""
    parts = (config, *(config[name] for name in TEXT_PARTS if isinstance(config.get(name), dict)))
    named = (part.get(name) for part in parts for name in ("quantization_config", "compression_config"))
    section = next((value for value in named if value), None)
    section = {"quant_method": section} if isinstance(section, str) else section
    if not isinstance(section, dict):
        return None
    inner = section.get("quantization")
    section = {**section, **inner} if isinstance(inner, dict) else section
    if not isinstance(section.get("global_quant_config"), dict):
        return section
    layers = {**_mapping(section.get("layer_quant_config")), "Linear": section["global_quant_config"]}
    return {**section, "config_groups": {name: _of_quark(name, scheme) for name, scheme in layers.items()}}


def _of_quark(target: str, scheme: object) -> JsonDict:
    """AMD Quark's scheme of a layer (or, for ``Linear``, of every other one) as a group of compressed-tensors."""
    weight = _mapping(scheme).get("weight")
    first = _mapping(weight[0] if isinstance(weight, list) and weight else weight)
    kind = re.match(r"u?(int|fp|mxfp)(\d)", str(first.get("dtype", "")).lower())
    weights = {
        "num_bits": int(kind[2]) if kind else None,
        "type": "int" if kind and kind[1] == "int" else "float",
        "group_size": first.get("group_size") or (32 if kind and kind[1] == "mxfp" else None),
    }
    return {"targets": [target], "weights": weights, "input_activations": _mapping(scheme).get("input_tensors")}


def released_type(config: JsonMap) -> DType | None:
    """Type of the weights; None if the file names none that is known.

    >>> released_type({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
    <DType.FP8_BLOCK: 'fp8_block'>
    """
    section = quantization_of(config)
    if section is None:
        return None
    words = (str(section.get(name, "")).lower() for name in ("quant_algo", "quant_method"))
    named = next((NAMED[word] for word in words if word in NAMED), None)
    if named is not None:
        return DType.FP8_BLOCK if named is DType.FP8 and section.get("weight_block_size") else named
    listed = _listed_types(section)
    if listed:
        return min(listed.values(), key=lambda dtype: dtype.bytes)
    if types := [dtype for group in _groups(section) if (dtype := _of_group(group)) is not None]:
        return min(types, key=lambda dtype: dtype.bytes)
    loaded = next((bits for bits in OF_BITS if section.get(f"load_in_{bits}bit") is True), None)
    return _of_bits(section.get("bits", loaded))


def stored_types(config: JsonMap, shape: TransformerShape) -> StoredTypes | None:
    """The types of a checkpoint's weights by role; None if it is not quantized, or in a type that is not known."""
    dtype, section = released_type(config), quantization_of(config)
    if dtype is None or section is None:
        return None
    rules = _rules(section, dtype)
    weighed: dict[Role, list[tuple[float, float]]] = {}
    for path, params, role in _modules(shape, numbered=rules.numbered):
        weighed.setdefault(role, []).append((params, rules.element_bytes(path)))
    means = ((role, sum(n * size for n, size in rows) / sum(n for n, _ in rows)) for role, rows in weighed.items())
    head = WIDE_BYTES if rules.keeps(("lm_head",)) or not _says_head(section) else rules.narrow_bytes
    return StoredTypes(
        dtype=dtype,
        element_bytes=(*means, (Role.LOGITS, head)),
        cache=_cache_type(section),
        scale_group=_scale_group(section),
    )


# -- what the file says ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """Which modules are quantized, and in what."""

    narrow_bytes: float
    """Bytes of a quantized element, scales included."""
    kept: re.Pattern[str] | None
    """Modules that are not quantized."""
    targets: tuple[tuple[re.Pattern[str] | None, float], ...]
    """Modules that are, with their bytes; None: every one."""
    numbered: bool
    """Whether single layers are named."""

    def keeps(self, paths: Sequence[str]) -> bool:
        return self.kept is not None and any(self.kept.search(path) for path in paths)

    def element_bytes(self, paths: Sequence[str]) -> float:
        if self.keeps(paths):
            return WIDE_BYTES
        for pattern, size in self.targets:
            if pattern is None or any(pattern.search(path) for path in paths):
                return size
        return WIDE_BYTES


def _rules(section: JsonDict, dtype: DType) -> _Rules:
    kept = [word for name in KEPT_LISTS for word in _words(section.get(name))]
    kept += [f"re:{name[2:]}" for name in _mapping(section.get("dynamic")) if name.startswith("-:")]
    size = _element_bytes(dtype, section.get("group_size", section.get("q_group_size")))
    targets: list[tuple[list[str], float]] = []
    if listed := _listed_types(section):
        by_type: dict[float, list[str]] = {}
        for name, listed_type in listed.items():
            by_type.setdefault(_element_bytes(listed_type, None), []).append(name)
        targets = [(names, bytes_each) for bytes_each, names in by_type.items()]
    for group in _groups(section):
        weights = _mapping(group.get("weights"))
        group_type = _of_group(group) or dtype
        targets.append((_words(group.get("targets")), _element_bytes(group_type, weights.get("group_size"))))
    if not targets and str(section.get("quant_method", "")).lower() == "mxfp4":
        targets = [(["experts"], size)]  # transformers replaces nothing but the experts
    words = [*kept, *(word for names, _ in targets for word in names)]
    return _Rules(
        narrow_bytes=size,
        kept=_pattern(kept),
        targets=tuple((_target(names), each) for names, each in targets) or ((None, size),),
        numbered=any(re.search(r"\d", word) for word in words),
    )


def _target(names: Sequence[str]) -> re.Pattern[str] | None:
    """The modules of a group; None where it targets a class of modules."""
    return None if not names or any(name in ("Linear", "LinearBase", "FusedMoE") for name in names) else _pattern(names)


def _pattern(words: Sequence[str]) -> re.Pattern[str] | None:
    """One expression for a list of modules: a path, the end or a part of one, with everything under it. What stands
    before the layers is left off, because wrapped models name it otherwise."""
    parts = []
    for word in words:
        if word.startswith("re:"):
            try:
                parts.append(f"(?:^(?:{re.compile(word[3:]).pattern}))")
            except re.error:
                continue
            continue
        body = translate(word).removeprefix("(?s:").removesuffix(")\\Z").removesuffix(")\\z")
        body = re.sub(r"^.*?(?=(?:layers|blocks|h)\\\.)", "", body) if "*" not in word.split("layers")[0] else body
        parts.append(rf"(?:(?:^|\.)(?:{body})(?:\.|$))")
    return re.compile("|".join(parts)) if parts else None


def _groups(section: JsonDict) -> list[JsonDict]:
    groups = section.get("config_groups")
    return [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []


def _listed_types(section: JsonDict) -> dict[str, DType]:
    """ModelOpt's mixed precision: the type of every quantized module."""
    rows = _mapping(section.get("quantized_layers"))
    names = {path: str(_mapping(row).get("quant_algo", "")).lower() for path, row in rows.items()}
    return {path: NAMED[name] for path, name in names.items() if name in NAMED}


def _mapping(value: object) -> JsonDict:
    return value if isinstance(value, dict) else {}


def _words(value: object) -> list[str]:
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def _says_head(section: JsonDict) -> bool:
    """Whether the head may be quantized: where a file says so, or targets all linear layers (compressed-tensors)."""
    return section.get("lm_head") is True or any("Linear" in _words(group.get("targets")) for group in _groups(section))


def _cache_type(section: JsonDict) -> DType | None:
    """Type of keys and values that the file states."""
    scheme = _mapping(section.get("kv_cache_scheme"))
    eight = scheme.get("num_bits") == 8 and scheme.get("type", "float") == "float"
    return DType.FP8 if eight or str(section.get("kv_cache_quant_algo")).lower() == "fp8" else None


def _element_bytes(dtype: DType, group_size: object) -> float:
    """Bytes of an element with its scales: groups of integers have a 16-bit scale and a zero point of their width."""
    if not dtype.weight_only or not isinstance(group_size, int):
        return dtype.bytes
    bits = 4 if dtype is DType.INT4_WO else 8
    return bits / 8 + ((2 + bits / 8) / group_size if group_size > 0 else 0.0)


def _scale_group(section: JsonDict) -> int | None:
    """The largest group of weights with one scale."""
    stated = [section.get("group_size", section.get("q_group_size"))]
    stated += [_mapping(group.get("weights")).get("group_size") for group in _groups(section)]
    return max((size for size in stated if isinstance(size, int) and size > 0), default=None)


def _of_group(group: object) -> DType | None:
    """Of a group of ``compressed-tensors``, which describes its weights and its activations (null: 16 bits)."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(weights, dict):
        return None
    bits, is_float = weights.get("num_bits"), weights.get("type") == "float"
    narrow = DType.MXFP4 if weights.get("group_size") == 32 else DType.NVFP4
    if not group.get("input_activations"):
        return narrow if is_float and bits == 4 else _of_bits(bits)
    if is_float:
        wide = DType.FP8_BLOCK if weights.get("strategy") == "block" else DType.FP8
        return {4: narrow, 8: wide}.get(bits) if isinstance(bits, int) else None
    return DType.INT8 if bits == 8 else _of_bits(bits)


def _of_bits(bits: object) -> DType | None:
    return OF_BITS.get(bits) if isinstance(bits, int) else None


# -- the modules of a shape ------------------------------------------------------------------------------------------

LEAVES: Mapping[Role, tuple[str, ...]] = MappingProxyType(
    {
        Role.Q_DOWN: ("q_a_proj", "fused_qkv_a_proj"),
        Role.Q_UP: ("q_b_proj",),
        Role.KV_DOWN: ("kv_a_proj_with_mqa", "fused_qkv_a_proj"),
        Role.KV_UP: ("kv_b_proj",),
        Role.ATTENTION_OUTPUT: ("o_proj", "out_proj", "dense", "c_proj"),
    }
)
"""Names of modules in published classes, by role."""
OF_HEADS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "q": ("q_proj", "qkv_proj", "query_key_value", "c_attn"),
        "k": ("k_proj", "qkv_proj", "query_key_value", "c_attn"),
        "v": ("v_proj", "qkv_proj", "query_key_value", "c_attn"),
    }
)
OF_FFN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gate": ("gate_proj", "gate_up_proj", "w1"),
        "up": ("up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h", "w3"),
        "down": ("down_proj", "fc2", "c_proj", "dense_4h_to_h", "w2"),
    }
)
ATTENTION_BLOCKS = ("self_attn", "attn", "self_attention")
SCAN_BLOCKS = ("mixer", "mamba", "linear_attn", "self_attn")
FFN_BLOCKS = ("mlp", "feed_forward", "block_sparse_moe", "ffn")


def _modules(shape: TransformerShape, *, numbered: bool) -> Iterator[tuple[tuple[str, ...], float, Role]]:
    """The linear layers that text passes: the paths that published classes give them, their parameters and role."""
    for stack in shape.stacks:
        if not stack.is_text:
            continue
        first = 0
        for run in stack.runs:
            many = int(run.count)
            indices = run.positions or tuple(range(first, first + many))
            first += many
            layers = indices if numbered else indices[:1]
            for index in layers:
                for inner, linear, number, role in _of_layer(run.layer, int(stack.hidden_size)):
                    paths = tuple(f"{head}layers.{index}.{path}" for path in inner for head in ("model.", ""))
                    yield paths, float(linear.params) * number * many / len(layers), role


def _of_layer(layer: Layer, hidden_size: int) -> Iterator[tuple[tuple[str, ...], Linear, int, Role]]:
    for mixer in layer.mixers:
        blocks = SCAN_BLOCKS if isinstance(mixer, StateSpaceMixer) else ATTENTION_BLOCKS
        for linear in mixer.linears(hidden_size):
            usual = OF_HEADS.get(linear.name, (f"{linear.name}_proj",))
            if isinstance(mixer, LatentAttentionMixer) and linear.name.startswith("index_"):
                usual = ("indexer",)
            yield _joined(blocks, LEAVES.get(linear.role, usual)), linear, 1, linear.role
    for ffn in layer.all_ffns:
        for linear in ffn.linears(hidden_size):
            if linear.role is Role.ROUTER:
                continue
            name = linear.name.removeprefix("shared_")
            leaves = OF_FFN.get(name, (name,))
            if linear.name.startswith("shared_"):
                leaves = tuple(f"{shared}.{leaf}" for shared in ("shared_experts", "shared_expert") for leaf in leaves)
            yield _joined(FFN_BLOCKS, leaves), linear, 1, linear.role
        if isinstance(ffn, MoeFfn):
            for linear in ffn.expert_linears(hidden_size):
                leaves = tuple(f"experts.0.{leaf}" for leaf in OF_FFN.get(linear.name, (linear.name,)))
                role = Role.EXPERT_DOWN if linear.split is Split.ROW else Role.EXPERT_UP
                yield _joined(FFN_BLOCKS, leaves), linear, int(ffn.num_experts), role


def _joined(blocks: Sequence[str], leaves: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{block}.{leaf}" for block in blocks for leaf in leaves)
