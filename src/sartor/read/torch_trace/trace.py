"""Runs a module once, forward and backward, on meta tensors, and folds the trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.model.traced import TracedLayer, TracedModel
from sartor.operators import Gemm, GroupedGemm, OperatorGraph, Part, Pass
from sartor.read.torch_trace.autocast import autocasts
from sartor.read.torch_trace.fold import Folded, fold
from sartor.read.torch_trace.nouns import dtype_of
from sartor.read.torch_trace.recorder import Recorder
from sartor.read.torch_trace.records import LayerPlace
from sartor.read.torch_trace.stand_ins import FusedAttention, fused_norms, selective_scans
from sartor.units import format_count

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

ROUTED = (".experts.", ".expert_list.", ".local_experts.")
ASKS_FOR_VALUES = ("_local_scalar_dense", "meta tensors", "Meta tensors", "meta tensor", "data-dependent", "nonzero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A module to trace, on the meta device, with the inputs to call it with.

    ``inputs`` are the call's keyword arguments, ``args`` its positional ones. ``attention`` gets the recorder and makes
    the model use the stand-in. ``lenient``: tensor values that the model reads are taken as 1.
    """

    name: str
    source: str
    model: Module
    args: tuple[object, ...] = ()
    inputs: JsonMap = field(default_factory=dict)
    microbatch_size: int = 1
    seq_len: int = 1
    attention: Callable[[Recorder], None] | None = None
    lenient: bool = False
    model_type: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def trace(subject: Subject, *, train: bool = True, fused: bool = True) -> TracedModel:
    """Trace a subject and fold it. Raises ``InputError`` naming the operator, module and line that cannot be traced."""
    tensors = [t for t in (*subject.args, *subject.inputs.values()) if isinstance(t, torch.Tensor)]
    recorder = Recorder(subject.model, tensors)
    if subject.attention is not None:
        subject.attention(recorder)
    notes = _run(subject, recorder, train)
    places = _find_layers(subject.model)
    classes = {name: type(module).__name__ for name, module in subject.model.named_modules()}
    tokens = subject.microbatch_size * subject.seq_len
    sizes = {p.path: sum(x.numel() for x in subject.model.get_submodule(p.path).parameters()) for p in places}
    folded = fold(recorder.records, recorder.saved, places, recorder.calls, classes, sizes, tokens=tokens, fused=fused)
    return _model(subject, recorder, folded, train, notes)


def _find_layers(model: Module) -> tuple[LayerPlace, ...]:
    """Members of the outermost lists (``ModuleList``, ``Sequential``) that hold repeated parts; empty if there is no
    such list."""
    places: list[LayerPlace] = []
    _descend(model, "", places)
    return tuple(places)


def _descend(module: Module, path: str, places: list[LayerPlace]) -> None:
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        if _is_stack(child):
            places += [
                LayerPlace(f"{child_path}.{key}", child_path)
                for key, grandchild in child.named_children()
                if _has_params(grandchild)
            ]
        else:
            _descend(child, child_path, places)


def _is_stack(module: Module) -> bool:
    """Whether it is a list of layers: two members of one class, or one member with parts (a layer run many times)."""
    if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return False
    children = [child for child in module.children() if _has_params(child)]
    if len(children) == 1:
        return isinstance(module, torch.nn.ModuleList) and any(True for _ in children[0].children())
    return len({type(child) for child in children}) < len(children)


def _has_params(module: Module) -> bool:
    return next(module.parameters(), None) is not None


def _run(subject: Subject, recorder: Recorder, train: bool) -> tuple[str, ...]:
    """Forward and backward under the recorder."""
    lenient: Any = _values_are_one() if subject.lenient else contextlib.nullcontext([])
    try:
        stand_ins = FusedAttention(recorder), selective_scans(recorder), fused_norms(recorder), autocasts()
        with lenient as calls, recorder.watching(), contextlib.ExitStack() as stack:
            for stand_in in stand_ins:
                stack.enter_context(stand_in)
            with torch.set_grad_enabled(train):
                out = subject.model(*subject.args, **subject.inputs)
            if train:
                _backward(out, subject, recorder)
    except InputError:
        raise
    except Exception as error:
        raise _untraceable(subject, recorder, error) from error
    return (f"the model reads values of tensors ({len(calls)} times): each was taken as 1",) if calls else ()


def _untraceable(subject: Subject, recorder: Recorder, error: Exception) -> InputError:
    message = " ".join(str(error).split())[:240]
    why = "cannot be traced"
    if any(word in message for word in ASKS_FOR_VALUES) or isinstance(error, NotImplementedError):
        why = "cannot be traced without values"
    return InputError(
        subject.source,
        type(subject.model).__name__,
        f"{why}: {recorder.place(error)}: {type(error).__name__}: {message}",
    )


