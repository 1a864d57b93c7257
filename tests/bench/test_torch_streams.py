"""What PyTorch runs for a memory-bound operator is what its price says."""

from __future__ import annotations

from typing import Any

import pytest

from sartor.bench.records_file import EAGER
from sartor.bench.suites import model_cases
from sartor.model.lower import lower
from sartor.model.workload import Workload
from sartor.model.zoo import load_model
from sartor.operators import MemoryBound, MemoryBoundKind, Pass

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
pytestmark = pytest.mark.torch


def made(op: MemoryBound) -> Any:
    from sartor.bench.torch_kernels import Buffers, memory_bound_kernel

    return memory_bound_kernel(op, Buffers(torch, "cpu", rotate_bytes=0.0, memory_bytes=1e9)).launch(0)


def op(kind: MemoryBoundKind, moved: float, **more: Any) -> MemoryBound:
    return MemoryBound(name="x", kind=kind, rows=16, cols=64, bytes_moved=moved * 16 * 64, **more)


def test_the_backward_of_a_sum_adds_two_gradients() -> None:
    assert made(op(MemoryBoundKind.RESIDUAL, 6.0, pass_=Pass.BACKWARD)).shape == (16, 64)


def test_a_permutation_writes_as_many_copies_as_its_bytes_say() -> None:
    assert made(op(MemoryBoundKind.ROUTING, 2 * 9.0)).shape == (8 * 16, 64)


def test_a_chain_of_kernels_computes_what_the_fused_kernel_does() -> None:
    chain = op(MemoryBoundKind.NORM, 44.0, kernels=6)
    assert torch.allclose(made(chain).float().pow(2).mean(-1), torch.ones(16), atol=0.02)


def test_every_memory_bound_operator_of_an_eager_model_runs() -> None:
    for name in ("pythia-70m", "qwen3-30b-a3b"):
        graph = lower(Workload(shape=load_model(name), seq_len=16), kernels=EAGER)
        works = [case.work for case in model_cases(graph) if isinstance(case.work, MemoryBound)]
        for work in (each for each in works if each.kind is not MemoryBoundKind.OPTIMIZER):
            results = made(work)
            for result in results if isinstance(results, tuple) else (results,):
                assert torch.isfinite(result.float()).all(), work
