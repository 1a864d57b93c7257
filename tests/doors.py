"""Every door that prices a run, as a function from the run to its seconds and bytes, for `test_doors`.

A door takes the run as a user states it and the estimate of it, and returns what it prices; None if the run is not for
this door. Refusing (``InputError``) is allowed only to the doors of ``MAY_REFUSE``: a trainer cannot write every plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sartor import api
from sartor.answers.diagnosis import LogDiagnosis
from sartor.answers.estimate import ModelEstimate
from sartor.api import Model
from sartor.cli import run as sartor_command
from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import load_device
from sartor.hardware.cluster_catalog import CLUSTERS, usual_cluster
from sartor.launch.files import save_files
from sartor.plans.fixed import SWITCHED, settings
from sartor.run.fields import FIELDS, Origin
from sartor.step.serving.served import cache_bytes, server_memory
from sartor.validate.training_predictions import predict_training
from sartor.validate.training_rows import read_training
from sartor.web.work import Answerer

HYBRID = {
    "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-M-M-M*-", "num_hidden_layers": 12, "hidden_size": 2048,
    "intermediate_size": 8192, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 65536, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "conv_kernel": 4, "chunk_size": 256, "mlp_hidden_act": "relu2", "max_position_embeddings": 8192,
}  # fmt: skip
DENSE = ("t5-large", "gpt2", "pythia-410m", "qwen2.5-0.5b", "llama-3.2-1b", "bloom-7.1b", "gemma-2-2b")
MIXTURES = ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b", "nemotron-3-nano")
GPUS = ("h100_sxm", "a100_sxm", "b200_sxm", "l40s", "mi300x", "v100_sxm", "a40")
CHIPS = ("tpu_v5p", "tpu_v5e", "tpu_v4_like")
TRAINERS = ("torchtitan", "torchtitan@2026", "deepspeed", "megatron", "nemo", "megatron-bridge", "maxtext", "fsdp")
SIZELESS = ("deepspeed", "accelerate")
"""Launch files that do not say the model's sizes."""
KINDS = ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A run as it is stated."""

    model: str
    """A zoo name, or ``hybrid``."""
    gpu: str
    words: Mapping[str, Any]
    """Fields of a run."""

    @property
    def subject(self) -> Model:
        return HYBRID if self.model == "hybrid" else self.model

    @property
    def trains(self) -> bool:
        return self.words.get("phase", "train") == "train"

    @property
    def cluster(self) -> Any:
        return usual_cluster(load_device(self.gpu))

    def without(self, *names: str) -> dict[str, Any]:
        return {name: value for name, value in self.words.items() if name not in names}


STATED = ("context_parallel", "fused_loss", "grad_dtype", "dropout", "tp_overlap", "dp_overlap", "recompute_modules")
"""Switches that the row of a run states."""

Price = tuple[float, float]
"""Seconds of the step (or pass), and bytes of the fullest device."""
Door = Callable[[Asked, ModelEstimate, Path], Price | None]


# -- runs ----------------------------------------------------------------------------------------------------------


def _some(**values: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Each field stated, with one of its values, or left open (None)."""
    fields = {name: st.sampled_from(options) for name, options in values.items()}
    return st.fixed_dictionaries(fields).map(lambda f: {name: value for name, value in f.items() if value is not None})


@st.composite
def runs(draw: st.DrawFn) -> Asked:
    """A run of any kind: dense, mixture or hybrid; training or a pass; on GPUs and chips; more or less of it stated."""
    model = draw(st.sampled_from((*DENSE, *MIXTURES, "hybrid", "hybrid")))
    gpu = draw(st.sampled_from(GPUS if draw(st.integers(0, 4)) else CHIPS))
    kind = draw(st.sampled_from(("open", "open", "plan", "plan", "plan", "prefill", "decode")))
    experts = model in MIXTURES
    if kind in ("prefill", "decode"):
        return Asked(model=model, gpu=gpu, words={"phase": kind, **draw(_passes(decodes=kind == "decode"))})
    words = draw(_plans(experts=experts) if kind == "plan" else _unfinished(experts=experts))
    if gpu in CHIPS:
        words = {name: value for name, value in words.items() if name not in ("framework", "fix")}
    return Asked(model=model, gpu=gpu, words=words)


