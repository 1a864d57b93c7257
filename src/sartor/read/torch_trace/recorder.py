"""Records every operator a module dispatches, forward and backward, with the module it belongs to.

A backward operator runs outside any module: its autograd node has the sequence number that was assigned when the
forward operator was dispatched, and that identifies the module. Activation checkpointing runs modules again during
backward; their operators are ``Pass.RECOMPUTE``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from sartor.json_types import JsonDict
from sartor.operators import Pass
from sartor.read.torch_trace.records import Read, Record, Saved, facts_of, has_no_rule, line_of, written

if TYPE_CHECKING:
    from torch import Tensor
    from torch._ops import OpOverload
    from torch.nn import Module

FREE = {
    "aten::_unsafe_view", "aten::_reshape_alias", "aten::detach", "aten::lift_fresh", "aten::alias", "aten::empty",
    "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided", "aten::is_same_size",
    "aten::_local_scalar_dense", "aten::sym_size", "aten::record_stream", "aten::set_", "aten::resize_",
}  # fmt: skip
"""Operators that launch no kernel; views are recognized by their schema."""
ELEMENTWISE = {
    "aten::mul", "aten::add", "aten::sub", "aten::div", "aten::neg", "aten::rsqrt", "aten::pow", "aten::silu",
    "aten::gelu", "aten::exp", "aten::sigmoid", "aten::tanh", "aten::silu_backward", "aten::gelu_backward",
}  # fmt: skip
"""Operators with an output of the shape and dtype of their (contiguous, floating) first operand."""


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records everything dispatched inside its context."""

    def __init__(self, model: Module, inputs: Any) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.calls: dict[str, int] = {}
        self.saved: dict[tuple[int, int], Saved] = {}
        """What autograd keeps, by its memory (`Read.tensor`)."""
        self.without_rule: dict[str, None] = {}
        """Operators of other libraries that are priced by their bytes, in the order they ran."""
        self.last_call = ""
        self._stack = [""]
        self._bases: dict[int, int] = {}
        """Depth of the stack at which each backward began."""
        self._back = ""
        """The module whose backward ran last."""
        self._failed: tuple[object, str] = (None, "")
        self._names = {module: name for name, module in model.named_modules()}
        self._params = {_storage(p): name for name, p in model.named_parameters()}
        self._held = {*self._params, *(_storage(b) for b in model.buffers())}
        self._born: dict[int, int] = {}
        """The record that allocated a storage; one that writes in place does not."""
        self._owner: dict[int, tuple[int, bool]] = {_storage(p): (-1, False) for p in model.buffers()}
        self._owner |= {_storage(t): (-1, True) for t in inputs}
        self._forward_of_node: dict[int, tuple[str, int]] = {}
        self._twin = -1
        self._is_view: dict[object, bool] = {}

    @contextmanager
    def watching(self) -> Iterator[Recorder]:
        """Install hooks on every module's forward while inside."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            with self, torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
                yield self
        finally:
            before.remove()
            after.remove()

    @property
    def path(self) -> str:
        """The module that is running: forward, again, or backward."""
        task = torch._C._current_graph_task_id()
        if task == -1 or len(self._stack) > self._base(task):
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is not None and node._sequence_nr() in self._forward_of_node:
            self._back, self._twin = self._forward_of_node[node._sequence_nr()]
        return self._back

    @property
    def pass_(self) -> Pass:
        """Forward, backward, or forward again: a module or a checkpointed function that runs during backward."""
        task = torch._C._current_graph_task_id()
        if task == -1:
            return Pass.FORWARD
        again = len(self._stack) > self._base(task) or (torch.is_grad_enabled() and _in_checkpoint())
        return Pass.RECOMPUTE if again else Pass.BACKWARD

    def _base(self, task: int) -> int:
        return self._bases.setdefault(task, len(self._stack))

    def add(
        self, call: str, tensors: list[Tensor], outputs: list[Tensor], facts: JsonDict, path: str | None = None
    ) -> None:
        """Record one operator that read ``tensors`` and wrote ``outputs``."""
        reads = tuple(self._read(t) for t in tensors)
        first = outputs[0] if outputs else tensors[0] if tensors else None
        where, pass_ = self.path if path is None else path, self.pass_
        self.records.append(
            Record(
                call=call,
                path=where,
                pass_=pass_,
                reads=reads,
                outputs=tuple(tuple(t.shape) for t in outputs),
                output_bytes=sum(_bytes(t) for t in outputs),
                dtype="" if first is None else str(first.dtype).removeprefix("torch."),
                facts=facts,
                twin=self._twin if pass_ is Pass.BACKWARD else -1,
            )
        )
        varies = any(read.varies for read in reads)
        if pass_ is Pass.RECOMPUTE:
            self._keep_inputs(reads, where)
        storages, last = {_storage(t) for t in tensors}, len(self.records) - 1
        for storage in map(_storage, outputs):
            self._owner[storage] = (last, varies)
            if storage not in storages:
                self._born[storage] = last

    def _keep_inputs(self, reads: tuple[Read, ...], path: str) -> None:
        """What a checkpointed module reads again was kept for it from forward on."""
        for read in reads:
            if not read.held and read.producer >= 0 and self.records[read.producer].pass_ is Pass.FORWARD:
                self.saved[read.tensor] = Saved(
                    path=path, producer=read.producer, bytes=read.whole_bytes, varies=read.varies
                )

    def mark(self, tensor: Tensor) -> None:
        """Mark a tensor from outside as depending on the model's inputs: the gradient that backward begins with."""
        self._owner[_storage(tensor)] = (-1, True)

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: JsonDict | None = None
    ) -> object:
        name = func._schema.name
        self.last_call = name
        if self.pass_ is not Pass.BACKWARD:
            node = torch.autograd._get_sequence_nr() - 1
            self._forward_of_node.setdefault(node, (self.path, len(self.records)))
        out = _elementwise(name, args, kwargs)
        if name == "aten::_weight_int4pack_mm":  # PyTorch's own shape rule wants a fake tensor: [n / 8, ...] is packed
            out = args[0].new_empty((args[0].shape[0], 8 * args[1].shape[0]))
        if out is None:
            out = func(*args, **(kwargs or {}))
        if name in FREE or self._views(func):
            if name.startswith(("aten::empty", "aten::new_empty")):
                self._owner[_storage(out)] = (-1, False)
            return out
        tensors, outputs = list(_tensors((args, kwargs))), [*_tensors(out), *written(func, args, kwargs or {})]
        facts = facts_of(func, args, kwargs or {}, tensors)
        if has_no_rule(name) and not facts:
            self.without_rule[name] = None
        self.add(name, tensors, outputs, facts)
        return out

    def _views(self, func: OpOverload) -> bool:
        is_view = self._is_view.get(func)
        if is_view is None:
            returns = func._schema.returns
            is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
            self._is_view[func] = is_view
        return is_view

    def _read(self, tensor: Tensor) -> Read:
        storage = _storage(tensor)
        param = self._params.get(storage, "")
        producer, varies = (-1, False) if param else self._owner.get(storage, (-1, False))
        return Read(
            producer=producer,
            storage=storage if producer < 0 else 0,
            shape=tuple(tensor.shape),
            bytes=_bytes(tensor),
            tensor=(storage, self._born.get(storage, -1)),
            whole_bytes=_whole_bytes(tensor),
            param=param,
            held=storage in self._held,
            varies=varies,
        )

    def _enter(self, module: Module, _args: object) -> None:
        name = self._names.get(module, self._stack[-1])
        task = torch._C._current_graph_task_id()
        if task == -1:  # not a recomputed layer
            self.calls[name] = self.calls.get(name, 0) + 1
        else:
            self._base(task)
        self._stack.append(name)

    def _leave(self, _module: object, _args: object, _out: object) -> None:
        error = sys.exc_info()[1]
        if error is not None and error is not self._failed[0]:
            self._failed = error, self._stack[-1]
        if len(self._stack) > 1:
            self._stack.pop()

    def _pack(self, tensor: Tensor) -> Tensor:
        """Note what autograd saves in forward, each tensor once: parameters and buffers are there anyway. A view keeps
        the whole of its memory."""
        storage = _storage(tensor)
        if torch._C._current_graph_task_id() == -1 and storage not in self._held:
            producer, varies = self._owner.get(storage, (-1, False))
            packed = Saved(path=self._stack[-1], producer=producer, bytes=_whole_bytes(tensor), varies=varies)
            self.saved.setdefault((storage, self._born.get(storage, -1)), packed)
        return tensor

    def place(self, error: BaseException) -> str:
        """``operator X in module Y at file:line`` for an error during tracing."""
        module = (
            self._failed[1] if self._failed[0] is error else self._back or self._stack[-1]
        ) or "(the model itself)"
        return f"operator {self.last_call or 'none yet'} in module {module}{line_of(error)}"


