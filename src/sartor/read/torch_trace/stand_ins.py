"""Stand-ins for what meta tensors run as many operators and a GPU as one kernel: attention, RMSNorm, selective scans.

A stand-in returns tensors of the right shape and records the operator; nothing is computed. Attention with a mask
counts as full unless the caller says it is causal or windowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from sartor.json_types import JsonDict
from sartor.read.torch_trace.autocast import cast_all
from sartor.read.torch_trace.recorder import Recorder

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.function import FunctionCtx
    from torch.nn import Module


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Queries [b, a, s, d], keys [b, a_kv, t, d] and values [b, a_kv, t, dv] to outputs [b, a, s, dv]."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, query: Tensor, key: Tensor, value: Tensor, recorder: Recorder, facts: JsonDict
    ) -> Tensor:
        batch, heads, seq = query.shape[:3]
        out = query.new_empty((batch, seq, heads, value.shape[-1])).transpose(1, 2)  # as flash kernels write it
        sums = query.new_empty((batch, heads, seq), dtype=torch.float32)  # of the exponentials, as a logarithm
        ctx.recorder, ctx.facts, ctx.path = recorder, facts, recorder.path
        ctx.save_for_backward(query, key, value, out, sums)
        recorder.add("sartor::attention", [query, key, value], [out, sums], facts)
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # read once: a checkpoint gives them out once
        grads = [torch.empty_like(t) for t in tensors[:3]]
        ctx.recorder.add("sartor::attention_backward", [*tensors, grad], grads, ctx.facts, ctx.path)
        return (*grads, None, None)


class _Scan(torch.autograd.Function):  # type: ignore[misc]
    """A selective scan over [b, channels, s] with the other tensors it reads, to [b, channels, s]."""

    @staticmethod
    def forward(ctx: FunctionCtx, recorder: Recorder, facts: JsonDict, hidden: Tensor, *others: Tensor) -> Tensor:
        out = torch.empty_like(hidden)
        ctx.recorder, ctx.facts, ctx.path = recorder, facts, recorder.path
        ctx.save_for_backward(hidden, *others)
        recorder.add("sartor::scan", [hidden, *others], [out], facts)
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        grads = [torch.empty_like(t) for t in tensors]
        ctx.recorder.add("sartor::scan_backward", [*tensors, grad], grads, ctx.facts, ctx.path)
        return (None, None, *grads)


class _RmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """``torch.rms_norm`` as its CUDA kernel runs it: one kernel each way, which keeps the input and a column."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor | None, axes: int, recorder: Recorder) -> Tensor:
        out, roots = torch.empty_like(x), x.new_empty(x.shape[: x.dim() - axes], dtype=torch.float32)
        ctx.recorder, ctx.path, ctx.weighted = recorder, recorder.path, weight is not None
        weights = [] if weight is None else [weight]
        ctx.save_for_backward(x, roots, *weights)
        recorder.add("aten::_fused_rms_norm", [x, *weights], [out, roots], {})
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, roots, *weights = ctx.saved_tensors
        inputs = [
            torch.empty_like(t) if need else None for t, need in zip((x, *weights), ctx.needs_input_grad, strict=False)
        ]
        needed = [t for t in inputs if t is not None]
        ctx.recorder.add("aten::_fused_rms_norm_backward", [grad, x, roots, *weights], needed, {}, ctx.path)
        return (*inputs, *([] if weights else [None]), None, None)


