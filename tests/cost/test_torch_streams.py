"""PyTorch's memory-bound kernels: judged on the records of lab/records, by the law fitted on the other GPU."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.cost.cost_samples import LAB, lab_module

from sartor.bench.cases import BenchCase, StackRun, StepPart
from sartor.bench.records_file import _stack_graph, predict, read_rows, row_key
from sartor.cost.correction.calibration import TORCH, Clock, load_calibration
from sartor.cost.correction.calibration_file import load_own_calibration
from sartor.cost.correction.coefficients import TorchStreams, coefficients
from sartor.cost.cost import Z80, Cost, Source
from sartor.cost.gpu.memory_bound import KERNELS, RUNS, launched_cost, memory_bound_cost
from sartor.cost.price import price
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, MemoryBound, MemoryBoundKind, Pass, Role
from sartor.records.rows import MEMORY_BOUND

GOLDEN = Path(__file__).parents[1] / "golden"

TIMED = load_calibration(load_gpu("h100_sxm")).memory_bound.framework
"""vLLM's layers of 2023-24."""

SUM = MemoryBound(name="sum", kind=MemoryBoundKind.RESIDUAL, rows=8192, cols=4096, bytes_moved=6.0 * 8192 * 4096)


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return lab_module("fit_torch_streams")


def cost(op: MemoryBound, gpu: str = "h200_sxm", kernels: str = TORCH, *, eager: bool = False) -> Cost:
    device = load_gpu(gpu)
    return memory_bound_cost(op, device, load_calibration(device).with_kernels(kernels), eager=eager)


def fitted_without(gpu: str) -> TorchStreams:
    table = tomllib.loads((LAB / "torch_streams_held_out.toml").read_text(encoding="utf-8"))[gpu]
    return coefficients(TorchStreams, table)


@pytest.mark.parametrize(("gpu", "most"), [("h100_sxm", 0.04), ("h200_sxm", 0.046)])
def test_a_gpu_left_out_of_the_fit_is_predicted_by_the_other(lab: ModuleType, gpu: str, most: float) -> None:
    rows = [row for row in lab.rows_of(gpu) if not row.called]
    ratio = lab.ratios(fitted_without(gpu), rows)
    assert np.abs(ratio - 1).mean() < most
    sigma = np.array([float(cost(row.op, gpu).log_sigma) for row in rows])
    assert (np.abs(np.log(ratio)) <= Z80 * sigma).mean() >= 0.75


def test_the_package_holds_what_the_lab_fits(lab: ModuleType, shared_dir: Path) -> None:
    rows = [row for name in lab.GENERATIONS["hopper"] for row in lab.rows_of(name)]
    found = lab.fit([*lab.arithmetic(shared_dir), *rows])
    known = load_calibration(load_gpu("h200_sxm")).torch_streams
    assert known is not None
    assert lab.ratios(known, rows) == pytest.approx(lab.ratios(found, rows), rel=0.01)


@pytest.mark.parametrize("kernel", sorted({*KERNELS, *RUNS} - {"loss", "loss.backward"}))
def test_no_kernel_is_faster_with_more_rows_and_a_grid_equals_its_scalar_calls(kernel: str) -> None:
    word = kernel.removesuffix(".backward")
    kind = {"gelu": "activation", "silu_and_mul": "activation", "rmsnorm": "norm", "layernorm": "norm"}.get(word, word)
    rows, cols = np.array([1, 16, 500, 4096, 65536])[:, None], np.array([512, 2048, 2049, 50304])
    op = MemoryBound(
        name=word,
        kind=MemoryBoundKind(kind),
        kernel=word,
        pass_=Pass.BACKWARD if word != kernel else Pass.FORWARD,
        rows=rows,
        cols=cols,
        bytes_moved=4.0 * rows * cols,
    )
    time_s = np.broadcast_to(cost(op).time_s, (5, 4))
    assert np.all(np.diff(time_s, axis=0) >= 0)
    for i, j in ((0, 0), (3, 2), (4, 3)):
        size = (int(rows[i, 0]), int(cols[j]))
        one = replace(op, rows=size[0], cols=size[1], bytes_moved=4.0 * size[0] * size[1])
        assert time_s[i, j] == cost(one).time_s


def test_what_pytorch_runs_as_several_kernels_costs_their_traffic_and_launches() -> None:
    gated = replace(SUM, kind=MemoryBoundKind.ACTIVATION, kernel="silu_and_mul")
    assert cost(gated).time_s == pytest.approx(5 / 3 * cost(SUM).time_s, rel=0.02)
    assert cost(replace(gated, bytes_moved=1.0)).time_s > 1.9 * cost(replace(SUM, bytes_moved=1.0)).time_s
    chain = replace(gated, kernel="", kernels=2, bytes_moved=gated.bytes_moved * 5 / 3)
    assert cost(chain).time_s == pytest.approx(cost(gated).time_s)


