"""Convert the words, sizes and paths of a call to typed values; invalid ones raise a one-sentence ``InputError``."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sartor.cost.correction.attention import frameworks_of, kernels_measured
from sartor.cost.correction.calibration import ANY, TORCH, Calibration, load_calibration
from sartor.cost.correction.calibration_file import load_own_calibration, read_calibration_file
from sartor.cost.correction.gemm import (
    frameworks_of_gemms,
    kernel_of_quantizing,
    libraries_measured,
    libraries_of_gemms,
)
from sartor.cost.correction.gemm_features import quantizing_of, waits_for_the_host
from sartor.cost.correction.relatives import sdpa_measured
from sartor.cost.gpu.rates import as_run, widened_note
from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import load_device
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import USUAL_CLUSTER, load_cluster, names_a_device, usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.operators import WEIGHT_ONLY_NAMES, DType
from sartor.step.serving.engines import ENGINES, engines_on

GpuLike = str | Path | Gpu
ClusterLike = str | Path | Cluster


def seconds(field: str, value: float | None) -> float:
    """A time limit; None is infinite."""
    if value is None:
        return float("inf")
    if not 0 < value < 1e9:
        raise InputError(field, value, "must be a number of seconds above 0", "600")
    return float(value)


def device_of(gpu: GpuLike) -> Gpu:
    """A GPU or a chip of the accelerator template; a chip that cannot be built gives a warning."""
    if not isinstance(gpu, str | Path | Gpu):
        raise InputError("gpu", gpu, "must be one device: a name, the path of a TOML file or a Gpu", "h100_sxm")
    found = gpu if isinstance(gpu, Gpu) else load_device(str(gpu))
    if found.accelerator is not None:
        from sartor.cost.chip.ownership import faults  # no GPU needs it

        for fault in faults(found.accelerator):
            warnings.warn(f"{found.name} cannot be built: {fault}", stacklevel=2)
    return found


def cluster_of(cluster: ClusterLike | None) -> Cluster:
    """The cluster of a catalogue name or TOML file; the usual one if none is stated."""
    return cluster if isinstance(cluster, Cluster) else load_cluster(cluster or USUAL_CLUSTER)


def cluster_or_usual(cluster: ClusterLike | None) -> tuple[Cluster, bool]:
    """The cluster, or the usual one of a device that is named instead; and whether a device was."""
    if isinstance(cluster, str | Path) and names_a_device(cluster):
        return usual_cluster(device_of(cluster)), True
    return cluster_of(cluster), False


def cluster_and_device(cluster: ClusterLike | None, gpu: GpuLike | None) -> tuple[Cluster | None, Gpu]:
    """The cluster, if given, and the device, which must be one of its devices."""
    if cluster is None:
        return None, device_of("h100_sxm" if gpu is None else gpu)
    found = cluster_of(cluster)
    device = found.gpu if gpu is None else device_of(gpu)
    if device not in found.gpus:
        names = ", ".join(each.name for each in found.gpus)
        raise InputError("gpu", device.name, f"is not a device of {found.name}", names)
    return found, device


def own_calibration(path: str | Path | None, gpu: Gpu) -> Calibration | None:
    if path is not None:
        refuse_on_a_chip(gpu, "calibration", str(path), "a calibration file adds measurements of a GPU")
    return None if path is None else load_own_calibration(path, gpu)


def with_kernels_of(kernels: str | None, gpu: Gpu, own: Calibration | None) -> Calibration | None:
    """The calibration of a device with the kernels of a library, or of a serving framework: measured there or, as an
    engine whose kernels were not, one that runs there. Raises ``InputError``."""
    if kernels is None:
        return own
    refuse_on_a_chip(gpu, "kernels", kernels, "serving frameworks ship kernels for GPUs")
    known = own or load_calibration(gpu)
    engine, engines = ENGINES.get(str(kernels)), [engine.name for engine in engines_on(gpu)]
    if engine is not None and not engine.runs_on(gpu):
        must = f"runs on {' and '.join(engine.vendors)} GPUs only, not on {gpu.name}"
        raise InputError("kernels", kernels, must, " or ".join(engines))
    torch = (TORCH,) if frameworks_of(known) or known.attention_families else ()
    names = dict.fromkeys((*engines, *kernels_measured(known), *torch, *libraries_measured(known)))
    return _known_kernels(kernels, gpu, known, tuple(names))


def with_kernels_or_any(kernels: str | None, gpu: Gpu, own: Calibration | None) -> Calibration:
    """The calibration of a device with the kernels of a framework or library; if none is named, with those of any
    framework whose kernels were measured. Raises ``InputError``."""
    known = own or load_calibration(gpu)
    if kernels is not None:
        return with_kernels_of(kernels, gpu, known) or known
    return known.with_kernels(ANY) if kernels_measured(known) else known


def with_library_of(kernels: str | None, gpu: Gpu, known: Calibration, dtype: DType) -> Calibration:
    """The calibration of a device with the GEMMs of a library or framework; if none is named, with those of any.
    Raises ``InputError``."""
    if kernels is None:
        return known.with_kernels(ANY) if frameworks_of_gemms(known, dtype) else known
    refuse_on_a_chip(gpu, "kernels", kernels, "libraries ship kernels for GPUs")
    return _known_kernels(kernels, gpu, known, libraries_measured(known))


def _known_kernels(kernels: str, gpu: Gpu, known: Calibration, names: Sequence[str]) -> Calibration:
    """The calibration with these kernels if they are among ``names``. Raises ``InputError``."""
    if not isinstance(kernels, str):
        raise InputError("kernels", kernels, "must be the name of a framework or library", next(iter(names), ""))
    if kernels not in names:
        nearest = difflib.get_close_matches(kernels.lower(), names, n=1, cutoff=0.4)
        listed = ", ".join(names) or "there is none"
        must = f"must be a framework or library whose kernels were measured on {gpu.name}: {listed}"
        raise InputError("kernels", kernels, must, nearest[0] if nearest else "")
    return known.with_kernels(kernels)


def of_torch(kernels: str, gpu: Gpu) -> tuple[str, ...]:
    """What is said of PyTorch's kernels on a device where they were not measured."""
    measured = sdpa_measured(gpu)
    if kernels != TORCH or gpu.name in measured:
        return ()
    if measured:
        return (f"torch's kernels were measured on {' and '.join(measured)}, and {gpu.name} borrows them",)
    return (f"torch's kernels were not measured on {gpu.name}: attention is the median of serving frameworks",)


