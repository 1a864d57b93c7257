"""Real devices through PyTorch: CUDA, ROCm (the same calls) and the host's own cores.

Accelerators are timed by events around replays of a CUDA graph with launches on every set of buffers, or around the
launches themselves if a graph can't hold them (a model's training step). The host is timed by its clock: calls return
when the work is done.
"""

from __future__ import annotations

import gc
import json
import math
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from sartor.bench.cases import BenchCase
from sartor.bench.timing import DeviceFacts, DeviceState, Loaded, OutOfMemoryOnDevice, UnsupportedCase
from sartor.bench.torch_kernels import Buffers, Kernel
from sartor.errors import InputError, MissingExtraError
from sartor.hardware.catalog import canonical, load_gpu
from sartor.json_types import JsonDict
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, MemoryBound
from sartor.units import MEGA, MIB

DEVICES = ("cuda", "rocm", "cpu")

HOST_ROTATE_BYTES = 96 * MIB
"""Size that all operand sets together exceed on a host: more than any core's own cache. A server's shared last cache
(up to a gigabyte) is not exceeded, since a model would use it too."""

GRAPH_S, MOST_GRAPHED = 2e-3, 256
"""A graph holds launches of about ``GRAPH_S`` seconds in total, at most ``MOST_GRAPHED``."""


