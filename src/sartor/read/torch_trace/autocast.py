"""``torch.autocast`` while tracing: PyTorch casts by the device of a tensor and knows no casts for meta tensors, so the
lists of its CUDA autocast are applied here.

Lists: https://docs.pytorch.org/docs/2.13/amp.html#cuda-op-specific-behavior (read 2026-11-27).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
from torch.amp.autocast_mode import autocast
from torch.overrides import TorchFunctionMode

from sartor.json_types import JsonDict

NARROW = {
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "addr",
    "chain_matmul", "multi_dot", "einsum", "prelu", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "lstm", "gru", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "multi_head_attention_forward", "scaled_dot_product_attention",
}  # fmt: skip
"""Functions that run in autocast's type."""
WIDE = {
    "softmax", "log_softmax", "softmin", "layer_norm", "group_norm", "cross_entropy", "nll_loss", "mse_loss", "l1_loss",
    "smooth_l1_loss", "kl_div", "binary_cross_entropy_with_logits", "cosine_similarity", "exp", "expm1", "log",
    "log10", "log1p", "log2", "pow", "__pow__", "__rpow__", "__rtruediv__", "reciprocal", "rsqrt", "softplus", "sum",
    "prod", "cumsum", "cumprod", "norm", "normalize", "dist", "cdist", "renorm", "sinh", "cosh", "tan", "acos", "asin",
}  # fmt: skip
"""Functions that run in fp32."""
WIDEST = {
    "scatter_add",
    "scatter_add_",
    "index_put",
    "index_put_",
    "dot",
    "bilinear",
    "tensordot",
    "addcmul",
    "addcdiv",
}
"""Functions that run in the widest type of their arguments."""
DEVICES = ("cuda", "cpu", "xpu", "mps")


class _Autocasts(TorchFunctionMode):  # type: ignore[misc]
    """Casts the arguments of functions inside a ``torch.autocast`` of any device."""

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: tuple[Any, ...] = (), kwargs: JsonDict | None = None
    ) -> object:
        kwargs = kwargs or {}
        dtype = _wanted_dtype(getattr(func, "__name__", ""), (args, kwargs))
        if dtype is not None:
            args, kwargs = _cast(args, dtype), _cast(kwargs, dtype)
        return func(*args, **kwargs)


def _wanted_dtype(name: str, args: object) -> torch.dtype | None:
    """The type that autocast runs a function in; None outside an autocast and for other functions."""
    narrow = _autocast_dtype() if name in NARROW or name in WIDE or name in WIDEST else None
    if narrow is None:
        return None
    if name in WIDEST:
        return torch.float32 if any(t.dtype is torch.float32 for t in _floats(args)) else None
    return narrow if name in NARROW else torch.float32


def _autocast_dtype() -> torch.dtype | None:
    """The type of the autocast that is active."""
    return next((torch.get_autocast_dtype(d) for d in DEVICES if torch.is_autocast_enabled(d)), None)


def cast_all(function: str, *tensors: Any) -> Any:
    """The tensors as autocast hands them to a function."""
    dtype = _wanted_dtype(function, tensors)
    return tensors if dtype is None else _cast(tensors, dtype)


@contextmanager
def autocasts() -> Iterator[None]:
    """Let ``torch.autocast`` be entered for meta tensors and without a GPU, as on one; also for what is recomputed.

    While one is active its casts are a function mode of its own: during backward no mode outside is."""
    init, enter, leave = autocast.__init__, autocast.__enter__, autocast.__exit__
    infer: Any = getattr(torch.utils.checkpoint, "_infer_device_type", None)

    def make(self: Any, device_type: str, *words: Any, enabled: bool = True, **options: Any) -> None:
        enabled = bool(words[1]) if len(words) > 1 else enabled
        init(self, "cuda" if device_type == "meta" else device_type, *words[:1], enabled=False, **options)
        self._enabled = enabled

    def begin(self: Any) -> Any:
        enter(self)
        self.casts = _Autocasts()
        self.casts.__enter__()
        return self

    def end(self: Any, *words: Any) -> Any:
        self.casts.__exit__(*words)
        return leave(self, *words)

    def on_the_gpu(*args: Any) -> str:
        device = str(infer(*args))
        return "cuda" if device == "meta" else device

    originals = (
        (autocast, "__init__", init, make),
        (autocast, "__enter__", enter, begin),
        (autocast, "__exit__", leave, end),
    )
    places = [*originals, (torch.utils.checkpoint, "_infer_device_type", infer, on_the_gpu)][: 4 if infer else 3]
    for owner, name, _, new in places:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old, _ in places:
            setattr(owner, name, old)


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    if isinstance(tree, torch.Tensor):
        narrows = tree.is_floating_point() and tree.dtype not in (dtype, torch.float64)
        return tree.to(dtype) if narrows and tree.element_size() > 1 else tree
    if isinstance(tree, (tuple, list)):
        return type(tree)([_cast(item, dtype) for item in tree]) if type(tree) in (tuple, list) else tree
    return {key: _cast(item, dtype) for key, item in tree.items()} if isinstance(tree, dict) else tree


def _floats(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        if tree.is_floating_point():
            yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _floats(item)
    elif isinstance(tree, dict):
        yield from _floats(list(tree.values()))
