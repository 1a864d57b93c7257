"""Small hand-written modules whose operators can be told by hand; torch is imported when one is made."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Mlp(nn.Module):
    """[b, s, 64] -> 256 -> [b, s, 64]."""

    def __init__(self, width: int = 64, inner: int = 256) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Causal attention by PyTorch's own kernel, and an MLP, each with a norm and a residual sum."""

    def __init__(self, width: int = 64, heads: int = 4, inner: int = 256) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = Mlp(width, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, d))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A table, equal blocks, a head (``tied``: the table again)."""

    def __init__(self, layers: int = 4, width: int = 64, vocab: int = 1000, *, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Shared(Gpt):
    """One block, four times over."""

    def __init__(self) -> None:
        super().__init__(layers=1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for _ in range(4):
            x = self.blocks[0](x)
        return self.head(x)


class Mixed(nn.Module):
    """Wide and narrow layers in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 64)
        self.layers = nn.ModuleList(Mlp(64, 256 if i % 2 else 128) for i in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return x


class Convolutions(nn.Module):
    """A plain, a strided and a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(3, 16, 3, padding=1)
        self.strided = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.depthwise(self.strided(self.plain(x)))


class AsksForAValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return y * 2 if y.sum() > 0 else y


class WrongSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x))


class AsksWhileMade(nn.Module):
    """Learns its widths from a tensor, as drop-path schedules do."""

    def __init__(self) -> None:
        super().__init__()
        first, last = (int(width) for width in torch.linspace(64, 128, 2).tolist())
        self.inner = nn.Linear(first, last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class NoParameters(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def with_inputs() -> tuple[nn.Module, torch.Tensor]:
    return Mlp(), torch.zeros(2, 8, 64)


def with_named_inputs() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return Gpt(), {"ids": torch.zeros(2, 32, dtype=torch.long)}


def wants_an_argument(width: int) -> nn.Module:
    return Mlp(width)


def no_module() -> int:
    return 3


def raises() -> nn.Module:
    raise OSError("no weights here")


def tied() -> nn.Module:
    return Gpt(tied=True)


class Checkpointed(Gpt):
    """Every block runs again before its backward, which its class counts; the head does not."""

    reentrant = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class Gated(nn.Module):
    """RMSNorm, queries, keys and values in one product, gate and up in one product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(64), nn.Linear(64, 3 * 64, bias=False), nn.Linear(64, 64, bias=False)
        self.gate_up, self.down = nn.Linear(64, 8 * 64, bias=False), nn.Linear(4 * 64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        x = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class GatedStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(64, 64), nn.ModuleList(Gated() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


class Transposed(nn.Module):
    """A transposed convolution of stride 2: four times as many outputs as inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 16, 1), nn.ConvTranspose2d(16, 8, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(self.stem(x))


@torch.library.custom_op("sartortest::mlp", mutates_args=())
def _mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w.t()


@_mlp.register_fake
def _(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], w.shape[0])


@torch.library.custom_op("flash_attn_sartortest::fwd", mutates_args=())
def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return torch.empty_like(q)


@_flash.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return torch.empty_like(q)


class OwnKernels(nn.Module):
    """A kernel of nobody knows what, and one of flash attention on [b, s, heads, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 3 * 64), nn.Parameter(torch.empty(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).unbind(2)
        return torch.ops.sartortest.mlp(torch.ops.flash_attn_sartortest.fwd(q, k, v, True).flatten(2), self.out)


class _NarrowProduct(torch.autograd.Function):
    """FP8 operands, a 16-bit result, forward and for both gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return _narrow(x, w)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        return _narrow(grad, w.t().contiguous()), _narrow(grad.t().contiguous(), x.t().contiguous())


def _narrow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    narrow, one = torch.float8_e4m3fn, torch.ones((), device=a.device)
    return torch._scaled_mm(a.to(narrow), b.to(narrow).t(), one, one, out_dtype=torch.bfloat16)


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 64, dtype=torch.bfloat16)
        self.w = nn.Parameter(torch.empty(128, 64, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _NarrowProduct.apply(self.stem(x), self.w)


class Integers(nn.Module):
    """GEMMs on int8, and ``nn.Bilinear``."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.zeros(64, 128, dtype=torch.int8))
        self.both = nn.Bilinear(128, 16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch._int_mm(x.to(torch.int8), self.w).to(x.dtype)
        return self.both(y, x[:, :16])


class Adapted(Gpt):
    """LoRA: everything frozen but an adapter in every block, one of whose weights is an int8 buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        for block in self.blocks:
            block.mlp.up = _Adapter(block.mlp.up)


class _Adapter(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("base", torch.zeros(base.weight.shape, dtype=torch.int8))
        self.first, self.second = nn.Linear(64, 4, bias=False), nn.Linear(4, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.base.to(x.dtype)) + self.second(self.first(x))


class Autocasted(nn.Module):
    """fp32 weights under an autocast of the input's device, or of ``device``; a checkpoint inside."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device, self.first, self.second = device, nn.Linear(64, 256), nn.Linear(256, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device or x.device.type, dtype=torch.bfloat16):
            return self.second(checkpoint(lambda y: F.gelu(self.first(y)), self.norm(x), use_reentrant=False))


def autocasted_on_a_gpu() -> nn.Module:
    return Autocasted("cuda")


class Packed(nn.Module):
    """16-bit activations times packed 4-bit weights, and a sum over a batch of products."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.zeros(256 // 8, 1024 // (8 * 16), 32, 4, dtype=torch.int32))
        self.register_buffer("scales", torch.zeros(1024 // 128, 256, 2, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.aten._weight_int4pack_mm(x, self.w, 128, self.scales)
        parts = y.view(-1, 4, 64).transpose(0, 1)
        return torch.addbmm(y.new_zeros(y.shape[0], y.shape[0]), parts, parts.transpose(1, 2))


def lazy() -> tuple[nn.Module, torch.Tensor]:
    return nn.LazyLinear(8), torch.zeros(2, 4)


def with_a_sibling() -> tuple[nn.Module, torch.Tensor]:
    from torch_sibling import WIDTH

    return nn.Linear(WIDTH, WIDTH), torch.zeros(2, WIDTH)
