"""The protocol of a device that can be measured, and the facts about it that every record holds.

The runner uses only this protocol: ``torch_device`` has real devices, ``fake`` one with a simulated clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sartor.bench.cases import BenchCase


class OutOfMemoryOnDevice(Exception):
    """A case does not fit into memory; it is skipped and reported, and the run continues."""


class UnsupportedCase(Exception):
    """The device or its library has no kernel for a case; ``str`` is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The device and its software. Sizes in bytes."""

    gpu: str
    """The catalogue's name, or one made from the driver's name if the catalogue lacks the device."""
    device: str
    """The driver's name of the device."""
    backend: str
    """cuda, rocm or cpu."""
    driver: str
    torch: str
    library: str
    """Version of CUDA, ROCm or the math library."""
    num_sms: int
    memory_bytes: float
    l2_bytes: float
    num_devices: int = 1
    threads: int = 0
    """CPU threads that run the kernels; 0 on accelerators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """Clocks and power right after work; 0 if the device does not report them."""

    clock_hz: float = 0.0
    memory_clock_hz: float = 0.0
    power_w: float = 0.0
    power_limit_w: float = 0.0
    temperature_c: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A case loaded on the device: ``launch(i)`` queues it on the i-th set of buffers."""

    launch: Callable[[int], object]
    sets: int = 1
    set_bytes: float = 0.0
    """Bytes that one launch touches."""
    timer: str = "host"
    """graph (replayed), events (queued launch by launch), host (the call returns when the work is done) or thread (the
    time the one thread ran)."""
    replay: Any = None
    """A captured graph of ``graphed`` launches."""
    graphed: int = 0


class Device(Protocol):
    """A device that can be measured."""

    facts: DeviceFacts

    def load(self, case: BenchCase) -> Loaded:
        """Prepare random buffers and the kernel. Raises ``OutOfMemoryOnDevice`` or ``UnsupportedCase``."""

    def launch_s(self, loaded: Loaded, launches: int) -> float:
        """Mean seconds of ``launches`` back-to-back launches, by the device's own clock."""

    def read(self) -> DeviceState:
        """Clocks and power now."""

    def host_s(self) -> float:
        """The host's clock, used for time budgets."""

    def waited_s(self) -> float:
        """Seconds that this process's threads have waited for a core so far; 0 where work does not run on them."""

    def pause(self, seconds: float) -> None:
        """Let the device rest, so that it keeps its boost clock in short runs."""

    def free(self) -> None:
        """Free the buffers of the last case."""