@contextmanager
def fused_norms(recorder: Recorder) -> Iterator[None]:
    """Replaces ``torch.rms_norm``, which ``nn.RMSNorm`` calls, by `_RmsNorm` while inside; not where PyTorch has no
    fused kernel: before 2.8, and for a weight of another type than the input (aten/src/ATen/native/layer_norm.cpp)."""
    plain = torch.rms_norm

    def norm(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Any:
        if weight is not None and weight.dtype != x.dtype:
            return plain(x, shape, weight, eps)
        return _RmsNorm.apply(x, weight, len(shape), recorder)

    if hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        torch.rms_norm = norm
    try:
        yield
    finally:
        torch.rms_norm = plain


class FusedAttention(TorchFunctionMode):  # type: ignore[misc]
    """Replaces ``torch.nn.functional.scaled_dot_product_attention`` by `_Attention`, whether called by that name (also
    inside PyTorch's own modules) or as a function imported before."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self._kept: Any = None

    def __enter__(self) -> Any:
        self._kept = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = self._sdpa
        return super().__enter__()

    def __exit__(self, *words: object) -> None:
        torch.nn.functional.scaled_dot_product_attention = self._kept
        super().__exit__(*words)

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: tuple[Any, ...] = (), kwargs: JsonDict | None = None
    ) -> object:
        if func is self._kept:
            return self._sdpa(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _sdpa(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        query, key, value = cast_all("scaled_dot_product_attention", query, key, value)
        facts = _attention_facts(query, key, value, causal=is_causal, window=0)
        shape = query.shape
        if query.dim() != 4:  # all leading axes but the last are batches; none means one head
            lead = [t.reshape(-1, *((1,) * (t.dim() < 3)), *t.shape[-3:]) for t in (query, key, value)]
            out = _Attention.apply(*lead, self.recorder, facts)
            return out.reshape(*shape[:-1], value.shape[-1])
        return _Attention.apply(query, key, value, self.recorder, facts)


def _attention_facts(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, window: int) -> JsonDict:
    """Sizes of an attention from the last three axes (heads, tokens, width) of its tensors."""
    heads = query.shape[-3] if query.dim() > 2 else 1
    kv_heads = key.shape[-3] if key.dim() > 2 else 1
    batch = 1
    for length in query.shape[:-3]:
        batch *= int(length)
    return {
        "batch": batch,
        "num_heads": int(heads),
        "num_kv_heads": int(kv_heads),
        "seq_q": int(query.shape[-2]),
        "seq_kv": int(key.shape[-2]),
        "head_dim": int(query.shape[-1]),
        "v_head_dim": int(value.shape[-1]),
        "causal": bool(causal) and query.shape[-2] > 1,
        "window": int(window or 0),
    }


def hugging_face_attention(recorder: Recorder) -> Any:
    """An attention for ``transformers.AttentionInterface.register``; it gets and needs no mask."""

    def attend(
        module: Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: object = None, **words: Any
    ) -> Any:
        causal = words.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        window = words.get("sliding_window") or 0
        facts = _attention_facts(query, key, value, causal=bool(causal), window=window)
        out = _Attention.apply(query, key, value, recorder, facts)
        return out.transpose(1, 2), None

    return attend


@contextmanager
def selective_scans(recorder: Recorder) -> Iterator[None]:
    """Replaces a model's own loop over the sequence (Mamba and its relatives) by `_Scan` while inside."""
    import sys

    def scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor = None,
        z: Tensor = None,
        **words: object,
    ) -> Any:
        others = [t for t in (dt, A, B, C, D, z, words.get("delta_bias")) if t is not None]
        facts = {"channels": int(hidden_states.shape[1]), "states": int(A.shape[-1])}
        out = _Scan.apply(recorder, facts, hidden_states, *others)
        if words.get("return_last_state"):
            return out, hidden_states.new_empty((hidden_states.shape[0], *A.shape))
        return out

    places = [
        (module, name)
        for path, module in list(sys.modules.items())
        if path.startswith("transformers.models.") and "modeling" in path
        for name in list(vars(module))
        if name in ("mamba_selective_scan", "selective_scan_fn") and callable(vars(module)[name])
    ]
    originals = [(module, name, vars(module)[name]) for module, name in places]
    for module, name in places:
        setattr(module, name, scan)
    try:
        yield
    finally:
        for module, name, value in originals:
            setattr(module, name, value)
