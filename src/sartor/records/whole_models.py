"""Whole models timed in one piece: the row names a published model, which is lowered like any other."""

from __future__ import annotations

from collections.abc import Mapping

from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.model.editing import edit
from sartor.model.lower import lower
from sartor.model.lower.setting import Kernels
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.records.rows import RowWork, Unexpressed, dtype_of
from sartor.units import Ints

MODELS = {
    "bert_large": "bert-large",
    "gpt2_large": "gpt2-large",
    "gpt3_xl": "gpt3-xl",
    "gpt3_27": "gpt3-2.7b",
    "opt_13": "opt-1.3b",
}
"""Names in the tables -> names in the zoo."""

WIDTHS: Mapping[str, Mapping[str, int]] = {"gpt3_xl": {"hidden_size": 3072, "ffn_hidden_size": 12288}}
"""Sizes that differ from the paper's: width for 24 heads of 128 (data/end_to_end gives every size of the same
models)."""


def named_model(name: str) -> TransformerShape:
    """A model by its name in the tables or in the zoo. Raises ``InputError``."""
    shape = load_model(MODELS.get(name, name))
    return edit(shape, **WIDTHS[name]) if name in WIDTHS else shape


_PHASES = {"forward": Phase.PREFILL, "train_step": Phase.TRAIN, "prefill": Phase.PREFILL, "train": Phase.TRAIN}


def model_work(words: JsonMap, sizes: JsonMap) -> RowWork:
    """Every operator of one row's model on one device. Raises ``Unexpressed``.

    The rows ran eager PyTorch, with a kernel per elementwise step unless ``part`` is ``total_fusion``, and with
    attention as GEMMs and a softmax; training steps exclude the optimizer.
    """
    part = str(words["part"])
    if part not in ("total", "total_fusion"):
        raise Unexpressed(f"part {part[:30]}: pipelined or split runs are not one device's graph")
    phase = _PHASES.get(str(words["phase"]))
    if phase is None:
        raise Unexpressed(f"phase {str(words['phase'])[:30]}: must be forward or train_step")
    name = str(words["model"])
    try:
        shape = named_model(name)
        workload = Workload(
            shape=shape,
            phase=phase,
            microbatch_size=_one(sizes["batch"]),
            seq_len=_one(sizes["seq"]),
            dtype=dtype_of(words["dtype"]),
            attention_kernel=AttentionKernel.UNFUSED,
        )
        graph = lower(workload, ParallelDims(tp=_one(sizes.get("tp", 1))), Kernels(fused=part == "total_fusion"))
    except InputError as error:
        raise Unexpressed(f"model {name[:40]}: {error.must}") from None
    return RowWork(operators=graph.operators, eager=True, tokens=int(graph.tokens))


def _one(size: Ints) -> int:
    """The only entry of an array, or the number."""
    return int(size) if not hasattr(size, "item") else int(size.item())
