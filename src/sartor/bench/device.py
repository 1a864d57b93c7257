"""What a device must be able to do to be measured, and what is said of it in every record.

The runner knows devices by this protocol alone: ``torch_device`` makes real ones, ``fake`` one whose clock is a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sartor.bench.cases import BenchCase


class OutOfMemoryOnDevice(Exception):
    """A case does not fit; it is skipped and said, and the rest goes on."""


class UnsupportedCase(Exception):
    """The device or its library has no kernel for a case; ``str`` is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Who was measured. Sizes in bytes, rates unknown until measured."""

    gpu: str
    """The catalogue's name, or a name of its own where the catalogue has none."""
    device: str
    """The name the driver gives."""
    backend: str
    """cuda, rocm or cpu."""
    driver: str
    torch: str
    library: str
    """CUDA, ROCm or math library version."""
    num_sms: int
    memory_bytes: float
    l2_bytes: float
    num_devices: int = 1
    threads: int = 0
    """Host threads of the kernels; 0 on accelerators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """Clocks and power right after work; 0 where the device does not say."""

    clock_hz: float = 0.0
    memory_clock_hz: float = 0.0
    power_w: float = 0.0
    power_limit_w: float = 0.0
    temperature_c: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A case with its buffers on the device: ``launch(i)`` queues it on the i-th set of buffers."""

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
        """Buffers with random data and a kernel. Raises ``OutOfMemoryOnDevice`` or ``UnsupportedCase``."""

    def launch_s(self, loaded: Loaded, launches: int) -> float:
        """Seconds of one of ``launches`` back-to-back launches, by the device's own clock."""

    def read(self) -> DeviceState:
        """Clocks and power now."""

    def host_s(self) -> float:
        """The host's clock: what budgets are kept by."""

    def waited_s(self) -> float:
        """Seconds that this process's threads have waited for a core so far; 0 where work does not run on them."""

    def pause(self, seconds: float) -> None:
        """Let the device rest, so that clocks stay what they are in short runs."""

    def free(self) -> None:
        """Give back the buffers of the last case."""
