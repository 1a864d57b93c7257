"""Text for operators, fields and numbers, the same in the terminal, the figures and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sartor.cost.cost import Cost
from sartor.model.shape import TransformerShape
from sartor.model.workload import ModelReading, Phase, Workload, not_read, too_long
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, Operator
from sartor.units import format_bytes, format_count, format_seconds

SMALL_SHARE = 0.005
"""Operators below this share of the step are shown together."""
_PASS_SUFFIXES = ("forward", "fwd", "dgrad", "wgrad", "backward", "bwd")


def printable(text: str) -> str:
    """Text that cannot move a cursor or hide itself: control and invisible characters are escaped.

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def short_name(operator: Operator) -> str:
    """An operator's name without its pass, so that forward and backward of a layer share one line of a figure."""
    name = printable(operator.name)
    for suffix in _PASS_SUFFIXES:
        for joint in (".", "_", "-", " "):
            if name.endswith(joint + suffix) and len(name) > len(suffix) + 1:
                return name[: -len(suffix) - 1]
    return name


def size_text(operator: Operator) -> str:
    """An operator's size as ``[batch x] m x n x k``: ``8192 x 7680 x 2560``; attention as its score GEMMs (batch times
    heads, queries, keys, head dimension); rows and columns, or bytes, for the others."""
    if isinstance(operator, Gemm):
        sizes = (operator.m, operator.n, operator.k)
        return _times(*sizes) if int(operator.batch) == 1 else _times(operator.batch, *sizes)
    if isinstance(operator, GroupedGemm):
        return f"{round(float(operator.groups), 1):g} groups, {_times(operator.rows, operator.n, operator.k)}"
    if isinstance(operator, Attention):
        heads = operator.batch * operator.num_heads
        return _times(heads, operator.seq_q, operator.seq_kv, operator.head_dim)
    if isinstance(operator, Collective):
        return f"{format_bytes(float(operator.message_bytes))} over {int(operator.group_size)}"
    if 1 in (int(operator.rows), int(operator.cols)):
        return f"{format_count(float(operator.rows) * float(operator.cols))} elements"
    return _times(operator.rows, operator.cols)


def misaligned_text(gemm: Gemm) -> str:
    """Dimensions (with the operands contiguous along them) whose rows are not aligned to 16 bytes, else empty: ``k=4095
    (contiguous in A and B) is odd and aligns rows to 2 bytes, not 16``."""
    lengths = {name: int(getattr(gemm, name)) for name in gemm.layout.contiguous}
    element = round(8 * gemm.dtype.bytes) / 8  # without a block's scales
    width = {name: max(2.0, element) if of == "C" else element for name, of in gemm.layout.contiguous.items()}
    steps = {name: (length & -length) * width[name] for name, length in lengths.items()}
    return "; ".join(
        f"{name}={lengths[name]} (contiguous in {operands}) {'is odd and ' if lengths[name] % 2 else ''}"
        f"aligns rows to {steps[name]:.3g} byte{'' if steps[name] == 1 else 's'}, not 16"
        for name, operands in gemm.layout.contiguous.items()
        if steps[name] < 16
    )


def tile_text(cost: Cost) -> str:
    """``256x128``, ``256x128/4`` with k split in four, empty for an operator without tiles."""
    details = cost.details
    if not details.get("tile_m"):
        return ""
    split = int(details.get("split_k", 1) or 1)
    return f"{int(details['tile_m'])}x{int(details['tile_n'])}" + (f"/{split}" if split > 1 else "")


def beyond_text(shape: TransformerShape, **lengths: int) -> Iterator[str]:
    """A sentence for each length that exceeds what the model takes: it is priced all the same."""
    for name, tokens in lengths.items():
        yield from (f"{words}: priced as if it took them." for words in too_long(name, tokens, shape))


def longest_text(tokens: int, shape: TransformerShape) -> str:
    """``one of 791,984``, with what the model takes where that is less."""
    return f"one of {tokens:,}" + (f" (the model takes {shape.max_positions:,})" * bool(too_long("", tokens, shape)))


def unread_text(reading: ModelReading) -> str:
    """``moe_latent_size=1024 is not read: ..., and every figure is of the model without it.``; "" if all sizes were."""
    return f"{printable(reading.unread)}, and every figure is of the model without it." if reading.unread else ""


def unknown_fit(reading: ModelReading, without: str = "") -> str:
    """``whether it fits is unknown, as moe_latent_size=1024 is not read; without it, 61.2 GiB of 79.2 GiB``."""
    known = ", ".join(part for part in without.split(", ") if not part.endswith("likely to fit"))
    them = "it" if len(reading.unread_sizes) == 1 else "them"
    rest = f"; without {them}, {known}" if known else ""
    return f"whether it fits is unknown, as {printable(not_read(reading.unread_sizes))}{rest}"


def fitting(reading: ModelReading) -> str:
    """What qualifies "the fastest that fits" where sizes were not read."""
    return " as read" if reading.unread_sizes else ""


