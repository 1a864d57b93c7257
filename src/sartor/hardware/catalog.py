"""Hardware catalogues: finding names, reading TOML, checking a user's own file; and the catalogue of GPUs.

It has one TOML datasheet per device, its other names inside, converted to SI units here.

A datasheet is looked up by file name, ignoring spelling (``H100-SXM``, ``h100 sxm`` and ``h100`` are ``h100_sxm``). A
user's own file is checked with a pydantic model. Entries of the package are not checked again, since tests check them:
pydantic takes 50 ms to load, and a question about a catalogue device should not wait for it.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard, get_args

from sartor import bounded
from sartor.errors import InputError, quoted
from sartor.hardware.gpu import FIELD_NAMES, Gpu, check_gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import DType
from sartor.units import GIB, GIGA, KIB, MEGA, MIB, MICRO, TERA

if TYPE_CHECKING:
    from pydantic import BaseModel


# ------------------------------------------------------------------------------------------- finding and reading


def is_path(name_or_path: str | Path) -> bool:
    """Whether a user names a file, not an entry of a catalogue."""
    text = str(name_or_path)
    return isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text


@dataclass(slots=True, kw_only=True)
class Catalogue:
    """TOML files of the package, one for each entry: a name in any spelling, or another name that its file gives."""

    folder: Path
    option: str
    """The option that names an entry: ``gpu``."""
    shelf: str
    """The word of ``sartor catalog``: ``gpus``."""
    usual: tuple[str, ...] = ()
    """Names to suggest where no spelling is near."""
    cutoff: float = 0.5

    def names(self) -> tuple[str, ...]:
        """Every entry, sorted."""
        return tuple(sorted(path.stem for path in self.folder.glob("*.toml")))

    def aliases(self) -> dict[str, str]:
        """Other names -> entry."""
        return _aliases_in(self.folder)

    def find(self, name: str) -> str:
        """The entry of a name. Raises ``InputError`` with the nearest ones."""
        spellings = _spellings_in(self.folder)
        if name in self:
            return spellings[canonical(name)]
        near = nearest_names(canonical(name), spellings, self.cutoff) or self.usual
        must = f"not in the catalogue (sartor catalog {self.shelf}) nor a .toml file"
        raise InputError(self.option, name, must, ", ".join(near))

    def __contains__(self, name: str) -> bool:
        return canonical(name) in _spellings_in(self.folder)

    def head(self, entry: str) -> JsonDict:
        """What an entry says before its tables, which take most of the time to parse."""
        return tomllib.loads(_texts_in(self.folder)[entry].partition("\n[")[0])

    def text(self, name: str) -> str:
        """The file's own text (TOML, in the units people read), to be printed, copied and changed."""
        return _texts_in(self.folder)[self.find(name)]

    def table(self, name_or_path: str | Path) -> tuple[JsonDict, Path]:
        """The table of an entry or of a user's file, and the file. Raises ``InputError``."""
        if not is_path(name_or_path):
            entry = self.find(str(name_or_path))
            return tomllib.loads(_texts_in(self.folder)[entry]), self.folder / f"{entry}.toml"
        return read_toml(Path(name_or_path), self.option), Path(name_or_path)


@cache
def _texts_in(folder: Path) -> dict[str, str]:
    """Every file's text by name, read once: 60 datasheets of 2 KB."""
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.toml")}


@cache
def _aliases_in(folder: Path) -> dict[str, str]:
    """From the ``aliases`` line of every file alone: parsing all tables for it would take 20 ms."""
    lines = {name: _ALIASES.search(text) for name, text in sorted(_texts_in(folder).items())}
    return {alias: name for name, line in lines.items() if line for alias in tomllib.loads(line[0])["aliases"]}


@cache
def _spellings_in(folder: Path) -> dict[str, str]:
    return {canonical(name): entry for name, entry in (_aliases_in(folder) | {n: n for n in _texts_in(folder)}).items()}


_ALIASES = re.compile(r"^aliases *= *\[[^\]]*\]", re.MULTILINE)


