"""Rotated random buffers: views into one pool of normal values, so that no case waits for a random generator.

Consecutive launches use different sets of buffers, and all sets together exceed the last cache, so that operands come
from memory as they do in a model.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from sartor.operators import DType
from sartor.units import MIB, ceil_div

if TYPE_CHECKING:
    from torch import Tensor
    from torch import dtype as TorchType


MOST_SETS = 256
ALIGN_BYTES = 256
"""Alignment of tensors, as by an allocator."""

CHUNK = (1 << 22) + 4099
"""Distinct random values; the pool repeats them at an odd period."""


def torch_dtype(torch: ModuleType, dtype: DType) -> TorchType:
    """PyTorch's element type. Raises ``KeyError`` if there is none."""
    names = {
        DType.FP64: "float64",
        DType.FP32: "float32",
        DType.TF32: "float32",
        DType.BF16: "bfloat16",
        DType.FP16: "float16",
        DType.FP8: "float8_e4m3fn",
        DType.INT8: "int8",
    }
    return getattr(torch, names[dtype])


class Buffers:
    """Random operands on one device. All sets of a case together exceed ``rotate_bytes``."""

    def __init__(self, torch: ModuleType, device: str, rotate_bytes: float, memory_bytes: float) -> None:
        self.torch, self.device = torch, device
        self.rotate_bytes, self._memory_bytes = rotate_bytes, memory_bytes
        self._pools: dict[object, Tensor] = {}
        self._cursor: dict[object, int] = {}

    def sets(self, set_bytes: float, resident: bool = False) -> int:
        """Number of buffer sets of ``set_bytes`` each that a case rotates over."""
        if resident:
            return 1
        fits = int(0.5 * self._memory_bytes / max(set_bytes, 1.0))
        return max(1, min(MOST_SETS, int(ceil_div(self.rotate_bytes, max(set_bytes, 1.0))) + 1, fits))

    def begin(self) -> None:
        """Start a new case at the beginning of the pool."""
        self._cursor.clear()

    def random(self, shape: tuple[int, ...], dtype: object, count: int = 1) -> list[Tensor]:
        """``count`` contiguous tensors of normal values, aligned to 256 bytes. Read-only: the next case's tensors
        overlap with them."""
        element = self.torch.empty((), dtype=dtype).element_size()
        size = 1
        for length in shape:
            size *= int(length)
        step = int(ceil_div(max(size, 1) * element, ALIGN_BYTES)) * ALIGN_BYTES // element
        start = self._cursor.get(dtype, 0)
        pool = self._pool(dtype, start + step * count)
        self._cursor[dtype] = start + step * count
        return [pool[start + i * step : start + i * step + size].view(shape) for i in range(count)]

    def empty(self, shape: tuple[int, ...], dtype: object) -> Tensor:
        """An uninitialized tensor for results."""
        return self.torch.empty(shape, dtype=dtype, device=self.device)

    def trim(self) -> None:
        """Free pools that a large case made grow."""
        limit = 4 * self.rotate_bytes + 64 * MIB
        for dtype in [d for d, pool in self._pools.items() if pool.numel() * pool.element_size() > limit]:
            del self._pools[dtype]
        self._cursor.clear()

    def _pool(self, dtype: object, elements: int) -> Tensor:
        pool = self._pools.get(dtype)
        if pool is None or pool.numel() < elements:
            self._pools.pop(dtype, None)
            width = self.torch.empty((), dtype=dtype).element_size()
            usual = int(min(2 * self.rotate_bytes, 0.1 * self._memory_bytes) / width)  # most cases fit: filled once
            self._pools[dtype] = pool = self._filled(dtype, max(elements, usual))
        return pool

    def _filled(self, dtype: object, elements: int) -> Tensor:
        torch = self.torch
        generator = torch.Generator(device="cpu").manual_seed(20261121)
        chunk = torch.randn(min(CHUNK, elements), generator=generator)
        chunk = (chunk * 40).to(dtype) if dtype is torch.int8 else chunk.to(dtype)
        chunk = chunk.to(self.device)
        pool = torch.empty(elements, dtype=dtype, device=self.device)
        for start in range(0, elements, chunk.numel()):
            stop = min(elements, start + chunk.numel())
            pool[start:stop] = chunk[: stop - start]
        return pool
