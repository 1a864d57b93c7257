"""Too few tokens per microbatch to keep the GPU busy.

## What it finds

In training and prefill: so few tokens (`microbatch_size * seq_len`) that the linear layers are memory-bound (warning),
or fewer than 4096 (information, if a larger batch is faster).

## Why it costs

With T tokens, a GEMM does about T FLOP per byte of weights. Below the ridge point (295 FLOP/byte on an H100 in BF16)
reading the weights limits the speed, the last wave is partly empty, and each kernel launch does little work.

## Example

`microbatch_size=1`, `seq_len=128` on an H100; 4096 tokens or more are good.

## Fix

A larger microbatch, if memory allows (this rule does not check memory). Times are compared per token.

## Source

arXiv 2401.14489 (2024-01): "as large as possible"; ridge points from datasheets.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.model.workload import Phase
from sartor.rules.rule import Context, Grade, Rule, Suspicion

ENOUGH_TOKENS = 4096
"""Larger microbatches gain little from here on."""


def small_microbatch(context: Context) -> Iterator[Suspicion]:
    workload, gpu = context.workload, context.gpu
    tokens, sequences = int(workload.tokens), int(workload.microbatch_size)
    if workload.phase is Phase.DECODE or tokens >= ENOUGH_TOKENS:
        return
    # A GEMM [T, k] x [k, n] with T far below k and n does T FLOP per element read: 2 T k n / (bytes k n).
    flops_per_byte = 2 * tokens / workload.dtype.bytes
    ridge = peak_flops_per_s(gpu, workload.dtype) / gpu.hbm_bytes_per_s
    starved = flops_per_byte < ridge
    bound = f"memory-bound on {gpu.label} (ridge point {ridge:.0f} FLOP/byte)"
    yield Suspicion(
        grade=Grade.WARN if starved else Grade.INFO,
        message=f"microbatch_size={sequences} gives GEMMs of {tokens} tokens, {bound if starved else 'which are small'}"
        f"; {2 * sequences} or {4 * sequences} use the device better if memory allows",
        field="microbatch_size",
        value=sequences,
        fixes=tuple({"microbatch_size": sequences * factor} for factor in (2, 4)),
        advisory=True,
    )


RULE = Rule(code="R2", check=small_microbatch, worst=Grade.WARN, page=__doc__ or "")