def canonical(name: str) -> str:
    """A name without case, separators and vendor."""
    squeezed = re.sub(r"[\s_\-]+", "", name.lower())
    return re.sub(r"^(nvidia|amd|google|intel|aws|tesla|instinct|geforce)+(?=.)", "", squeezed)


def nearest_names(name: str, spellings: Mapping[str, str], cutoff: float = 0.5) -> list[str]:
    """Up to four entries whose spelling is near; ``spellings`` is spelling -> entry."""
    near = difflib.get_close_matches(name, spellings, n=12, cutoff=cutoff)
    return list(dict.fromkeys(spellings[key] for key in near))[:4]


def read_toml(path: Path, field: str, entries: Iterable[str] = ()) -> JsonDict:
    """The TOML table of a file that a user gave in place of a catalogue name."""
    must = "must be a catalogue name or a TOML file that exists"
    return bounded.read_toml(path, field, must, nearest=", ".join(entries))


# --------------------------------------------------------------------------------------------------- checking


def model_of(kinds: JsonMap, required: Iterable[str] = ()) -> type[BaseModel]:
    """A pydantic model of a table: the type of each key (`kind`), and the required keys."""
    from pydantic import ConfigDict, create_model

    needed = {*required}
    fields: JsonDict = {key: (value, ... if key in needed else None) for key, value in kinds.items()}
    return create_model("Table", __config__=ConfigDict(extra="forbid"), **fields)


def check(table: JsonMap, model: type[BaseModel], *, subject: str, where: str = "") -> None:
    """Refuse a table that does not fit its model: first unknown keys, then missing keys, then values.

    ``subject`` is what the table describes (``a datasheet``), ``where`` its place in the file.
    """
    from pydantic import ValidationError

    try:
        model.model_validate(table)
    except ValidationError as error:
        order = {"extra_forbidden": 0, "missing": 1}
        first = min(error.errors(), key=lambda fault: order.get(fault["type"], 2))
        raise _sentence(first, model, subject, where) from None


def _sentence(first: Any, model: type[BaseModel], subject: str, where: str) -> InputError:
    path, value = [str(part) for part in first["loc"]], first["input"]
    field = (where + ".".join(path))[:80]
    if first["type"] == "missing":
        return InputError(field, "missing", f"every {subject.partition(' ')[2]} must state it")
    if first["type"] == "extra_forbidden":
        keys = [*_inner(model, path[:-1]).model_fields]
        near = difflib.get_close_matches(path[-1], keys, n=2, cutoff=0.4) or keys[:4]
        return InputError(field, value, f"is not a key of {subject}", ", ".join(near))
    if first["type"] == "not_so":
        must = first["ctx"]["must"]
        return InputError(field, quoted(value) if " number" in must else value, must, first["ctx"]["nearest"])
    if first["type"] == "too_long":
        return InputError(field, f"{first['ctx']['actual_length']} tables", f"at most {first['ctx']['max_length']}")
    key = path[-2] if path[-1].isdigit() else path[-1]
    written = _inner(model, [part for part in path if not part.isdigit()][:-1]).model_fields[key].description
    return InputError(field, value, written or f"must be a table, written [{key}]")


def _inner(model: Any, path: list[str]) -> Any:
    """The model of a table within a table, or of the tables in a list."""
    for part in path:
        if not part.isdigit():
            model = model.model_fields[part].annotation
            model = get_args(model)[0] if get_args(model) else model
    return model


Complaint = tuple[str, str] | None
"""What an invalid value must be and a nearby valid one; None for a valid value."""


def kind(*judges: Callable[[Any], Complaint]) -> Any:
    """The type of a key: a value that every check accepts."""
    from pydantic import PlainValidator
    from pydantic_core import PydanticCustomError

    def checked(value: object) -> Any:
        for judge in judges:
            if complaint := judge(value):
                raise PydanticCustomError("not_so", "{must}", {"must": complaint[0], "nearest": complaint[1]})
        return value

    return Annotated[Any, PlainValidator(checked)]


def text(value: object) -> Complaint:
    """Text without control characters."""
    fits = isinstance(value, str) and value.replace("\n", " ").isprintable()
    return None if fits else ("must be printable text in quotes", "")


