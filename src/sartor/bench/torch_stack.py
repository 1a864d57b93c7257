"""A stack of equal pre-norm transformer layers in plain PyTorch: forward, training step, step with optimizer, decode.

The model that ``sartor.model.lower`` describes, in usual PyTorch code: fused QKV, scaled-dot-product attention, GELU or
SwiGLU, RMS norm, a tied head with cross-entropy. Decoding attends to an existing cache.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from sartor.bench.cases import StackRun, StepPart
from sartor.bench.torch_buffers import Buffers, torch_dtype
from sartor.bench.torch_kernels import Kernel

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


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
