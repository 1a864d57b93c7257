"""Run `advise` on the whole zoo: which shapes it recommends, how few fields they change, and whether all are valid.

    python benchmarks/bench_advice.py [MODEL ...]

For every model and every device of `DEVICES`: the interval of each recommended shape's gain at equal work must exclude
zero, ``--set`` must be able to make the shape and, if the model can be written as a config.json, so must the shape.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sartor import api
from sartor.errors import InputError
from sartor.model.editing import edit_fields
from sartor.model.zoo import model_names
from sartor.read.zoo_config import config_with
from sartor.shapes.result import Candidate

DEVICES = ("v100_sxm2_32gb", "a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200", "mi300x", "tpu_v5p")


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One model on one device: whether an edit pays, fields of the smallest edit, faults of the recommended shapes."""

    model: str
    device: str
    num_advised: int
    smallest_fields: int
    gain: float
    faults: tuple[str, ...]


def audit(model: str, device: str) -> Audit:
    """Run `advise` on one model and check every recommended shape."""
    found = api.advise(model, device).search
    edit = found.smallest_edit
    advised = [*found.candidates, *([edit] if edit else [])]
    faults = [fault for each in advised for fault in faults_of(model, each)]
    few = min((c.num_fields for c in found.candidates if _keeps(c, found.candidates)), default=0)
    if edit and edit.num_fields > few:
        faults.append(f"{few} fields would do for the smallest edit's {edit.num_fields}")
    return Audit(
        model=model,
        device=device,
        num_advised=len(found.candidates),
        smallest_fields=edit.num_fields if edit else 0,
        gain=edit.efficiency_gain if edit else 1.0,
        faults=tuple(dict.fromkeys(faults)),
    )


def _keeps(candidate: Candidate, all_: Iterable[Candidate]) -> bool:
    best = max(1 - 1 / each.efficiency_gain for each in all_)
    return 1 - 1 / candidate.efficiency_gain >= 0.7 * best


def faults_of(model: str, candidate: Candidate) -> list[str]:
    """The faults of a recommended shape."""
    faults, shape = [], api.read(model).shape
    if not candidate.efficiency_low > 1:
        faults.append(f"gain {candidate.efficiency_gain:.3f} is below its interval")
    sets = {field: new for field, (_, new) in candidate.changed.items()}
    try:
        trained = dict(candidate.fields) | (
            {} if "vocab_size" in sets else {"vocab_size": shape.vocab_size}
        )  # unpadded
        if dict(api.read(model, sets).shape.fields()) != trained:
            faults.append(f"--set makes another shape of {sets}")
    except InputError as error:
        faults.append(f"--set refuses: {error}")
    try:
        config_with(None, model, shape, shape, {})
    except InputError:
        return faults  # no published class can express the model itself
    try:
        config_with(None, model, shape, edit_fields(shape, sets)[0], sets)
    except InputError as error:
        faults.append(f"config.json: {error}")
    return faults


def main(models: Iterable[str]) -> int:
    """Print the figures, and every fault."""
    found = [audit(model, device) for model in models or model_names() for device in DEVICES]
    paying = [each for each in found if each.num_advised]
    print(f"{len(found)} questions; {len(paying)} with advice, {len(found) - len(paying)} to keep the shape")
    if paying:
        few = sum(each.smallest_fields <= 2 for each in paying) / len(paying)
        fields = dict(sorted(Counter(each.smallest_fields for each in paying).items()))
        print(f"smallest edit of at most two fields: {few:.1%} (by number: {fields})")
        more = {each.model for each in paying if each.smallest_fields > 2}
        models = {each.model for each in paying}
        print(f"on every device of {len(models - more)} of {len(models)} models ({1 - len(more) / len(models):.1%})")
    for each in paying:
        if each.smallest_fields > 2:
            print(f"{each.model} on {each.device}: {each.smallest_fields} fields gain {each.gain:.3f}x")
    faults = Counter(fault for each in found for fault in each.faults)
    for each in found:
        for fault in each.faults:
            print(f"{each.model} on {each.device}: {fault}")
    print(f"faults: {sum(faults.values())}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