def texts(value: object) -> Complaint:
    """A list of texts."""
    fits = isinstance(value, list) and all(text(entry) is None for entry in value)
    return None if fits else ("must be a list of texts in quotes", "")


def number(value: object) -> Complaint:
    """A finite number of at least 0."""
    fits = _is_number(value) and 0 <= value < 1e15
    return None if fits else ("must be a finite number not below 0, in the unit the key names", "")


def above_zero(value: object) -> Complaint:
    """A finite number above 0."""
    must = "must be a finite number above 0, in the unit the key names"
    return number(value) or (None if _is_number(value) and value > 0 else (must, ""))


def _whole(value: object) -> Complaint:
    """A number without a fraction."""
    fits = _is_number(value) and value == int(value)
    return None if fits else ("must be a whole number", f"{round(value)}" if _is_number(value) else "")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


GPUS = Catalogue(folder=Path(__file__).parent / "datasheets", option="gpu", shelf="gpus")
ACCELERATORS = Catalogue(
    folder=Path(__file__).parent / "accelerators",
    option="accelerator",
    shelf="accelerators",
    usual=("a100_like", "edge_tpu_like", "eyeriss_like"),
    cutoff=0.4,
)
NOT_A_GPU = "is a chip of the accelerator template: nothing was measured on it, and only a GPU can be named here"


def load_gpu(name_or_path: str | Path) -> Gpu:
    """The device with a catalogue name or alias, or from a TOML datasheet.

    Raises ``InputError`` for an unknown name (with the nearest ones), or an unreadable or contradictory file.

    >>> load_gpu("H100").name
    'h100_sxm'
    """
    return _read(name_or_path) if is_path(name_or_path) else _of_the_catalogue(str(name_or_path))


@lru_cache(maxsize=256)
def _of_the_catalogue(name: str) -> Gpu:
    """A catalogue device, read once: every estimate looks for a lender among all measured devices."""
    if name in ACCELERATORS:
        raise InputError("gpu", name, NOT_A_GPU, "a name of sartor catalog gpus")
    return _read(name)


def _read(name_or_path: str | Path) -> Gpu:
    table, path = GPUS.table(name_or_path)
    if is_accelerator(table):
        raise InputError("gpu", path.name, NOT_A_GPU, "a name of sartor catalog gpus")
    return gpu_from(table, path.stem, packaged=path.parent == GPUS.folder)


def is_accelerator(table: JsonDict) -> bool:
    """Whether a device's table describes a chip of the accelerator template (it has arrays)."""
    return "array_rows" in table or "num_tensor_cores" in table


def gpu_entry(name_or_path: str | Path) -> JsonDict:
    """Every field of a device in SI units, with the source of each: what ``sartor catalog gpus --json`` answers.

    Fields a datasheet does not state are left out. ``sources`` has a document and date per field, ``all`` for the rest.
    """
    gpu = load_gpu(name_or_path)
    values = {name: getattr(gpu, name) for name in FIELD_NAMES}
    return {
        **{name: value for name, value in values.items() if value not in (None, "", 0, ())},
        "peak_flops_per_s": {dtype.value: peak for dtype, peak in gpu.peak_flops_per_s.items()},
        "price_usd_per_hour": gpu.price_usd_per_hour,
        "aliases": list(gpu.aliases),
        "sources": dict(gpu.sources),
    }


# ------------------------------------------------------------------------------------------- from a table to a Gpu

_NUMBERS: dict[str, tuple[str, float]] = {
    "num_sms": ("num_sms", 1),
    "hbm_gib": ("hbm_bytes", GIB),
    "hbm_gb_per_s": ("hbm_bytes_per_s", GIGA),
    "l2_mib": ("l2_bytes", MIB),
    "boost_clock_mhz": ("boost_clock_hz", MEGA),
    "tdp_w": ("tdp_w", 1),
    "max_clock_mhz": ("max_clock_hz", MEGA),
    "link_gb_per_s": ("link_bytes_per_s", GIGA),
    "link_latency_us": ("link_latency_s", MICRO),
    **{name: (name, 1) for name in ("devices_per_node", "link_domain", "dies_per_card")},
    "pcie_gb_per_s": ("pcie_bytes_per_s", GIGA),
    "host_link_gb_per_s": ("host_link_bytes_per_s", GIGA),
    "host_memory_gb_per_s": ("host_memory_bytes_per_s", GIGA),
    "smem_kib_per_sm": ("smem_bytes_per_sm", KIB),
    "memory_side_cache_mib": ("memory_side_cache_bytes", MIB),
    **{
        name: (name, 1)
        for name in ("fp32_accumulate_rate", "tensor_core_rate", "ecc_share", "matrix_tile", "die_mm2", "process_nm")
    },
}
"""Datasheet key -> (field of ``Gpu``, factor to SI)."""

