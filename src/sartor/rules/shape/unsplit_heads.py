"""Heads, and other sizes, that do not split evenly over the devices.

## What it finds

`num_heads` that is not a multiple of `tp`, heads or groups of a state-space mixer, a shared expert's width, or a size
of some of the layers: the model cannot run with this degree. The vocabulary, the width of the feed-forward part,
experts and key/value heads have rules of their own.

## Why it costs

Every device needs whole heads. Frameworks refuse to start, or pad with unused heads.

## Example

71 heads (Falcon 7B) at any `tp`; 25 (GPT-2 XL); 14 (Qwen2.5 0.5B) at `tp=4`. 32 at `tp=8` is good.

## Fix

The nearest number of heads that splits and that the key/value heads divide, at the same `num_heads * head_dim` where a
head dimension allows it, or the nearest `tp` that splits every size of the model. The finding has no gain, because
there is no working baseline to compare with.

## Source

arXiv 2401.14489 (2024-01), rule list ("b*a/t an integer"); for Mamba Megatron-Core, ssm/mamba_mixer.py (whole heads per
tensor rank), recalled 2026-11.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.lower.setting import near_degrees, near_sizes, size_words, undivided
from sartor.operators import Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion, fixes_of, split_fixes

OF_OTHER_RULES = ("vocab_size", "ffn_hidden_size", "expert_ffn_hidden_size", "num_experts", "num_kv_heads")


def unsplit_heads(context: Context) -> Iterator[Suspicion]:
    shape, fields = context.shape, context.shape.fields()
    divisions = {(d.by, d.field, int(d.value)): d for d in undivided(shape, context.dims)}
    for (by, name, value), division in divisions.items():
        if name in OF_OTHER_RULES and (fields.get(name) == value or (by, "num_heads", value) in divisions):
            continue
        degree, changes = int(division.degree), near_sizes(shape, division)
        plain = name == "num_heads" and all(len(change) == 1 for change in changes)
        sizes = " or ".join(f"{'' if plain else f'{name}='}{size_words(name, change)}" for change in changes)
        degrees = f"{by}={' or '.join(map(str, near_degrees(shape, by, degree)))}"
        yield Suspicion(
            grade=Grade.ERROR,
            message=f"{name}={value} is not divisible by {by}={degree}. Use "
            + (f"{sizes}{' heads' if plain else ''}, or {degrees}" if sizes else degrees),
            field=name,
            value=value,
            operator=context.operator(Role.ATTENTION, Role.SCORE) if name == "num_heads" else "",
            fixes=split_fixes(shape, division) or fixes_of(by, near_degrees(shape, by, degree), degree),
            blocking=True,
            axis=by,
        )


RULE = Rule(code="R7", check=unsplit_heads, worst=Grade.ERROR, page=__doc__ or "")
