"""The good and bad columns of codesign.md section 3, row by row, as conditions (before pricing)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rules.reference_codes import template
from rules.rule_samples import DECODE, UNFUSED
from sartor.model.editing import edit
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.rules.rule import Context, Grade, Suspicion
from sartor.rules.shape import find_rule

GOOD: list[tuple[str, str, dict[str, Any]]] = [
    ("R1", "llama-2-7b", {"vocab_size": 50304}),
    ("R1", "llama-2-7b", {"vocab_size": 128256}),
    ("R1", "llama-2-7b", {"vocab_size": 151936}),
    ("R2", "llama-2-7b", {"microbatch_size": 2, "seq_len": 2048}),
    ("R3", "llama-2-7b", {"microbatch_size": 4, "seq_len": 2048}),
    ("R4", "gpt3-2.7b", {"num_heads": 40, "head_dim": 64, **UNFUSED}),
    ("R4", "gpt3-2.7b", {"num_heads": 20, "head_dim": 128, **UNFUSED}),
    ("R5", "llama-2-70b", {"tp": 8}),
    ("R6", "llama-3.1-8b", {"tp": 8}),
    ("R7", "llama-2-7b", {"tp": 8}),
    ("R9", "llama-2-7b", UNFUSED),
    ("R10", "llama-2-7b", {}),
    ("R11", "llama-2-7b", {"pp": 4}),
    ("R11", "llama-2-70b", {"pp": 4}),
    ("R12", "llama-2-7b", {"ffn_hidden_size": 11008}),
    (
        "R13",
        "gpt3-6.7b",
        {"hidden_size": 6144, "num_heads": 48, "ffn_hidden_size": 16512, "vocab_size": 50304, "tp": 6},
    ),
    ("R14", "llama-2-7b", {"microbatch_size": 4}),
    ("R17", "gpt-j-6b", {}),
    ("R17", "pythia-2.8b", {}),
    ("R19", "llama-3.1-8b", {"tp": 8}),
    ("R20", "mixtral-8x7b", {"expert_ffn_hidden_size": 2048}),
    ("R21", "llama-2-7b", {"dtype": "fp8_block"}),
    ("R22", "qwen3-0.6b", {}),
    ("R22", "gemma-2-2b", {}),
    ("R22", "gpt-oss-20b", {}),
]
BAD: list[tuple[str, str, dict[str, Any], Grade]] = [
    ("R1", "gpt2-small", {}, Grade.ERROR),
    ("R1", "bert-base", {"seq_len": 512}, Grade.ERROR),
    ("R2", "llama-2-7b", {"microbatch_size": 1, "seq_len": 512}, Grade.INFO),
    ("R3", "llama-2-7b", {"microbatch_size": 1, "seq_len": 4097}, Grade.WARN),
    ("R4", "gpt3-2.7b", UNFUSED, Grade.WARN),
    ("R4", "phi-2", UNFUSED, Grade.WARN),
    ("R4", "gpt-neox-20b", UNFUSED, Grade.WARN),
    ("R4", "openllama-3b", {}, Grade.ERROR),
    ("R6", "llama-2-7b", {"tp": 8}, Grade.WARN),
    ("R7", "falcon-7b", {"tp": 8}, Grade.ERROR),
    ("R7", "gpt2-xl", {"tp": 2}, Grade.ERROR),
    ("R7", "qwen2.5-0.5b", {"tp": 4}, Grade.ERROR),
    ("R8", "gpt3-2.7b", {"tp": 8}, Grade.INFO),
    ("R9", "gpt3-2.7b", {"num_heads": 80, "head_dim": 32, **UNFUSED}, Grade.INFO),
    ("R10", "opt-1.3b", {}, Grade.INFO),
    ("R11", "deepseek-v3", {"pp": 4}, Grade.WARN),
    ("R11", "gemma-3-27b", {"pp": 4}, Grade.WARN),
    ("R11", "llama-3.1-405b", {"pp": 4}, Grade.WARN),
    ("R11", "gpt2-small", {"pp": 16}, Grade.ERROR),
    ("R12", "llama-2-7b", {"ffn_hidden_size": 10922}, Grade.ERROR),
    ("R13", "llama-2-7b", {"tp": 6}, Grade.ERROR),
    ("R14", "phi-2", {}, Grade.WARN),
    ("R14", "llama-2-7b", {"num_heads": 8, "head_dim": 512}, Grade.WARN),
    ("R16", "pythia-410m", DECODE, Grade.INFO),
    ("R19", "qwen3-30b-a3b", {"tp": 8}, Grade.INFO),
    ("R20", "deepseek-v2-lite", {"tp": 8}, Grade.WARN),
    ("R20", "gpt-oss-20b", {}, Grade.WARN),
    ("R21", "falcon-7b", {"dtype": "fp8_block"}, Grade.WARN),
]


def heard(code: str, model: str, how: dict[str, Any]) -> list[Suspicion]:
    """A rule's conditions on an edited zoo model: shape fields, workload fields, and degrees in one dictionary."""
    from sartor.operators import DType

    dims = ParallelDims(**{name: how[name] for name in ("tp", "pp") if name in how})
    of_workload = {name: value for name, value in how.items() if name in Workload.__dataclass_fields__}
    if "dtype" in how:
        of_workload["dtype"] = DType(how["dtype"])
    of_shape = {name: v for name, v in how.items() if name not in of_workload and name not in ("tp", "pp")}
    shape = load_model(model)
    base: Context = template()
    workload = replace(
        base.workload,
        **{"microbatch_size": 4, "seq_len": 2048} | of_workload,
        shape=edit(shape, **of_shape) if of_shape else shape,
    )
    return list(find_rule(code).check(replace(base, workload=workload, dims=dims, runs_at=ParallelDims())))


@pytest.mark.parametrize(("code", "model", "how"), GOOD, ids=lambda each: str(each)[:40])
def test_the_references_good_examples_pass(code: str, model: str, how: dict[str, Any]) -> None:
    assert not [s for s in heard(code, model, how) if s.grade is not Grade.INFO]


@pytest.mark.parametrize(("code", "model", "how", "grade"), BAD, ids=lambda each: str(each)[:40])
def test_the_references_bad_examples_are_graded_as_there(
    code: str, model: str, how: dict[str, Any], grade: Grade
) -> None:
    grades = [s.grade for s in heard(code, model, how)]
    assert grades
    assert max(grades, key=lambda g: g.severity) is grade