SWITCHES = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.sampled_from(("on", "off")) for name in ("tp_overlap", "dp_overlap", "fused_loss", "cuda_graphs")},
        "grad_dtype": st.sampled_from(("fp32", "bf16")),
        "moments_dtype": st.just("bf16"),
        "train_weights": st.just("off"),
        "recompute_modules": st.just("layernorm"),
    },
)
"""Switches of trainer and job, as `--fix` states them."""


def _passes(*, decodes: bool) -> st.SearchStrategy[dict[str, Any]]:
    return _some(
        microbatch_size=(None, 1, 1, 4),
        seq_len=(None, 512, 2048),
        tp=(None, 1, 2),
        dtype=(None, None, "bf16", "fp8"),
        kernels=(None, None, "vllm", "sglang"),
        eager=(None, None, True),
        context_len=(None, 300, 1000) if decodes else (None, None, 512),
    )


def _unfinished(*, experts: bool) -> st.SearchStrategy[dict[str, Any]]:
    return _some(
        num_devices=(None, 8, 16, 12),
        global_batch_size=(None, 64, 512, 96),
        seq_len=(None, 512, 1024),
        tp=(None, None, 1, 2),
        pp=(None, None, 1, 2),
        ep=(None, None, 1, 2, 8) if experts else (None,),
        microbatch_size=(None, 1, 2),
        recompute=(None, "none", "full", "selective"),
        framework=(None, None, *TRAINERS),
        dtype=(None, None, "fp8", "bf16"),
        headroom=(None, None, 0.1),
        eager=(None, None, None, True),
        fix=(*(None,) * 4, {"train_weights": "off"}, {"tp_overlap": "on"}, {"train_weights": "off", "frozen_bits": 4}),
    )


@st.composite
def _plans(draw: st.DrawFn, *, experts: bool) -> dict[str, Any]:
    """A training run with degrees that make up its devices."""
    tp, pp, cp, dp = (2 ** draw(st.integers(0, most)) for most in (2, 2, 1, 2))
    microbatch, turns = 2 ** draw(st.integers(0, 2)), draw(st.integers(1, 3))
    some = _some(
        zero_stage=(None, None, None, None, 1, 1, 3, 3, 0, 2),
        schedule=(*(None,) * 8, "1f1b", "zero_bubble"),
        recompute=(None, None, "none", "full", "full", "selective"),
        recompute_layers=(*(None,) * 8, 1),
        optimizer_offload=(*(None,) * 8, True, False),
        shard_group=(*(None,) * 8, 2),
        optimizer=(None, None, None, None, "sgd", "muon"),
        attention=(None, None, None, "unfused"),
        routing_skew=(None, None, 1.3) if experts else (None,),
        dtype=(None, None, "bf16", "fp8", "mxfp8"),
        framework=(*(None,) * 4, *TRAINERS),
        headroom=(None, None, 0.1),
        eager=(*(None,) * 5, True),
        microbatch_size=(None, microbatch, microbatch),
        ep=(None, 1, 2) if experts else (None,),
        virtual_stages=(None, 1, 2) if pp > 1 else (None, 1),
        sequence_parallel=(None, None, tp > 1),
        context_parallel=(None, None, "ring", "all_gather") if cp > 1 else (None,),
    )
    more = draw(some) | ({"fix": switches} if draw(st.booleans()) and (switches := draw(SWITCHES)) else {})
    sizes = {"num_devices": tp * pp * cp * dp, "global_batch_size": dp * microbatch * turns * pp}
    return {**sizes, "seq_len": draw(st.sampled_from((512, 1024))), "tp": tp, "pp": pp, "cp": cp, **more}


# -- doors ---------------------------------------------------------------------------------------------------------


def _priced(answer: ModelEstimate) -> Price:
    return float(answer.time_s), float(answer.peak_bytes)


