"""Suites: what they hold, that they fit the device, and that the same device gives the same cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.fake_device import FACTS, FakeDevice, roofline_of
from sartor.bench.cases import StackRun
from sartor.bench.journey import measure
from sartor.bench.machine import Scale, look, stand_in
from sartor.bench.records_file import _stack_graph, _stack_shape, predict
from sartor.bench.suites import SUITES, suite
from sartor.errors import InputError
from sartor.model.counts import count_params
from sartor.model.lower import lower
from sartor.model.workload import Workload
from sartor.model.zoo import load_model
from sartor.operators import Collective, DType, Gemm, Layout, Pass

HOST = replace(FACTS, backend="cpu", gpu="host", num_sms=2, memory_bytes=8e9, threads=2)
SMALL = Scale(facts=HOST, flops_per_s={DType.FP32: 2.0**37, DType.BF16: 2.0**38}, bytes_per_s=2.0**34)
LARGE = Scale(
    facts=replace(FACTS, num_sms=132, memory_bytes=80e9, l2_bytes=50e6),
    flops_per_s={DType.BF16: 2.0**49, DType.FP16: 2.0**49, DType.FP32: 2.0**45, DType.FP8: 2.0**50},
    bytes_per_s=2.0**41,
)


@pytest.mark.parametrize("name", [name for name in SUITES if name != "model"])
@pytest.mark.parametrize("scale", [SMALL, LARGE], ids=["host", "gpu"])
def test_a_suite_is_the_same_every_time_and_holds_no_case_twice(name: str, scale: Scale) -> None:
    cases = suite(name, scale)
    assert [case.key for case in cases] == [case.key for case in suite(name, scale)]
    products = [case.key for case in cases if isinstance(case.work, Gemm)]
    assert len(set(products)) >= 0.95 * len(products)


@pytest.mark.parametrize("scale", [SMALL, LARGE], ids=["host", "gpu"])
def test_every_case_of_quick_takes_little_time_and_memory(scale: Scale) -> None:
    assert all(scale.fits(case.work, 0.2) for case in suite("quick", scale))
    assert sum(scale.seconds(case.work) for case in suite("quick", scale)) < 10


def test_full_holds_every_kind_of_work_and_every_layout() -> None:
    cases = suite("full", LARGE)
    assert {case.table for case in cases} == {"gemm", "attention", "memory_bound", "layer_and_model"}
    gemms = [case.work for case in cases if isinstance(case.work, Gemm)]
    assert {op.layout for op in gemms} == set(Layout) - {Layout.TILED}  # PyTorch multiplies no pre-shuffled weights
    assert {op.dtype for op in gemms} == set(LARGE.flops_per_s)
    assert any(int(op.batch) > 1 for op in gemms)
    assert {case.kernel for case in cases} == {"", "flash", "efficient", "cudnn", "math"}
    assert {case.mode.value for case in cases} == {"burst", "sustained"}
    assert {case.columns.get("phase") for case in cases} >= {"context", "encoder", "generation", "train_step", "step"}
    assert any(case.work.pass_ is Pass.BACKWARD for case in cases if case.table == "attention")


def test_alignment_varies_each_axis_in_each_layout() -> None:
    cases = [case.work for case in suite("alignment", LARGE)]
    for layout in Layout:
        for axis in "mnk":
            values = {getattr(op, axis) for op in cases if op.layout is layout}
            assert {value % 128 for value in values} >= {0, 1, 2, 4, 8, 64}


def test_fp8_products_are_those_the_library_has() -> None:
    gemms = [case.work for case in suite("full", LARGE) if isinstance(case.work, Gemm) and case.work.dtype is DType.FP8]
    assert gemms
    assert all(op.layout is Layout.TN and op.n % 16 == 0 and op.k % 16 == 0 for op in gemms)


def test_the_model_suite_is_the_operators_of_estimate() -> None:
    graph = lower(Workload(shape=load_model("pythia-70m"), seq_len=128))
    cases = suite("model", SMALL, graph)
    single = [op for op in graph.operators if not isinstance(op, Collective)]
    assert {case.tags["name"] for case in cases} <= {op.name for op in single}
    sizes = {(op.m, op.n, op.k, op.layout) for op in single if isinstance(op, Gemm)}
    assert sizes == {(c.work.m, c.work.n, c.work.k, c.work.layout) for c in cases if isinstance(c.work, Gemm)}


def test_a_suite_nobody_knows_is_refused_with_the_names() -> None:
    with pytest.raises(InputError, match="quick, full, random, model, alignment, waves, layer"):
        suite("everything", SMALL)
    with pytest.raises(InputError, match="must name a model"):
        suite("model", SMALL)


def test_looking_at_a_device_finds_its_rates_within_a_factor_of_two() -> None:
    scale = look(FakeDevice(seconds=roofline_of(rate=1e14, bandwidth=1e12)))
    assert scale.flops_per_s[DType.BF16] == pytest.approx(1e14, rel=1.0)
    assert scale.bytes_per_s == pytest.approx(1e12, rel=1.0)
    assert not scale.small


def test_a_host_without_fast_narrow_types_is_measured_in_fp32() -> None:
    def seconds(case: object) -> float:
        return 1e-3 * (1.0 if case.work.dtype is DType.FP32 else 1.2)  # type: ignore[attr-defined]

    assert set(look(FakeDevice(facts=HOST, seconds=seconds)).flops_per_s) == {DType.FP32}


@pytest.mark.parametrize("scale", [SMALL, LARGE], ids=["host", "gpu"])
def test_stacks_lower_to_the_weights_they_have(scale: Scale) -> None:
    for case in suite("layer", scale):
        run = case.work
        assert isinstance(run, StackRun)
        if run.vocab_size:
            vectors = run.hidden_size * (2 * run.num_layers + 1)
            assert count_params(_stack_shape(run)).total == run.num_params + vectors
        found = predict(case, stand_in(scale), None)
        assert found is not None
        assert found.time_s > 0


def test_a_training_step_of_a_stack_has_its_optimizer_and_a_layer_has_no_head() -> None:
    runs = {case.work.name + case.work.part.value: case.work for case in suite("layer", SMALL)}  # type: ignore[union-attr]
    assert any(op.pass_ is Pass.OPTIMIZER for op in _stack_graph(runs["stack-h256step"]).operators)
    assert not any(op.pass_ is Pass.OPTIMIZER for op in _stack_graph(runs["stack-h256train_step"]).operators)
    assert not any(op.name.startswith("logits") for op in _stack_graph(runs["layer-h256train_step"]).operators)


def test_a_resumed_suite_goes_on_with_its_cases_on_a_machine_that_looks_twice_as_fast_by_now(tmp_path: Path) -> None:
    def host(bandwidth: float) -> FakeDevice:
        return FakeDevice(facts=HOST, seconds=roofline_of(rate=2e11, bandwidth=bandwidth))

    path = tmp_path / "records.csv"
    begun = measure(host(2.2e10), "quick", path, budget_s=3.0, rounds=1)
    found = measure(host(3.4e10), "quick", path, resume=True, budget_s=1.0, rounds=1)
    assert 0 < begun.result.measured < begun.result.cases
    assert found.result.kept == begun.result.measured
    assert [case.key for case in found.cases] == [case.key for case in begun.cases]
