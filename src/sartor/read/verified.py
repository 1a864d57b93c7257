"""What is known to be exact: model types with counts that were compared exactly with their published classes.

``verified.json`` holds, for every model type of the golden conformance set, the classes compared, the columns that
differ or are open, and the model types inside composite configs. ``lab/conformance.py golden`` writes it, so a reading
is called exact only if the golden tests cover it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from sartor.read.config_text import packaged_json

MEANING = {
    "params": "parameters",
    "text_params": "parameters of the text part",
    "layer_params_runs": "the list of its layers",
    "active_params": "active parameters",
    "linear_flops": "FLOPs of linear layers",
    "attention_flops": "FLOPs of attention",
}


def unverified(model_type: str, architecture: str, parts: Iterable[str]) -> tuple[str, ...]:
    """Reasons why a reading is not known to be exact, one sentence each; empty if it is."""
    classes = packaged_json("verified.json")["model_types"].get(model_type)
    if classes is None:
        return (f"the counts of {model_type} have not been compared with its published class",)
    differs = _differs(architecture, classes)
    if differs is None:
        return (f"the counts of class {architecture} have not been compared with the published one",)
    out = []
    for reason in dict.fromkeys(differs.values()):
        columns = ", ".join(MEANING[column] for column, why in differs.items() if why == reason)
        out.append(f"not known to equal the published {architecture}: {columns} ({reason})")
    known = packaged_json("verified.json")["parts"]
    for part in dict.fromkeys(parts):
        if part and part not in known and part not in verified_model_types():
            out.append(f"the counts of {part} inside {model_type} have not been compared with the published class")
    return tuple(out)


@cache
def verified_model_types() -> frozenset[str]:
    """Model types with a class that is exact in every column."""
    return frozenset(
        name for name, classes in packaged_json("verified.json")["model_types"].items() if not all(classes.values())
    )


GENERIC_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model")


def _differs(architecture: str, classes: dict[str, dict[str, str]]) -> dict[str, str] | None:
    """Columns that differ, with the reason; None for a class that was not compared.

    A decoder's heads other than ``ForCausalLM`` are the library's generic ones, which the golden set covers for Llama.
    """
    if architecture in classes:
        return classes[architecture]
    stem = next((architecture.removesuffix(x) for x in GENERIC_HEADS if architecture.endswith(x)), None)
    return classes.get(f"{stem}ForCausalLM")
