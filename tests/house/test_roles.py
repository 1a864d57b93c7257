"""Operators have an identity, a role and a block, and nobody looks for it in their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sartor import api
from sartor.designs.parts import CopySplit, model_parts
from sartor.designs.question import DesignModel
from sartor.model.lower import feasible, graph, lower
from sartor.model.shape import BlockKind, blocks
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.model.zoo import load_model, model_names
from sartor.operators import DType, Operator, Part, Role
from sartor.read.graph_json import read_traced

SOURCE = Path(__file__).resolve().parents[2] / "src" / "sartor"
TRACE = Path(__file__).resolve().parents[1] / "golden" / "tiny_llama_graph.json"
OPERATORS = {"op", "operator", "core", "gemm", "product", "epilogue", "collective", "kernel"}
"""What an operator is called in the source."""
SEARCHES = {"startswith", "endswith", "split", "partition", "rpartition", "removeprefix", "removesuffix", "find"}


def name_searches(path: Path) -> list[str]:
    """Places that compare the name of what is called an operator there, or search it."""
    text = path.read_text()
    if not re.search(rf"\b({'|'.join(OPERATORS)})\.name\b", text):
        return []
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and node.attr == "name"):
            continue
        owner, asker = node.value, parents[node]
        called = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
        searched = isinstance(asker, ast.Compare) or (isinstance(asker, ast.Attribute) and asker.attr in SEARCHES)
        if called in OPERATORS and searched:
            found.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(asker)}")
    return found


def test_no_code_asks_what_an_operator_is_by_its_name() -> None:
    """Readers of traces set roles by module paths, once; everyone else asks for the role."""
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] != "read"]
    assert [place for path in paths for place in name_searches(path)] == []


def workloads() -> list[tuple[str, Workload, ParallelDims]]:
    out = []
    for name in model_names():
        shape = load_model(name)
        shape = replace(shape, vocab_size=-(-shape.vocab_size // 256) * 256)
        dims = ParallelDims(tp=2, cp=2, ep=2)
        dims = dims if feasible(shape, dims) else ParallelDims()
        for phase, kernel in ((Phase.TRAIN, AttentionKernel.UNFUSED), (Phase.DECODE, AttentionKernel.FLASH)):
            workload = Workload(
                shape=shape, phase=phase, seq_len=512, dtype=DType.FP8, attention_kernel=kernel,
                context_len=512 if phase is Phase.DECODE else 0,
            )  # fmt: skip
            out.append((f"{name} {phase.value}", workload, dims))
    return out


LOWERED = workloads()


@pytest.mark.parametrize(("workload", "dims"), [case[1:] for case in LOWERED], ids=[case[0] for case in LOWERED])
def test_every_operator_has_a_role_and_the_blocks_share_them_out(workload: Workload, dims: ParallelDims) -> None:
    every, operators = blocks(workload.shape), lower(workload, dims).operators
    assert all(op.role is not None for op in operators)
    parts = {
        BlockKind.EMBEDDING: {Part.EMBEDDING},
        BlockKind.LAYER: {Part.LAYER},
        BlockKind.MTP: {Part.LAYER, Part.HEAD},
        BlockKind.HEAD: {Part.HEAD},
    }
    for op in operators:
        assert op.part in parts[every[op.block].kind] | {Part.OPTIMIZER}, op.name
    held = {op.block for op in operators}
    if workload.phase is Phase.TRAIN:
        assert held >= {i for i, block in enumerate(every) if block.layer is not None}


def test_traced_operators_have_roles_and_blocks_too() -> None:
    shape = read_traced(TRACE).shape
    assert shape.traced is not None
    workload = Workload(shape=shape, seq_len=shape.traced.seq_len, dtype=shape.traced.dtype)
    operators = lower(workload).operators
    assert all(op.role is not None for op in operators)
    assert {op.block for op in operators} == set(range(len(blocks(shape))))
    assert {Role.QKV, Role.ATTENTION_OUTPUT, Role.FFN_UP, Role.FFN_DOWN} <= {op.role for op in operators}


def _refuse(*_: object) -> NoReturn:
    raise AssertionError("code asked for an operator's name")


ASKS = (
    *SEARCHES,
    "rsplit",
    "rfind",
    "index",
    "count",
    "replace",
    "__contains__",
    "__eq__",
    "__ne__",
    "__lt__",
    "__gt__",
)
Sealed: Any = type("Sealed", (str,), {"__hash__": str.__hash__} | dict.fromkeys(ASKS, _refuse))
"""A name that people may read and code may not ask."""


def sealed(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    return tuple(replace(op, name=Sealed(f"operator {i}")) for i, op in enumerate(operators))


def ends_of_a_design() -> list[float]:
    model = DesignModel(name="deepseek-v3", shape=load_model("deepseek-v3"), seq_len=4096)
    found = model_parts(model, CopySplit(1, 2), 64)
    assert found is not None
    return [float(part.param_bytes + part.activation_bytes + part.backward.flops) for part in found.parts]


QUESTIONS: dict[str, Callable[[], Any]] = {
    "estimate": lambda: float(api.estimate("deepseek-v3", "h100_sxm", tp=8).microbatch.time_s),
    "lint": lambda: [(f.rule, dict(f.fix), f.gain_s) for f in api.lint("llama-2-7b", "a100_sxm", tp=8).findings],
    "plan": lambda: [
        search.best and search.best.step_s
        for search in api.plan("mixtral-8x7b", "dgx-h100", num_devices=16, global_batch_size=64, seq_len=4096).searches
    ],
    "design": ends_of_a_design,
}


@pytest.mark.slow
@pytest.mark.parametrize("journey", QUESTIONS)
def test_answers_do_not_depend_on_names(journey: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = QUESTIONS[journey]()
    monkeypatch.setattr(graph, "unique", sealed)
    assert QUESTIONS[journey]() == known
