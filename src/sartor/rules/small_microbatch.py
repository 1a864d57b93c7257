"""Fewer tokens at once than the device needs to be busy.

## What it finds

Training or prefill with so few tokens (`microbatch_size * seq_len`) that the linear layers are bound by memory: fewer
than the device's ridge point (warning), or fewer than 4096 (information, if a larger batch gains).

## Why it costs

With T tokens a product of large weights does about T FLOP per byte of weights. Below the ridge (295 on an H100 in
BF16) the weights' trip from memory sets the pace, tiles do not fill the last wave, and every launch is paid for
little work.

## Example

`microbatch_size=1`, `seq_len=128` on an H100; good are 4096 tokens and more.

## Fix

A larger microbatch, as far as memory allows; this rule does not know what else is held. Time is compared per token.

## Source

arXiv 2401.14489 (2024-01): "as large as possible"; ridge points from the datasheets.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.hardware.peaks import peak_flops_per_s
from sartor.model.workload import Phase
from sartor.rules.rule import Context, Grade, Rule, Suspicion

ENOUGH_TOKENS = 4096
"""codesign.md section 3, R2: good from here on."""


def small_microbatch(context: Context) -> Iterator[Suspicion]:
    workload, gpu = context.workload, context.gpu
    tokens, sequences = int(workload.tokens), int(workload.microbatch_size)
    if workload.phase is Phase.DECODE or tokens >= ENOUGH_TOKENS:
        return
    # A product [T, k] x [k, n] with T far below k and n does T FLOP per element read: 2 T k n / (bytes k n).
    flops_per_byte = 2 * tokens / workload.dtype.bytes
    ridge = peak_flops_per_s(gpu, workload.dtype) / gpu.hbm_bytes_per_s
    starved = flops_per_byte < ridge
    why = f"below {gpu.name}'s ridge of {ridge:.0f} FLOP/byte" if starved else f"under {ENOUGH_TOKENS} tokens"
    yield Suspicion(
        grade=Grade.WARN if starved else Grade.INFO,
        message=f"microbatch_size={sequences} gives {tokens} tokens at once, {why};"
        f" {2 * sequences} or {4 * sequences} fill the device better, if memory allows",
        field="microbatch_size",
        value=sequences,
        fixes=tuple({"microbatch_size": sequences * factor} for factor in (2, 4)),
        advisory=True,
    )


RULE = Rule(code="R2", check=small_microbatch, worst=Grade.WARN, page=__doc__ or "")