def test_what_trainers_and_servers_fuse_is_one_kernel_of_the_least_traffic() -> None:
    for kind, kernel in ((MemoryBoundKind.ACTIVATION, "silu_and_mul"), (MemoryBoundKind.ROTARY, "")):
        op = replace(SUM, kind=kind, kernel=kernel)
        fused = cost(op, kernels="")
        assert cost(SUM).time_s <= fused.time_s < 0.7 * cost(op).time_s
        assert fused.overhead_s == cost(SUM).overhead_s


def test_chains_and_single_kernels_in_one_call_cost_what_each_costs_alone() -> None:
    kernels = np.array([1, 2, 7])
    for kind in MemoryBoundKind:
        both = cost(replace(SUM, kind=kind, kernels=kernels), kernels="")
        each = [cost(replace(SUM, kind=kind, kernels=int(n)), kernels="").time_s for n in kernels]
        assert np.array_equal(np.broadcast_to(both.time_s, 3), each)


def test_a_wide_row_of_softmax_takes_a_block_and_a_vocabulary_that_leaves_l2_is_read_again() -> None:
    def rate(cols: int, kernel: str, kind: MemoryBoundKind) -> float:
        op = replace(SUM, kind=kind, kernel=kernel, cols=cols, bytes_moved=2.0 * 8192 * cols)
        return float(op.bytes_moved / cost(op).time_s)

    assert rate(2048, "softmax", MemoryBoundKind.SOFTMAX) > 1.2 * rate(2056, "softmax", MemoryBoundKind.SOFTMAX)
    loss = [rate(cols, "cross_entropy", MemoryBoundKind.CROSS_ENTROPY) for cols in (50304, 151936)]
    assert loss[0] > 1.2 * loss[1]


def test_all_kernels_of_hopper_take_the_law_but_old_layers_and_those_that_route_tokens() -> None:
    norm = replace(SUM, kind=MemoryBoundKind.NORM, kernel="rmsnorm")
    for kernels in ("", "vllm", TORCH):
        assert cost(SUM, kernels=kernels).source is Source.CALIBRATED
        ratio = cost(norm, "h100_sxm", kernels).time_s / cost(norm, "h200_sxm", kernels).time_s
        assert 1.1 < ratio < 4.8 / 3.35, "one law: as the memory's rate, at most"
    assert cost(norm, "h100_sxm", TIMED).time_s > 1.9 * cost(norm, "h100_sxm").time_s
    routing = replace(SUM, kind=MemoryBoundKind.ROUTING)
    assert cost(routing, kernels="").time_s == cost(routing, kernels=TIMED).time_s
    assert (cost(routing).source, cost(routing, kernels="").source) == (Source.CALIBRATED, Source.ANALYTIC)
    assert cost(SUM, kernels="").log_sigma > cost(SUM).log_sigma
    assert cost(SUM, eager=True).time_s == cost(SUM, kernels="", eager=True).time_s
    assert cost(norm, "h100_sxm", eager=True).time_s < 1.6 * cost(norm, "h100_sxm").time_s
    assert cost(SUM, "b200").time_s == cost(SUM, "b200", "").time_s
    assert cost(SUM, "gh200").source is Source.ANALYTIC
    assert cost(SUM, "gh200").log_sigma > cost(SUM).log_sigma


def test_a_users_own_kernels_come_before_the_package_s(tmp_path: Path) -> None:
    gpu = load_gpu("h200_sxm")
    file = tmp_path / "own.toml"
    text = 'gpu = "h200_sxm"\ndtype = "bf16"\n[gemm]\ntiles = [[128, 256, 0.9]]\n[memory_bound]\nhbm_share = 0.5\n'
    file.write_text(text, encoding="utf-8")
    known = load_own_calibration(file, gpu).with_kernels(TORCH)
    assert memory_bound_cost(SUM, gpu, known).time_s > 1.5 * cost(SUM).time_s


