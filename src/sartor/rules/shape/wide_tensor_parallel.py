"""More tensor parallelism than the model needs to fit.

## What it finds

`tp` above 1 where a smaller `tp` holds the weights (in training also gradients and Adam state) in 80% of the device's
memory and spends fewer device-seconds per token.

## Why it costs

Every matrix shrinks by `tp`, so tiles and waves fill worse, and every block ends in a collective. Times are compared
per device: two devices that together are 1.7 times as fast as one waste 15%.

## Example

`tp=8` for a 2.7B model on 80 GB devices; 1 or 2 is good.

## Fix

The smaller `tp` with the fewest device-seconds per token. Activations and long contexts may need more memory than this
rule counts; `sartor plan` counts all of it.

## Source

arXiv 2401.14489 (2024-01), rule list ("t as small as possible"); 16 bytes per parameter: Rajbhandari et al. 2020
(ZeRO), section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.counts import count_params
from sartor.model.workload import TRAIN_BYTES_PER_PARAM, Phase
from sartor.rules.rule import MOST_TP, Context, Grade, Rule, Suspicion

SHARE_OF_MEMORY = 0.8


def wide_tensor_parallel(context: Context) -> Iterator[Suspicion]:
    tp, dims = int(context.dims.tp), context.dims
    if tp == 1:
        return
    train = context.workload.phase is Phase.TRAIN
    per_param = TRAIN_BYTES_PER_PARAM if train else context.dtype.bytes
    state_bytes = float(count_params(context.shape).total) * per_param / float(dims.pp * dims.ep)
    room = SHARE_OF_MEMORY * context.gpu.hbm_bytes
    smaller = [t for t in range(1, min(tp, MOST_TP)) if tp % t == 0 and state_bytes / t <= room]
    if not smaller:
        return
    yield Suspicion(
        grade=Grade.INFO,
        message=f"tp={tp} splits every matrix {tp} ways; the weights fit on {context.gpu.label} at"
        f" tp={smaller[0]}, and a smaller tp spends fewer device-seconds per token",
        field="tp",
        value=tp,
        fixes=tuple({"tp": t} for t in smaller),
        advisory=True,
    )


RULE = Rule(code="R8", check=wide_tensor_parallel, worst=Grade.INFO, page=__doc__ or "")
