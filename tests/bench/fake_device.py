"""A device whose clock is a number: the harness, studies and reports are tried on it without PyTorch.

Every case takes what ``seconds`` says of it, scattered by ``noise``; cases in ``too_large`` do not fit, cases in
``unsupported`` have no kernel; ``interrupt_at`` presses Ctrl-C at the n-th case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sartor.bench.cases import BenchCase, StackRun
from sartor.bench.timing import DeviceFacts, DeviceState, Loaded, OutOfMemoryOnDevice, UnsupportedCase

FACTS = DeviceFacts(
    gpu="fake",
    device="A fake device",
    backend="cuda",
    driver="1.0",
    torch="0.0",
    library="none",
    num_sms=16,
    memory_bytes=16e9,
    l2_bytes=8e6,
)


def roofline_of(rate: float = 1e13, bandwidth: float = 4e11, launch_s: float = 3e-6) -> Callable[[BenchCase], float]:
    """Seconds of a case on a device that is nothing but a roofline with a launch."""

    def seconds(case: BenchCase) -> float:
        bytes_moved = 0.0 if isinstance(case.work, StackRun) else float(case.work.bytes_moved)
        return max(float(case.work.flops) / rate, bytes_moved / bandwidth) + launch_s

    return seconds


@dataclass(slots=True, kw_only=True)
class FakeDevice:
    """A ``Device`` on a fake clock."""

    facts: DeviceFacts = FACTS
    seconds: Callable[[BenchCase], float] = field(default_factory=roofline_of)
    noise: float = 0.0
    seed: int = 0
    disturb: Callable[[int], float] = lambda launches: 0.0
    """Seconds that others take from a call, by how many calls there were."""
    too_large: Callable[[BenchCase], bool] = lambda case: False
    unsupported: Callable[[BenchCase], str] = lambda case: ""
    interrupt_at: int = -1
    now: float = 0.0
    waited: float = 0.0
    calls: int = 0
    loads: list[BenchCase] = field(default_factory=list)
    freed: int = 0
    rested_s: float = 0.0

    def load(self, case: BenchCase) -> Loaded:
        self.loads.append(case)
        if len(self.loads) - 1 == self.interrupt_at:
            raise KeyboardInterrupt
        if self.too_large(case):
            raise OutOfMemoryOnDevice
        if reason := self.unsupported(case):
            raise UnsupportedCase(reason)
        return Loaded(launch=lambda _: self.seconds(case), sets=4, timer="events")

    def launch_s(self, loaded: Loaded, launches: int) -> float:
        one = float(loaded.launch(0)) * float(
            np.exp(np.random.default_rng([self.seed, self.calls]).normal(0, self.noise))
        )
        lost = self.disturb(self.calls)
        self.calls += 1
        self.waited += lost
        self.now += one * launches + lost
        return one + lost / launches

    def read(self) -> DeviceState:
        return DeviceState(clock_hz=1.5e9, power_w=250.0)

    def host_s(self) -> float:
        return self.now

    def waited_s(self) -> float:
        return self.waited

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.rested_s += seconds

    def free(self) -> None:
        self.freed += 1
