"""Gaps by their shape: each made in a trace of its own, whose cause is known."""

from __future__ import annotations

import numpy as np
import pytest

from sartor.step.measured_run import PartKind, TracePart
from sartor.traces.attribute import attribute, losses
from sartor.traces.kernel_trace import HostOperator, KernelTrace, Recorded, kernel_trace

MS = 1e-3
LONG = "nvjet_hsh_128x256"
IDLE = (
    PartKind.LEAD_IN,
    PartKind.DATA,
    PartKind.STALL,
    PartKind.SYNC,
    PartKind.HOST_GAP,
    PartKind.STREAM_WAIT,
    PartKind.KERNEL_START,
)


class Device:
    """A device whose kernels begin and are launched when a test says so; times in ms."""

    def __init__(self) -> None:
        self.kept = Recorded()
        self.now = 0.0

    def kernel(
        self,
        dur: float = 1.0,
        *,
        gap: float = 0.0,
        launched: float | None = -50.0,
        stream: int = 7,
        name: str = LONG,
    ) -> None:
        """The next kernel, ``gap`` after the one before, launched so long after that one's end (None: not recorded)."""
        number = len(self.kept.kernels)
        if launched is not None:
            self.kept.launches[number] = (self.now + launched) * MS, -1, 1
        self.now += gap
        self.kept.kernels.append((self.now * MS, dur * MS, name, stream, number, -1))
        self.now += dur

    def late(self, gap: float, dur: float = 1.0, stream: int = 7, name: str = LONG) -> None:
        """A kernel that is launched too late and begins 5 us after its launch."""
        self.kernel(dur, gap=gap, launched=gap - 0.005, stream=stream, name=name)

    def call(self, name: str, begin: float, end: float) -> None:
        self.kept.add_call(name, begin * MS, end * MS)

    def step(self, begin: float, end: float) -> None:
        self.kept.steps.append((f"ProfilerStep#{len(self.kept.steps)}", begin * MS, end * MS))

    @property
    def trace(self) -> KernelTrace:
        return kernel_trace("made", self.kept)


def parts_of(device: Device) -> dict[PartKind, TracePart]:
    """The idle parts that are not empty; all parts must add up to the step."""
    found = attribute(device.trace)
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.step_s)
    return {part.kind: part for part in found.parts if part.kind in IDLE and part.seconds > 1e-9}


def test_launches_that_come_too_late_are_told_from_kernels_too_small_for_the_host() -> None:
    small, large = Device(), Device()
    for _ in range(40):
        small.late(0.03, dur=0.004)
        large.late(0.3, dur=1.0)
    ((kind, part),) = parts_of(small).items()
    assert kind is PartKind.HOST_GAP
    assert part.seconds == pytest.approx(39 * 0.03 * MS)
    assert part.evidence[0] == "39 gaps per step, 30 us at the median"
    assert "too small for the host" in part.fix
    assert "CUDA graphs" in part.fix
    assert "too small" not in parts_of(large)[PartKind.HOST_GAP].fix


def test_one_long_gap_among_short_ones_is_a_stall_and_is_not_cured_by_faster_launches() -> None:
    device = Device()
    for number in range(40):
        device.late(490.0 if number == 20 else 0.01)
    device.kept.add_frame("serve.py(12): schedule", 0.02, 0.48)
    found = parts_of(device)
    assert found[PartKind.STALL].seconds == pytest.approx(490 * MS)
    assert found[PartKind.STALL].evidence == ("1 gap per step", "serve.py(12): schedule: 490 ms")
    assert "not slow launches" in found[PartKind.STALL].fix
    assert losses(attribute(device.trace))[0].kind is PartKind.STALL
    assert found[PartKind.HOST_GAP].seconds == pytest.approx(38 * 0.01 * MS)


def test_a_stall_in_a_call_that_allocates_is_cured_by_not_allocating() -> None:
    device = Device()
    for number in range(20):
        if number == 10:
            device.call("cudaMalloc", device.now - 0.5, device.now + 29)
        device.late(30.0 if number == 10 else 0.01)
    stall = parts_of(device)[PartKind.STALL]
    assert stall.evidence[1] == "cudaMalloc: 30 ms"
    assert "expandable_segments" in stall.fix


def test_a_launch_that_itself_takes_long_is_the_hosts_and_not_a_wait_of_a_stream() -> None:
    device = Device()
    device.kernel()
    device.call("cudaLaunchKernel", device.now + 0.1, device.now + 40)
    device.kernel(gap=40.01, launched=0.1)
    ((kind, part),) = parts_of(device).items()
    assert kind is PartKind.STALL
    assert part.evidence[1] == "cudaLaunchKernel: 40 ms"