_WHOLE = ("num_sms", "devices_per_node", "link_domain", "dies_per_card", "matrix_tile")
_TEXTS = ("name", "title", "vendor", "generation", "compute_capability", "host", "released", "confidence", "note")
_PRICE = ("usd_per_hour", "source", "date")
_REQUIRED = (
    "vendor",
    "generation",
    "num_sms",
    "hbm_gib",
    "hbm_gb_per_s",
    "l2_mib",
    "boost_clock_mhz",
    "tdp_w",
    "peak_dense_tflops",
)


def gpu_from(table: JsonDict, name: str = "gpu", *, packaged: bool = False) -> Gpu:
    """A checked ``Gpu`` from a datasheet's table; ``InputError`` with the datasheet's own key when it cannot be."""
    if not packaged:
        check(table, _model(), subject="a datasheet")
    price = table.get("price", {})
    numbers = {field: float(table[key]) * factor for key, (field, factor) in _NUMBERS.items() if key in table}
    return check_gpu(
        Gpu(
            **{"name": name, **{key: table[key] for key in _TEXTS if key in table}},
            **{**numbers, **{key: int(table[key]) for key in _WHOLE if key in table}},  # type: ignore[arg-type]
            peak_flops_per_s=_peaks(table["peak_dense_tflops"]),
            price_usd_per_hour=float(price["usd_per_hour"]) if price else None,
            price_source=price.get("source", ""),
            price_date=price.get("date", ""),
            sources={_SOURCED[key]: text for key, text in table.get("sources", {}).items()},
            aliases=tuple(table.get("aliases", ())) if packaged else (),
        )
    )


@cache
def _model() -> type[BaseModel]:
    """The pydantic model of a datasheet."""
    numbers = {
        key: kind(above_zero if key in _REQUIRED else number, *((_whole,) if key in _WHOLE else ())) for key in _NUMBERS
    }
    return model_of(
        {
            **dict.fromkeys(_TEXTS, kind(text)),
            "name": kind(_plain_name),
            **numbers,
            "peak_dense_tflops": model_of(dict.fromkeys((dtype.value for dtype in DType), kind(number))),
            "price": model_of({**dict.fromkeys(_PRICE, kind(text)), "usd_per_hour": kind(number)}, _PRICE),
            "sources": model_of(dict.fromkeys(_SOURCED, kind(text))),
            "aliases": kind(texts),
        },
        required=_REQUIRED,
    )


def _plain_name(value: object) -> Complaint:
    """A name that can be a file name: no path, no hidden file."""
    fits = isinstance(value, str) and re.fullmatch(r"[^\W_][\w .+()-]{0,99}", value, re.ASCII)
    return None if fits else ("must be a name: letters, digits, spaces and . _ - + ( ), at most 100", "")


_SOURCED = {
    **{key: field for key, (field, _) in _NUMBERS.items()},
    **{key: key for key in _TEXTS},
    "all": "all",
    "peak_dense_tflops": "peak_flops_per_s",
    **{f"peak_dense_tflops.{dtype.value}": f"peak_flops_per_s.{dtype.value}" for dtype in DType},
}
"""Key under ``sources`` (``all``: every field not named) -> field of ``Gpu``."""


def _peaks(tflops: JsonDict) -> dict[DType, float]:
    """Peaks in FLOP/s. Block-scaled fp8 (``fp8_block``) has the fp8 peak unless stated."""
    peaks = {DType(key): value * TERA for key, value in tflops.items()}
    if DType.FP8 in peaks:
        peaks.setdefault(DType.FP8_BLOCK, peaks[DType.FP8])
    return peaks
