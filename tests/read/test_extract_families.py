"""Extraction against the built-in lowering, family by family: parameters to the unit, matmul FLOPs both ways.

Each model type is built as transformers' default config has it (tests/golden/configs.jsonl), full size, 64 tokens.
Where the two count differently, ``DIFFERENT`` says why, and which of them counts more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sartor.model.lower import lower
from sartor.model.traced import TracedModel
from sartor.model.workload import AttentionKernel, Workload
from sartor.operators import Attention, Gemm, GroupedGemm, OperatorGraph, Pass
from sartor.read.huggingface import read_fields

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("torch") is None or find_spec("transformers") is None,
        reason="torch and transformers are not installed here: make test-torch",
    ),
    pytest.mark.filterwarnings("ignore"),
]

EQUAL = (
    "albert", "bart", "bert", "codegen", "cohere", "cohere2", "ctrl", "deberta-v2", "distilbert", "electra", "falcon",
    "falcon_mamba", "gemma", "gemma2", "gemma3_text", "glm4", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss",
    "gptj", "granite", "granitemoe", "helium", "lfm2", "llama", "m2m_100", "mamba", "mbart", "mistral", "modernbert",
    "mpnet", "mpt", "mt5", "olmo2", "olmo3", "olmoe", "openai-gpt", "opt", "pegasus", "persimmon", "phi", "phi3",
    "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
)  # fmt: skip
"""Equal to the last FLOP, with fused attention or (where a class writes its products out) with the full square."""

DIFFERENT: dict[str, tuple[float, str]] = {
    "granitemoehybrid": (
        1.086,
        "its eager scan has scores of each head; kernels of a group, and three quarters of them",
    ),
    "minimax": (1.002, "linear attention by blocks is written as products; the lowering has a scan"),
    "llama4_text": (6.61, "its class multiplies every token with every expert (bmm); the lowering routes them"),
    "clip": (2.78, "both towers are traced; the lowering is of the text tower"),
}
"""Model type: traced forward FLOPs over the lowering's, and why."""


@cache
def configs() -> dict[str, dict[str, Any]]:
    lines = (Path(__file__).parents[1] / "golden" / "configs.jsonl").read_text().splitlines()
    return {r["model_type"]: r["config"] for r in map(json.loads, lines) if r["variant"] == "default"}


def extracted(model_type: str) -> TracedModel:
    from sartor.read.torch_trace.hugging_face import trace_config

    return trace_config(
        configs()[model_type],
        name=model_type,
        source=model_type,
        microbatch_size=1,
        seq_len=64,
        dtype="bfloat16",
        train=True,
    )


def flops(graph: OperatorGraph, *, forward: bool) -> float:
    products = (Gemm, GroupedGemm, Attention)
    found = [op for op in graph.operators if isinstance(op, products) and not op.name.startswith("mtp.")]
    return float(sum(op.flops * op.count for op in found if (op.pass_ is Pass.FORWARD) == forward))


def lowered(model_type: str, tokens: int, kernel: AttentionKernel) -> OperatorGraph:
    shape = read_fields(configs()[model_type], name=model_type).shape
    return lower(Workload(shape=shape, seq_len=tokens, microbatch_size=1, attention_kernel=kernel))


@pytest.mark.parametrize("model_type", EQUAL)
def test_parameters_and_products_are_those_of_the_built_in_lowering(model_type: str) -> None:
    model = extracted(model_type)
    assert model.num_params == read_fields(configs()[model_type], name=model_type).num_params
    ours = [flops(model.graph, forward=way) for way in (True, False)]
    theirs = [
        [flops(lowered(model_type, model.seq_len, kernel), forward=way) for way in (True, False)]
        for kernel in AttentionKernel
    ]
    assert any(ours == pytest.approx(each, rel=1e-12) for each in theirs), (ours, theirs)


@pytest.mark.parametrize("model_type", DIFFERENT)
def test_where_products_differ_the_reason_is_in_the_table(model_type: str) -> None:
    factor, why = DIFFERENT[model_type]
    model = extracted(model_type)
    assert model.num_params == read_fields(configs()[model_type], name=model_type).num_params
    theirs = flops(lowered(model_type, model.seq_len, AttentionKernel.FLASH), forward=True)
    assert flops(model.graph, forward=True) / theirs == pytest.approx(factor, rel=0.01), why


def test_a_model_of_70_billion_parameters_takes_less_than_600_mb() -> None:
    # Linux hands the size of whoever started a process down in its ru_maxrss; VmHWM is that of the program itself.
    code = "from sartor.read.extract import extract; m = extract('llama-2-70b'); print(m.num_params, len(m.calls)); "
    code += "print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert int(shown[0]) == 68_976_648_192
    assert int(shown[1]) < 100
    assert int(shown[2]) < 600 * 1024