def change_text(changed: Mapping[str, tuple[object, object]]) -> str:
    """``{'num_heads': (32, 20)}`` -> ``num_heads 32 -> 20``. Key/value heads equal to the heads are left out."""
    follows = changed.get("num_kv_heads") == changed.get("num_heads")
    parts = [
        f"{name} {_plain(old)} -> {_plain(new)}"
        for name, (old, new) in changed.items()
        if not (follows and name == "num_kv_heads")
    ]
    return printable(", ".join(parts)) or "nothing"


_SHORT = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "vocab_size": "vocab",
    "num_heads": "heads",
    "num_kv_heads": "kv heads",
    "head_dim": "head dim",
    "ffn_hidden_size": "ffn",
    "num_experts": "experts",
    "experts_per_token": "experts per token",
    "expert_ffn_hidden_size": "expert ffn",
    "num_shared_experts": "shared experts",
    "shared_ffn_hidden_size": "shared ffn",
    "q_lora_rank": "query rank",
    "kv_lora_rank": "kv rank",
    "num_full_layers": "full-attention layers",
}


def short_change(changed: Mapping[str, tuple[object, object]]) -> str:
    """A change for a table cell: ``layers 32 -> 28, heads 32x80 -> 20x128`` (heads x head dimension), ``experts
    8x14336 top 2 -> 16x7168 top 4`` (experts x width)."""
    rest = dict(changed)
    mixture = ("num_experts", "expert_ffn_hidden_size", "experts_per_token")
    if all(name in rest for name in mixture):
        sides = zip(*(rest.pop(name) for name in mixture), strict=True)
        old, new = (f"{_plain(count)}x{_plain(width)} top {_plain(k)}" for count, width, k in sides)
        rest = {"experts": (old, new), **rest}
    if "num_heads" in rest and "head_dim" in rest:
        (heads, new_heads), (width, new_width) = rest.pop("num_heads"), rest.pop("head_dim")
        if rest.get("num_kv_heads") == (heads, new_heads):
            del rest["num_kv_heads"]
        rest["heads"] = (f"{_plain(heads)}x{_plain(width)}", f"{_plain(new_heads)}x{_plain(new_width)}")
    return change_text({_SHORT.get(name, name): pair for name, pair in rest.items()})


def arrows(words: str) -> str:
    """``32 -> 20`` with an arrow character, so that lines do not break at it."""
    return words.replace(" -> ", " \u2192 ")


def _plain(value: object) -> str:
    return str(int(value)) if hasattr(value, "__index__") and not isinstance(value, bool) else str(value)


def _times(*sizes: Any) -> str:
    return " x ".join(str(int(size)) for size in sizes)


def interval_text(time_s: float, low_s: float, high_s: float) -> str:
    """``834 ms (80%: 702 ms to 990 ms)``."""
    return f"{format_seconds(time_s)} (80%: {format_seconds(low_s)} to {format_seconds(high_s)})"


def speedup_text(speedup: Any) -> str:
    return f"{float(speedup):.2f}x"


def workload_text(workload: Workload) -> str:
    """``train, 4 x 2,048 tokens, bf16``."""
    sequences = int(workload.microbatch_size)
    if workload.phase is Phase.DECODE:
        size = f"{count_text(sequences, 'sequence')}, {int(workload.context_len):,} tokens of context each"
    else:
        size = f"{sequences:,} x {int(workload.seq_len):,} tokens"
    return f"{workload.phase.value}, {size}, {workload.dtype.value}, {workload.attention_kernel.value} attention"


OWNERS = {
    "own": "measured on this GPU",
    "own (another dtype)": "measured on this GPU in another data type",
    "joint": "joint fit of several generations, not measured on this GPU",
    "generation": "typical values of its generation, not measured",
    "template": "none; follows from the chip's description",
}
"""``Calibration.owner`` in words."""


def owner_words(owner: str) -> str:
    """Where a calibration comes from, as text; ``borrowed from h200_sxm`` stays as it is."""
    return OWNERS.get(owner, owner)


def flops_text(flops: float) -> str:
    """``1.4e14`` -> ``140 TFLOP``, ``3.49e15`` -> ``3.49 PFLOP``."""
    scale, unit = next(((s, u) for s, u in ((1e18, "E"), (1e15, "P"), (1e12, "T")) if flops >= s), (1e9, "G"))
    return f"{flops / scale:,.3g} {unit}FLOP"


def count_text(count: float, noun: str, plural: str = "") -> str:
    """``1 wave``, ``24 waves``."""
    return f"{count:,.0f} {noun if count == 1 else plural or noun + 's'}"


def three_digits(number: float) -> str:
    """``31354`` -> ``31,400``: three significant digits of a large number."""
    return f"{float(f'{number:.3g}'):,.0f}" if abs(number) >= 100 else f"{number:.3g}"


EVIDENCE_WORDS = (
    "known = controlled studies of models this large, extrapolated = of smaller ones, or published models only, "
    "outside = neither"
)
"""The meaning of the words on quality."""
