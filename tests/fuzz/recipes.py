"""Recipes by structure: keys of a dialect's own table (launch/dialects.toml) with values that fit, almost fit or do
not, as YAML, JSON, or the command that starts the trainer."""

from __future__ import annotations

import json
import random
import re
import shlex
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

ODD: tuple[Any, ...] = (
    None, "", "auto", "none", True, False, -1, 0, 1, 3, 7, 1.5, 2**31, 10**30, 1e308, "8", "08", "1e3", "1_000", "٣",
    [], {}, [8], [1, [2]], {"a": 1}, {"value": {"value": 8}}, "a b", "a\nb", "\x1b[31m", "${X:-8}", "$(id)", "{{ x }}",
    "~", "y" * 300,
)  # fmt: skip
SIZES = (1, 1, 2, 2, 4, 8, 16, 32, 64, 128, 512, 1024, 4096)
WORDS = (
    "bf16",
    "bfloat16",
    "fp16",
    "adamw",
    "adamw_torch",
    "adam",
    "full_shard",
    "lora",
    "fsdp",
    "fsdp2",
    "full",
    "flash",
)
BY_CODE = {
    "optimizer": ("adamw_torch", "adamw_torch_fused", "adamw", "adam", "sgd"),
    "strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD"),
    "sharding": ("full_shard auto_wrap", "full_shard", "fsdp2", "fsdp", "1", "2"),
    "deepspeed": ("zero1", "zero2", "zero3", "ds_z2_config.json", "ds_z3_config.json"),
    "lora_targets": ("all-linear", ["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj"]),
}
"""Values of fields that code reads, as recipes have them."""
DEGREES = {"tp", "pp", "cp", "ep", "shards", "replicas", "virtual_stages", "zero_stage", "nodes"}
MODELS = ("gpt2", "llama-3-8b", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B", "mixtral-8x7b", "nobody/knows", "./here")


@cache
def dialects() -> dict[str, Any]:
    return tomllib.loads(files("sartor").joinpath("launch", "dialects.toml").read_text("utf-8"))


def keys(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A dialect, and some of its keys with a value each; those that claim it nearly always."""
    dialect = rng.choice(dialects()["dialect"])
    rows = dialects().get(dialect["name"], {}).get("keys", [])
    marks = rng.sample(dialect["marks"], min(2, len(dialect["marks"])))
    named = {name: row for row in rows for name in (row["argument"], *row.get("older", []))}
    chosen: dict[str, Any] = {
        key: _value(named[key], rng) if key in named and rng.random() < 0.9 else rng.choice((*MODELS, *SIZES))
        for key in (*dialect["needs"], *marks)
    }
    share, odd = rng.choice((0.2, 0.5, 0.9)), rng.choice((0.0, 0.0, 0.03, 0.12))
    for row in rows:
        if rng.random() < share or row["argument"] in chosen:
            name = rng.choice([row["argument"], *row.get("older", [])])
            chosen[name] = rng.choice(ODD) if rng.random() < odd else _value(row, rng)
    if odd and rng.random() < 0.3:
        loose = [*dialect.get("silent", []), *dialect.get("unpriced", []), "not_a_key", "hidden_size", "tp.tp", ""]
        chosen |= {rng.choice(loose): rng.choice(ODD) for _ in range(3)}
    if odd and chosen and rng.random() < 0.2:
        del chosen[rng.choice(list(chosen))]
    return dialect, chosen


def _value(row: dict[str, Any], rng: random.Random) -> Any:
    default = row.get("default")
    if row["field"] == "model":
        return rng.choice(MODELS[:4])
    if row.get("refuse") and rng.random() < 0.9:
        return default
    if row.get("also") or row.get("only"):
        words = [*row.get("also", ()), *row.get("only", ())]
        return rng.choice([{"true": True, "false": False}.get(word, word) for word in words])
    if row["field"] in BY_CODE and rng.random() < 0.9:
        return rng.choice(BY_CODE[row["field"]])
    if row["field"] in ("microbatch_size", "num_microbatches", "prompt", "response"):
        return rng.choice((1, 2, 4, 8))
    if isinstance(default, bool | str) or row.get("by_code"):
        return rng.choice((True, False) if isinstance(default, bool) else WORDS)
    return rng.choice((1, 1, 2) if row["field"] in DEGREES else SIZES)


def nested(flat: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """``{"a.b": 1}`` as ``{"a": {"b": 1}}``, or now and then left flat."""
    if rng.random() < 0.1:
        return flat
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *way, last = path.split(".")
        place = tree
        for step in way:
            below = place.setdefault(step, {})
            place = below if isinstance(below, dict) else place
        place[last] = value
    return tree


def as_yaml(rng: random.Random) -> bytes:
    tree = nested(keys(rng)[1], rng)
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, default_flow_style=rng.random() < 0.1)
    if rng.random() < 0.1:  # an anchor, a merge, a tag, a second document
        text += rng.choice(
            ("a: &a {b: 1}\nc: *a\n", "<<: {x: 1}\n", "t: !!python/name:os.system\n", "---\nx: 1\n", "- 1\n")
        )
    return text.encode("utf-8", "replace")


def as_json(rng: random.Random) -> bytes:
    return json.dumps(nested(keys(rng)[1], rng), allow_nan=rng.random() < 0.5, default=str).encode()


def as_command(rng: random.Random) -> bytes:
    dialect, chosen = keys(rng)
    program = re.sub(r"[\\?()*+]|\w\|", "", str(dialect.get("programs", "train.py")).split("|")[0])
    dashes, sign = rng.choice((("--", " "), ("--", "="), ("", "=")))
    words = [f"{dashes}{key}{sign}{shlex.quote(str(value))}" for key, value in chosen.items()]
    start = rng.choice(("", "torchrun --nproc_per_node 8 ", "accelerate launch ", "python -m "))
    return f"#!/bin/bash\n{start}{program} {' '.join(words)}\n".encode("utf-8", "replace")