def _in_checkpoint() -> bool:
    """Whether PyTorch's activation checkpointing runs a function again: it stands on the call stack."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            return True
        frame = frame.f_back
    return False


def _elementwise(name: str, args: Any, kwargs: Any) -> Any:
    """The output of a plain elementwise operator on meta tensors, or None if PyTorch must compute it: PyTorch's own
    shape rules in Python take most of a trace's time."""
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor) or not _is_plain(first):
        return None
    if name == "aten::_to_copy":
        plain = len(args) == 1 and set(kwargs) == {"dtype"}
        return torch.empty(first.shape, dtype=kwargs["dtype"], device="meta") if plain else None
    if name not in ELEMENTWISE or (kwargs and set(kwargs) - {"approximate"}) or not first.is_floating_point():
        return None
    for operand in args[1:]:
        if isinstance(operand, complex) or (isinstance(operand, torch.Tensor) and not _joins(operand, first)):
            return None
    return torch.empty(first.shape, dtype=first.dtype, device="meta")


def _is_plain(tensor: Tensor) -> bool:
    return bool(tensor.is_meta and tensor.is_contiguous())


def _joins(operand: Tensor, first: Tensor) -> bool:
    """Whether combining with ``other`` keeps the first operand's shape and dtype."""
    if operand.dtype != first.dtype or not _is_plain(operand):
        return False
    return bool(operand.shape == first.shape) or (
        operand.dim() <= first.dim() and _spreads(tuple(operand.shape), tuple(first.shape))
    )


def _spreads(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether the small shape broadcasts to the large one without changing it."""
    return all(a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False))


def _tensors(tree: object) -> Iterator[Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _tensors(item)


def _storage(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def _whole_bytes(tensor: Tensor) -> float:
    """Bytes of the memory that a tensor keeps alive."""
    try:
        return float(tensor.untyped_storage().nbytes())
    except (NotImplementedError, RuntimeError):
        return _bytes(tensor)


def _bytes(tensor: Tensor) -> float:
    """Bytes of the elements in memory: a stride of 0 repeats them."""
    size = float(tensor.element_size())
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride or length == 0 else 1
    return size