def of_frameworks(kernels: str | None, known: Calibration, dtype: DType, elements: int = 0) -> tuple[str, ...]:
    """What is said of a framework's GEMMs of this type: how they quantize their inputs in a model or, with the
    ``elements`` of one, alone; or, if none is named or its times are not known, that intervals cover several."""
    names, framework = frameworks_of_gemms(known, dtype), (kernels or "").partition("_")[0]
    if not names:
        return _of_libraries(kernels, known, dtype)
    if framework in names:
        return _quantizing(framework, known, dtype, elements)
    if kernels is None:
        return (f"unknown framework: intervals cover the kernels of all; kernels={'|'.join(names)} narrows them",)
    if elements and waits_for_the_host(framework, dtype):
        return (
            f"{kernels}'s {dtype.value} GEMMs were timed call by call: they wait for the host, in a model they do not",
        )
    return (f"{kernels}'s own {dtype.value} GEMMs are not known; intervals cover those of {' and '.join(names)}",)


def _of_libraries(kernels: str | None, known: Calibration, dtype: DType) -> tuple[str, ...]:
    """What is said of GEMMs whose tables hold the fastest library of each shape."""
    names = libraries_of_gemms(known, dtype)
    if kernels is None and names:
        return (
            f"{dtype.value} GEMMs take the time of the fastest library of a tuning run; "
            f"kernels={'|'.join(names)} prices one of them, which may take longer",
        )
    if kernels in libraries_measured(known) and kernels not in names:
        return (f"{kernels}'s own {dtype.value} GEMMs are not known: this is the time of the fastest library",)
    return ()


def _quantizing(framework: str, known: Calibration, dtype: DType, elements: int) -> tuple[str, ...]:
    timed, left = (quantizing_of(framework, dtype, alone=alone) for alone in (True, False))
    if not elements:
        done = f"include {_kernels(left.kernels)}" if left.kernels else "take inputs that other kernels quantize"
        return (f"{framework}'s {dtype.value} GEMMs {done}",)
    said = f"includes {_kernels(timed.kernels)} ({framework})"
    if left == timed:
        return (said,)
    timed_s, left_s = (each.time_s(elements, *kernel_of_quantizing(known, dtype)) for each in (timed, left))
    return (f"{said}; in a model {left.kernels or 'none'}, {1e6 * (timed_s - left_s):.3g} us less",)


