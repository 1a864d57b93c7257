"""Traces of a few kernels written by hand, whose true step is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BF16, FP8 = "c10::BFloat16", "c10::Float8_e4m3fn"
SIDE = 8192
"""Of the square matrices."""


@dataclass(slots=True)
class Hand:
    """A trace that grows kernel by kernel; times are in microseconds."""

    at: float = 1000.0
    events: list[dict[str, Any]] = field(default_factory=list)

    def kernel(
        self,
        operator: str,
        name: str,
        dur: float,
        dtype: str = BF16,
        dims: tuple[tuple[int, ...], ...] = ((SIDE, SIDE), (SIDE, SIDE)),
    ) -> None:
        """The next kernel, launched 10 us before it begins."""
        number = 100 + len(self.events)
        inputs = {"External id": number, "Input Dims": [list(size) for size in dims], "Input type": [dtype] * len(dims)}
        call = {"External id": number, "correlation": number}
        self._event("cpu_op", operator, self.at - 13, 6, inputs)
        self._event("cuda_runtime", "cudaLaunchKernel", self.at - 11, 3, call)
        self._event("kernel", name, self.at, dur, call | {"stream": 7, "device": 0})
        self.at += dur

    def load(self, dur: float) -> None:
        """The host loads data while the device waits."""
        self._event("user_annotation", "enumerate(DataLoader)#__next__", self.at, dur - 100, {})
        self.at += dur

    def mark(self, number: int, begin: float) -> None:
        """A step from ``begin`` until now."""
        self._event("user_annotation", f"ProfilerStep#{number}", begin - 15, self.at - begin, {})

    def write(self, path: Path) -> Path:
        device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
        path.write_text(json.dumps({"deviceProperties": device, "traceEvents": self.events}))
        return path

    def _event(self, cat: str, name: str, ts: float, dur: float, args: dict[str, Any]) -> None:
        pid = 0 if cat == "kernel" else 1
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 1, "ts": ts, "dur": dur} | {"args": args}
        )


def steps(count: int, *, load_us: float = 0.0, products: int = 20, marked: bool = True, fp8: int = 0) -> Hand:
    """``count`` steps of data loading, matrix multiplications of 1600 us (``fp8`` of them in FP8, of 760 us) and an
    optimizer of 400 us."""
    hand = Hand()
    for number in range(count):
        begin = hand.at
        if load_us:
            hand.load(load_us)
        for _ in range(fp8):
            hand.kernel("aten::_scaled_mm", "nvjet_qqtst_128x256", 760, FP8)
        for _ in range(products):
            hand.kernel("aten::mm", "nvjet_tst_128x256_64x4_2x1_v_bz_TNT", 1600)
        hand.kernel("aten::_foreach_add_", "void at::native::multi_tensor_apply_kernel<adam>", 400)
        if marked:
            hand.mark(number, begin)
    return hand