def _backward(out: object, subject: Subject, recorder: Recorder) -> None:
    """Run backward from the loss if there is one, else from every output that depends on a parameter."""
    loss = getattr(out, "loss", None)
    if loss is not None:
        loss.backward()
        return
    outputs = {id(t): t for t in _leaves(out) if t.requires_grad and t.is_floating_point()}
    tensors = list(outputs.values())
    if not tensors:
        must = (
            "returns nothing that depends on a parameter: there is no backward to trace; --phase prefill traces forward"
        )
        raise InputError(subject.source, type(subject.model).__name__, must)
    gradients = [torch.empty_like(t) for t in tensors]
    for gradient in gradients:
        recorder.mark(gradient)
    torch.autograd.backward(tensors, gradients)


def _leaves(tree: object) -> Iterator[Any]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from _leaves(item)
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _leaves(item)
    elif hasattr(tree, "__dict__"):
        yield from _leaves(vars(tree))


@contextlib.contextmanager
def _values_are_one() -> Iterator[list[str]]:
    """Let a forward pass read values of meta tensors: masks are all ones, scales are one."""
    names = ("item", "__bool__", "__int__", "__float__", "tolist")
    originals = {name: getattr(torch.Tensor, name) for name in names}
    names_read: list[str] = []

    def answer(name: str, value: object) -> Any:
        def say(tensor: Tensor, *words: object) -> object:
            if not tensor.is_meta:
                return originals[name](tensor, *words)
            names_read.append(name)
            return value

        return say

    values = {"item": 1, "__bool__": True, "__int__": 1, "__float__": 1.0, "tolist": 1}
    for name in names:
        setattr(torch.Tensor, name, answer(name, values[name]))
    try:
        yield names_read
    finally:
        for name, method in originals.items():
            setattr(torch.Tensor, name, method)


def _model(subject: Subject, recorder: Recorder, folded: Folded, train: bool, notes: tuple[str, ...]) -> TracedModel:
    """The traced model: parameters by part, layers with their parameters and saved bytes."""
    model, graph = subject.model, folded.graph
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    frozen = {name: p.numel() for name, p in model.named_parameters() if not p.requires_grad}
    layers = tuple(_layer(kind, model, sizes, folded) for kind in folded.layers)
    before, tied = _outside(recorder, folded)
    inside = sum(layer.num_params * layer.weight_sets for layer in layers)
    embedding = sum(sizes[name] for name in before if name in sizes)
    still = sum(frozen.get(name, 0) for name in before)
    width = next((op.n for op in reversed(graph.operators) if isinstance(op, Gemm) and op.part is Part.HEAD), 0)
    total = sum(sizes.values())
    routed, active = _routed(sizes, folded, subject)
    return TracedModel(
        name=subject.name,
        source=subject.source,
        graph=graph,
        calls=folded.calls,
        layers=layers or (_whole(subject, sizes, folded),),
        num_params=total,
        num_active_params=total - routed + active,
        frozen_params=sum(frozen.values()),
        frozen_embedding_params=still if layers else 0,
        buffer_bytes=_buffer_bytes(model, apart=[m.path for kind in folded.layers for m in kind.members])
        if layers
        else 0,
        embedding_params=embedding if layers else 0,
        head_params=total - inside - embedding if layers else 0,
        microbatch_size=subject.microbatch_size,
        seq_len=subject.seq_len,
        dtype=_main_dtype(model),
        phase="train" if train else "prefill",
        tied_params=sum(sizes[name] for name in tied if name in sizes) if layers else 0,
        vocab_size=_vocab(model, int(width)),
        hidden_size=int((_handed_on(folded, None) or (0,))[-1]),
        model_type=subject.model_type,
        module_class=type(model).__name__,
        inputs=_inputs(subject),
        versions=(("torch", torch.__version__), *subject.versions),
        notes=(*subject.notes, *notes, *_priced_by_bytes(recorder), *(_frozen(frozen, total) if train else ())),
    )


def _priced_by_bytes(recorder: Recorder) -> tuple[str, ...]:
    names = ", ".join(recorder.without_rule)
    few = len(recorder.without_rule) == 1
    how = "has no FLOP rule and is priced by its bytes" if few else "have no FLOP rule and are priced by their bytes"
    return (f"{names} {how}",) if names else ()


def _frozen(frozen: Mapping[str, int], total: int) -> tuple[str, ...]:
    still = sum(frozen.values())
    words = f"{format_count(total - still)} of {format_count(total)} parameters are trained"
    return (f"{words}; the others are frozen: no gradients, no optimizer states",) if still else ()


def _buffer_bytes(model: Module, path: str = "", apart: Sequence[str] = ()) -> float:
    """Bytes of the buffers of a submodule, without those of the modules ``apart``."""
    prefixes = tuple(f"{prefix}." for prefix in apart)
    buffers = model.get_submodule(path).named_buffers()
    return float(sum(b.numel() * b.element_size() for name, b in buffers if not name.startswith(prefixes)))


