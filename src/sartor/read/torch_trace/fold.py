"""Folding of a trace: layers that ran equal operators become one kind of layer with operator counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sartor.model.lower.graph import unique
from sartor.model.traced import TracedCall
from sartor.operators import MemoryBound, MemoryBoundKind, Operator, OperatorGraph, Part, Pass
from sartor.read.graph_json import traced_role
from sartor.read.torch_trace.kernels import Group, Traffic, group_kernels, kept_tensors, memory_bound, recomputed
from sartor.read.torch_trace.nouns import Made, is_product, products
from sartor.read.torch_trace.records import LayerPlace, Record, Saved

OWN_NAME = {MemoryBoundKind.NORM, MemoryBoundKind.EMBEDDING}
"""Kinds that are a whole module: the module's path is the operator's name."""


APART = 4
"""Up to this many equal operators of one layer stay separate (its residual sums); more get one row with a count."""
GRADIENTS = {"aten::sum": "bias_grad", "aten::add": "grad_sum"}
"""Names of backward kernels of one operator: the sum of a bias gradient over rows, the sum of two gradients."""


@dataclass(slots=True, kw_only=True)
class _FoldedLayer:
    """A kind of layer: its place, the layer modules of this kind, and their number of executions."""

    name: str
    path: str
    members: list[LayerPlace]
    count: int
    positions: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A graph with its calls and kinds of layers."""

    graph: OperatorGraph
    calls: tuple[TracedCall, ...]
    layers: tuple[_FoldedLayer, ...]
    kept: tuple[Saved, ...] = ()
    """What is kept from forward until backward."""
    recomputed: tuple[Saved, ...] = ()
    """What checkpointing computes again for it."""


@dataclass(slots=True)
class _Entry:
    """An operator of one part of the model, with how often it ran there."""

    operator: Operator
    call: TracedCall
    key: tuple[object, ...]
    count: int
    first: int
    group: Group


def fold(
    records: list[Record],
    saved: Mapping[tuple[int, int], Saved],
    places: Sequence[LayerPlace],
    runs: dict[str, int],
    classes: dict[str, str],
    sizes: Mapping[str, int],
    *,
    tokens: int,
    fused: bool = True,
) -> Folded:
    """Fold the records of a trace.

    ``saved`` is what autograd keeps, ``places`` are the layer modules, ``runs`` how often each module ran, ``classes``
    the class of each module by path, ``sizes`` the parameters of each layer module, ``tokens`` the number of tokens.
    ``fused``: consecutive memory-bound operators of one module are one kernel.
    """
    sections = _sections(records, places)
    owner = _kernel_owners(classes)
    grouped = {path: group_kernels(indices, records, owner, fused) for path, indices in sections.items()}
    traffic = Traffic(records, [g for groups in grouped.values() for g in groups])
    entries = {
        path: _entries(path, groups, records, traffic, classes, owner, runs.get(path, 1) if path else 1)
        for path, groups in grouped.items()
    }
    kinds = _kinds(places, entries, runs, sizes)
    return replace(
        _assemble(records, entries, kinds, places, tokens),
        kept=kept_tensors(saved, records, traffic),
        recomputed=recomputed(records, traffic),
    )


def _sections(records: list[Record], places: Sequence[LayerPlace]) -> dict[str, list[int]]:
    """Indices of records by the layer module they ran in; ``""`` outside all of them."""
    layer_paths = {place.path for place in places}
    depth = {path.count(".") + 1 for path in layer_paths}
    sections: dict[str, str] = {}
    out: dict[str, list[int]] = {}
    for i, record in enumerate(records):
        if record.path not in sections:
            words = record.path.split(".")
            heads = (".".join(words[:d]) for d in sorted(depth) if d <= len(words))
            sections[record.path] = next((head for head in heads if head in layer_paths), "")
        out.setdefault(sections[record.path], []).append(i)
    return out


def _kernel_owners(classes: dict[str, str]) -> dict[str, str]:
    """Activation functions belong to the kernel of the module around them, with its gate, bias or product."""
    owners = re.compile(r"(GELU|SiLU|ReLU|Activation|Tanh|Sigmoid|Softplus|Mish|ELU|Dropout|Identity|Swish)")
    return {path: path.rpartition(".")[0] for path, name in classes.items() if path and owners.search(name)}


