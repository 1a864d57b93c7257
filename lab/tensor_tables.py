"""Learn how many parameters published classes have outside their text layers, as polynomials of config fields.

Development tool, in the environment of lab/transformers_truth.py. A class is built on the meta device with one field
changed at a time; from the changes, every side and the number of copies of each tensor is written as a sum of products
of fields. The polynomials are then checked on configs with many fields changed at once. Fields that change the
structure, or sizes in another way, are guards: the table is valid only for their current value.

    python lab/tensor_tables.py learn /tmp/oracle/tables model_type ...     # one JSON per type
    python lab/tensor_tables.py write /tmp/oracle/tables src/sartor/read/tensor_tables.json
"""

from __future__ import annotations

import copy
import json
import random
import re
import sys
import time
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

from transformers import AutoConfig

import transformers_truth as truth

Sizes = dict[str, tuple[int, tuple[int, ...]]]
"""Copies and shape by tensor name; layer numbers of equal tensors are replaced by a wildcard."""
Poly = dict[tuple[tuple[str, int], ...], Fraction]
SKIP = re.compile(
    r"token_id|_id$|_ids$|dropout|_eps|theta|seed|transformers_version|_prob|chunk_size|num_beams|max_length|min_length|top_k$|"
    r"id2label|label2id|rope_|max_new|sampling_rate|_index$|num_return|repetition|window$|^return_|^output_|initializer|"
    r"vision_feature|^architectures$|_loss|_std|_range|select_|beam"
)
TEXT = re.compile(r"^(text_config|llm_config|language_config|thinker_config\.text_config|decoder|lm_config)(\.|$)")
TEXT_KEPT = re.compile(r"(hidden_size|intermediate_size|vocab_size|d_model|max_position_embeddings|num_hidden_layers)$")


def learn(model_type: str) -> dict[str, Any]:
    """The polynomials of one model type: ``tower`` and ``text`` parameters outside the main stack's layers."""
    model_type, _, name = model_type.partition(":")
    base = json.loads(json.dumps(AutoConfig.for_model(model_type).to_dict(), default=str)) | truth.natural_class(
        model_type
    )
    base |= {"architectures": [name]} if name else {}
    sizes, sides = measure(base)
    paths = {p: v for p, v in leaves(base) if type(v) is int and v >= 1 and wanted(p)}
    guards = Guards()
    for path, value in leaves(base):
        if isinstance(value, list) and value and wanted(path) and not TEXT.match(path):
            guards.add(path, value, "tower" if "config" in path else "text")
        if type(value) is bool and (wanted(path) or re.search(r"(bias|norm|tie_word_embeddings)$", path)):
            flip(base, path, value, sizes, sides, guards)
    effects = {path: moved(base, path, value, guards) for path, value in paths.items()}
    active: dict[str, tuple[int, Sizes]] = {}
    for path, effect in effects.items():
        if effect and not guards.by_structure(path, paths[path], sizes, effect[1], sides):
            active[path] = effect
    grids = grid_fields(paths)
    polynomials: dict[str, Poly] = {"tower": {}, "text": {}}
    for name, (copies, shape) in sizes.items():
        kind = sides[name]
        here = {p: e for p, e in active.items() if name in e[1] and len(e[1][name][1]) == len(shape)}
        total = side(copies, {p: (n, s[name][0]) for p, (n, s) in here.items()}, paths, grids, guards, kind)
        for i, extent in enumerate(shape):
            moves = {p: (n, s[name][1][i]) for p, (n, s) in here.items()}
            total = product(total, side(extent, moves, paths, grids, guards, kind))
        for monomial, c in total.items():
            polynomials[kind][monomial] = polynomials[kind].get(monomial, Fraction(0)) + c
    result: dict[str, Any] = {
        "types": {p.removesuffix(".model_type"): v for p, v in leaves(base) if p.endswith(".model_type")},
        "guards": {kind: {p: v for p, (v, kinds) in guards.items() if kind in kinds} for kind in ("tower", "text")},
        "defaults": {p: paths[p] for p in used(polynomials)},
        **{k: [[str(c), dict(m)] for m, c in v.items() if c] for k, v in polynomials.items()},
    }
    result["checked"] = check(base, result)
    return result if all(x == "ok" for x in result["checked"]) else repaired(base, result)


class Guards(dict[str, tuple[Any, set[str]]]):
    """Field values that the polynomials require, and which of the two (tower, text) requires them."""

    def add(self, path: str, value: Any, *kinds: str) -> None:
        self.setdefault(path, (value, set()))[1].update(kinds)

    def by_structure(self, path: str, value: Any, sizes: Sizes, seen: Sizes, sides: dict[str, str]) -> bool:
        """Make a field a guard of the side (tower or text) on which its change adds or removes tensors; False."""
        lost = {sides[k] for k in sizes if k not in seen or len(seen[k][1]) != len(sizes[k][1])}
        new = {"tower" if truth.TOWER.search(k) else "text" for k in seen.keys() - sizes.keys()}
        if lost | new:
            self.add(path, value, *(lost | new))
        return False


