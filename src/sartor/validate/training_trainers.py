"""The trainer of a row with its switches, and the meaning of words for precision and recomputation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from sartor.hardware.gpu import Gpu
from sartor.model.training import Optimizer, Recipe, Recompute, Trainer
from sartor.operators import DType
from sartor.records.rows import Unexpressed
from sartor.step.trainers import MAXTEXT, OTHER, of_release, trainer_in_table


def trainer_of(row: Mapping[str, str], gpu: Gpu) -> tuple[Trainer, tuple[str, ...]]:
    """The row's trainer with the row's own switches, and what was assumed."""
    named_trainer = trainer_in_table(row.get("framework", ""))
    on_tpu = gpu.vendor.lower() == "google"
    trainer = named_trainer or (MAXTEXT if on_tpu else OTHER)
    assumed = () if named_trainer else (f"trainer unknown: assumed to behave like {'JAX' if on_tpu else 'Megatron'}",)
    if row.get("compile") == "1":
        trainer = replace(trainer, fused_kernels=True)
    if row.get("tp_overlap", "") in ("0", "1"):
        trainer = replace(trainer, tp_overlap=row["tp_overlap"] == "1")
    if row.get("dp_overlap", "") in ("0", "1"):
        trainer = replace(trainer, dp_overlap=row["dp_overlap"] == "1")
    if row.get("recompute", "").strip().lower() == "selective_op":
        trainer = replace(trainer, checkpoints_operators=True)
    return of_release(trainer, row.get("framework_version", ""), gpu.generation), assumed


def recipe_of(row: Mapping[str, str], trainer: Trainer, gpu: Gpu) -> tuple[Recipe, tuple[str, ...]]:
    """The precision recipe; by default 16 bits (bf16 if the device supports it). Raises ``Unexpressed``."""
    word = re.sub(r"[\s\-]+", "_", row.get("dtype", "").strip().lower())
    if not word or word in ("mixed", "amp", "16bit", "half"):
        recipe = Recipe.BF16 if DType.BF16 in gpu.peak_flops_per_s else Recipe.FP16
        return recipe, (f"dtype not stated: {recipe.value}",)
    if word in _RECIPES:
        return _RECIPES[word], ()
    if word in ("fp8", "float8", "fp8_hybrid", "fp8_e4m3"):
        return trainer.plain_fp8, ()
    raise Unexpressed(f"dtype {word[:30]}: no precision recipe of that name")


_RECIPES: Mapping[str, Recipe] = {
    **{recipe.value: recipe for recipe in Recipe},
    "bfloat16": Recipe.BF16,
    "float16": Recipe.FP16,
    "float32": Recipe.FP32,
    "fp8_cs": Recipe.FP8_CURRENT,
    "fp8_ds": Recipe.FP8_DELAYED,
    "fp8_tensorwise": Recipe.FP8_CURRENT,
    "fp8_sc": Recipe.FP8_BLOCK,
    "fp8_subchannel": Recipe.FP8_BLOCK,
    "fp8_blockwise": Recipe.FP8_BLOCK,
    "fp8_mx": Recipe.MXFP8,
    "fp4": Recipe.NVFP4,
    "mxfp4": Recipe.NVFP4,
}


def recompute_of(row: Mapping[str, str], layers_per_stage: int) -> tuple[Recompute, int, tuple[str, ...]]:
    """The kind of recomputation, the number of layers per stage (-1: all), and what was assumed."""
    word = row.get("recompute", "").strip().lower()
    number = re.search(r"(\d+)[ _-]*layers?\b", word)
    if word in ("none", "0", ""):
        return Recompute.NONE, -1, () if word else ("recompute not stated: none",)
    if word == "unknown":
        return Recompute.NONE, -1, ("recompute unknown: none",)
    if number:
        return Recompute.FULL, min(int(number.group(1)), layers_per_stage), ()
    if _CHEAP.fullmatch(word):
        return Recompute.NONE, -1, (f"{word[:30]}: repeats no matrix multiplication, counted as none",)
    share, words = next((way for key, way in _PARTLY.items() if key.search(word)), (1.0, ""))
    if share < 1:
        return Recompute.FULL, max(1, math.ceil(layers_per_stage * share)), (f"{word[:30]}: as {words} in full",)
    if word == "minimal" or _CORE.search(word):
        return Recompute.SELECTIVE, -1, ()
    if not _MODULES.search(word):
        raise Unexpressed(f"recompute={word[:30]} is not known")
    return Recompute.FULL, -1, () if word == "full" else (f"{word[:30]}: as full",)


_MODULES = re.compile(
    r"full|block|uniform|all|every|layer|checkpoint|attn|attention|mlp|ffn|moe|expert|proj|qkv|norm|act|method|save|offload"
)
"""Words for modules or kinds of recomputation that count as full."""


_CHEAP = re.compile(r"((moe_|mlp_)?act(ivation)?|layer_?norm|norm|mla_up_proj|[ ,+])+")
"""Recomputing these modules alone costs only memory traffic or one small GEMM."""

_PARTLY: Mapping[re.Pattern[str], tuple[float, str]] = {
    re.compile(r"^op$|selective_op|selective_block|every_other"): (0.5, "every second layer"),
    re.compile(r"qkv_proj"): (0.8, "four of five layers"),
    re.compile(r"^(moe|mlp|ffn)$"): (2 / 3, "two of three layers"),
    re.compile(r"^partial"): (0.5, "every second layer"),
}
"""Words for partial recomputation, and the share of fully recomputed layers with the same cost: attention's projections
are 4, and those to queries, keys and values 3, of a layer's 12 h x h GEMMs at a feed-forward width of 4 h."""

_CORE = re.compile(r"selective|core_attn|core_attention")


def optimizer_of(row: Mapping[str, str]) -> Optimizer:
    word = row.get("optimizer", "").lower()
    if "muon" in word:
        return Optimizer.MUON
    return Optimizer.SGD if re.search(r"\bsgd\b|momentum", word) else Optimizer.ADAM
