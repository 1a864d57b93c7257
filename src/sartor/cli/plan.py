"""``sartor plan``: how to spread a model's training over a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.cli import plan_options as p
from sartor.cli.launch import lint_launch, trainer_of, write_files
from sartor.cli.run_options import takes_run
from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.run.fields import TrainingOptions, parse_size
from sartor.units import parse_count

if TYPE_CHECKING:
    from sartor.answers.plan import PlanAnswer


@takes_run(without=("phase", "cluster", "num_devices", "context_len", "eager", "kernels", "launch"))
def plan(
    model: o.ModelOrLaunch = None,
    cluster: o.ClusterOrGpu = None,
    num_devices: o.DeviceCounts = None,
    fix: p.Fix = None,
    simple: p.Simple = False,
    why_not: p.WhyNot = None,
    tokens: p.Tokens = "1T",
    top: o.Top = 10,
    write: p.Write = None,
    trainer_version: p.TrainerVersion = "",
    overwrite: p.Overwrite = False,
    html: o.HtmlFile = None,
    png: o.PngFolder = None,
    trace: o.TraceFile = None,
    chakra: o.Chakra = None,
    launch: p.Launch = None,
    allow: o.Allow = None,
    fail_on: o.FailOn = "never",
    verbose: o.Verbose = False,
    json: o.AsJson = False,
    out: o.OutFile = None,
    **options: Unpack[TrainingOptions],
) -> None:
    """Find the parallel plan with the shortest predicted step that fits in memory, out of all valid plans.

    Exits with 3 if nothing fits, naming the fullest stage, by how many bytes it is over, and what would fit.

    Example: `sartor plan llama-3-8b --cluster dgx-h100 --num-devices 64 --global-batch-size 512 --seq-len 8192`
    """
    from sartor import api

    files = {"write": write, "trainer_version": trainer_version, "overwrite": overwrite, "html": html, "png": png}
    files |= {"trace": trace, "chakra": chakra}
    if launch is not None:
        checks = {"launch": launch, "cluster": cluster, "model": model, "allow": allow, "fail_on": fail_on}
        searches = {"fix": fix, "simple": simple, "why_not": why_not, "price": options.get("price")}
        _only_with_a_search(searches | files)
        lint_launch({**checks, "trace": trace, "json": json, "out": out}, parse_counts(num_devices), options)
        return
    if write is not None and cluster is not None:
        _refuse_to_launch_a_chip(write[0], cluster)
    if model is None:
        raise InputError("MODEL", "not given", "name the model to plan, or use --launch FILE", "llama-3-8b")
    if trainer := options.get("framework") or trainer_of(write[0] if write else None):
        options["framework"] = trainer
    with c.progress_bar("plans") as progress:
        found = api.plan(
            model,
            cluster,
            num_devices=parse_counts(num_devices),
            fix=parse_fix(fix),
            top=top,
            tokens=parse_count("--tokens", tokens),
            why_not=parse_fix(why_not, option="--why-not") or None,
            simple=simple,
            write=write[0] if write else None,
            progress=progress,
            **options,
        )
    if found.best is not None:
        write_files(found, files)
    _show(found, verbose=verbose, json=json, out=out)


def _refuse_to_launch_a_chip(kind: str, cluster: str) -> None:
    """Reject ``--write`` for a chip before the search, since its best plan could not be written."""
    from sartor.api.plans import STARTS_GPUS
    from sartor.api.words import refuse_on_a_chip
    from sartor.hardware.cluster_catalog import load_cluster

    refuse_on_a_chip(load_cluster(cluster).gpu, "--write", kind, STARTS_GPUS)


def _show(found: PlanAnswer, *, verbose: bool, json: bool, out: Path | None) -> None:
    """Print the answer; exit with 3 if no plan fits."""
    from sartor.report.plan_document import plan_view

    c.answer("plan", found.to_dict(), as_json=json, out=out)
    if not json:
        c.show(plan_view(found, verbose=verbose))
    if found.best is None:
        tightest = found.search.tightest
        if json and tightest:
            c.say(f"sartor: {tightest.message}")
        raise c.Exit(3)


WITH_A_LAUNCH = ("trace", "trainer_version", "overwrite")
"""Options of written files that a launch may have beside it; the others only a search uses."""


def _only_with_a_search(options: JsonMap) -> None:
    """Reject the options that no launch may have beside it."""
    for name, value in options.items():
        if value and name not in WITH_A_LAUNCH:
            said = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            raise InputError(f"--{name.replace('_', '-')}", said, "cannot be used with --launch", "leave one out")


def parse_fix(words: list[str] | None, option: str = "--fix") -> dict[str, int | str]:
    """``["tp=8,pp=4", "recompute=none"]`` -> ``{"tp": "8", "pp": "4", "recompute": "none"}``."""
    out: dict[str, int | str] = {}
    for word in ",".join(words or ()).split(","):
        if not word.strip():
            continue
        name, sign, value = word.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise InputError(option, word.strip(), "must read AXIS=VALUE", f"{option} tp=8,pp=4")
        if name.strip() in out and str(out[name.strip()]) != value.strip():
            raise InputError(option, word.strip(), f"{name.strip()} is already {out[name.strip()]}")
        out[name.strip()] = value.strip()
    return out


def parse_counts(text: str | None) -> list[int] | None:
    """``"256,512"`` -> ``[256, 512]``; ``"8..64"`` -> ``[8, 16, 32, 64]``."""
    if text is None:
        return None
    try:
        counts = [count for word in text.split(",") if word.strip() for count in _doubling(word)]
    except ValueError:
        return _no_counts(text)
    return counts or _no_counts(text)


def _doubling(word: str) -> list[int]:
    """One count, or the range from the first to the last by doubling."""
    first, dots, last = word.partition("..")
    low, high = (parse_size("num_devices", count) for count in (first, last if dots else first))
    if dots and not 0 < low <= high < 2**31:
        raise ValueError(word)
    return [low << k for k in range((high // low).bit_length())] if dots else [low]


def _no_counts(text: str) -> list[int]:
    raise InputError("--num-devices", text, "must be a whole number, or several", "64, 256,512 or 8..1024")