def test_the_wait_before_a_steps_first_kernel_is_a_lead_in() -> None:
    device = Device()
    for _ in range(5):
        begin = device.now
        device.late(20.0)
        for _ in range(9):
            device.kernel(launched=-0.5)
        device.step(begin + 0.001, device.now)
    ((kind, part),) = parts_of(device).items()
    assert kind is PartKind.LEAD_IN
    assert part.seconds == pytest.approx(20 * MS)
    assert part.evidence[:2] == ("1 gap per step", "before nvjet_hsh_128x256: 20 ms")
    assert "prepare the next step" in part.fix


def test_what_the_host_does_at_the_end_of_a_step_is_named_and_is_no_lead_in() -> None:
    device = Device()
    for _ in range(5):
        begin = device.now
        device.late(20.0)
        for _ in range(9):
            device.kernel(launched=-0.5)
        device.call("cudaDeviceSynchronize", device.now - 5, device.now + 0.003)
        device.kept.add_frame("train.py(88): log_metrics", (device.now + 0.004) * MS, (device.now + 19.9) * MS)
        device.step(begin + 19.95, device.now + 19.94)
    ((kind, part),) = parts_of(device).items()
    assert kind is PartKind.STALL
    assert part.evidence[1] == "train.py(88): log_metrics after cudaDeviceSynchronize: 20 ms"
    assert "train.py(88): log_metrics" in part.fix


def test_gaps_between_the_launches_of_an_optimizer_are_cured_by_a_fused_one() -> None:
    device = Device()
    device.kernel(9.0)
    begin = device.now
    for _ in range(40):
        device.late(0.03, dur=0.004)
    device.kept.add_frame("Optimizer.step#AdamW.step", begin * MS, device.now * MS)
    assert "AdamW(..., fused=True)" in parts_of(device)[PartKind.HOST_GAP].fix


@pytest.mark.parametrize("name", ["save_checkpoint", "torch/serialization.py(850): save"])
def test_saving_a_checkpoint_is_named_and_left_out_of_the_step(name: str) -> None:
    device = Device()
    for number in range(4):
        begin = device.now
        for _ in range(9):
            device.kernel(launched=-0.5)
        if number == 2:
            device.kept.add_frame(name, device.now * MS, (device.now + 300) * MS)
            device.kept.kernels.append((device.now * MS, 0.2, "Memcpy DtoH (Device -> Pageable)", 7, -1, -1))
            device.now += 300
        device.step(begin - 0.6, device.now - 0.6)
    found = attribute(device.trace)
    (checkpoint,) = losses(found)
    assert checkpoint.kind is PartKind.CHECKPOINT
    assert checkpoint.evidence == ("300 ms within 3 steps, left out of the step above",)
    assert found.step_s == pytest.approx(9 * MS)


def test_a_lead_in_of_the_only_step_may_be_the_start_of_the_program() -> None:
    device = Device()
    device.late(218.0)
    for _ in range(9):
        device.kernel(launched=-0.5)
    device.step(0.0, device.now)
    ((kind, part),) = parts_of(device).items()
    assert kind is PartKind.LEAD_IN
    assert part.seconds == pytest.approx(218 * MS)
    assert part.fix.startswith("profile three steps or more")


def test_the_wait_before_the_first_kernel_of_a_trace_without_steps_is_a_loss_beside_it() -> None:
    device = Device()
    device.kept.add_frame("serve.py(12): load", 0.0, 0.2)
    device.late(210.0)
    for _ in range(40):
        device.late(0.05)
    first, second = losses(attribute(device.trace))
    assert (first.kind, first.seconds) == (PartKind.LEAD_IN, 0.0)
    assert first.evidence == ("210 ms before the first kernel, left out of the step above",)
    assert first.fix.startswith("profile three steps or more")
    assert second.kind is PartKind.HOST_GAP


def test_launches_of_a_loop_that_clips_gradients_are_told_to_clip_all_at_once() -> None:
    device = Device()
    for name in ("reduce_kernel<512, NormTwoOps>", "vectorized_elementwise_kernel<4, MulFunctor>"):
        for _ in range(150):
            device.late(0.03, dur=0.004, name=name)
    assert "clip_grad_norm_(..., foreach=True)" in parts_of(device)[PartKind.HOST_GAP].fix


