"""Facts about the plan in a log: argument dumps, device meshes, names of configurations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from sartor.hardware.catalog import gpu_names

DUMPED = re.compile(r"\b([a-zA-Z]\w{1,60}) \.{3,60} (.{1,400})$")
"""A line of Megatron's dump of arguments: ``  hidden_size .......... 4096``, behind any prefix."""

FACTS: Mapping[str, tuple[str, ...]] = {
    "num_devices": (
        r"using world size:\s{0,3}(\d{1,7})",
        r"^NGPU=(\d{1,7})",
        r"world_size\s{0,3}[=:]\s{0,3}(\d{1,7})",
        r"starting with (\d{1,7}) processes",
        r"Num_devices: (\d{1,7}), shape",
    ),
    "tp": (r"tensor-model-parallel size:\s{0,3}(\d{1,6})", r"Config param ici_tensor_parallelism: (\d{1,6})"),
    "pp": (r"pipeline-model-parallel size:\s{0,3}(\d{1,6})",),
    "cp": (r"context-parallel size:\s{0,3}(\d{1,6})",),
    "seq_len": (
        r"sequence length\s{0,3}:?\s{0,3}(\d{1,9})",
        r'"key": "(?:max_sequence_length|seq_length)", "value": (\d{1,9})',
        r"--training\.seq_len[= ](\d{1,9})",
        r"Config param max_target_length: (\d{1,9})",
    ),
    "global_batch_size": (
        r"global batch size (\d{1,9})",
        r'"key": "global_batch_size", "value": (\d{1,9})',
        r"train_batch_size\s{0,3}[.:=]{1,60}\s{0,3}(\d{1,9})",
        r"Config param global_batch_size_to_train_on: (\d{1,9})",
    ),
    "tokens_per_step": (r"tokens per iteration will be: ([\d,]{1,15})",),
    "microbatch_size": (
        r"local batch size (\d{1,6})",
        r"train_micro_batch_size_per_gpu\s{0,3}[.:=]{1,60}\s{0,3}(\d{1,6})",
        r"--training\.(?:local_)?batch_size[= ](\d{1,6})",
    ),
    "zero_stage": (r"zero_optimization_stage\s{0,3}[.:=]{1,60}\s{0,3}([0-3])",),
}
WORDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "dtype": (
        (r'recipe_name="?rowwise|[Ff]loat8 training active with rowwise', "fp8_rowwise"),
        (r'converters="?float8"?|[Ff]loat8 (?:tensorwise )?(?:scaled )?training active', "fp8_current"),
        (r"\bbf16_|precision: bf16|\bbfloat16 enabled", "bf16"),
    ),
    "recompute": (
        (r"Applied [Ff]ull(?:AC)? activation checkpointing", "full"),
        (r"Applied [Ss]elective(?:AC)? activation checkpointing", "selective"),
    ),
}
"""Patterns that stand for a choice; the first match counts."""
GPUS: Mapping[str, str] = {
    r"Tesla V100|\bV100-SXM2": "v100",
    r"\bA100-SXM4-80GB|\bA100-SXM-80GB": "a100_sxm",
    r"\bA100\b": "a100_sxm",
    r"\bH100\b": "h100_sxm",
    r"\bH200\b": "h200_sxm",
    r"\bH800\b": "h800_sxm",
    r"\bGB200\b": "gb200",
    r"\bB200\b": "b200_sxm",
    r"\bMI300X\b": "mi300x",
}
NAMED = {"pp": "pp", "tp": "tp", "cp": "cp", "ep": "ep", "mbs": "microbatch_size", "gbs": "global_batch_size"}
_NAMED = re.compile(r"(?<![a-zA-Z0-9])(pp|tp|cp|ep|mbs|gbs|seq)(\d{1,9})(?![0-9])")
_NODES = re.compile(r"(?<![a-zA-Z0-9])(\d{1,5})n(\d{1,3})g(?![a-zA-Z0-9])")
LEAST_NAMED = 3
"""Least number of parts in the name of a configuration, such as ``pp4-cp1-ep8-mbs1``."""
_MESH = re.compile(r"device mesh with \[([^\]]{1,200})\], \[([^\]]{1,200})\]")
_PARALLELISM = re.compile(r"device mesh with parallelism: ((?:\w{1,20}=\d{1,7}(?:, )?){1,12})")


def arguments_in(text: str) -> dict[str, str]:
    """The dump of Megatron's arguments."""
    matches = (DUMPED.search(line) for line in text.splitlines() if " ..." in line)
    return {match[1]: match[2].strip() for match in matches if match}


def facts_in(text: str) -> dict[str, int | str]:
    """Facts about plan and job in the lines before the first step."""
    facts: dict[str, int | str] = {}
    for line in text.splitlines():
        facts |= _configuration_name(line)
    facts |= _mesh(text)
    for name, patterns in FACTS.items():
        for pattern in patterns:
            if match := re.search(pattern, text, re.MULTILINE):
                facts[name] = int(match[1].replace(",", ""))
                break
    for choices in (WORDS, {"gpu": tuple(GPUS.items())}):
        for name, words in choices.items():
            stated_word = next((word for pattern, word in words if re.search(pattern, text)), None)
            if stated_word:
                facts[name] = stated_word
    return facts


def gpu_named(text: str) -> str | None:
    """The catalogue's name of the device that a driver calls ``text``; None if it is none with a single version."""
    single = {name.replace("_", "[ _]"): name for name in gpu_names() if "_" not in name or name.startswith("rtx")}
    names = {**GPUS, **{rf"(?i)\b{words}\b": name for words, name in single.items()}}
    return next((name for pattern, name in names.items() if re.search(pattern, text)), None)


def _configuration_name(line: str) -> dict[str, int | str]:
    """``8n8g-h100/pp4-cp1-ep8-mbs1-gbs1024-seq4096``."""
    parts = dict(_NAMED.findall(line))
    if len(parts) < LEAST_NAMED:
        return {}
    facts: dict[str, int | str] = {NAMED.get(name, "seq_len"): int(value) for name, value in parts.items()}
    if nodes := _NODES.search(line):
        facts["num_devices"] = int(nodes[1]) * int(nodes[2])
    return facts


def _mesh(text: str) -> dict[str, int | str]:
    """torchtitan's device mesh: ``Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]``, and since 2025
    ``Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1``, whose experts' axes
    lie inside the others. The former kind leaves out degrees of 1."""
    if match := _PARALLELISM.search(text):
        mesh = {name: int(size) for name, size in re.findall(r"(\w{1,20})=(\d{1,7})", match[1])}
        return {**_degrees(mesh), "num_devices": math.prod(mesh.get(name, 1) for name in AXES)}
    match = _MESH.search(text)
    if not match:
        return {}
    names = re.findall(r"\w{1,20}", match[1])
    mesh = dict(zip(names, map(int, re.findall(r"\d{1,7}", match[2])), strict=False))
    whole = all(name in AXES for name in names)
    if not whole:
        return _degrees(mesh)
    return {"tp": 1, "pp": 1, "cp": 1, **_degrees(mesh), "num_devices": math.prod(mesh.values())}


AXES = ("dp_shard", "dp_replicate", "dp", "tp", "pp", "cp")
"""Axes of a mesh whose product is the number of devices."""


def _degrees(mesh: Mapping[str, int]) -> dict[str, int | str]:
    return {name: mesh[name] for name in ("tp", "pp", "cp", "ep") if name in mesh}
