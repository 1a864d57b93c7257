"""The options of ``design``, each with its default and its words on the command line."""

# no `from __future__ import annotations`: the rows are read when the module is loaded
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from sartor.options import Declared, Spelling

if TYPE_CHECKING:
    from sartor.designs.space import AcceleratorSpace
    from sartor.hardware.gpu import Gpu

Number = float | None


class JobOptions(TypedDict, total=False):
    """What the devices do."""

    seq_len: Annotated[
        int | Sequence[int] | None,
        Declared(
            Spelling.WHOLES,
            "Tokens per sequence, or one value per model. [default: 4096, or the model's maximum]",
            metavar="N[,N...]",
        ),
    ]
    context_len: Annotated[
        int | None,
        Declared(Spelling.WHOLE, "Tokens already in the KV cache. [default: decode --seq-len, else 0]", metavar="N"),
    ]
    ttft_ms: Annotated[Number, Declared(Spelling.NUMBER, "Most time to the first token (--objective prefill).", "MS")]
    tpot_ms: Annotated[Number, Declared(Spelling.NUMBER, "Most time per output token (--objective decode).", "MS")]
    weights: Annotated[
        Sequence[float],
        Declared(
            Spelling.NUMBERS, "Weights of the models in the mean. [default: equal]", metavar="W,W,...", default=()
        ),
    ]
    tp: Annotated[
        Sequence[int],
        Declared(Spelling.WHOLES, "Tensor-parallel widths to choose from.", metavar="T,...", default=(1, 2, 4, 8)),
    ]
    objective: Annotated[
        str,
        Declared(
            Spelling.TEXT,
            "throughput, alone or -per-mm2, -per-watt, -per-dollar (die and memory) or -per-ownership-dollar (package "
            "and electricity too); in its place prefill, decode or shares: train:0.7,decode:0.3.",
            metavar="WORDS",
            default="throughput",
        ),
    ]


class QuestionOptions(TypedDict, total=False):
    """Budgets of a device, the plans to try, and costs."""

    global_batch_size: Annotated[
        int | None,
        Declared(Spelling.WHOLE, "Sequences per step over all devices. [default: 4M tokens]", metavar="B"),
    ]
    mean: Annotated[
        str, Declared(Spelling.TEXT, "Mean over several models.", metavar="geometric|arithmetic", default="geometric")
    ]
    area_mm2: Annotated[Number, Declared(Spelling.NUMBER, "Largest die.", metavar="A")]
    power_w: Annotated[Number, Declared(Spelling.NUMBER, "Most power of a device.", metavar="P")]
    hbm_gib: Annotated[Number, Declared(Spelling.NUMBER, "Most memory of a device.", metavar="M")]
    energy_j_per_token: Annotated[Number, Declared(Spelling.NUMBER, "Most energy per token, all devices.", metavar="J")]
    plausibility: Annotated[
        bool,
        Declared(
            Spelling.SWITCH,
            "Leave out chips that cannot be built (published area: only mark them), or not.",
            default=True,
        ),
    ]
    microbatch_size: Annotated[
        Sequence[int],
        Declared(Spelling.WHOLES, "Microbatch sizes to choose from.", metavar="N,...", default=(1, 2, 4, 8)),
    ]
    recompute: Annotated[
        Sequence[str],
        Declared(
            Spelling.WORDS, "Recomputation settings to choose from.", metavar="none,full", default=("none", "full")
        ),
    ]
    optimizer: Annotated[str, Declared(Spelling.TEXT, "Optimizer of training.", metavar="adam|sgd", default="adam")]
    zero_stage: Annotated[
        Sequence[int],
        Declared(
            Spelling.WHOLES,
            "ZeRO stages to try in addition to 0: 1 shards optimizer states; 2 (also gradients) and 3 (also weights) "
            "only without a pipeline.",
            metavar="0,1,2,3",
            default=(0, 1, 2, 3),
        ),
    ]
    cp: Annotated[
        Sequence[int],
        Declared(
            Spelling.WHOLES,
            "Numbers of devices that may share a sequence in training.",
            metavar="N,...",
            default=(1, 2),
        ),
    ]
    virtual_stages: Annotated[
        Sequence[int],
        Declared(
            Spelling.WHOLES,
            "Interleaved chunks per device to try in addition to 1.",
            metavar="N,...",
            default=(1, 2, 4),
        ),
    ]
    area_model: Annotated[
        str | None,
        Declared(Spelling.TEXT, "Area of cores and buffers only, or of the whole die.", metavar="published|die"),
    ]
    wafer_usd: Annotated[Number, Declared(Spelling.NUMBER, "Price of a wafer. [default: by node]", metavar="USD")]
    hbm_usd_per_gb: Annotated[Number, Declared(Spelling.NUMBER, "Price of memory per GB. [default: 10]", metavar="USD")]
    years: Annotated[
        Number, Declared(Spelling.NUMBER, "How long a chip is in use, for its electricity. [default: 4]", metavar="Y")
    ]
    usd_per_kwh: Annotated[Number, Declared(Spelling.NUMBER, "Price of electricity. [default: 0.0806]", metavar="USD")]


