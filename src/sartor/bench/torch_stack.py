"""Attention and whole layers in PyTorch, to be timed and, as a small proxy model, trained.

The model that ``sartor.model.lower`` describes, in usual PyTorch code: fused QKV, scaled-dot-product attention, GELU or
SwiGLU, RMS norm, a tied head with cross-entropy. Decoding attends to an existing cache.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from sartor.bench.cases import StackRun, StepPart
from sartor.bench.parity import Curve, Train
from sartor.bench.timing import UnsupportedCase
from sartor.bench.torch_kernels import Buffers, Kernel, torch_dtype
from sartor.errors import InputError
from sartor.operators import Attention, Pass

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

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


def stack_kernel(run: StackRun, buffers: Buffers) -> Kernel:
    """One pass of a stack. Buffers are not rotated; whether the weights fit in a cache depends on the model."""
    torch, device = buffers.torch, buffers.device
    dtype = torch_dtype(torch, run.dtype)
    with torch.device(device):  # drawn there: a billion weights take a host ten seconds
        model = build_stack(torch, run).to(dtype)
    length = 1 if run.part is StepPart.DECODE else run.seq_len
    if run.vocab_size:
        x = torch.randint(0, run.vocab_size, (run.batch, length), device=device)
    else:
        x = buffers.random((run.batch, length, run.hidden_size), dtype)[0]
    moved = 2.0 * run.num_params
    if run.part in (StepPart.FORWARD, StepPart.DECODE):
        return Kernel(launch=_forward(torch, model, x, run), sets=1, set_bytes=moved)
    return Kernel(launch=_train(torch, model, x, run), sets=1, set_bytes=moved, capturable=False)


def _forward(torch: ModuleType, model: Module, x: Tensor, run: StackRun) -> Callable[[int], object]:
    model.eval()
    if run.part is StepPart.DECODE:
        model.fill_cache(run.batch, run.context_len)

    def launch(_: int) -> object:
        with torch.no_grad():
            return model(x)

    return launch


def _train(torch: ModuleType, model: Module, x: Tensor, run: StackRun) -> Callable[[int], object]:
    labels = torch.roll(x, -1, dims=1) if run.vocab_size else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True) if run.part is StepPart.STEP else None
    source = x if run.vocab_size else x.detach().clone().requires_grad_()

    def launch(_: int) -> object:
        out = model(source)
        if labels is None:
            out.backward(source.detach())
        else:
            logits = out.reshape(-1, out.shape[-1])
            torch.nn.functional.cross_entropy(logits.float(), labels.reshape(-1)).backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        return out

    return launch


def build_stack(torch: ModuleType, run: StackRun) -> Module:
    """The module, with PyTorch's default initialization."""
    nn, functional = torch.nn, torch.nn.functional
    h, a, g, d, f = run.hidden_size, run.num_heads, run.num_kv_heads, run.head_dim, run.ffn_hidden_size

    class TorchLayer(nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(h), nn.RMSNorm(h)
            self.qkv = nn.Linear(h, (a + 2 * g) * d, bias=False)
            self.out = nn.Linear(a * d, h, bias=False)
            self.up = nn.Linear(h, (2 if run.gated else 1) * f, bias=False)
            self.down = nn.Linear(f, h, bias=False)
            self.cache: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.out(self.attend(self.qkv(self.norm1(x))))
            return x + self.down(self.act(self.up(self.norm2(x))))

        def attend(self, qkv: Tensor) -> Tensor:
            b, s, _ = qkv.shape
            q, k, v = qkv.split((a * d, g * d, g * d), dim=-1)
            q, k, v = (x.view(b, s, n, d).transpose(1, 2) for x, n in ((q, a), (k, g), (v, g)))
            if self.cache is not None:
                # The new token's key and value overwrite the last position: no copy of the cache, as in servers.
                self.cache[0][:, :, -1:], self.cache[1][:, :, -1:] = k, v
                k, v = self.cache
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=run.causal and s > 1, enable_gqa=a != g)
            return mixed.transpose(1, 2).reshape(b, s, a * d)

        def act(self, x: Tensor) -> Tensor:
            if run.gated:
                gate, up = x.chunk(2, dim=-1)
                return functional.silu(gate) * up
            return functional.gelu(x)

    class Model(nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(run.vocab_size, h) if run.vocab_size else None
            self.layers = nn.ModuleList(TorchLayer() for _ in range(run.num_layers))
            self.norm = nn.RMSNorm(h) if run.vocab_size else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            x = self.table(x) if self.table is not None else x
            for layer in self.layers:
                x = layer(x)
            x = self.norm(x)
            return functional.linear(x, self.table.weight) if self.table is not None else x

        def fill_cache(self, batch: int, length: int) -> None:
            weight = self.layers[0].qkv.weight
            for layer in self.layers:
                shape = (2, batch, g, length + 1, d)
                layer.cache = torch.randn(shape, dtype=weight.dtype, device=weight.device)

    return Model()


HELD_OUT = 0.1
"""Share of the text, at its end, held out from training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    """The training recipe, the same for both shapes."""

    steps: int
    learning_rate: float = 1e-3
    warmup: float = 0.1
    points: int = 8
    """Number of loss evaluations, at steps that double."""
    eval_batches: int = 8


def trainer(
    torch: ModuleType,
    device: str,
    text: bytes,
    recipe: TrainRun,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Train:
    """A function that trains one shape with one seed. Raises ``InputError`` if the text is too short."""
    data = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).astype(np.int64))
    split = int(len(text) * (1 - HELD_OUT))

    def train(run: StackRun, seed: int) -> Curve:
        fewest = 10 * (run.seq_len + 2)
        if len(text) < fewest:
            raise InputError("text", f"{len(text)} bytes", f"must hold at least {fewest} bytes")
        torch.manual_seed(seed)
        model = build_stack(torch, run).to(device)
        _start_small(torch, model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.1, betas=(0.9, 0.95))
        rng = np.random.default_rng(seed)
        marks, losses, seconds = _marks(recipe), [], []
        for step in range(1, recipe.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * _schedule(step, recipe)
            started = time.perf_counter()
            _step(torch, model, optimizer, _batch(torch, data[:split], run, rng, device))
            _wait(torch, device)
            seconds.append(time.perf_counter() - started)
            if step in marks:
                losses.append(_held_out(torch, model, data[split:], run, recipe, device))
                progress(f"{run.name} seed {seed}", step, recipe.steps)
        return Curve(steps=marks, losses=tuple(losses), step_s=float(np.median(seconds)))

    return train


def _start_small(torch: ModuleType, model: Module) -> None:
    """Initialize weights with standard deviation 0.02, as GPT-2: a tied embedding must not start with large logits."""
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.02)


def _marks(recipe: TrainRun) -> tuple[int, ...]:
    first = max(1, recipe.steps >> (recipe.points - 1))
    return tuple(sorted({round(x) for x in np.geomspace(first, recipe.steps, recipe.points)}))


def _schedule(step: int, recipe: TrainRun) -> float:
    warm = max(1.0, recipe.warmup * recipe.steps)
    if step <= warm:
        return step / warm
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(recipe.steps - warm, 1.0)))


def _batch(torch: ModuleType, data: Any, run: StackRun, rng: Any, device: str) -> Tensor:
    starts = rng.integers(0, len(data) - run.seq_len - 1, run.batch)
    return torch.stack([data[int(s) : int(s) + run.seq_len + 1] for s in starts]).to(device)


def _loss(torch: ModuleType, model: Module, batch: Tensor) -> Tensor:
    narrow = batch.device.type != "cpu"
    with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=narrow):  # weights stay in fp32
        logits = model(batch[:, :-1])
    flat = logits.float().reshape(-1, logits.shape[-1])
    return torch.nn.functional.cross_entropy(flat, batch[:, 1:].reshape(-1))


def _step(torch: ModuleType, model: Module, optimizer: Optimizer, batch: Tensor) -> None:
    model.train()
    _loss(torch, model, batch).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _held_out(torch: ModuleType, model: Module, data: object, run: StackRun, recipe: TrainRun, device: str) -> float:
    """Mean loss over fixed batches of held-out text, the same for every shape and seed."""
    model.eval()
    rng = np.random.default_rng(0)
    with torch.no_grad():
        losses = [float(_loss(torch, model, _batch(torch, data, run, rng, device))) for _ in range(recipe.eval_batches)]
    return sum(losses) / len(losses)


def _wait(torch: ModuleType, device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
