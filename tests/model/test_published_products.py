"""Lowered forward products against those that the published classes execute (shared/data/configs/truth_gemms.csv).

Products that share their input may run fused or apart, and query heads may be packed over the key/value head they
share; so linear layers are compared as output columns per (rows, contracted width), experts likewise, and attention as
rows per (columns, contracted width).
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sartor.model.lower import lower
from sartor.model.workload import AttentionKernel, Workload
from sartor.operators import Gemm, GroupedGemm, OperatorGraph, Pass
from sartor.read.huggingface import read_model

Products = dict[str, Counter[tuple[int, int]]]

SHAPES = (
    "gpt2/gpt2",
    "llama/Meta-Llama-3.1-8B",
    "mixtral/Mixtral-8x7B-v0.1",
    "deepseek_v3/DeepSeek-V3",
    "qwen2_moe/Qwen1.5-MoE-A2.7B",
    "bert/bert-base-uncased",
    "gemma2/gemma-2-9b",
    "falcon/falcon-40b",
)
"""Read here: one per kind of layer. The readers' own tests hold every file's sums."""


@pytest.mark.parametrize("path", SHAPES)
def test_forward_products_are_those_the_published_class_executes(path: str, shared_dir: Path) -> None:
    configs = shared_dir / "data" / "configs"
    family, name = path.split("/")
    length = next(int(r["seq_len"]) for r in _rows(configs / "truth.csv") if (r["family"], r["name"]) == (family, name))
    shape = replace(read_model(configs / path / "config.json").shape, mtp_layers=0)
    workload = Workload(shape=shape, seq_len=length, attention_kernel=AttentionKernel.UNFUSED)
    executed = [r for r in _rows(configs / "truth_gemms.csv") if (r["family"], r["name"]) == (family, name)]
    assert _lowered(lower(workload)) == _executed(executed)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _lowered(graph: OperatorGraph) -> Products:
    products: Products = {"linear": Counter(), "attention": Counter(), "experts": Counter()}
    for op in graph.operators:
        if isinstance(op, GroupedGemm) and op.pass_ is Pass.FORWARD:
            products["experts"][op.rows, op.k] += op.n * op.count
        elif (
            isinstance(op, Gemm)
            and op.pass_ is Pass.FORWARD
            and "attn_score" not in op.name
            and "over_value" not in op.name
        ):
            products["linear"][op.m, op.k] += op.n * op.count
        elif isinstance(op, Gemm) and op.pass_ is Pass.FORWARD:
            products["attention"][op.n, op.k] += op.batch * op.m * op.count
    return products


def _executed(rows: list[dict[str, str]]) -> Products:
    products: Products = {"linear": Counter(), "attention": Counter(), "experts": Counter()}
    for row in rows:
        batch, m, n, k, count = (int(row[field]) for field in ("batch", "m", "n", "k", "count"))
        if row["op"] == "grouped_mm":
            products["experts"][m, k] += n * count
        elif row["op"] in ("mm", "addmm"):
            products["linear"][m, k] += n * count
        elif row["op"] in ("bmm", "baddbmm"):
            products["attention"][n, k] += batch * m * count
    return products
