"""Coverage of the intervals for the ratio of two expert layers: ``python lab/mix_intervals.py SHARED``.

Pairs of measured layers with the same device, kernel, hidden size and tokens, within a factor of 2.2 of each other in
experts, experts per token and width, as `advise` compares mixtures; they are priced without knowing the kernel, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sartor.cost.price import Estimate, price
from sartor.cost.uncertainty import compare
from sartor.hardware.catalog import load_gpu
from sartor.operators import OperatorGraph
from sartor.records.rows import work_of

GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm")
SIZES = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
TOKENS = (1, 8, 64, 512, 2048, 8192, 16384)
NEAR = 2.2


def main(shared: str) -> None:
    table = pd.read_parquet(Path(shared) / "data" / "measured" / "moe_bf16.parquet")
    plain = (table.flag == 0) & table.distribution.isin(["balanced", "uniform"]) & (table.moe_ep_size == 1)
    table = table[plain & table.num_tokens.isin(TOKENS)]
    table = table.groupby(["gpu", "kernel", "framework", *SIZES], as_index=False).latency_us.median()
    held = []
    for name in GPUS:
        rows = table[table.gpu == name].reset_index(drop=True)
        before, after = (rows.iloc[list(side)] for side in zip(*_pairs(rows), strict=True))
        found = compare(_estimate(before, name), _estimate(after, name))
        measured = before.latency_us.to_numpy() / after.latency_us.to_numpy()
        inside = (measured >= found.low) & (measured <= found.high)
        print(f"{name:10} {inside.mean():6.1%} of {len(inside):,} pairs")
        held.append(inside)
    print(f"together   {np.concatenate(held).mean():6.1%} of {sum(map(len, held)):,} pairs")


def _pairs(rows: pd.DataFrame) -> Iterator[tuple[int, int]]:
    """Positions of layers that differ in the number of experts and are otherwise near each other."""
    sizes = rows.assign(width=rows.inter_size / rows.moe_tp_size)[["num_experts", "topk", "width"]].to_numpy()
    for _, group in rows.groupby(["kernel", "framework", "num_tokens", "hidden_size"]):
        for i, j in combinations(group.index, 2):
            ratio = sizes[i] / sizes[j]
            if ratio[0] != 1 and np.all((ratio <= NEAR) & (ratio >= 1 / NEAR)):
                yield i, j


def _estimate(rows: pd.DataFrame, gpu: str) -> Estimate:
    """The estimate of all layers with the kernel unknown."""
    sizes: dict[str, Any] = {name: rows[name].to_numpy() for name in SIZES}
    device = load_gpu(gpu)
    work = work_of("moe", {"dtype": "bfloat16", "distribution": "balanced", "kernels": ""}, sizes, device)
    return price(OperatorGraph(operators=work.operators), device)


if __name__ == "__main__":
    main(sys.argv[1])