@pytest.mark.parametrize("gpu", ["h100_sxm", "h200_sxm", "gh200", "a100_sxm", "v100_pcie_32gb", "b200", "mi210"])
@pytest.mark.parametrize("kernels", ["", TORCH])
def test_the_host_makes_no_kernel_faster_and_waiting_for_each_is_slowest(gpu: str, kernels: str) -> None:
    device = load_gpu(gpu)
    known = load_calibration(device).with_kernels(kernels)
    rows, launched = np.array([1, 32, 1024, 2048, 65536])[:, None], np.array([1, 2, 6])
    for kind in MemoryBoundKind:
        op = MemoryBound(name="x", kind=kind, rows=rows, cols=4096, bytes_moved=16384.0 * rows, kernels=launched)
        queued, waited = (memory_bound_cost(op, device, known, eager=eager).time_s for eager in (False, True))
        ahead = launched_cost(op, device, known)
        assert np.all(queued <= ahead.time_s)
        assert np.all(ahead.time_s <= waited * (1 + 1e-12))
        assert np.all(np.diff(ahead.time_s, axis=0) >= 0)
        assert np.all(np.diff(waited, axis=0) >= 0)
        assert np.allclose(ahead.time_s, ahead.memory_s + ahead.overhead_s)
        one = replace(op, rows=1024, bytes_moved=16384.0 * 1024, kernels=6)
        assert launched_cost(one, device, known).time_s == ahead.time_s[2, 2]


def test_hopper_s_law_holds_for_elementwise_kernels_that_a_host_of_another_generation_waits_for() -> None:
    """A100 PCIe (NeuSight, fp32), which the law never saw: with the middle host's calls."""
    device, hopper = load_gpu("a100_pcie_40gb"), load_calibration(load_gpu("h200_sxm")).with_kernels(TORCH)
    plain = [name for name, kind in MEMORY_BOUND.items() if kind is MemoryBoundKind.RESIDUAL]
    with (GOLDEN / "measured" / "memory_bound.csv").open(encoding="utf-8") as file:
        timed = [row for row in csv.DictReader(file) if row["gpu"] == device.name and row["op"] in plain]
    ratio = [
        memory_bound_cost(
            replace(SUM, cols=1, bytes_moved=float(row["bytes"]), kernel=row["op"], dtype=DType.FP32),
            device,
            hopper,
            eager=True,
        ).time_s
        / (float(row["latency_us"]) * 1e-6)
        for row in timed
    ]
    assert len(ratio) >= 100
    assert np.abs(np.array(ratio) - 1).mean() < 0.065


@pytest.mark.parametrize(("gpu", "most"), [("h100_sxm", 0.052), ("h200_sxm", 0.05)])
def test_steps_that_the_host_launched_kernel_by_kernel_do_not_wait_for_each(gpu: str, most: float) -> None:
    device = load_gpu(gpu)
    known = load_calibration(device).with_kernels(TORCH)
    rows = [row for file in sorted((LAB / "records" / gpu).glob("*.csv")) for row in read_rows(file)]
    steps = [row for row in rows if row["table"] == "layer_and_model" and row["timer"] == "events"]
    cases = {case.key: case for case in map(lab_module("timed_cases").case_of, steps)}
    ratio = []
    for key, case in cases.items():
        measured = np.median([float(row["latency_us"]) * 1e-6 for row in steps if row_key(row) == key])
        assert isinstance(case.work, StackRun)
        found = price(_stack_graph(case.work), device, known, clock=Clock.BOOST, eager=True)
        ratio.append(float(found.time_s) / measured)
    assert len(ratio) >= 20
    assert np.abs(np.array(ratio) - 1).mean() < most


def run(part: StepPart) -> StackRun:
    size = {"hidden_size": 1024, "num_heads": 16, "num_kv_heads": 16, "head_dim": 64, "ffn_hidden_size": 4096}
    return StackRun(name="stack", **size, num_layers=4, vocab_size=50304, batch=4, seq_len=2048, part=part)


def test_a_stack_that_was_timed_has_logits_of_every_token_and_states_in_the_weights_type() -> None:
    logits = next(op for op in _stack_graph(run(StepPart.FORWARD)).operators if op.role is Role.LOGITS)
    assert logits.m == 4 * 2048  # type: ignore[union-attr]
    steps = [op for op in _stack_graph(run(StepPart.STEP)).operators if op.pass_ is Pass.OPTIMIZER]
    assert sum(float(op.bytes_moved * op.count) for op in steps) == 14.0 * sum(int(op.cols) * op.count for op in steps)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("gpu", "part", "measured_us"),
    [
        ("h200_sxm", StepPart.FORWARD, 3074.7),
        ("h100_sxm", StepPart.FORWARD, 3153.7),
        ("h200_sxm", StepPart.TRAIN, 15285.0),
        ("h100_sxm", StepPart.TRAIN, 17340.0),
    ],
)  # lab/records, layer.csv
def test_whole_passes_of_a_small_model_are_within_six_percent(gpu: str, part: StepPart, measured_us: float) -> None:
    found = predict(BenchCase(work=run(part)), load_gpu(gpu), None)
    assert found is not None
    assert found.time_s == pytest.approx(measured_us * 1e-6, rel=0.06)