def _entries(
    path: str,
    groups: list[Group],
    records: list[Record],
    traffic: Traffic,
    classes: dict[str, str],
    owner: dict[str, str],
    times: int,
) -> list[_Entry]:
    """Operators of one part in the order they first ran; more than `APART` equal ones become one with a count."""
    out: dict[object, list[_Entry]] = {}
    for group in groups:
        record = records[group[0]]
        where = record.path if is_product(record) else owner.get(record.path, record.path)
        for built in _made(group, records, traffic, classes.get(where, "")):
            call = _call(group, records, where, built)
            name = _operator_name(where.removeprefix(path).lstrip("."), built, call.call)
            operator = replace(built.operator, name=name, role=traced_role(built.operator, call.module))
            key = (operator, call.call, built.grows)
            out.setdefault(key, []).append(_Entry(operator, call, (key, 0), 1, group[-1], group))
    return sorted((e for entries in out.values() for e in _counted(entries, times)), key=lambda e: e.first)


def _counted(entries: list[_Entry], times: int) -> list[_Entry]:
    """Equal operators of one part: separate if they are few, so that the edges stay exact; one with a count if they are
    many or the part itself ran several times."""
    if times > 1 or len(entries) > APART:
        return [replace(entries[0], count=len(entries))]
    return [replace(entry, key=(entry.key[0], i)) for i, entry in enumerate(entries)]


def _made(group: Group, records: list[Record], traffic: Traffic, module_class: str) -> tuple[Made, ...]:
    record = records[group[0]]
    return products(record, records) if is_product(record) else (memory_bound(group, records, traffic, module_class),)


def _call(group: Group, records: list[Record], where: str, built: Made) -> TracedCall:
    members = set(group)
    first = records[group[0]]
    inputs = tuple(r.shape for i in group for r in records[i].reads if r.producer not in members)
    suffix = f" +{len(group) - 1}" if len(group) > 1 else ""
    return TracedCall(
        module=re.sub(r"\.\d+(?=\.|$)", ".*", where),
        call=first.call + suffix,
        inputs=inputs,
        outputs=records[group[-1]].outputs,
        grows=built.grows,
    )


def _operator_name(where: str, built: Made, call: str) -> str:
    """The module's path, and the kind of operator unless the module is just that."""
    operator = built.operator
    if isinstance(operator, MemoryBound) and operator.kind not in OWN_NAME | {
        MemoryBoundKind.SCAN,
        MemoryBoundKind.CONV,
    }:
        word = GRADIENTS.get(call, operator.kind.value) if operator.pass_ is Pass.BACKWARD else operator.kind.value
        where = f"{where}.{word}" if where else word
    suffix = "" if where.endswith(tuple(GRADIENTS.values())) else built.suffix
    return (where + suffix).lstrip(".") or type(operator).__name__.lower()


def _kinds(
    places: Sequence[LayerPlace],
    entries: dict[str, list[_Entry]],
    runs: dict[str, int],
    sizes: Mapping[str, int],
) -> list[_FoldedLayer]:
    """Layer modules of one list with equal numbers of parameters and equal GEMMs are one kind (the first and the last
    may differ in a copy); its operators are those that most of them ran. It is named after the list and, if that has
    several kinds, the first module."""
    by_kind: dict[object, list[LayerPlace]] = {}
    for place in places:
        if place.path in entries:
            by_kind.setdefault(_signature(place, entries[place.path], sizes), []).append(place)
    kinds = []
    for members in by_kind.values():
        times = sum(max(runs.get(member.path, 1), 1) for member in members)
        container = members[0].container
        alone = sum(places_of_kind[0].container == container for places_of_kind in by_kind.values()) == 1
        name = container if alone else f"{container}[{members[0].path.rpartition('.')[2]}]"
        kinds.append(_FoldedLayer(name=name, path=_commonest(members, entries), members=members, count=times))
    return kinds


def _signature(place: LayerPlace, ran: list[_Entry], sizes: Mapping[str, int]) -> object:
    """GEMMs, attention, scans and convolutions in order, and parameters."""
    light = (MemoryBoundKind.SCAN, MemoryBoundKind.CONV)
    heavy = (e for e in ran if not isinstance(e.operator, MemoryBound) or e.operator.kind in light)
    return place.container, sizes.get(place.path, 0), tuple((e.operator, e.count) for e in heavy)