def _kernels(count: int) -> str:
    return "1 kernel that quantizes the input" if count == 1 else f"{count} kernels that quantize the input"


def refuse_on_a_chip(gpu: Gpu, field: str, value: object, why: str, instead: str = "leave it out") -> None:
    """Raise ``InputError`` if ``gpu`` is a chip of the accelerator template, where only GPUs are supported."""
    if gpu.accelerator is not None:
        must = f"{why}, and {gpu.name} is a chip of the accelerator template, not a GPU"
        raise InputError(field, value, must, f"{instead}, or name a GPU (sartor catalog gpus)")


def own_calibration_of(path: str | Path | None, cluster: Cluster) -> Calibration | None:
    """The calibration of a file, for the cluster's device that the file is about."""
    if path is None:
        return None
    named = read_calibration_file(path).gpu
    return own_calibration(path, next((gpu for gpu in cluster.gpus if gpu.name == named), cluster.gpu))


Word = TypeVar("Word", bound=Enum)


def word_of(enum: type[Word], field: str, word: str) -> Word:
    """The member of an enum with this value, in any case."""
    for member in enum:
        if str(member.value).lower() == str(word).lower():
            return member
    words = ", ".join(str(member.value) for member in enum)
    raise InputError(field, word, f"must be one of {words}")


def size_of(field: str, value: object, default: int, *, least: int = 1) -> int:
    """An integer size (NumPy's too), or its default."""
    return default if value is None else given_size(field, value, default, least=least)


def given_size(field: str, value: object, near: int, *, least: int = 1) -> int:
    """An integer size that has no default."""
    must = f"must be an integer from {least} to 2^40"
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(field, value, must, str(near))
    size = int(value)
    if not least <= size <= 2**40:
        raise InputError(field, value, must, str(min(max(size, least), 2**40)))
    return size


def precision_of(dtype: str | None, gpu: Gpu) -> tuple[DType, tuple[str, ...]]:
    """The given dtype as the device runs it (``as_run``), with a note if that is another; by default bf16 (fp16 on
    devices without bf16)."""
    if dtype is None:
        return gpu.default_dtype, (f"dtype={gpu.default_dtype.value} (default)",)
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", **WEIGHT_ONLY_NAMES}
    wanted: DType = word_of(DType, "dtype", names.get(dtype, dtype))
    if (runs := as_run(wanted, gpu)) is not wanted:
        return runs, (widened_note(wanted, gpu),)
    if not (wanted.weight_only or wanted in gpu.peak_flops_per_s):  # weight-only types run as 16-bit GEMMs
        known = ", ".join(dict.fromkeys(d.value for d in (*gpu.peak_flops_per_s, DType.INT8_WO, DType.INT4_WO)))
        must = f"{gpu.name} has no matrix rate for it; supported: {known}"
        weights = {DType.INT4: DType.INT4_WO, DType.INT8: DType.INT8_WO}  # what is meant where nothing multiplies them
        raise InputError("dtype", wanted.value, must, weights.get(wanted, gpu.dtype_near(wanted)).value)
    return wanted, ()


def device_counts(given: int | Sequence[int] | None, cluster: Cluster) -> tuple[int, ...]:
    """The numbers of devices to plan for, each at most the cluster's."""
    total = cluster.total_devices
    if given is None and not total:
        raise InputError("num_devices", "not given", f"{cluster.name} can have any number of devices; give one", "64")
    wanted = (total,) if given is None else (given,) if isinstance(given, int) else tuple(given)
    for count in wanted:
        size_of("num_devices", count, 64)
        if total and count > total:
            raise InputError("num_devices", count, f"{cluster.name} has {total} devices", str(total))
    return tuple(dict.fromkeys(wanted))


Values = Mapping[str, list[Any]]
"""The fields with several values, and the values."""


def arrays_of(options: Mapping[str, Any]) -> Values:
    """The options whose value is a list, tuple, range or array of one axis, as lists."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else list(value)
        for name, value in options.items()
        if (isinstance(value, Sequence) and not isinstance(value, str))
        or (isinstance(value, np.ndarray) and value.ndim)
    }