def test_long_pauses_are_told_from_small_kernels_by_the_share_of_the_time_not_by_the_median() -> None:
    device = Device()
    for number in range(200):
        device.late(6.0 if number % 20 == 10 else 0.03, dur=0.004)
    part = parts_of(device)[PartKind.HOST_GAP]
    assert "30 us at the median" in part.evidence[0]
    assert "91.4% of their time in 10 of 199 above 1 ms" in part.evidence[0]
    assert part.fix.startswith("look at what the host does in its long gaps")


def test_a_kernel_launched_in_time_that_begins_late_waits_for_another_stream() -> None:
    device = Device()
    for number in range(30):
        device.kernel(stream=20 if number % 2 else 7, gap=0.5)
    assert "wait for is not recorded" in parts_of(device)[PartKind.STREAM_WAIT].fix
    device.kept.add_call("cudaStreamWaitEvent", 0.0, 1e-6)
    ((kind, part),) = parts_of(device).items()
    assert kind is PartKind.STREAM_WAIT
    assert part.seconds == pytest.approx(29 * 0.5 * MS)
    assert part.evidence[1].startswith(
        "nvjet_hsh_128x256 on stream 20 was launched and waits, after the work of stream 7"
    )
    assert "event" in part.fix


def test_a_gap_is_divided_at_the_launch_of_the_kernel_that_ends_it() -> None:
    device = Device()
    device.kernel()
    device.kernel(gap=10.0, launched=2.0)
    found = parts_of(device)
    assert found[PartKind.STREAM_WAIT].seconds == pytest.approx(8 * MS)
    assert found[PartKind.STALL].seconds == pytest.approx(2 * MS)


def test_microseconds_between_launched_kernels_are_their_start_though_the_host_waits_meanwhile() -> None:
    device = Device()
    for _ in range(100):
        device.kernel(0.005, gap=0.002)
    device.call("cudaDeviceSynchronize", 0, device.now)
    ((kind, part),) = parts_of(device).items()
    assert kind is PartKind.KERNEL_START
    assert part.evidence == ("99 gaps per step, 2 us at the median",)
    assert "fewer, larger kernels" in part.fix


def test_what_follows_a_call_that_waits_and_what_data_loading_takes_are_said_with_their_place() -> None:
    device = Device()
    for _ in range(3):
        device.kernel(100)
        device.call("cudaStreamSynchronize", device.now - 50, device.now + 0.005)
        device.kept.add_frame("train.py(7): log_loss", (device.now - 60) * MS, (device.now + 9) * MS)
        device.kept.add_frame("torch/_tensor.py(1): item", (device.now - 50) * MS, (device.now + 8) * MS)
        device.late(10, dur=100)
    device.kept.add_frame("enumerate(DataLoader)#Iter.__next__", device.now * MS, (device.now + 9) * MS)
    device.late(10)
    found = parts_of(device)
    assert found[PartKind.SYNC].evidence[1] == "cudaStreamSynchronize in train.py(7): log_loss: 30 ms"
    assert ".item()" in found[PartKind.SYNC].fix
    assert found[PartKind.DATA].seconds == pytest.approx(10 * MS)
    assert "workers" in found[PartKind.DATA].fix


def test_a_wait_for_sizes_that_depend_on_data_names_its_operator_and_is_cured_by_fixed_ones() -> None:
    device = Device()
    device.kept.operators[-1] = HostOperator(name="aten::nonzero")  # of every kernel here
    device.kept.threads.append(1)
    for _ in range(9):
        device.kernel(1)
        device.call("cudaStreamSynchronize", device.now - 0.5, device.now + 0.005)
        device.late(0.1)
    sync = parts_of(device)[PartKind.SYNC]
    assert sync.evidence[1].startswith("cudaStreamSynchronize after aten::nonzero: ")
    assert "grouped product" in sync.fix


def test_gaps_without_recorded_launches_get_no_cause() -> None:
    device = Device()
    for _ in range(10):
        device.kernel(gap=5.0, launched=None)
    ((kind, part),) = parts_of(device).items()
    assert kind is PartKind.HOST_GAP
    assert part.fix.startswith("profile the CPU's activities too")


def test_the_timeline_is_one_step_of_the_headlines_length() -> None:
    device = Device()
    for number in range(6):
        begin = device.now
        for _ in range(10 if number else 3):
            device.kernel(2.0)
        device.step(begin - 60, device.now - 60)
    found = attribute(device.trace)
    assert found.step_s == pytest.approx(20 * MS)
    assert max(stretch.end_s for stretch in found.stretches) == pytest.approx(found.step_s, rel=0.01)
    assert np.isclose(min(stretch.begin_s for stretch in found.stretches), 0.0, atol=1e-9)
