"""The size and shape of ``src/sartor`` as a ratchet: figures may improve, and worsen only in a commit that says why.

``python tools/house.py`` prints each figure beside its limit in tests/golden/house.json; ``--check`` fails if one is
beyond its limit (``make lint``); ``--record`` takes today's figures as limits.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
SOURCE = REPO / "src" / "sartor"
LIMITS = REPO / "tests" / "golden" / "house.json"

EMPTY_NAMES = frozenset(
    {"asked", "at", "each", "every", "found", "given", "held", "here", "its", "kept", "known", "least", "made", "more"}
    | {"most", "of", "one", "other", "own", "said", "some", "there", "told", "wanted"}
)
"""Words that name nothing, as names of variables and parameters."""
MOST_PARAMETERS = 12
"""Written parameters of a public function of the Python interface."""
ENTRANCES = ("api", "ask")
"""Rooms whose public functions are the Python interface."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def figures(source: Path = SOURCE) -> dict[str, float]:
    """The figures of a package, each by name; lower is better for all."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(source.rglob("*.py"))}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    lengths = sorted(node.end_lineno - node.lineno + 1 for node in nodes if isinstance(node, Function))
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    names = list(_bound_names(nodes))
    lines = {path: path.read_text().splitlines() for path in trees}
    return {
        "modules": len(trees),
        "lines": sum(map(len, lines.values())),
        "code_lines": sum(_code_lines(lines[path], tree) for path, tree in trees.items()),
        "function_lines_p50": _quantile(lengths, 0.5),
        "function_lines_p99": _quantile(lengths, 0.99),
        "function_lines_max": lengths[-1],
        "class_names_used_twice": sum(count > 1 for count in classes.values()),
        "public_functions_and_classes": sum(_public(tree) for tree in trees.values()),
        "Any": sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes),
        "empty_names_percent": round(100 * sum(name in EMPTY_NAMES for name in names) / len(names), 1),
        "entrances_over_12_parameters": sum(_wide_entrances(source, path, tree) for path, tree in trees.items()),
    }


def _quantile(ordered: list[int], share: float) -> int:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _code_lines(lines: list[str], tree: ast.Module) -> int:
    """Lines that are neither blank, comment nor docstring."""
    skipped = {i for i, line in enumerate(lines, 1) if not line.strip() or line.strip().startswith("#")}
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str):
                skipped |= set(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return len(lines) - len(skipped)


def _bound_names(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _public(tree: ast.Module) -> int:
    named = [node for node in tree.body if isinstance(node, Function | ast.ClassDef)]
    return sum(not node.name.startswith("_") for node in named)


def _wide_entrances(source: Path, path: Path, tree: ast.Module) -> int:
    if path.relative_to(source).parts[0].removesuffix(".py") not in ENTRANCES:
        return 0
    public = [node for node in ast.walk(tree) if isinstance(node, Function) and not node.name.startswith("_")]
    arguments = [(*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) for node in public]
    return sum(len(each) > MOST_PARAMETERS for each in arguments)


def worse(now: dict[str, float], limits: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Figures beyond their limit: name to (limit, today's)."""
    return {name: (limit, now[name]) for name, limit in limits.items() if now[name] > limit}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a figure is beyond its limit")
    parser.add_argument("--record", action="store_true", help="take today's figures as limits")
    options = parser.parse_args()
    now = figures()
    if options.record:
        LIMITS.write_text(json.dumps(now, indent=2) + "\n")
    limits = json.loads(LIMITS.read_text())
    beyond = worse(now, limits)
    for name, value in now.items():
        if not options.check or name in beyond:
            print(f"{name:<32}{value:>10g}   limit {limits[name]:g}")
    if options.check and beyond:
        print("The house grew. Make something simpler, or raise the limit (tools/house.py --record) and say why.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