def flip(base: dict[str, Any], path: str, value: bool, sizes: Sizes, sides: dict[str, str], guards: Guards) -> None:
    try:
        seen = measure(changed(base, path, not value))[0]
    except Exception:
        guards.add(path, value, "tower", "text")
        return
    for name in seen.keys() | sizes.keys():
        if seen.get(name) != sizes.get(name):
            guards.add(path, value, sides.get(name) or ("tower" if truth.TOWER.search(name) else "text"))


def moved(base: dict[str, Any], path: str, value: int, guards: Guards) -> tuple[int, Sizes] | None:
    """The first change of the field that the class accepts: its new value and the sizes with it; else a guard."""
    for new in (2 * value, 3 * value, value + 1, value // 2):
        if new >= 1 and new != value:
            try:
                return new, measure(changed(base, path, new))[0]
            except Exception:
                continue
    guards.add(path, value, "tower", "text")
    return None


def measure(fields: dict[str, Any]) -> tuple[Sizes, dict[str, str]]:
    """Every distinct parameter outside the main stack's layers, and whether it belongs to a tower or to the text."""
    config = truth.load_config(fields)
    model = truth.build_model(config, fields.get("architectures"))
    path = truth.stacks(model, config)[0]
    seen: set[int] = set()
    groups: dict[str, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for name, p in model.named_parameters():
        if id(p) in seen or name.startswith(path + "."):
            continue
        seen.add(id(p))
        groups[re.sub(r"\.\d+(?=\.|$)", ".*", name)].append((name, tuple(p.shape)))
    sizes: Sizes = {}
    sides: dict[str, str] = {}
    for pattern, members in groups.items():
        shapes = {s for _, s in members}
        for key, count, shape in (
            [(pattern, len(members), members[0][1])] if len(shapes) == 1 else [(n, 1, s) for n, s in members]
        ):
            sizes[key] = (count, shape)
            sides[key] = "tower" if truth.is_tower(members[0][0], config) else "text"
    return sizes, sides


def side(
    extent: int,
    moved: dict[str, tuple[int, int]],
    paths: dict[str, int],
    grids: dict[str, tuple[str, str]],
    guards: Guards,
    kind: str,
) -> Poly:
    """One side (or number of copies) as a sum of products of fields; fields that do not fit in become guards."""
    powers: dict[str, int] = {}
    offsets: dict[str, Fraction] = {}
    linear: dict[str, tuple[Fraction, Fraction]] = {}
    for path, (new, got) in moved.items():
        if got == extent:
            continue
        image, patch = grids.get(path, ("", ""))
        gridded = bool(image) and image in moved and moved[image][1] != extent
        if gridded:
            name, old = f"{image}//{patch}", paths[image] // paths[patch]
            ratio = Fraction((new if path == image else paths[image]) // (new if path == patch else paths[patch]), old)
            powers_tried = (2, 1)
        else:
            name, ratio, powers_tried = path, Fraction(new, paths[path]), (1, 2, -1, -2)
        if ratio == 1:
            guards.add(path, paths[path], kind)
            continue
        found = next(((e, Fraction(0)) for e in powers_tried if got == extent * ratio**e), None)
        if found is None:
            tried = [(e, (got - ratio**e * extent) / (1 - ratio**e)) for e in powers_tried]
            found = min(
                ((e, b) for e, b in tried if b.denominator == 1 and (abs(b) <= 8 or e == 1)),
                key=lambda x: abs(x[1]),
                default=None,
            )
        if found is None:
            guards.add(path, paths[path], kind)
            continue
        if name in powers and (powers[name], offsets[name]) != found:
            guards.add(path, paths[path], kind)
            continue
        powers[name], offsets[name] = found
        linear[name] = (Fraction(got - extent, 1) / (new - paths[path]) if not gridded else Fraction(0), found[1])
    if not powers:
        return {(): Fraction(extent)}
    if len(set(offsets.values())) == 1:
        offset = next(iter(offsets.values()))
        value = Fraction(1)
        for name, e in powers.items():
            value *= Fraction(value_of(name, paths)) ** e
        out: Poly = {tuple(sorted(powers.items())): Fraction(extent - offset) / value}
        return out | {(): offset} if offset else out
    plain = {n: e for n, e in powers.items() if not offsets[n]}
    summed = [n for n in powers if offsets[n]]
    value = Fraction(1)
    for name, e in plain.items():
        value *= Fraction(value_of(name, paths)) ** e
    rest = Fraction(extent) - sum((linear[n][0] * paths.get(n, 0) for n in summed), Fraction(0))
    if rest >= 0 and all(powers[n] == 1 and "//" not in n for n in summed):
        terms = {product_key(plain, n): linear[n][0] / value for n in summed}
        return terms | ({tuple(sorted(plain.items())): rest / value} if rest else {})
    for name in powers:
        for path in name.split("//"):
            guards.add(path, paths[path], kind)
    return {(): Fraction(extent)}


def product_key(plain: dict[str, int], name: str) -> tuple[tuple[str, int], ...]:
    return tuple(sorted({**plain, name: 1}.items()))


def grid_fields(paths: dict[str, int]) -> dict[str, tuple[str, str]]:
    """Pairs of image and patch size that determine the number of patches, by each of the two fields."""
    out = {}
    for path in paths:
        folder, _, name = path.rpartition(".")
        other = f"{folder}.patch_size" if folder else "patch_size"
        if name == "image_size" and other in paths:
            out[path] = (path, other)
            out.setdefault(other, (path, other))
    return out


def product(a: Poly, b: Poly) -> Poly:
    out: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            powers: dict[str, int] = dict(m)
            for name, e in n:
                powers[name] = powers.get(name, 0) + e
            key = tuple(sorted((k, e) for k, e in powers.items() if e))
            out[key] = out.get(key, Fraction(0)) + c * d
    return out


def used(polynomials: dict[str, Any]) -> set[str]:
    return {p for poly in polynomials.values() for m in poly for name, _ in m for p in name.split("//")}


def value_of(name: str, values: dict[str, int]) -> int:
    first, _, second = name.partition("//")
    return values[first] // values[second] if second else values[first]


def evaluate(terms: list[Any], values: dict[str, int]) -> Fraction:
    total = Fraction(0)
    for c, powers in terms:
        term = Fraction(c)
        for name, e in powers.items():
            term *= Fraction(value_of(name, values)) ** e
        total += term
    return total


def check(base: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """Check the polynomials on configs with many fields changed at once; a verdict per config and side."""
    rng, out = random.Random(1), []
    guarded = result["guards"]["tower"].keys() | result["guards"]["text"].keys()
    free = [p for p in result["defaults"] if p not in guarded]
    for trial in range(16):
        fields, values = copy.deepcopy(base), dict(result["defaults"])
        several = free if trial < 2 else rng.sample(free, rng.randint(1, max(1, len(free) // (1 + trial % 4))))
        for path in several if free else []:
            values[path] = (2 if trial < 8 else rng.choice((2, 2, 3))) * values[path]
            put(fields, path, values[path])
        try:
            sizes, sides = measure(fields)
        except Exception:
            continue
        for kind in ("tower", "text"):
            have = sum(n * prod(s) for k, (n, s) in sizes.items() if sides[k] == kind)
            got = evaluate(result[kind], values)
            out.append("ok" if have == got else f"{kind} {got} not {have}")
        if len(out) >= 10:
            break
    return out


def repaired(base: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The result with one more guard, if then all checked configs agree; else unchanged."""
    for path in result["defaults"]:
        guards = {kind: {**result["guards"][kind], path: result["defaults"][path]} for kind in ("tower", "text")}
        trial = {**result, "guards": guards}
        trial["checked"] = check(base, trial)
        if trial["checked"] and all(x == "ok" for x in trial["checked"]):
            return trial
    return result


def prod(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def leaves(fields: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in fields.items():
        out += leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return out


def wanted(path: str) -> bool:
    if any(SKIP.search(part) for part in path.split(".")) and not path.endswith("conv_bias"):
        return False
    return not TEXT.match(path) or bool(TEXT_KEPT.search(path))


def put(fields: dict[str, Any], path: str, value: Any) -> None:
    *folders, last = path.split(".")
    for key in folders:
        fields = fields[key]
    old = fields[last]
    fields[last] = value
    if re.match(truth.LAYERS, last) and type(old) is int:
        for key, entries in fields.items():
            if isinstance(entries, list) and len(entries) == old:
                fields[key] = (entries * (value // old + 1))[:value]


def changed(fields: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    out = copy.deepcopy(fields)
    put(out, path, value)
    return out


def main() -> None:
    command, folder, *rest = sys.argv[1:]
    if command == "learn":
        for model_type in rest:
            started = time.time()
            try:
                result = learn(model_type)
                (Path(folder) / f"{model_type}.json").write_text(json.dumps(result))
                good = sum(x == "ok" for x in result["checked"])
                print(
                    model_type,
                    f"{good}/{len(result['checked'])}",
                    len(result["tower"]),
                    len(result["text"]),
                    list(result["guards"])[:12],
                    f"{time.time() - started:.0f}s",
                    flush=True,
                )
            except Exception as error:
                print(model_type, "failed", type(error).__name__, str(error)[:150], flush=True)


if __name__ == "__main__":
    main()
