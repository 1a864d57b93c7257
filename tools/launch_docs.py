"""Write docs/launch-fields.md: which argument of a trainer sets which field of a model."""

from __future__ import annotations

from pathlib import Path

from sartor.launch.bridge import ACTIVATIONS, NOT_SAID, path_of, yarn_path
from sartor.launch.fields import NOT, Row, rows
from sartor.launch.plan import LaunchKind
from sartor.model.shape import NEUTRAL

PAGE = Path(__file__).parent.parent / "docs" / "launch-fields.md"
HEAD = """# What a launch file says of the model

Written by `tools/launch_docs.py` from `src/sartor/launch/fields.toml`.

A launch file that leaves out the rotary base trains another model than the one you planned. So every field of a model
that changes what it computes is written or refused: `sartor plan --write` names the field and stops.

DeepSpeed and accelerate start your own program, which builds the model from its own config: nothing has to be written.
"""


def main() -> None:
    kinds = [kind for kind in LaunchKind if rows(kind, "numerics")]
    PAGE.write_text(HEAD + "".join(section(kind) for kind in kinds) + bridge(), encoding="utf-8")


BRIDGE = """
## Megatron Bridge

The Megatron-LM launch of the same plan under Megatron-Core's names. Names: wheels of megatron-bridge 0.3.1 and
megatron-core 0.16.1. Plain: without latent attention.

| Megatron-LM | field of the recipe | value |
|---|---|---|
"""


def bridge() -> str:
    """A table of the arguments that set a field of the model, and where a recipe has each."""
    arguments = dict.fromkeys(row.argument for row in rows(LaunchKind.MEGATRON, "numerics") if row.argument)
    everything = dict.fromkeys(row.argument for row in rows(LaunchKind.MEGATRON) if row.argument)
    told = [each for each in arguments if each not in (*ACTIVATIONS, *NOT_SAID) and not path_of(each).startswith(NOT)]
    off = [each for each in everything if path_of(each).startswith(NOT)]
    lines = [f"| `{each}` | `{path_of(each)}`{_of_yarn(each)} | as given |" for each in told]
    lines += [f"| `{each}` | `{path_of(each).removeprefix(NOT)}` | `False` |" for each in off]
    lines += [f"| `{each}` | `model.activation_func` | `{name}` |" for each, (name, _) in ACTIVATIONS.items()]
    lines += [f"| `{each}` | refused | - |" for each in NOT_SAID]
    return BRIDGE + "\n".join(lines) + "\n"


def _of_yarn(argument: str) -> str:
    return f", plain `{yarn_path(argument)}`" if yarn_path(argument) else ""


def section(kind: LaunchKind) -> str:
    table = rows(kind, "numerics")
    refused = sorted(set(NEUTRAL) - {row.field for row in table} - {"activation", "norm_order"})
    lines = [line(row) for row in table]
    return (
        f"\n## {kind.title}\n\n| field | for | argument | since | written as |\n"
        "|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n\nNo argument, so refused where a model has them: "
        + ", ".join(f"`{name}`" for name in refused)
        + "; and every "
        "field of a config whose name suggests that it changes the model and that is not known here.\n"
    )


def line(row: Row) -> str:
    kinds = row.when or "all"
    values = " or ".join(f"`{value}`" if value else "none" for value in row.only)
    said = f"`{row.argument}`" if row.argument else "fixed in the trainer"
    shape = f"only {values}" if values else ("whole number" if row.whole else "value")
    how = shape if row.flag is None else f"given where it is `{str(row.flag).lower()}`"
    return f"| `{row.field}` | {kinds} | {said} | {row.since or '-'} | {how} |"


if __name__ == "__main__":
    main()
