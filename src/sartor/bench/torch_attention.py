"""Scaled-dot-product attention, forward, backward and decode, with PyTorch's choice of kernel or a requested one."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from sartor.bench.device import UnsupportedCase
from sartor.bench.torch_buffers import Buffers, torch_dtype
from sartor.bench.torch_kernels import Kernel
from sartor.operators import Attention, Pass

if TYPE_CHECKING:
    from torch import Tensor

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
"""``BenchCase.kernel`` -> ``torch.nn.attention.SDPBackend``."""


def attention_kernel(op: Attention, kernel: str, buffers: Buffers, resident: bool = False) -> Kernel:
    """Queries [batch, heads, seq_q, head_dim] against keys and values with ``num_kv_heads`` heads."""
    _check(op)
    torch = buffers.torch
    try:
        dtype = torch_dtype(torch, op.dtype)
    except (KeyError, AttributeError):
        raise UnsupportedCase(f"attention in {op.dtype.value}: not in PyTorch") from None
    b, a, g, s, t = (int(x) for x in (op.batch, op.num_heads, op.num_kv_heads, op.seq_q, op.seq_kv))
    sets = min(buffers.sets(float(op.bytes_moved), resident), 8 if op.pass_ is Pass.BACKWARD else 64)
    q = buffers.random((b, a, s, int(op.head_dim)), dtype, sets)
    k = buffers.random((b, g, t, int(op.head_dim)), dtype, sets)
    v = buffers.random((b, g, t, int(op.v_head_dim)), dtype, sets)
    causal = op.causal and s > 1
    attend = _attend(torch, kernel, causal=causal, grouped=a != g)
    if op.pass_ is Pass.BACKWARD:
        return _backward(torch, attend, q, k, v, sets, float(op.bytes_moved))
    return Kernel(
        launch=lambda i: attend(q[i % sets], k[i % sets], v[i % sets]), sets=sets, set_bytes=float(op.bytes_moved)
    )


def _check(op: Attention) -> None:
    if op.window or op.latent:
        raise UnsupportedCase("attention with a window or a latent: not in scaled_dot_product_attention")
    if op.causal and 1 < int(op.seq_q) != int(op.seq_kv):
        raise UnsupportedCase("causal attention of a later chunk: PyTorch aligns its mask to the first key")


def _attend(
    torch: ModuleType, kernel: str, *, causal: bool, grouped: bool
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The attention call; if a kernel is requested that cannot run these sizes, PyTorch raises."""
    call = torch.nn.functional.scaled_dot_product_attention

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return call(q, k, v, is_causal=causal, enable_gqa=grouped)

    if not kernel:
        return plain
    if kernel not in BACKENDS:
        raise UnsupportedCase(f"attention kernel {kernel}: must be one of {', '.join(BACKENDS)}")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = getattr(SDPBackend, BACKENDS[kernel])

    def chosen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel([backend]):
            return plain(q, k, v)

    return chosen


def _backward(
    torch: ModuleType, attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, sets: int, moved: float
) -> Kernel:
    graphs = []
    for tensors in zip(q, k, v, strict=True):
        leaves = tuple(x.detach().requires_grad_() for x in tensors)
        out = attend(*leaves)
        graphs.append((out, leaves, torch.randn_like(out)))

    def launch(i: int) -> object:
        out, leaves, gradient = graphs[i % sets]
        return torch.autograd.grad(out, leaves, gradient, retain_graph=True)

    return Kernel(launch=launch, sets=sets, set_bytes=moved)
