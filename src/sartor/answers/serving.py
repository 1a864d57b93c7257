"""``serving``: the record of a server under load, and its table of fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as default
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sartor.answers.advice import ADVICE, CHANGED, LOSS, Advice
from sartor.answers.estimate import ENGINE_MEMORY
from sartor.answers.field import (
    Answer,
    Fields,
    Level,
    Scalar,
    field,
    flag,
    integer,
    integers,
    mapping,
    number,
    numbers,
    rows,
    text,
    through,
)
from sartor.answers.plan import DEPENDS_ON, VALUE
from sartor.cost.cost import interval_80
from sartor.units import Floats, format_count, format_seconds

if TYPE_CHECKING:
    from sartor.cost.cost import Source
    from sartor.hardware.cluster import Cluster
    from sartor.model.workload import ModelReading
    from sartor.run.fields import Run, Turn
    from sartor.shapes.quality import LossChange
    from sartor.step.serving.batching import Steady
    from sartor.step.serving.deploy import Deployer, Deployment, LatencyGoal, ServerLayout
    from sartor.step.serving.inference import InferenceMemory
    from sartor.step.serving.served import Load, Server, Shortage


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServedLoad:
    """Latency and throughput with one number of requests in flight."""

    concurrency: int
    running: int
    """Sequences that decode at once."""
    waiting: float
    """Requests that wait because memory is full."""
    ttft_s: float
    ttft_low_s: float
    ttft_high_s: float
    tpot_s: float
    tpot_low_s: float
    tpot_high_s: float
    source: Source
    step_s: float
    """One decoding step."""
    prompt_s: float
    """One pass over a prompt."""
    each_prompt_s: float
    request_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_device: float
    usd_per_million_tokens: float | None
    """Of the tokens of answers, where the price of a device is stated."""

    @property
    def waits(self) -> bool:
        """Whether requests wait because memory is full (or the prompts' servers are), so that fewer run at once."""
        return round(self.waiting) >= 1 and self.running < self.concurrency

    @property
    def requests_per_s(self) -> float:
        return self.concurrency / self.request_s


def _count_text(count: float) -> str:
    """A number of requests that leaves room for its line."""
    return f"{count:,.0f}" if count < 1e6 else format_count(count)


def _brief(seconds: float) -> str:
    return format_seconds(seconds) if seconds < 1e5 else f"{seconds:.2g} s"


LOAD: Fields = (
    integer("concurrency", "in flight", form=_count_text),
    integer("running", "run", form=_count_text, help="sequences that run at once"),
    number("waiting", "wait", form=_count_text, help="requests for which memory has no room"),
    number("ttft_s", "first token", form=_brief, help="mean time from a request to its first token"),
    number("ttft_low_s", "80% low", form=_brief),
    number("ttft_high_s", "80% high", form=_brief),
    number("tpot_s", "per token", form=_brief, help="mean time between a sequence's tokens"),
    number("tpot_low_s", "80% low", form=_brief),
    number("tpot_high_s", "80% high", form=_brief),
    text("source"),
    *numbers("step_s prompt_s each_prompt_s request_s requests_per_s"),
    number("output_tokens_per_s", "tokens/s", form=lambda rate: f"{rate:,.0f}", help="of the whole server"),
    number("output_tokens_per_s_per_device", "per GPU", form=lambda rate: f"{rate:,.0f}"),
    number("usd_per_million_tokens", when=lambda load: load.usd_per_million_tokens is not None, help="of answers"),
)
SERVER: Fields = (text("gpu", path="gpu.name"), text("dtype"), *integers("tp copies ep pp"))
SHORTAGE: Fields = (
    text("server", path=lambda pair: pair[0].pool_of(pair[1]), help="prompts or answers"),
    *(
        number(name, path=lambda pair, name=name: getattr(pair[1], name))
        for name in ("weight_bytes", "free_bytes", "sequence_bytes")
    ),
    integer("most_tokens", path=lambda pair: pair[1].most_tokens),
)
"""Why a server does not hold one sequence; reads a pair (answer, `Shortage`)."""
MODEL = field(
    "model",
    (
        text("name", path="reading.shape.name"),
        rows("unread_sizes", Scalar.TEXT, path="reading.unread_sizes", help="entries that name a size, not read"),
        rows("assumptions", Scalar.TEXT),
    ),
    path=lambda answer: answer,
)
SERVING: Fields = (
    MODEL,
    field(
        "server",
        (
            *(
                text("gpu", path="server.gpu.name"),
                text("dtype", path="server.dtype"),
                *(integer(name, path=f"server.{name}") for name in ("tp", "copies", "ep", "pp")),
            ),
            text("kernels", path="server.engine.name"),
            text("cache_dtype", path="server.cache"),
            *integers("decode_workers prefill_workers"),
            field("prefill", SERVER, null=True),
            integer("num_devices"),
        ),
        path=lambda answer: answer,
    ),
    mapping("run", VALUE, path="run.facts", help="every value of the run, with its origin"),
    integer("input_len", path=lambda answer: int(answer.load.input_len)),
    integer("output_len", path=lambda answer: int(answer.load.output_len)),
    integer("max_sequences", path="most_sequences", help="halfway through their answers"),
    integer("max_whole_sequences", path="whole_sequences", help="with their whole answers"),
    integer("longest_tokens", help="of one sequence alone"),
    field("memory", (*ENGINE_MEMORY, number("usable_bytes")), help="of one device of the server for answers"),
    text("status", help="feasible, infeasible, or unknown: sizes of the config were not read"),
    flag("fits", "fits", level=Level.HEADLINE, null=True, help="null: unknown, sizes of the config were not read"),
    rows("shortages", SHORTAGE, path=lambda answer: [(answer, lack) for lack in answer.shortages]),
    mapping("would_fit", Scalar.ANY, help="a change with which one sequence fits"),
    rows("loads", LOAD, path="loads"),
    DEPENDS_ON,
    rows(
        "findings",
        tuple(text(name, path=lambda row, i=i: row[i]) for i, name in enumerate(("grade", "option", "message"))),
        help="of the file that starts the servers, if one was given",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServingAnswer(Answer):
    """Latency and throughput of a server, for each number of sequences in flight."""

    fields: ClassVar[Fields] = SERVING
    subject: ClassVar[Fields] = (
        text("model", "model", path="reading.shape.name"),
        text("gpu", "GPU", path="server.gpu.name"),
        text("in_flight", "in flight", path=lambda answer: int(np.ravel(answer.load.concurrency)[-1])),
        number("tpot_s", "time per token", path=lambda answer: float(np.ravel(answer.steady.tpot_s)[-1])),
    )
    reading: ModelReading
    run: Run
    """Every value of the finished run, with its origin."""
    server: Server
    """Serves decoding, and prefill too unless ``prefill`` is set."""
    load: Load
    steady: Steady
    most_sequences: int
    """Sequences halfway through their answers that fit in the memory of all copies together."""
    whole_sequences: int
    """The same with their whole answers."""
    longest_tokens: int
    """Tokens of the longest sequence that one copy holds."""
    memory: InferenceMemory
    """How the engine divides one device's memory."""
    num_devices: int
    prefill: Server | None = None
    prefill_workers: int = 0
    decode_workers: int = 1
    would_fit: Mapping[str, int | str] = default(default_factory=dict)
    """If not even one sequence fits: a change with which one does."""
    tpot_log_sigma: Floats = 0.0
    """Of ln time per token, where it holds what is not known of kernels and engine."""
    elsewhere: Mapping[str, Steady] = default(default_factory=dict)
    """The same servers in engines that were not excluded, by their names: intervals cover them."""
    depends_on: tuple[Turn, ...] = ()
    """Engines that would change the time per token."""
    findings: tuple[tuple[str, str, str], ...] = ()
    """Of the file that starts the servers: grade, option and sentence, errors first."""
    shortages: tuple[Shortage, ...] = ()
    """What servers lack that don't hold one sequence: those for prompts of their own, then those for answers."""
    assumptions: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether one sequence fits; None: unknown, as sizes of the config were not read."""
        return self.reading.known(not self.shortages)

    @property
    def status(self) -> str:
        """``feasible``, ``infeasible``, or ``unknown`` where sizes of the config that were not read might not fit."""
        return {True: "feasible", None: "unknown", False: "infeasible"}[self.fits]

    @property
    def loads(self) -> tuple[_ServedLoad, ...]:
        """Latency and throughput of every load; empty if not one sequence fits."""
        return () if self.shortages else tuple(_loads(self))

    def pool_of(self, lack: Shortage) -> str:
        """Which server lacks memory: ``prompts`` or ``answers``."""
        return "prompts" if lack.server is self.prefill else "answers"


_COLUMNS = ("running", "waiting", "step_s", "tpot_s", "ttft_s", "each_prompt_s", "output_tokens_per_s")


def _covering(interval: tuple[Floats, Floats], seconds: list[float]) -> tuple[float, float]:
    """The interval, widened to hold every one of ``seconds``."""
    return min([float(interval[0]), *seconds]), max([float(interval[1]), *seconds])


def _loads(answer: ServingAnswer) -> Iterator[_ServedLoad]:
    steady, concurrency, price = answer.steady, np.asarray(answer.load.concurrency), answer.run.get("price")

    def spread(values: object) -> list[float]:
        return [float(value) for value in np.broadcast_to(np.asarray(values), concurrency.shape)]

    columns = {name: spread(getattr(steady, name)) for name in _COLUMNS}
    elsewhere = {n: [spread(getattr(there, n)) for there in answer.elsewhere.values()] for n in ("tpot_s", "ttft_s")}
    sigmas = zip(spread(answer.tpot_log_sigma), spread(steady.ttft_log_sigma), strict=True)
    for i, (tpot_sigma, ttft_sigma) in enumerate(sigmas):
        column = {name: values[i] for name, values in columns.items()}
        tpot = _covering(interval_80(column["tpot_s"], tpot_sigma), [row[i] for row in elsewhere["tpot_s"]])
        ttft = _covering(interval_80(column["ttft_s"], ttft_sigma), [row[i] for row in elsewhere["ttft_s"]])
        yield _ServedLoad(
            concurrency=int(concurrency[i]),
            running=math.ceil(round(column.pop("running"), 6)),
            ttft_low_s=ttft[0],
            ttft_high_s=ttft[1],
            tpot_low_s=tpot[0],
            tpot_high_s=tpot[1],
            source=steady.step.source,
            prompt_s=spread(steady.prompt.time_s)[i],
            request_s=column["ttft_s"] + (int(answer.load.output_len) - 1) * column["tpot_s"],
            output_tokens_per_s_per_device=(rate := column["output_tokens_per_s"] / answer.num_devices),
            usd_per_million_tokens=price and price / 3600 / rate * 1e6,
            **column,
        )


# -- deployments -------------------------------------------------------------------------------------------------------


HOURS_PER_YEAR = 365.25 * 24
SURE = 0.9
"""Probability of meeting the objectives of the deployment that is named where the cheapest more likely misses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A layout with as many replicas as the load takes."""

    deployment: Deployment
    where: Cluster
    binding: str
    """What keeps a replica from taking more requests: an objective, or memory."""
    in_per_out: float
    """Tokens of prompts per token of answers."""
    percentile: float = 95
    """Of the requests whose times it states beside the mean."""
    commands: tuple[str, ...] = ()
    """What starts one server of each kind."""
    to_do: tuple[str, ...] = ()
    """What commands and files leave to the user, in sentences."""
    elsewhere: tuple[Steady, ...] = ()
    """A replica in engines that were not excluded: intervals cover them."""
    tpot_log_sigma: float
    """Deviation of ln time per token, with the kernels of those engines."""
    memory: InferenceMemory
    """Of one device of the servers for answers."""

    def _one(self, name: str) -> float:
        return float(np.ravel(getattr(self.deployment.steady, name))[0])

    @property
    def ttft_s(self) -> float:
        return self._one("ttft_s")

    @property
    def tpot_s(self) -> float:
        return self._one("tpot_s")

    @property
    def quantiles_s(self) -> tuple[float, float]:
        """Times to the first token and per token that so many percent of the requests have at most."""
        first_s, each_s = (float(np.ravel(s)[0]) for s in self.deployment.steady.quantile(self.percentile))
        return first_s, each_s

    @property
    def ttft_interval(self) -> tuple[Floats, Floats]:
        return self._interval("ttft", self._one("ttft_log_sigma"))

    @property
    def tpot_interval(self) -> tuple[Floats, Floats]:
        return self._interval("tpot", self.tpot_log_sigma)

    def _interval(self, name: str, log_sigma: float) -> tuple[Floats, Floats]:
        there = [float(np.ravel(getattr(steady, f"{name}_s"))[0]) for steady in self.elsewhere]
        return _covering(interval_80(self._one(f"{name}_s"), log_sigma), there)

    @property
    def usd_per_hour(self) -> float | None:
        usd = self.where.price_usd_per_device_hour
        return usd and usd * self.deployment.num_devices

    @property
    def usd_per_year(self) -> float | None:
        return self.usd_per_hour and self.usd_per_hour * HOURS_PER_YEAR

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Of the tokens of answers."""
        return self.usd_per_hour and self.usd_per_hour / 3600 / self.deployment.output_tokens_per_s * 1e6

    @property
    def kv_tokens(self) -> int:
        """Of a replica's servers for answers."""
        layout = self.deployment.layout
        return int(self.memory.kv_tokens) * layout.server.copies * layout.decode_workers

    @property
    def kv_bytes(self) -> float:
        """Memory for keys and values of a replica's servers for answers."""
        layout = self.deployment.layout
        return float(self.memory.kv_room_bytes) * layout.server.num_devices * layout.decode_workers

    @property
    def step_tokens(self) -> int:
        server = self.deployment.layout.server
        return server.engine.step_tokens(server.gpu)

    @property
    def utilization(self) -> float:
        server = self.deployment.layout.server
        return float(server.engine.utilization(server.gpu, server.tp, server.copies))

    @property
    def usd_per_million_tokens_out(self) -> float | None:
        """Of the tokens of answers, with what the time of prompts costs left to the tokens of prompts."""
        return self.usd_per_million_tokens and self.usd_per_million_tokens * (1 - self.deployment.prompt_share)

    @property
    def usd_per_million_tokens_in(self) -> float | None:
        """Of the tokens of prompts, cached ones too: what the time of prompts costs."""
        apart = self.usd_per_million_tokens and self.usd_per_million_tokens * self.deployment.prompt_share
        return apart and apart / self.in_per_out

    @property
    def kwh_per_million_tokens(self) -> float:
        """Of the tokens of answers, at the devices' power limit."""
        return self.deployment.joules_per_token / 3.6

    def notes(self, model: str = "") -> tuple[str, ...]:
        """What commands and files leave to the user: the words that stand for a checkpoint, and the rest."""
        return (*filter(None, [self.to_replace(model)]), *self.to_do)

    def to_replace(self, model: str = "") -> str:
        """The sentence on the words of commands and files that stand for a checkpoint; "" if there are none."""
        server = self.deployment.layout.server
        words = [] if "/" in model else ["the checkpoint where it says MODEL"]
        if server.draft_tokens and not server.shape.mtp_layers:
            words.append(
                "a draft model of one layer (EAGLE-3) where it says DRAFT_MODEL: the model has none of its own"
            )
        if not model and any("=ADDRESS " in command for command in self.commands):
            words.append("each server's own address where it says ADDRESS")
        return f"Name {', and '.join(words)}." if words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPoint:
    """A layout and load that no other beats in tokens/s per device and per request."""

    layout: ServerLayout
    in_flight: int
    tokens_per_s_per_device: float
    tokens_per_s_per_request: float
    ttft_s: float


def pools_text(layout: ServerLayout) -> str:
    """``tp 2``, ``2 x tp 1 for prompts, 3 x tp 2 for answers``."""
    answers = _sizes(layout.server, layout.decode_workers)
    if layout.prefill is None:
        return answers
    return f"{_sizes(layout.prefill, layout.prefill_workers)} for prompts, {answers} for answers"


def _sizes(server: Server, workers: int) -> str:
    words = [
        f"tp {server.tp}",
        *[f"{server.copies} copies"] * (server.copies > 1),
        *[f"ep {server.ep}"] * (server.ep > 1),
        *[f"{server.pp} stages"] * (server.pp > 1),
    ]
    return f"{workers} x " * (workers > 1) + ", ".join(words)


def _of_layout(path: str, *, shown: bool = False) -> Fields:
    """The sizes of the layout at ``path``; ``shown``: device, precision and engine in tables."""
    kinds = (
        ("gpu", "GPU", "gpu.name"),
        ("dtype", "type", "dtype"),
        ("kernels", "engine", "engine.name"),
        ("cache_dtype", "KV", "cache"),
    )
    return (
        *(text(name, words if shown else "", path=f"{path}.server.{end}") for name, words, end in kinds),
        *(integer(name, path=f"{path}.server.{name}") for name in ("tp", "copies", "ep", "pp")),
        *(integer(name, path=f"{path}.{name}") for name in ("decode_workers", "prefill_workers")),
        field("prefill", SERVER, path=f"{path}.prefill", null=True),
        field("decode", SERVER, path=f"{path}.server", help="each of decode_workers servers"),
    )


CHOICE: Fields = (
    text("layout", "a replica", path=lambda choice: pools_text(choice.deployment.layout)),
    *_of_layout("deployment.layout", shown=True),
    integer("replicas", "replicas", path="deployment.replicas"),
    integer("num_devices", "GPUs", path="deployment.num_devices"),
    integer("in_flight", "in flight", path="deployment.in_flight", help="requests of each replica"),
    integer("most_in_flight", path="deployment.most_in_flight", help="with which the objectives still hold"),
    number("ttft_s", "first token", form=_brief, help="mean time from a request to its first token"),
    number("ttft_low_s", path=lambda choice: float(choice.ttft_interval[0])),
    number("ttft_high_s", path=lambda choice: float(choice.ttft_interval[1])),
    number("tpot_s", "per token", form=_brief, help="mean time between a request's tokens"),
    number("tpot_low_s", path=lambda choice: float(choice.tpot_interval[0])),
    number("tpot_high_s", path=lambda choice: float(choice.tpot_interval[1])),
    number("percentile", help="of the requests, for the next two"),
    number("ttft_quantile_s", path=lambda choice: choice.quantiles_s[0]),
    number("tpot_quantile_s", path=lambda choice: choice.quantiles_s[1]),
    number(
        "slo_probability",
        "likely",
        path="deployment.likely",
        form=lambda share: f"{share:.0%}",
        help="that both objectives hold, if their errors were independent",
    ),
    number(
        "tokens_per_s",
        "tokens/s",
        path="deployment.output_tokens_per_s",
        form=lambda rate: f"{rate:,.0f}",
        help="of answers",
    ),
    number("usd_per_hour", "USD/h", form=lambda usd: f"{usd:,.2f}", null=True),
    number("usd_per_year", null=True, help="of 8,766 hours"),
    number("usd_per_device_hour", path="where.price_usd_per_device_hour", null=True),
    text("price_source", path="where.price_source"),
    text("price_date", path="where.price_date"),
    number(
        "usd_per_million_tokens",
        "USD/1M",
        form=lambda usd: f"{usd:.3g}" if usd < 1000 else f"{usd:,.0f}",
        null=True,
        help="tokens of answers",
    ),
    number(
        "usd_per_million_input_tokens",
        path="usd_per_million_tokens_in",
        null=True,
        help="of prompts: what the time of prompts costs",
    ),
    number("usd_per_million_output_tokens", path="usd_per_million_tokens_out", null=True, help="of answers: the rest"),
    number("kwh_per_million_tokens", help="of answers, at the devices' power limit: at most"),
    integer("kv_tokens", help="of a replica, every layer in full, as engines log it"),
    number("kv_bytes", help="a replica's memory for keys and values"),
    integer("step_tokens", help="most tokens of a step: the chunk of a prompt"),
    number("utilization", help="share of memory, of what the engine's option counts"),
    text(
        "bound_by",
        path="binding",
        help="what keeps a replica from taking more: ttft_s, tpot_s, probability, memory or max_num_seqs",
    ),
    rows("flags", Scalar.TEXT, path="commands", help="the command and flags that start one server of each kind"),
    rows("to_do", Scalar.TEXT, path=lambda choice: list(choice.notes()), help="what commands and files leave to do"),
)
FRONT_POINT: Fields = (
    text("layout", "layout", path=lambda point: pools_text(point.layout)),
    *_of_layout("layout", shown=True),
    integer("in_flight", "in flight"),
    number("tokens_per_s_per_request", "tokens/s of a request", form=lambda rate: f"{rate:,.0f}"),
    number("tokens_per_s_per_device", "tokens/s per GPU", form=lambda rate: f"{rate:,.0f}"),
    number("ttft_s", "first token", form=_brief),
)
UNDER: Fields = (
    field(
        "load",
        (*numbers("requests_per_s"), *integers("users input_len output_len")),
        help="requests_per_s and users 0: as much as a replica takes",
    ),
    field(
        "objective",
        tuple(
            number(name, null=True, path=lambda goal, name=name: _finite(getattr(goal, name)))
            for name in ("ttft_s", "tpot_s", "probability", "percentile")
        ),
    ),
    integer("most_devices"),
)
DEPLOYMENT: Fields = (
    MODEL,
    *UNDER,
    integer("evaluated", path="num_layouts", help="layouts that were priced; the best of all is the best"),
    mapping("rejected", Scalar.INTEGER, help="layouts by what they do not meet"),
    text("status", help="feasible, infeasible, or unknown: sizes of the config were not read"),
    field("best", CHOICE, null=True),
    field("simpler", CHOICE, null=True, help="the cheapest of one kind of server without copies, if the best is not"),
    field("surer", CHOICE, null=True, help=f"the cheapest that is {SURE:.0%} likely, if the best more likely misses"),
    number(
        "most_likely",
        null=True,
        path=lambda answer: answer.most_likely and answer.most_likely[1],
        help="the best probability in reach, if it alone is below the one that was stated",
    ),
    rows(
        "would_meet",
        (text("field"), number("value")),
        path=lambda answer: [{"field": name, "value": value} for name, value in answer.would_meet.items()],
        help="if nothing meets the objectives: fields, each with the value (times in s) at which alone some layout's "
        "predictions do, at even odds",
    ),
    number("least_usd_per_hour", null=True, help="of what meets the objectives, if all of it is beyond the limit"),
    field(
        "why_not",
        (integer("evaluated", path="num_layouts"), field("best", CHOICE, null=True)),
        null=True,
        help="the cheapest with the sizes that were asked about; null: none asked",
    ),
    rows("unpriced", Scalar.TEXT, help="GPUs without a price: if any, devices are counted"),
    mapping("unstated", Scalar.TEXT, help="facts that were not stated, and what was taken"),
    rows("choices", CHOICE, help="the cheapest of every kind of layout"),
    number("most_load", help="requests in flight, or per second, that most_devices take under the objectives"),
    rows("front", FRONT_POINT, help="no other has more tokens/s per device and per request"),
    mapping("refused", Scalar.TEXT, help="devices, precisions and engines of the question that cannot be, and why"),
)


def _finite(seconds: float | None) -> float | None:
    return seconds if seconds is not None and math.isfinite(seconds) else None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeploymentAnswer(Answer):
    """The cheapest deployments that meet objectives under a load."""

    fields: ClassVar[Fields] = DEPLOYMENT
    subject: ClassVar[Fields] = (
        text("model", "model", path="reading.shape.name"),
        text("status", "status"),
        integer("num_layouts", "layouts"),
    )
    reading: ModelReading
    objective: LatencyGoal
    load: Deployer
    most_devices: int
    choices: tuple[Choice, ...]
    simpler: Choice | None
    front: tuple[ServedPoint, ...]
    num_layouts: int
    most_load: float
    """The largest load, in requests in flight or per second as the question has it, that the devices take."""
    surer: Choice | None = None
    """Where the best more likely misses the objectives than meets them: the cheapest that meets them with `SURE`."""
    most_likely: tuple[ServerLayout, float] | None = None
    """Where only the stated probability is not met: the layout that most likely meets the objectives, how likely."""
    least_usd_per_hour: float | None = None
    """Where only the stated USD per hour are exceeded: what meets the objectives at the least."""
    rejected: Mapping[str, int] = default(default_factory=dict)
    would_meet: Mapping[str, float] = default(default_factory=dict)
    why_not: DeploymentAnswer | None = None
    """The same question of the layouts with the sizes that were asked about."""
    unpriced: tuple[str, ...] = ()
    """GPUs without a price: if any, devices are counted."""
    refused: Mapping[str, str] = default(default_factory=dict)
    unstated: Mapping[str, str] = default(default_factory=dict)
    """Precision and engine where none was stated, with the usual one."""
    assumptions: tuple[str, ...] = ()

    @property
    def of_price(self) -> bool:
        """Whether every GPU has a price; else devices are counted."""
        return not self.unpriced

    @property
    def is_doubtful(self) -> bool:
        """Whether the best deployment more likely misses the objectives than meets them."""
        return self.best is not None and self.best.deployment.likely < 0.5

    @property
    def unit(self) -> str:
        """What the deployments are ranked by."""
        if self.of_price:
            return "cost"
        return "GPUs" if self.load.users or self.load.requests_per_s else "GPUs per token"

    @property
    def best(self) -> Choice | None:
        """The cheapest; None if no layout meets the objectives."""
        return self.choices[0] if self.choices else None

    @property
    def status(self) -> str:
        """As of `ServingAnswer`."""
        if not self.choices:
            return "infeasible"
        return "unknown" if self.reading.unread_sizes else "feasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedShape:
    """A shape with its cheapest deployment."""

    changed: Mapping[str, tuple[int, int]]
    """Field -> (old, new); empty: the model as it is."""
    deployment: DeploymentAnswer
    loss: LossChange | None = None

    @property
    def cost(self) -> tuple[float, float, float]:
        """What shapes are ranked by: the cost of the tokens, then the loss, then the load that all devices take."""
        best = self.deployment.best
        if best is None:
            return math.inf, 0.0, -self.deployment.most_load
        made = best.deployment
        cost = best.usd_per_million_tokens or made.num_devices / made.output_tokens_per_s
        return float(f"{cost:.9g}"), float(self.loss.nats) if self.loss else 0.0, -self.deployment.most_load


SERVED_ADVICE: Fields = (
    *ADVICE,
    rows(
        "served",
        (
            CHANGED,
            field("loss", LOSS, null=True),
            *through("deployment", UNDER),
            field("best", CHOICE, path="deployment.best", null=True, help="its cheapest deployment; null: none"),
            number("most_load", path="deployment.most_load", help="requests in flight, or per second, on most_devices"),
        ),
        help="the model as it is, then other shapes, the cheapest first",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServedAdvice(Advice):
    """Advice whose objective is a deployment: of the decoding step, with the deployment of every candidate."""

    fields: ClassVar[Fields] = SERVED_ADVICE