def _layer(kind: Any, model: Module, sizes: Mapping[str, int], folded: Folded) -> TracedLayer:
    prefix = kind.path + "."
    buffers = {name: size for name, size in sizes.items() if name.startswith(prefix)}
    number = folded.layers.index(kind)
    members = tuple(f"{m.path}." for m in kind.members)
    saved, again = (
        [tensor for tensor in tensors if f"{tensor.path}.".startswith(members)]
        for tensors in (folded.kept, folded.recomputed)
    )
    size = 1.0
    for length in _handed_on(folded, number):
        size *= length
    return TracedLayer(
        name=kind.name,
        module=kind.members[0].container + ".*",
        count=kind.count,
        positions=tuple(kind.positions),
        num_params=sum(buffers.values()),
        frozen_params=_frozen_of(model.get_submodule(kind.path)),
        buffer_bytes=_buffer_bytes(model, kind.path) + sum(k.bytes for k in saved if not k.varies) / len(members),
        expert_params=sum(size for name, size in buffers.items() if any(word in f".{name}" for word in ROUTED)),
        weight_sets=len(kind.members),
        stash_bytes=sum(k.bytes for k in saved if k.varies) / kind.count,
        recomputed_bytes=sum(k.bytes for k in again) / kind.count,
        output_bytes=size * _main_dtype(model).bytes,
    )


def _whole(subject: Subject, sizes: Mapping[str, int], folded: Folded) -> TracedLayer:
    """A module without repeated parts is one layer."""
    return TracedLayer(
        name=type(subject.model).__name__,
        module="",
        count=1,
        positions=(0,),
        num_params=sum(sizes.values()),
        frozen_params=_frozen_of(subject.model),
        buffer_bytes=_buffer_bytes(subject.model) + sum(k.bytes for k in folded.kept if not k.varies),
        stash_bytes=sum(k.bytes for k in folded.kept if k.varies),
        recomputed_bytes=sum(k.bytes for k in folded.recomputed),
    )


def _frozen_of(module: Module) -> int:
    return sum(p.numel() for p in module.parameters() if not p.requires_grad)


def _outside(recorder: Recorder, folded: Folded) -> tuple[set[str], set[str]]:
    """Names of parameters outside the layers that are read before the last layer starts; and those of them that are
    read again after it (a head tied to the token table)."""
    paths = [m.path + "." for kind in folded.layers for m in kind.members]
    lead = tuple(paths)
    forward = [r for r in recorder.records if r.pass_ is Pass.FORWARD]
    first: dict[str, int] = {}
    for i, record in enumerate(forward):
        for path in (p for p in lead if (record.path + ".").startswith(p)) if lead else ():
            first.setdefault(path, i)
    last = max(first.values(), default=len(forward))
    early = {read.param for r in forward[:last] for read in r.reads if read.param}
    late = {read.param for r in forward[last:] for read in r.reads if read.param}
    early = {name for name in early if not name.startswith(lead or ("\0",))}
    return early, early & late


def _routed(sizes: Mapping[str, int], folded: Folded, subject: Subject) -> tuple[int, int]:
    """Parameters of routed experts, and how many of them one token visits."""
    routed = sum(size for name, size in sizes.items() if any(word in f".{name}" for word in ROUTED))
    shares = _expert_share(folded.graph, subject.microbatch_size * subject.seq_len)
    if not shares or not routed:
        return 0, 0
    weights = {i: _weights(folded.graph.operators[i]) for i in shares}
    share = sum(shares[i] * weights[i] for i in shares) / sum(weights.values())
    return routed, round(routed * share)


def _expert_share(graph: OperatorGraph, tokens: int) -> dict[int, float]:
    """Share of a model's routed experts that one token visits, by operator index of forward grouped GEMMs."""
    return {
        i: float(op.rows) / (tokens * float(op.groups))
        for i, op in enumerate(graph.operators)
        if isinstance(op, GroupedGemm) and op.pass_ is Pass.FORWARD
    }


def _weights(op: object) -> float:
    return float(op.groups * op.n * op.k * op.count) if isinstance(op, GroupedGemm) else 0.0


def _main_dtype(model: Module) -> Any:
    """The most common dtype of the parameters."""
    counts: dict[str, int] = {}
    for p in model.parameters():
        word = str(p.dtype).removeprefix("torch.")
        counts[word] = counts.get(word, 0) + p.numel()
    return dtype_of(max(counts, key=lambda word: counts[word]) if counts else "float32")


def _vocab(model: Module, width: int) -> int:
    """Rows of the largest token table; if there is none, the width of the last product."""
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    return max(tables, default=width)


def _handed_on(folded: Folded, number: int | None) -> tuple[int, ...]:
    """Shape of the last forward output of a kind of layer (None: of the last layer)."""
    pairs = zip(folded.graph.operators, folded.calls, strict=True)
    handed = [
        call.outputs[0]
        for op, call in pairs
        if op.part is Part.LAYER and op.pass_ is Pass.FORWARD and call.outputs and number in (None, call.layer)
    ]
    return handed[-1] if handed else ()


def _inputs(subject: Subject) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    named = [*((f"arg{i}", t) for i, t in enumerate(subject.args)), *subject.inputs.items()]
    return tuple(
        (name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in named if isinstance(t, torch.Tensor)
    )
