"""The PyTorch side on the host's own cores, at sizes of milliseconds. Wants the extra ``torch``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sartor.bench.cases import BenchCase, StackRun, StepPart
from sartor.bench.journey import measure_cases
from sartor.bench.machine import streamed
from sartor.bench.records_file import _stack_shape
from sartor.bench.suites import TRAFFIC, _adam
from sartor.bench.timing import Device, Policy, UnsupportedCase, time_case
from sartor.bench.torch_device import import_torch, open_device
from sartor.cli import run as command
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.counts import count_params
from sartor.operators import Attention, DType, Gemm, GroupedGemm, Layout, Pass

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="the extra torch is not installed: make test-torch")


@pytest.fixture(scope="module")
def host(torch: Any) -> Any:
    return open_device("cpu", threads=1)


QUICK = Policy(warmup_s=0.0, sample_s=0.0, samples=3, most_s=0.1)


def seconds(device: Device, case: BenchCase) -> float:
    timing = time_case(device, device.load(case), case.mode, QUICK)
    device.free()
    return timing.median_s


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("batch", [1, 3])
def test_products_are_what_their_layout_says(host: Any, torch: Any, layout: Layout, batch: int) -> None:
    from sartor.bench.torch_kernels import gemm_kernel

    work = Gemm(name="g", batch=batch, m=5, n=7, k=11, layout=layout, dtype=DType.FP32)
    host.buffers.begin()
    kernel = gemm_kernel(work, host.buffers)
    out = kernel.launch(1)
    assert tuple(out.shape[-2:]) == (5, 7)
    assert torch.isfinite(out).all()
    assert out.abs().mean() > 0.1


def test_operands_are_rotated_random_and_lie_as_asked(host: Any, torch: Any) -> None:
    host.buffers.begin()
    first, second = host.buffers.random((64, 100), torch.float32, 2)
    assert first.data_ptr() != second.data_ptr()
    assert first.data_ptr() % 256 == second.data_ptr() % 256
    assert not torch.equal(first, second)
    assert 0.8 < float(first.std()) < 1.2
    assert host.buffers.sets(1e6) * 1e6 > host.buffers.rotate_bytes


@pytest.mark.parametrize("pass_", [Pass.FORWARD, Pass.BACKWARD])
@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("kernel", ["", "math"])
def test_attention_runs_both_ways_with_shared_heads(host: Any, pass_: Pass, kv_heads: int, kernel: str) -> None:
    work = Attention(
        name="a", batch=2, num_heads=4, num_kv_heads=kv_heads, seq_q=16, seq_kv=16, head_dim=32, v_head_dim=32,
        dtype=DType.FP32, pass_=pass_,
    )  # fmt: skip
    assert seconds(host, BenchCase(work=work, kernel=kernel)) > 0


def test_attention_that_pytorch_lacks_is_said(host: Any) -> None:
    work = Attention(name="a", batch=1, num_heads=4, num_kv_heads=4, seq_q=8, seq_kv=16, head_dim=32, v_head_dim=32)
    for lacking, why in ((work, "later chunk"), (replace(work, window=4), "window")):
        with pytest.raises(UnsupportedCase, match=why):
            host.load(BenchCase(work=lacking))
    with pytest.raises(UnsupportedCase, match="must be one of flash"):
        host.load(BenchCase(work=replace(work, seq_q=16), kernel="fast"))


@pytest.mark.parametrize("op", [*TRAFFIC, "cast", "routing"])
def test_streaming_kernels_run_both_ways(host: Any, op: str) -> None:
    forward = streamed(op, 8, 64, 2.0, DType.FP32)
    assert seconds(host, BenchCase(work=forward)) > 0
    if op not in ("routing", "cast"):
        assert seconds(host, BenchCase(work=replace(forward, pass_=Pass.BACKWARD))) > 0


def test_optimizer_and_experts_run_and_scans_are_said_to_lack_a_kernel(host: Any) -> None:
    assert seconds(host, BenchCase(work=_adam(1000))) > 0
    experts = GroupedGemm(name="e", groups=4, rows=32, n=16, k=8, dtype=DType.FP32)
    assert seconds(host, BenchCase(work=experts)) > 0
    with pytest.raises(UnsupportedCase, match="no PyTorch kernel does the same"):
        host.load(BenchCase(work=streamed("scan", 8, 8, 2.0, DType.FP32)))


TINY = StackRun(
    name="tiny", hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, ffn_hidden_size=64, gated=True, num_layers=2,
    vocab_size=128, batch=2, seq_len=16, dtype=DType.FP32,
)  # fmt: skip


@pytest.mark.parametrize("part", list(StepPart))
@pytest.mark.parametrize("vocab", [0, 128])
def test_stacks_run_forward_backward_stepped_and_decoding(host: Any, part: StepPart, vocab: int) -> None:
    run = replace(TINY, part=part, vocab_size=vocab, context_len=8 if part is StepPart.DECODE else 0)
    assert seconds(host, BenchCase(work=run)) > 0


def test_the_module_has_the_parameters_its_shape_counts(torch: Any) -> None:
    from sartor.bench.torch_stack import build_stack

    held = sum(weight.numel() for weight in build_stack(torch, TINY).parameters())
    assert held == count_params(_stack_shape(TINY)).total


def test_a_case_beyond_memory_is_skipped_and_said(host: Any, tmp_path: Path) -> None:
    huge = BenchCase(work=Gemm(name="g", m=2**20, n=2**20, k=64, dtype=DType.FP32))
    small = BenchCase(work=Gemm(name="g", m=64, n=64, k=64, dtype=DType.FP32))
    found = measure_cases(host, "test", lambda _: [huge, small], tmp_path / "r.csv", budget_s=20.0, rounds=1)
    assert list(found.result.skipped) == ["out of memory"]
    assert found.result.measured == 1


def test_devices_that_are_not_there_are_refused(torch: Any) -> None:
    with pytest.raises(InputError, match="must be cuda, rocm or cpu"):
        open_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no such device"):
            open_device("cuda")


def test_the_command_measures_writes_the_machine_and_says_what_is_next(
    torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, sheet = tmp_path / "r.csv", tmp_path / "mine.toml"
    words = ["measure", "--suite", "quick", "--device", "cpu", "--threads", "1", "--out", str(out), "--json"]
    assert command([*words, "--machine", str(sheet), "--time-budget-s", "8", "--rounds", "1"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "sartor/measure/1"
    assert body["measured"] > 0
    assert load_gpu(sheet).name == body["device"]["gpu"]
    assert command(words) == 2  # the file is there
    assert "--resume" in capsys.readouterr().err


def test_a_short_parity_gives_an_interval(torch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["measure", "parity", "--device", "cpu", "--threads", "1", "--hidden-size", "32", "--heads", "4,2"]
    assert command([*words, "--steps", "16", "--seq-len", "16", "--seeds", "2", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)["parity"]
    assert body["low"] < body["loss_difference"] < body["high"]


@pytest.mark.gpu
def test_an_accelerator_is_timed_by_graphs_and_events(torch: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no accelerator here: graphs and events are tried where there is one")
    device = open_device("")
    loaded = device.load(BenchCase(work=Gemm(name="g", m=1024, n=1024, k=1024)))
    assert loaded.timer == "graph"
    assert 1e-7 < device.launch_s(loaded, 10) < 1e-2
    assert import_torch() is torch