def import_torch() -> ModuleType:
    """PyTorch. Raises ``MissingExtraError`` with the command that installs it."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("measuring needs PyTorch", "torch") from None
    module: ModuleType = torch
    return module


def open_device(word: str, *, gpu: str = "", threads: int | None = None) -> TorchDevice:
    """Open cuda, rocm, cpu or, for a second device, cuda:1; empty takes an accelerator if there is one.

    ``gpu`` is its name in the records; by default the catalogue's name, or one made from the driver's. Raises
    ``InputError`` for a missing device, ``MissingExtraError`` without PyTorch.
    """
    torch = import_torch()
    kind, _, number = word.partition(":")
    kind = kind or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind not in DEVICES or (number and not number.isdigit()):
        raise InputError("device", word, "must be cuda, rocm or cpu, or cuda:N for one of several", "cpu")
    if kind == "cpu" and number:
        raise InputError("device", word, "must be plain cpu; --threads sets the number of cores", "cpu")
    if kind == "cpu":
        return TorchDevice(torch, "cpu", _cpu_facts(torch, gpu, threads))
    _check_there(torch, word, kind, int(number or 0))
    name = f"cuda:{int(number or 0)}"
    return TorchDevice(torch, name, _gpu_facts(torch, name, kind, gpu))


def _check_there(torch: ModuleType, word: str, kind: str, index: int) -> None:
    is_rocm = bool(getattr(torch.version, "hip", None))
    if not torch.cuda.is_available():
        build = "ROCm" if is_rocm else ("CUDA" if torch.version.cuda else "CPU")
        must = f"no such device: this PyTorch ({torch.__version__}, built for {build}) sees no accelerator here"
        raise InputError("device", word or kind, must, "cpu")
    if (kind == "rocm") != is_rocm:
        backend = "rocm" if is_rocm else "cuda"
        raise InputError("device", word, f"no such device: this PyTorch is built for {backend}", backend)
    if index >= torch.cuda.device_count():
        must = f"no such device: {torch.cuda.device_count()} are here"
        raise InputError("device", word, must, f"{kind}:{torch.cuda.device_count() - 1}")


class TorchDevice:
    """A ``Device`` driven by PyTorch."""

    def __init__(self, torch: ModuleType, name: str, facts: DeviceFacts) -> None:
        self.torch, self.name, self.facts = torch, name, facts
        self.on_host = name == "cpu"
        self._probe = CpuProbe() if self.on_host else None
        rotate = HOST_ROTATE_BYTES if self.on_host else 2.0 * facts.l2_bytes + 16 * MIB
        self.buffers = Buffers(torch, name, rotate, facts.memory_bytes)
        # A single thread is timed by its CPU time, which excludes other processes on its core; several by wall time.
        self._clock = time.thread_time if facts.threads == 1 else time.perf_counter
        self.waited_s = self._probe.waited_s if self._probe and facts.threads > 1 else _none_s
        self._stream = None if self.on_host else torch.cuda.Stream(name)
        gc.freeze()  # garbage collection after each case then only looks at the case's own objects

    def load(self, case: BenchCase) -> Loaded:
        """Prepare buffers and kernel of a case, and check them with one launch."""
        self.buffers.begin()
        if not self.on_host:
            self.torch.cuda.set_device(self.name)
        try:
            # Backward passes run on the stream of their forward pass, so that must be the one that is captured.
            with self.torch.cuda.stream(self._stream), self.torch.enable_grad():
                kernel = _kernel(case, self.buffers)
                kernel.launch(0)
            self._synchronise()
            return self._graphed(kernel) if kernel.capturable and not self.on_host else self._plain(kernel)
        except Exception as error:
            raise self._said(error) from error

    def launch_s(self, loaded: Loaded, launches: int) -> float:
        """Seconds of one launch."""
        try:
            if self.on_host:
                started = self._clock()
                _call(loaded.launch, launches)
                return (self._clock() - started) / launches
            if loaded.replay is None:
                return self._events_s(lambda: _call(loaded.launch, launches)) / launches
            rounds = max(1, round(launches / loaded.graphed))
            replay = loaded.replay.replay
            return self._events_s(lambda: _call(lambda _: replay(), rounds)) / (rounds * loaded.graphed)
        except Exception as error:
            raise self._said(error) from error

    def read(self) -> DeviceState:
        if self._probe:
            return self._probe.read()
        index = self.torch.cuda.current_device()
        return _read_amd(index) if self.facts.backend == "rocm" else _read_nvidia(index)

    def host_s(self) -> float:
        return time.perf_counter()

    def pause(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    def free(self) -> None:
        self.buffers.trim()
        gc.collect()
        if not self.on_host:
            self.torch.cuda.empty_cache()

    # ------------------------------------------------------------------------------------------- accelerators

    def _plain(self, kernel: Kernel) -> Loaded:
        timer = ("thread" if self.facts.threads == 1 else "host") if self.on_host else "events"
        return Loaded(launch=kernel.launch, sets=kernel.sets, set_bytes=kernel.set_bytes, timer=timer)

    def _graphed(self, kernel: Kernel) -> Loaded:
        """Capture the kernel in a graph of whole rounds over its sets; launch one by one if capture fails."""
        torch = self.torch
        one_s = self._events_s(lambda: _call(kernel.launch, 2)) / 2
        rounds = max(1, min(MOST_GRAPHED, math.ceil(GRAPH_S / max(one_s, 1e-7))) // kernel.sets)
        count = min(MOST_GRAPHED, kernel.sets * rounds)
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                _call(kernel.launch, count)
            graph.replay()
            self._synchronise()
        except RuntimeError:
            torch.cuda.synchronize()
            return self._plain(kernel)
        return Loaded(
            launch=kernel.launch,
            sets=kernel.sets,
            set_bytes=kernel.set_bytes,
            timer="graph",
            replay=graph,
            graphed=count,
        )

    def _events_s(self, work: Any) -> float:
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def _synchronise(self) -> None:
        if not self.on_host:
            self.torch.cuda.synchronize()

    def _said(self, error: Exception) -> Exception:
        """Translate an error of PyTorch into one that the runner handles."""
        if isinstance(error, (UnsupportedCase, OutOfMemoryOnDevice)):
            return error
        text = " ".join(str(error).split())
        lack = isinstance(error, (MemoryError, self.torch.OutOfMemoryError)) or "can't allocate memory" in text
        if lack or "out of memory" in text:
            return OutOfMemoryOnDevice(text[:120])
        return UnsupportedCase(f"{type(error).__name__}: {text[:100]}")


def _kernel(case: BenchCase, buffers: Buffers) -> Kernel:
    from sartor.bench.torch_kernels import gemm_kernel, grouped_kernel, memory_bound_kernel
    from sartor.bench.torch_stack import attention_kernel, stack_kernel

    work = case.work
    if isinstance(work, Gemm):
        return gemm_kernel(work, buffers, case.resident)
    if isinstance(work, GroupedGemm):
        return grouped_kernel(work, buffers)
    if isinstance(work, Attention):
        return attention_kernel(work, case.kernel, buffers, case.resident)
    if isinstance(work, MemoryBound):
        return memory_bound_kernel(work, buffers, case.resident)
    if isinstance(work, Collective):
        raise UnsupportedCase("collectives are run by processes of their own, one per device")
    return stack_kernel(work, buffers)


def _call(launch: Callable[[int], object], launches: int) -> None:
    for i in range(launches):
        launch(i)


def _none_s() -> float:
    return 0.0


# ------------------------------------------------------------------------------------------- who it is


def _cpu_facts(torch: ModuleType, gpu: str, threads: int | None) -> DeviceFacts:
    if threads is not None:
        if threads > (
            cores := len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        ):
            raise InputError("threads", threads, f"must be at most {cores}, the cores there are", str(cores))
        torch.set_num_threads(threads)
    used = torch.get_num_threads()
    name = cpu_name(_text("/proc/cpuinfo")) or os.uname().machine
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = re.search(r"MemAvailable:\s+(\d+)", _text("/proc/meminfo"))
    math_library = re.search(r"Intel\(R\) oneAPI Math Kernel Library Version [\d.]+|OpenBLAS [\d.]+", _config(torch))
    return DeviceFacts(
        gpu=gpu or f"{slug(name)}_{used}t",
        device=name,
        backend="cpu",
        driver=os.uname().release,
        torch=str(torch.__version__),
        library=math_library[0] if math_library else "",
        num_sms=used,
        memory_bytes=float(int(available[1]) * 1024 if available else memory),
        l2_bytes=last_cache_bytes() or 8.0 * MIB,
        threads=used,
    )


def _config(torch: ModuleType) -> str:
    return str(torch.__config__.show())


def _gpu_facts(torch: ModuleType, name: str, kind: str, gpu: str) -> DeviceFacts:
    properties = torch.cuda.get_device_properties(name)
    device = str(properties.name)
    return DeviceFacts(
        gpu=gpu or _catalogue_name(device),
        device=device,
        backend=kind,
        driver=_nvidia_driver() if kind == "cuda" else str(torch.version.hip or ""),
        torch=str(torch.__version__),
        library=str(torch.version.cuda or torch.version.hip or ""),
        num_sms=int(properties.multi_processor_count),
        memory_bytes=float(properties.total_memory),
        l2_bytes=float(getattr(properties, "L2_cache_size", 0) or 32 * MIB),
        num_devices=int(torch.cuda.device_count()),
    )


_PARTS = re.compile(r"\b(NVIDIA|AMD|Instinct|Tesla|GeForce|Quadro|Radeon|\d+ ?GB|HBM\w*|SXM\d?|PCIe?|OAM|VF)\b", re.I)


def _catalogue_name(device: str) -> str:
    """The catalogue's name for a driver's device name, or a slug of it if the catalogue has none.

    >>> catalogue_name("NVIDIA H100 80GB HBM3"), catalogue_name("NVIDIA A100-SXM4-40GB")
    ('h100_sxm', 'a100_sxm_40gb')
    """
    core = " ".join(_PARTS.sub(" ", device.replace("-", " ")).split())
    form = "pcie" if "pci" in device.lower() else "sxm"
    memory = re.search(r"(\d+) ?GB", device.replace("-", " "))
    size = f"_{memory[1]}gb" if memory else ""
    for tried in (device, f"{core}_{form}{size}", f"{core}_{form}", core, f"{core}_server"):
        try:
            return load_gpu(canonical(tried)).name
        except InputError:
            continue
    return slug(device)


def slug(name: str) -> str:
    """A name as one lower-case identifier."""
    plain = re.sub(r"\((r|tm|c)\)", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")[:48] or "device"


NVIDIA_QUERY = "clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu"


def _read_nvidia(index: int = 0) -> DeviceState:
    """Clocks, power and temperature of an NVIDIA device through NVML if its package is installed, else nvidia-smi."""
    if device := _nvml(index):
        return device
    words = (f"--query-gpu={NVIDIA_QUERY}", "--format=csv,noheader,nounits", "-i", str(index))
    return _parse_nvidia(_ask("nvidia-smi", *words))


def _nvidia_driver() -> str:
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


def _read_amd(index: int = 0) -> DeviceState:
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
