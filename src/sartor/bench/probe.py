"""Read a machine's state outside PyTorch: nvidia-smi or NVML, rocm-smi, /proc and /sys.

Parsers take text, so that they can be tested without the machines; missing values are 0 or empty.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

from sartor.bench.timing import DeviceState
from sartor.json_types import JsonDict
from sartor.units import MEGA

NVIDIA_QUERY = "clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu"


def read_nvidia(index: int = 0) -> DeviceState:
    """Clocks, power and temperature of an NVIDIA device through NVML if its package is installed, else nvidia-smi."""
    if device := _nvml(index):
        return device
    words = (f"--query-gpu={NVIDIA_QUERY}", "--format=csv,noheader,nounits", "-i", str(index))
    return _parse_nvidia(_ask("nvidia-smi", *words))


def nvidia_driver() -> str:
    """The driver's version; empty if nvidia-smi does not answer."""
    lines = _ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    return lines[0].strip() if lines else ""


def _parse_nvidia(line: str) -> DeviceState:
    """One line of ``nvidia-smi --query-gpu`` in the order of ``NVIDIA_QUERY``, without units."""
    values = [_number(word) for word in line.splitlines()[0].split(",")] if line.strip() else []
    sm, memory, power, limit, heat = [*values, *[0.0] * 5][:5]
    return DeviceState(
        clock_hz=sm * MEGA, memory_clock_hz=memory * MEGA, power_w=power, power_limit_w=limit, temperature_c=heat
    )


def read_amd(index: int = 0) -> DeviceState:
    """Clocks, power and temperature of an AMD device through rocm-smi."""
    return _parse_amd(_ask("rocm-smi", "-d", str(index), "--showclocks", "--showpower", "--showtemp", "--json"))


def _parse_amd(text: str) -> DeviceState:
    """``rocm-smi --json``: the first card's sclk, mclk, power and temperature, whatever their keys are called."""
    try:
        cards = json.loads(text or "{}")
    except ValueError:
        return DeviceState()
    card: JsonDict = next((value for value in cards.values() if isinstance(value, dict)), {})

    def first(*words: str) -> float:
        return next((_number(str(v)) for key, v in card.items() if all(word in key.lower() for word in words)), 0.0)

    return DeviceState(
        clock_hz=first("sclk", "speed") * MEGA,
        memory_clock_hz=first("mclk", "speed") * MEGA,
        power_w=first("power", "(w)"),
        temperature_c=first("temperature"),
    )


class CpuProbe:
    """The host's clock, package power (RAPL, between two readings) and this process's time waiting for a core."""

    ENERGY = Path("/sys/class/powercap/intel-rapl:0/energy_uj")

    def __init__(self) -> None:
        self._energy_j, self._at_s = self._energy(), time.perf_counter()

    def read(self) -> DeviceState:
        energy, now = self._energy(), time.perf_counter()
        power = (energy - self._energy_j) / max(now - self._at_s, 1e-9) if energy and self._energy_j else 0.0
        self._energy_j, self._at_s = energy, now
        return DeviceState(clock_hz=_cpu_clock_hz(_text("/proc/cpuinfo")), power_w=max(power, 0.0))

    def waited_s(self) -> float:
        """Sum over threads of the time they were ready and another had the core (/proc/*/schedstat, field 2)."""
        total = 0
        for path in Path("/proc/self/task").glob("*/schedstat"):
            words = _text(path).split()
            total += int(words[1]) if len(words) > 1 else 0
        return total / 1e9

    def _energy(self) -> float:
        text = _text(self.ENERGY).strip()
        return int(text) / 1e6 if text.isdigit() else 0.0


def cpu_name(cpuinfo: str) -> str:
    """The model of the first processor."""
    match = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else ""


def _cpu_clock_hz(cpuinfo: str) -> float:
    """Mean clock over processors from /proc/cpuinfo; 0 if it has none."""
    mhz = [float(value) for value in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", cpuinfo, re.MULTILINE)]
    return sum(mhz) / len(mhz) * MEGA if mhz else 0.0


def last_cache_bytes(folder: str | Path = "/sys/devices/system/cpu/cpu0/cache") -> float:
    """Size of the last-level cache from /sys; 0 if unknown."""
    sizes = [_cache_size(_text(path)) for path in sorted(Path(folder).glob("index*/size"))]
    return max(sizes, default=0.0)


def _cache_size(text: str) -> float:
    match = re.match(r"\s*(\d+)\s*([KMG]?)", text)
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]] if match else 0.0


def _nvml(index: int) -> DeviceState | None:
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore]

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return DeviceState(
            clock_hz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * MEGA,
            memory_clock_hz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM) * MEGA,
            power_w=pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            power_limit_w=pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            temperature_c=pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        )
    except Exception:  # the package is absent, or the driver does not answer one of the questions: ask nvidia-smi
        return None


def _ask(*command: str) -> str:
    """What a program prints; empty if it is missing, fails or hangs."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(word: str) -> float:
    match = re.search(r"-?\d+(?:\.\d+)?", word)
    return float(match[0]) if match else 0.0