class SpaceOptions(TypedDict, total=False):
    """The chips and shapes to search."""

    space: Annotated[
        "str | Path | AcceleratorSpace",
        Declared(
            Spelling.TEXT,
            "Chips to search: modern, phaze (the paper's grid), fine, or a TOML file.",
            metavar="NAME|FILE",
            default="modern",
        ),
    ]
    shapes: Annotated[
        int | str,
        Declared(
            Spelling.TEXT,
            "Also search N shapes of the same size, with proof; all: each model's shape is searched with the chip.",
            metavar="N|all",
            default=0,
            terminal_default=None,
        ),
    ]
    params_tolerance: Annotated[
        float,
        Declared(Spelling.NUMBER, "Largest change of the parameter count, as a share.", metavar="SHARE", default=0.01),
    ]
    evidence: Annotated[
        float,
        Declared(
            Spelling.NUMBER,
            "Width of the quality guard: 1 is the range of published evidence, 0.5 half of it, ...",
            metavar="WIDTH",
            default=1.0,
        ),
    ]
    fleet: Annotated[
        Mapping[str, float] | None,
        Declared(Spelling.TEXT, "Existing accelerators: find the best shape for them.", metavar="CHIP[=WEIGHT],..."),
    ]
    set: Annotated[
        Mapping[str, int | str] | None,
        Declared(
            Spelling.REPEATED,
            "Change fields of the shape, such as num_heads=20. May be repeated.",
            metavar="FIELD=VALUE",
        ),
    ]


class _ProofOptions(TypedDict, total=False):
    """When the search ends, and what is priced beside the best point."""

    time_limit: Annotated[
        Number,
        Declared(
            Spelling.NUMBER,
            "Stop after this time with the best result so far; the last fifth is for what stands beside it.",
            metavar="SECONDS",
        ),
    ]
    tolerance: Annotated[
        float,
        Declared(
            Spelling.NUMBER,
            "Stop when no point can be better by more than this: 0.01 is 1%.",
            metavar="SHARE",
            default=0.0,
        ),
    ]
    baselines: Annotated[
        bool, Declared(Spelling.SWITCH, "Also price alternatives (known chips, other searches).", default=True)
    ]
    against: Annotated[
        "Sequence[str | Path | Gpu] | None",
        Declared(
            Spelling.REPEATED,
            "A catalogue GPU to price on the same jobs. May be repeated. [default: h100_sxm, tpu_v5p]",
            metavar="GPU",
        ),
    ]
    pareto: Annotated[
        Sequence[str],
        Declared(
            Spelling.WORDS,
            "Prove the Pareto front over area_mm2, power_w, hbm_bytes, usd.",
            metavar="AXIS,...",
            default=(),
        ),
    ]
    sensitivity: Annotated[
        bool,
        Declared(
            Spelling.SWITCH, "Also say what comes within 1% of the best, and what a 30% error changes.", default=False
        ),
    ]


class _RunningOptions(TypedDict, total=False):
    """Where the search runs and what it stores."""

    study: Annotated[
        str | Path | None,
        Declared(Spelling.FILE, "Store every result in this file, and continue from it.", metavar="FILE"),
    ]
    executor: Annotated[
        str,
        Declared(
            Spelling.TEXT,
            "Local processes if they help, or a Dask scheduler.",
            metavar="local|serial|tcp://...",
            default="serial",
            terminal_default="local",
        ),
    ]
    workers: Annotated[
        int | None, Declared(Spelling.WHOLE, "Processes of `local`. [default: one per core]", metavar="N")
    ]


class DesignOptions(JobOptions, QuestionOptions, SpaceOptions, _ProofOptions, _RunningOptions, total=False):
    """All options of ``design``."""