def linted(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    return _priced(api.lint(asked.subject, asked.gpu, **asked.words).base)


def advised(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    """The baseline of the advice, in the object and in the page's JSON."""
    words = asked.without("phase")
    advice = api.advise(asked.subject, asked.gpu, top=1, objective=asked.words.get("phase", "train"), **words)
    return _priced(advice.base)


def on_the_page(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    """What the page shows of the run."""
    reply = Answerer().fresh("shape", {}, _request(asked, moving=True))
    assert reply.status == 200, reply.body
    body = json.loads(reply.body)
    return _totals(body["totals"])


def planned(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    """The plan of the same unfinished run."""
    if not asked.trains or asked.words.get("eager"):
        return None
    found = api.plan(asked.subject, asked.cluster, **asked.without("phase"))
    assert (found.status == "infeasible") == answer.infeasible, f"{found.status}, and infeasible {answer.infeasible}"
    return _best(found, answer)


def fixed(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    """The plan with every axis of the estimate fixed."""
    if not asked.trains or asked.words.get("eager"):
        return None
    return _best(_fixed(asked, answer), answer)


_FIXED: list[tuple[ModelEstimate, Any]] = []
"""The last plan that was fixed, for the doors that write it."""


def _fixed(asked: Asked, answer: ModelEstimate) -> Any:
    if not _FIXED or _FIXED[0][0] is not answer:
        _FIXED[:] = [(answer, _fix(asked, answer))]
    return _FIXED[0][1]


def _fix(asked: Asked, answer: ModelEstimate) -> Any:
    held = answer.question.held
    assert held is not None
    sizes = _sizes(asked, answer)
    return api.plan(asked.subject, asked.cluster, **{**sizes, "fix": {**sizes.get("fix", {}), **held.axes}})


def _sizes(asked: Asked, answer: ModelEstimate) -> dict[str, Any]:
    """The stated fields but for the plan, with the devices and batch that were completed."""
    held = answer.question.held
    assert held is not None
    axes = [name for name, row in FIELDS.items() if row.axis]
    sizes: dict[str, Any] = {"num_devices": held.num_devices, "global_batch_size": held.job.global_batch_size}
    facts = answer.question.run.facts.items()
    searched = {name: fact.value for name, fact in facts if name in SWITCHED and fact.origin is Origin.SEARCHED}
    sizes |= {"fix": {**asked.words.get("fix", {}), **searched}} if searched else {}
    return {**asked.without("phase", *axes), **sizes}


def _best(found: Any, answer: ModelEstimate) -> Price | None:
    if found.best is None:
        assert not answer.fits, "plan says that nothing fits, and the estimate fits"
        return None
    assert answer.fits, "plan has a plan that fits, and the estimate does not fit"
    return float(found.best.step_s), float(found.best.peak_bytes)


def restated(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    """The estimate of the finished run, every completed field stated as an option."""
    facts = answer.question.run.facts
    words = {name: fact.value for name, fact in facts.items() if name in FIELDS and name not in ("gpu", "price")}
    switches = {name: fact.value for name, fact in facts.items() if name in SWITCHED and name not in FIELDS}
    words |= {"cluster": asked.cluster} if asked.trains else {}
    words |= {"fix": {**switches, **asked.words.get("fix", {})}} if asked.trains else {}
    return _priced(api.estimate(asked.subject, asked.gpu, **{**words, **asked.without("fix")}))


def in_a_grid(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    """An entry of a grid of estimates whose other points are other microbatches."""
    if asked.trains:
        held = answer.question.held
        assert held is not None
        axes = {name: fact.value for name, fact in answer.question.run.facts.items() if name in held.axes}
        words, size = {**_sizes(asked, answer), **axes}, held.axes["microbatch_size"]
    else:
        words, size = dict(asked.words), int(answer.question.workload.microbatch_size)
        words |= {"tp": int(answer.question.dims.tp)}
    grid = api.estimate(asked.subject, asked.gpu, **{**words, "microbatch_size": [2 * size, size]})
    return float(grid.time_s[1]), float(grid.peak_bytes[1])


def over_http(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    reply = Answerer().fresh("estimate", {}, _request(asked))
    assert reply.status == 200, reply.body
    return _totals(json.loads(reply.body)["totals"])


def _request(asked: Asked, *, only: Mapping[str, object] | None = None, **more: object) -> bytes:
    subject = {"config": HYBRID} if asked.model == "hybrid" else {"model": asked.model}
    return json.dumps({**subject, "gpu": asked.gpu, **(asked.words if only is None else only), **more}).encode()


def on_the_command_line(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    code, printed = _printed("estimate", asked, folder, asked.words)
    assert code == (3 if answer.infeasible else 0), printed
    return _totals(json.loads(printed)["totals"])


def _printed(command: str, asked: Asked, folder: Path, words: Mapping[str, Any]) -> tuple[int, str]:
    """Exit status and JSON of a command; its errors where there is none."""
    out, errors = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = sartor_command([command, _path(asked, folder), "--gpu", asked.gpu, *flags(words), "--json"])
    return code, out.getvalue() or errors.getvalue()


def _path(asked: Asked, folder: Path) -> str:
    if asked.model != "hybrid":
        return asked.model
    path = folder / "nemotron_h" / "config.json"  # a folder's name is the model's
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(HYBRID))
    return str(path)


def flags(words: Mapping[str, Any]) -> Iterator[str]:
    """Fields of a run as flags of the command line."""
    for name, value in words.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        elif isinstance(value, Mapping):
            yield from (flag, ",".join(f"{key}={word}" for key, word in value.items()))
        else:
            yield from (flag, str(value))


def _totals(totals: Mapping[str, Any]) -> Price:
    assert totals["time_s"] == totals.get("step_s", totals["time_s"])
    return totals["time_s"], totals["peak_bytes"]


def launched(kind: str) -> Door:
    """The launch file of a trainer, written and read back."""

    def door(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
        if not asked.trains or asked.words.get("eager") or asked.gpu in CHIPS or not answer.fits:
            return None
        found = _fixed(asked, answer)
        if found.best is None:
            return None
        written = api.launch(found, kind)
        place = folder / kind
        save_files(written, place)
        beside = {name: asked.words[name] for name in ("headroom", "routing_skew") if name in asked.words}
        beside |= {"model": asked.subject} if kind in SIZELESS else {}
        read = api.lint_launch(place, asked.cluster, search=False, **beside)
        if written.priced != found.best or read.job.trainer.name != found.job.trainer.name:
            return None  # another plan, or another trainer's run, and the answer says so
        return float(read.priced.step_s), float(read.priced.peak_bytes)

    return door


TITAN = "[rank0]:[titan] {} - root - INFO - step: {:2d}  loss: 9.0  memory: 58.28GiB(73.68%)  tps: {:,.4f}\n"


def diagnosed(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    """The prediction beside a log of the run, its plan stated as options."""
    held = answer.question.held
    if held is None or asked.words.get("eager"):
        return None
    step_s = float(answer.time_s)
    tokens_per_s = held.job.tokens_per_step / step_s / held.num_devices
    times_s = [datetime(2026, 1, 5, 9) + timedelta(seconds=step * step_s) for step in range(12)]
    stamps = [f"{time:%Y-%m-%d %H:%M:%S},{time.microsecond // 1000:03d}" for time in times_s]
    path = folder / "run.log"
    path.write_text("".join(TITAN.format(stamp, i + 1, tokens_per_s) for i, stamp in enumerate(stamps)))
    axes = {name: fact.value for name, fact in answer.question.run.facts.items() if name in held.axes}
    words = {**_sizes(asked, answer), **axes, "seq_len": held.job.seq_len, "framework": held.job.trainer.name}
    words |= {"framework": asked.words.get("framework", answer.question.run.get("framework"))}
    found = api.diagnose(path, model=asked.subject, cluster=asked.cluster, best_plan=False, **words)
    assert isinstance(found, LogDiagnosis)
    return float(found.predicted.step_s), float(found.predicted.peak_bytes)


def served(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    """A server with one sequence in flight: a token takes what a pass of decoding takes in the middle of the answer,
    the prompt what a pass of prefill takes, and both hold the same weights and caches. In the object, on the command
    line and over HTTP."""
    if asked.trains or asked.gpu in CHIPS or asked.words.get("eager"):
        return None
    prompt, half = asked.words.get("seq_len", 700), asked.words.get("context_len", 300)
    words = {"tp": int(answer.question.dims.tp), "headroom": 0.1}
    words |= {name: asked.words[name] for name in ("dtype", "kernels") if name in asked.words}
    load = {"input_len": prompt, "output_len": 2 * half}
    server = api.serving(asked.subject, asked.gpu, concurrency=1, **load, **words)
    one = {"microbatch_size": 1, "seq_len": prompt, **words}
    before = half if server.server.encodes else prompt + half
    token = api.estimate(asked.subject, asked.gpu, phase="decode", context_len=before, **one)
    first = api.estimate(asked.subject, asked.gpu, phase="prefill", **one)
    assert token.serving is not None
    held = (float(token.serving.memory.param_bytes), float(token.serving.memory.kv_cache_bytes))
    here = (float(server_memory(server.server).param_bytes), cache_bytes(server.server, prompt, half + 1))
    assert here == held, f"bytes {here} and not {held}"
    passes = [(load.tpot_s, load.prompt_s) for load in server.loads]
    assert passes == [(token.time_s, first.time_s)] * server.fits, f"{passes} and not {token.time_s, first.time_s}"
    reply = Answerer().fresh("serving", {}, _request(asked, only=words, concurrency=1, **load))
    assert reply.status == 200, reply.body
    code, printed = _printed("serving", asked, folder, {**words, **load, "concurrency": 1})
    assert code == (0 if server.fits else 3), printed
    assert json.loads(reply.body) == json.loads(printed), "over HTTP otherwise than on the command line"
    assert [load["tpot_s"] for load in json.loads(printed)["loads"]] == [passed[0] for passed in passes]
    return None


def validated(asked: Asked, answer: ModelEstimate, folder: Path) -> Price | None:
    """The run as a row of a table of published runs. No column says which layers of a hybrid are of which kind: a row
    has a hybrid of the zoo by its name, and none of a config.json."""
    if answer.priced is None or asked.model == "hybrid":
        return None
    held = answer.question.held
    assert held is not None
    return row_price(asked, held.job, answer.priced.plan, held.cluster, folder)


def row_price(asked: Asked, job: Any, plan: Any, cluster: Any, folder: Path) -> Price | None:
    """What `validate` predicts for the row of a run; None if the columns cannot tell it all: a network of three tiers
    that no catalogue names."""
    tiers, d = cluster.tiers, plan.dims
    near, far = tiers[0], tiers[-1]
    both_ways = 1 + (near.kind in ("nvswitch", "nvlink", "xgmi"))
    again = {0: "none", 1: "selective"}.get(plan.recompute, "full")
    stated = {*STATED, *asked.words.get("fix", {})}
    row = {
        "model": asked.model, "gpu": asked.gpu,
        "n_gpu": plan.num_devices, "gpus_per_node": near.span or plan.num_devices,
        "intra_node": f"{near.kind} {near.bytes_per_s * both_ways / 1e9:.10g} GB/s", "inter_node": far.kind,
        "inter_gbps_per_gpu": far.bytes_per_s * 8 / 1e9, "framework": job.trainer.names[0],
        "compile": int(job.trainer.fused_kernels), "run_kind": "pretrain" if job.trains_weights else "lora",
        "seq": job.seq_len, "gbs": job.global_batch_size, "dtype": job.recipe.value, "tp": d.tp, "pp": d.pp,
        "dp": d.dp, "cp": d.cp, "ep": d.ep, "sp": int(bool(d.sequence_parallel)), "vp": plan.virtual_stages,
        "zero_stage": plan.zero_stage, "fsdp_size": plan.shard_group or "", "mbs": plan.microbatch_size,
        "grad_accum": plan.num_microbatches, "optimizer": job.optimizer.value + " offload" * plan.optimizer_offload,
        "recompute": again if plan.recompute_layers < 0 else f"{plan.recompute_layers} layers",
        "flash_attention": int(job.attention_kernel.value == "flash"), "routing_skew": job.routing_skew,
        "schedule": int(plan.schedule), "stage_layers": "+".join(map(str, plan.stage_layers or ())) or "even",
        "cluster": cluster.name if cluster.name in CLUSTERS else "", "eager": int(not job.trainer.fused_kernels),
        "framework_version": str(asked.words.get("framework", "")).partition("@")[2],
        **({} if job.trainer.lockstep else {name: word for name, word in settings(job).items() if name in stated}),
    }  # fmt: skip
    path = folder / "training.csv"
    path.write_text("\n".join(",".join(map(str, cells)) for cells in (row.keys(), row.values())) + "\n")
    (case,) = read_training(path)
    if case.job is None or case.cluster is None or replace(case.job, shape=job.shape) != job or case.plan != plan:
        return None
    pairs = zip(case.cluster.tiers, tiers, strict=False)  # a row within one node has its links alone
    if any(replace(tier, name="", span=0) != replace(other, name="", span=0) for tier, other in pairs):
        return None
    (outcome,) = predict_training((case,))
    return outcome.predicted_s, outcome.predicted_bytes


DOORS: dict[str, Door] = {
    "lint": linted,
    "advise": advised,
    "page": on_the_page,
    "plan": planned,
    "plan --fix": fixed,
    "restated": restated,
    "grid": in_a_grid,
    "http": over_http,
    "command line": on_the_command_line,
    "diagnose": diagnosed,
    "serving": served,
    "validate": validated,
    **{f"launch {kind}": launched(kind) for kind in KINDS},
}
MAY_REFUSE = tuple(f"launch {kind}" for kind in KINDS)


def frozen_contradictions(asked: Asked, fixed: Mapping[str, Any], folder: Path) -> list[str]:
    """Doors that price a run with a frozen base (LoRA, ``train_weights=off``) otherwise than `plan`;
    launch files must refuse it."""
    words = {**asked.without("phase"), "fix": {**fixed, "train_weights": "off"}}
    found = api.plan(asked.subject, asked.cluster, **words)
    best = found.best
    assert best is not None
    price = float(best.step_s), float(best.peak_bytes)
    body = {"model": asked.model, "cluster": asked.cluster.name, **words}
    reply = Answerer().fresh("plan", {}, json.dumps(body).encode())
    over = json.loads(reply.body)["best"]
    prices = {"http": (over["step_s"], over["peak_bytes"])}
    prices["validate"] = row_price(asked, found.job, best.plan, found.search.cluster, folder) or price
    try:
        api.launch(found, "megatron")
    except InputError:
        return [f"{name}: {seen} and not {price}" for name, seen in prices.items() if seen != price]
    return ["megatron files are written, and they train all weights"]


def contradictions(asked: Asked, doors: Iterator[str] | tuple[str, ...], folder: Path) -> list[str]:
    """A sentence for every door that prices the run otherwise than ``estimate``, or refuses what that answers."""
    try:
        answer = api.estimate(asked.subject, asked.gpu, **asked.words)
        reason = answer.cannot_run
    except InputError as error:
        reason = str(error)
    if reason:
        return [
            f"{name} answers, and estimate says: {reason}" for name in doors if name in PLAIN and PLAIN[name](asked)
        ]
    said = []
    for name in doors:
        try:
            price = DOORS[name](asked, answer, folder)
        except InputError as error:
            if name not in MAY_REFUSE:
                said.append(f"{name} refuses: {error}")
            continue
        except AssertionError as error:
            said.append(f"{name}: {error}")
            continue
        if price is not None and price != _priced(answer):
            said.append(f"{name}: {price} and not {_priced(answer)}")
    return said


def _plan_answers(asked: Asked) -> bool:
    """Whether ``plan`` has a plan, or any answer but that none is possible, for a run that ``estimate`` refuses. Of
    degrees that do not divide the model it says the same as ``estimate``."""
    if not asked.trains or asked.words.get("eager"):
        return False
    try:
        planned = api.plan(asked.subject, asked.cluster, **asked.without("phase"))
        return planned.best is not None and not planned.cannot_run
    except InputError:
        return False


def _lint_answers(asked: Asked) -> bool:
    """Lint answers what does not split, with a finding that says so."""
    try:
        lint = api.lint(asked.subject, asked.gpu, **asked.words)
    except InputError:
        return False
    return not any(finding.axis for finding in lint.findings)


PLAIN: dict[str, Callable[[Asked], bool]] = {"plan": _plan_answers, "lint": _lint_answers}
"""Doors that take the run as it is stated, and must refuse what ``estimate`` refuses."""
