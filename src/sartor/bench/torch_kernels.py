"""Operators as PyTorch runs them, on rotated random buffers: GEMMs in every layout, batched, grouped and narrow.

Each function takes an operator and ``Buffers`` and returns a ``Kernel``.

Consecutive launches use different sets of buffers, and all sets together exceed the last cache, so that operands come
from memory as they do in a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from sartor.bench.timing import UnsupportedCase
from sartor.json_types import JsonDict
from sartor.operators import DType, Gemm, GroupedGemm, Layout, MemoryBound, MemoryBoundKind, Pass
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


Inputs: TypeAlias = "tuple[list[tuple[Tensor, ...]], Callable[..., Any]]"
"""A kernel's arguments, one entry per set of buffers, and the function to call."""
Builder: TypeAlias = Callable[["Buffers", int, int, object, int], Inputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """``launch(i)`` runs it on buffer set ``i``; ``capturable`` tells whether a CUDA graph can hold it."""

    launch: Callable[[int], object]
    sets: int
    set_bytes: float
    capturable: bool = True


def gemm_kernel(op: Gemm, buffers: Buffers, resident: bool = False) -> Kernel:
    """C[m,n] = A[m,k] B[k,n], operands stored in the GEMM's layout; ``batch`` of them in one call."""
    torch, (batch, m, n, k) = buffers.torch, (int(x) for x in (op.batch, op.m, op.n, op.k))
    if op.dtype is DType.FP8:
        return _fp8(op, buffers, resident)
    dtype = _dtype(torch, op.dtype)
    torch.set_float32_matmul_precision("high" if op.dtype is DType.TF32 else "highest")
    lead = (batch,) if batch > 1 else ()
    stored_a = (*lead, k, m) if op.layout is Layout.NT else (*lead, m, k)
    stored_b = (*lead, n, k) if op.layout is Layout.TN else (*lead, k, n)
    sets = buffers.sets(float(op.bytes_moved), resident)
    a = [_turned(x, op.layout is Layout.NT) for x in buffers.random(stored_a, dtype, sets)]
    b = [_turned(x, op.layout is Layout.TN) for x in buffers.random(stored_b, dtype, sets)]
    out = buffers.empty((*lead, m, n), dtype)
    product = torch.bmm if batch > 1 else torch.mm
    return Kernel(
        launch=lambda i: product(a[i % sets], b[i % sets], out=out), sets=sets, set_bytes=float(op.bytes_moved)
    )


def _turned(x: Tensor, turned: bool) -> Tensor:
    return x.transpose(-1, -2) if turned else x


def _fp8(op: Gemm, buffers: Buffers, resident: bool) -> Kernel:
    """Per-tensor scaled fp8 through ``torch._scaled_mm``; TN only, like the hardware. With fast accumulation, as
    serving frameworks run it; without, the default, Hopper takes 1.1 to 1.2 times as long (pytorch/ao issue 2377)."""
    torch, m, n, k = buffers.torch, int(op.m), int(op.n), int(op.k)
    if not hasattr(torch, "_scaled_mm") or int(op.batch) > 1 or op.layout is not Layout.TN:
        raise UnsupportedCase("fp8: torch._scaled_mm has single TN products only")
    if k % 16 or n % 16:
        raise UnsupportedCase("fp8: n and k must be multiples of 16")
    dtype, sets = torch.float8_e4m3fn, buffers.sets(float(op.bytes_moved), resident)
    a, b = buffers.random((m, k), dtype, sets), buffers.random((n, k), dtype, sets)
    unit_scale = torch.ones((), device=buffers.device)

    def launch(i: int) -> object:
        return torch._scaled_mm(
            a[i % sets],
            b[i % sets].t(),
            scale_a=unit_scale,
            scale_b=unit_scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    return Kernel(launch=launch, sets=sets, set_bytes=float(op.bytes_moved))


def grouped_kernel(op: GroupedGemm, buffers: Buffers) -> Kernel:
    """Experts' GEMMs: one ``torch._grouped_mm`` if available, else one GEMM per expert."""
    torch, groups, n, k = buffers.torch, int(op.groups), int(op.n), int(op.k)
    if op.pass_ is Pass.WGRAD:
        raise UnsupportedCase("grouped weight gradients: no single kernel in PyTorch")
    rows, dtype = max(1, int(op.rows) // groups), _dtype(torch, op.dtype)
    sets = buffers.sets(float(op.bytes_moved))
    a = buffers.random((groups * rows, k), dtype, sets)
    w = buffers.random((groups, n, k), dtype, sets)
    if hasattr(torch, "_grouped_mm") and buffers.device != "cpu" and op.dtype is DType.BF16:
        ends = torch.arange(1, groups + 1, device=buffers.device, dtype=torch.int32) * rows

        def launch(i: int) -> object:
            return torch._grouped_mm(a[i % sets], w[i % sets].transpose(-1, -2), offs=ends)

    else:

        def launch(i: int) -> object:
            return torch.bmm(a[i % sets].view(groups, rows, k), w[i % sets].transpose(-1, -2))

    return Kernel(launch=launch, sets=sets, set_bytes=float(op.bytes_moved))


# ------------------------------------------------------------------------------------------- streaming kernels


def memory_bound_kernel(op: MemoryBound, buffers: Buffers, resident: bool = False) -> Kernel:
    """The kernel of a streaming operator: one PyTorch call, forward or its autograd backward; the chain of elementwise
    calls if the operator has several kernels (``Kernels.fused`` is false).

    Chosen by the operator's name in the tables (``op``), else by its kind. The backward of a sum adds two gradients:
    the same call, where autograd would run none.
    """
    word = op.kernel or op.kind.value
    chain = _CHAINS.get(op.kind.value) if int(op.kernels) > 1 and not op.kernel else None
    build = chain or _STREAMS.get(word) or _STREAMS.get(op.kind.value)
    if build is None:
        raise UnsupportedCase(f"{word}: no PyTorch kernel does the same")
    moved = float(op.bytes_moved)
    if op.kind is MemoryBoundKind.OPTIMIZER:
        return _adam(int(op.rows) * int(op.cols), buffers, moved)
    dtype, sets = _dtype(buffers.torch, op.dtype), buffers.sets(moved, resident)
    rows, cols, back = int(op.rows), int(op.cols), op.pass_ is Pass.BACKWARD
    back = back and op.kind is not MemoryBoundKind.RESIDUAL
    if op.kind is MemoryBoundKind.ROUTING and chain is None:
        build = _routing(round(moved / (rows * cols * op.dtype.bytes)) - 1)
    inputs, function = build(buffers, rows, cols, dtype, sets)
    if not back:
        return Kernel(launch=lambda i: function(*inputs[i % sets]), sets=sets, set_bytes=moved)
    return _backward(buffers.torch, inputs, function, sets, moved)


def _backward(
    torch: ModuleType, inputs: list[tuple[Tensor, ...]], function: Callable[..., Any], sets: int, moved: float
) -> Kernel:
    """Only autograd's backward: graphs are kept, gradients are not accumulated."""
    graphs = []
    for arguments in inputs:
        leaves = tuple(x.detach().requires_grad_() if _differentiable(x) else x for x in arguments)
        result = function(*leaves)
        out = result if isinstance(result, tuple) else (result,)
        leaves_used = tuple(x for x in leaves if _differentiable(x))
        graphs.append((out, leaves_used, tuple(torch.randn_like(output) for output in out)))

    def launch(i: int) -> object:
        out, leaves_used, gradients = graphs[i % sets]
        return torch.autograd.grad(out, leaves_used, gradients, retain_graph=True)

    return Kernel(launch=launch, sets=sets, set_bytes=moved)


def _differentiable(x: Tensor) -> bool:
    return bool(getattr(x, "is_floating_point", lambda: False)())


def _one_tensor(function: Callable[[ModuleType], Callable[..., Tensor]]) -> Builder:
    def build(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
        return [(x,) for x in buffers.random((rows, cols), dtype, sets)], function(buffers.torch)

    return build


def _two_tensors(function: Callable[[ModuleType], Callable[..., Tensor]]) -> Builder:
    def build(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
        first = buffers.random((rows, cols), dtype, sets)
        second = buffers.random((rows, cols), dtype, sets)
        return list(zip(first, second, strict=True)), function(buffers.torch)

    return build


def _norm(name: str) -> Builder:
    def build(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
        torch = buffers.torch
        weight = torch.ones(cols, dtype=dtype, device=buffers.device)
        call = getattr(torch.nn.functional, name)
        return [(x, weight) for x in buffers.random((rows, cols), dtype, sets)], lambda x, w: call(x, (cols,), w)

    return build


def _rotary(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
    """Rotary position embedding: the two halves of every row are rotated by the row's angles."""
    torch, half = buffers.torch, max(1, cols // 2)
    turn = torch.randn(rows, 1, device=buffers.device)
    cos, sin = torch.cos(turn).to(dtype), torch.sin(turn).to(dtype)

    def rotate(x: Tensor) -> Tensor:
        a, b = x[:, :half], x[:, half : 2 * half]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=1)

    return [(x,) for x in buffers.random((rows, cols), dtype, sets)], rotate


def _embedding(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
    torch = buffers.torch
    table = buffers.random((min(50304, 4 * rows + 64), cols), dtype)[0]
    tokens = [torch.randint(0, table.shape[0], (rows,), device=buffers.device) for _ in range(min(sets, 8))]
    pairs = [(tokens[i % len(tokens)], table) for i in range(sets)]
    return pairs, torch.nn.functional.embedding


def _cross_entropy(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
    torch = buffers.torch
    labels = torch.randint(0, cols, (rows,), device=buffers.device)
    return [(x, labels) for x in buffers.random((rows, cols), dtype, sets)], torch.nn.functional.cross_entropy


def _cast(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
    target = buffers.torch.float32 if dtype != buffers.torch.float32 else buffers.torch.bfloat16
    return [(x,) for x in buffers.random((rows, cols), dtype, sets)], lambda x: x.to(target)


def _routing(copies: int) -> Builder:
    """Every row is written ``copies`` times, in another order."""

    def build(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
        order = buffers.torch.randperm(rows * max(1, copies), device=buffers.device) % rows
        return [(x, order) for x in buffers.random((rows, cols), dtype, sets)], lambda x, index: x.index_select(
            0, index
        )

    return build


def _top_k(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
    """Probabilities of the experts in fp32 and the best of them."""
    torch, few = buffers.torch, min(8, cols)
    return [
        (x,) for x in buffers.random((rows, cols), dtype, sets)
    ], lambda x: torch.topk(torch.softmax(x.float(), dim=-1), few).values


def _rms_chain(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
    """An RMS norm written out in fp32, as Hugging Face models do."""
    torch = buffers.torch
    weight = torch.ones(cols, dtype=dtype, device=buffers.device)

    def scaled(x: Tensor, w: Tensor) -> Tensor:
        wide = x.float()
        return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)

    return [(x, weight) for x in buffers.random((rows, cols), dtype, sets)], scaled


def _rotary_chain(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
    """x cos + rotate_half(x) sin for queries (half of the rows) and for keys, as Hugging Face models do."""
    torch, half, part = buffers.torch, max(1, cols // 2), max(1, rows // 2)
    turn = torch.randn(part, 1, device=buffers.device)
    cos, sin = torch.cos(turn).to(dtype), torch.sin(turn).to(dtype)

    def rotate(x: Tensor) -> Tensor:
        return x * cos + torch.cat((-x[:, half : 2 * half], x[:, :half]), dim=1) * sin

    return [(x,) for x in buffers.random((2 * part, 2 * half), dtype, sets)], lambda x: (
        rotate(x[:part]),
        rotate(x[part:]),
    )


def _wide_cross_entropy(buffers: Buffers, rows: int, cols: int, dtype: object, sets: int) -> Inputs:
    """The loss of a model: in fp32, of logits in 16 bits."""
    inputs, loss = _cross_entropy(buffers, rows, cols, dtype, sets)
    return inputs, lambda x, labels: loss(x.float(), labels)


def _adam(params: int, buffers: Buffers, moved: float) -> Kernel:
    """One fused AdamW step on fp32 weights, gradients and moments."""
    torch = buffers.torch
    weight = torch.nn.Parameter(torch.randn(params, device=buffers.device))
    weight.grad = torch.randn(params, device=buffers.device)
    step = torch.optim.AdamW([weight], lr=1e-4, fused=True, capturable=buffers.device != "cpu").step
    step()
    return Kernel(launch=lambda _: step(), sets=1, set_bytes=moved)


_STREAMS: JsonDict = {
    "rmsnorm": _norm("rms_norm"),
    "layernorm": _norm("layer_norm"),
    "norm": _norm("layer_norm"),
    "softmax": _one_tensor(lambda torch: lambda x: torch.softmax(x, dim=-1)),
    "gelu": _one_tensor(lambda torch: torch.nn.functional.gelu),
    "relu": _one_tensor(lambda torch: torch.relu),
    "activation": _one_tensor(lambda torch: torch.nn.functional.gelu),
    "silu_and_mul": _two_tensors(lambda torch: lambda gate, up: torch.nn.functional.silu(gate) * up),
    "add": _two_tensors(lambda torch: torch.add),
    "residual": _two_tensors(lambda torch: torch.add),
    "rope": _rotary,
    "rotary": _rotary,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "cast": _cast,
    "routing": _routing(1),
    "optimizer": True,
}
_CHAINS: JsonDict = {
    "norm": _rms_chain,
    "rotary": _rotary_chain,
    "cross_entropy": _wide_cross_entropy,
    "routing": _top_k,
}
"""By kind, what PyTorch runs where no kernel does it all."""


def _dtype(torch: ModuleType, dtype: DType) -> TorchType:
    try:
        return torch_dtype(torch, dtype)
    except (KeyError, AttributeError):
        raise UnsupportedCase(f"{dtype.value}: PyTorch does not support this matrix multiplication here") from None