def _commonest(members: list[LayerPlace], entries: dict[str, list[_Entry]]) -> str:
    whole = {m.path: frozenset((e.key, e.count) for e in entries[m.path]) for m in members}
    counts = Counter(whole.values())
    return max(members, key=lambda m: counts[whole[m.path]]).path


def _assemble(
    records: list[Record],
    entries: dict[str, list[_Entry]],
    kinds: list[_FoldedLayer],
    places: Sequence[LayerPlace],
    tokens: int,
) -> Folded:
    """All entries in execution order, with counts over all layers of a kind and the edges between them."""
    rows: list[tuple[_Entry, int | None, int]] = [(e, None, e.count) for e in entries.get("", [])]
    for i, kind in enumerate(kinds):
        times = max(kind.count // len(kind.members), 1)
        rows += [(e, i, max(e.count // times, 1) * kind.count) for e in entries[kind.path]]
    rows.sort(key=lambda row: row[0].first)
    _place(kinds, entries)
    parts = _parts(rows, records)
    operators = []
    calls = []
    for (entry, number, count), part in zip(rows, parts, strict=True):
        prefix = "" if number is None or len(kinds) == 1 else f"{kinds[number].name}."
        operators.append(replace(entry.operator, name=prefix + entry.operator.name, count=count, part=part))
        calls.append(replace(entry.call, layer=number))
    graph = OperatorGraph(
        operators=unique(operators), edges=tuple(_edges(rows, entries, kinds, records)), tokens=tokens
    )
    return Folded(graph=graph, calls=tuple(calls), layers=tuple(kinds))


def _place(kinds: list[_FoldedLayer], entries: dict[str, list[_Entry]]) -> None:
    """Positions of every execution among all layers, by when each module first ran; repeats are consecutive."""
    order = sorted(
        ((entries[m.path][0].first, number, i) for number, kind in enumerate(kinds) for i, m in enumerate(kind.members))
    )
    position = 0
    for _, number, _ in order:
        times = max(kinds[number].count // len(kinds[number].members), 1)
        kinds[number].positions += range(position, position + times)
        position += times


def _parts(rows: list[tuple[_Entry, int | None, int]], records: list[Record]) -> list[Part]:
    """The part of each row: layer, embedding (before the last layer), head (after it); a backward operator is in the
    part of its module's forward."""
    forward = [i for i, (e, number, _) in enumerate(rows) if number is not None and not _is_back(e, records)]
    if not forward:
        return [Part.LAYER] * len(rows)
    last = rows[forward[-1]][0].first
    of_module: dict[str, Part] = {}
    out = []
    for entry, number, _ in rows:
        if number is not None:
            out.append(Part.LAYER)
            continue
        guess = Part.EMBEDDING if entry.first < last else Part.HEAD
        if _is_back(entry, records):
            out.append(of_module.get(entry.call.module, Part.HEAD))
        else:
            out.append(guess)
            if entry.call.module:
                of_module[entry.call.module] = guess
    return out


def _is_back(entry: _Entry, records: list[Record]) -> bool:
    return records[entry.group[0]].pass_ is not Pass.FORWARD


def _edges(
    rows: list[tuple[_Entry, int | None, int]],
    entries: dict[str, list[_Entry]],
    kinds: list[_FoldedLayer],
    records: list[Record],
) -> Iterator[tuple[int, int]]:
    """Data dependencies between rows, for the first member of each kind of layer and what is outside the layers."""
    row_of_key = {(number, e.key): i for i, (e, number, _) in enumerate(rows)}
    row_of_record: dict[int, int] = {}
    kind_of = {m.path: number for number, kind in enumerate(kinds) for m in kind.members}
    for path, rows_of_path in entries.items():
        for e in rows_of_path:
            row = row_of_key.get((kind_of.get(path), e.key))
            if row is not None:
                row_of_record |= dict.fromkeys(e.group, row)
    seen: set[tuple[int, int]] = set()
    for index, (entry, _, _) in enumerate(rows):
        for i in entry.group:
            for read in records[i].reads:
                before = row_of_record.get(read.producer)
                if before is not None and before < index and (before, index) not in seen:
                    seen.add((before, index))
                    yield before, index
