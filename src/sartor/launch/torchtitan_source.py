"""torchtitan's named models (flavors) and configurations, and what a Python configuration says, without running it.

Python is parsed into tables with the older TOML's names: calls with literal values (``TrainingConfig(seq_len=8192)``,
``FullAC.Config()``), assignments to fields (``config.training.seq_len = 8192``), a flavor (``model_registry("8B")``), a
named configuration as a base (``config = llama3_8b()``). Computed values are listed as not understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from sartor.bounded import packaged_toml, printable
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.launch.python_source import ARGS, CHANGED, TARGET, is_hole, made_by
from sartor.model.editing import EDITABLE, edit
from sartor.model.layer import Layer, MoeFfn
from sartor.model.shape import Numerics, TransformerShape, Value
from sartor.model.zoo import load_model

SECTIONS = {"training", "parallelism", "compile", "activation_checkpoint", "optimizer"}
POLICIES = {
    "FullAC": {"mode": "full"},
    "SelectiveAC": {"mode": "selective", "selective_ac_option": "op"},
    "MemoryBudgetAC": {"mode": "memory_budget"},
}
CONVERTED = {"Float8": "float8", "MXFP8": "mx", "NVFP4": "nvfp4"}


@dataclass(slots=True)
class RecipeSource:
    """The contents of a module: values by dotted path, the model's module and flavor, and settings by class."""

    values: JsonDict = field(default_factory=dict)
    module: str = ""
    flavor: str = ""
    settings: dict[str, JsonDict] = field(default_factory=dict)
    mtp_layers: int = 0
    unknown: list[str] = field(default_factory=list)


def read_source(text: str, function: str, name: str) -> RecipeSource:
    """The configuration that a function of a module returns. Raises `InputError`."""
    table, names, calls = made_by(text, name, function)
    settings = {name: value for name, value in names.items() if isinstance(value, dict) and TARGET not in value}
    source = RecipeSource(settings=settings, unknown=[f"${word}" for word in table.get(CHANGED, ())])
    for call in (table, *calls):
        _call(call, source)
    for section in SECTIONS & table.keys():
        _section(section, table[section], source)
    return source


def read_named(module: str, config: str) -> RecipeSource:
    """One of torchtitan's named configurations. Raises `InputError` if its values are unknown."""
    config_values = _named_config(module.rpartition(".")[2], config)
    if config_values is None:
        must = "must be a configuration of torchtitan 0.3.0 whose values are known, or a file beside the script"
        raise InputError("--config", printable(config), must, ", ".join(_config_names(module)))
    return RecipeSource(values=dict(config_values[1]), module=module.rpartition(".")[2], flavor=config_values[0])


def _call(call: JsonDict, source: RecipeSource) -> None:
    """Record what a call says of the model: its flavor, a configuration of torchtitan's own, converted layers."""
    parts = [part for part in str(call.get(TARGET, "")).split(".") if part != "config_registry"]
    module, called = "".join(parts[-2:-1]), parts[-1]
    words = call.get(ARGS, ())
    if called == "model_registry" and words and not is_hole(words[0]):
        source.module, source.flavor = module or source.module, str(words[0])
    elif module and (config_values := _named_config(module, called)):
        source.module, source.flavor = module, config_values[0]
        source.values = {**config_values[1], **source.values}
    if isinstance(layers := call.get("num_mtp_layers"), int):
        source.mtp_layers = layers
    if kind := next((word for start, word in CONVERTED.items() if any(part.startswith(start) for part in parts)), ""):
        source.values.setdefault("model.converters", []).append(kind)
        if kind == "float8":
            source.values["float8.recipe_name"] = call.get("recipe_name", "rowwise")


def _section(name: str, value: object, source: RecipeSource) -> None:
    """Put a section's fields among the values; what is not a literal is listed as unknown."""
    fields = value if isinstance(value, dict) else {}
    if name == "activation_checkpoint":
        policy = next((part for part in str(fields.get(TARGET, "")).split(".") if part in POLICIES), "")
        fields = {"mode": "none"} if value is None else POLICIES.get(policy, fields)
        source.values = {key: word for key, word in source.values.items() if not key.startswith(f"{name}.")}
    source.unknown += [f"${word}" for word in fields.get(CHANGED, ())]
    if is_hole(value) or (fields.keys() == {TARGET} and name != "optimizer"):
        source.unknown.append(_shown(name, value))
    for key, word in fields.items():
        if isinstance(word, dict) or is_hole(word):
            source.unknown.append(_shown(f"{name}.{key}", word))
        elif word is not None and key not in (TARGET, ARGS, CHANGED):
            source.values[f"{name}.{key}"] = word


def _shown(path: str, value: object) -> str:
    word = f"{value.get(TARGET, path)}()" if isinstance(value, dict) else str(value)
    return f"{path}={printable(word[:60])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorFamily:
    """The configuration classes that build a model of any sizes: a row ``family`` of torchtitan_flavors.toml."""

    module: str
    zoo: str
    model: str
    configs: str
    layers: str
    rope: str
    head_init: str
    sizes: Mapping[str, str]
    attention: str = ""
    heads: Mapping[str, str] = field(default_factory=dict)
    """Arguments of ``attention``, which configures a layer's attention where ``layers`` fixes its heads."""
    router: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Value] = field(default_factory=dict)
    computes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A torchtitan model, with the zoo's name for the same sizes, and the numerics in which it differs; with ``family``
    one of other sizes, which a file registers itself."""

    module: str
    flavor: str
    zoo: str
    numerics: Mapping[str, Value] = field(default_factory=dict)
    family: FlavorFamily | None = None
    sizes: JsonDict = field(default_factory=dict)
    """Sizes by sartor's names, and arguments of the router by torchtitan's."""

    @property
    def shape(self) -> TransformerShape:
        return load_model(self.zoo) if self.family is None else _resized(load_model(self.zoo), self.sizes)

    @property
    def computes(self) -> Numerics:
        """What the flavor computes beyond its sizes."""
        if self.family is not None:
            router: JsonDict = {name: self.sizes.get(key) for key, name in self.family.router.items()}
            router = {name: value for name, value in router.items() if value is not None}
            return Numerics(values={**self.family.computes, **router, **self.numerics})
        numerics = self.shape.numerics
        return Numerics(values={**(numerics.values if numerics else {}), **self.numerics})


def flavor_of(shape: TransformerShape) -> Flavor | None:
    """The torchtitan model of the same sizes, or None."""
    sizes = shape.fields()
    for flavor in flavors():
        flavor_shape = flavor.shape
        if flavor_shape.fields() == sizes and flavor_shape.tied_embeddings is shape.tied_embeddings:
            return flavor
    return None


OWN_FLAVOR = "sartor"
"""The name under which a written file registers a model of its own sizes."""
OF_LATENT = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def own_flavor(shape: TransformerShape) -> Flavor | None:
    """A model of these sizes built by the configuration classes of a family that has the same parts, or None."""
    values, numerics = _sizes_of(shape), shape.numerics or Numerics()
    for family in families():
        router: JsonDict = {key: numerics.get(name) or USUAL_ROUTER.get(key) for key, name in family.router.items()}
        router = {k: v for k, v in router.items() if v is not None}
        router |= {k: int(v) if v > 1 else None for k, v in router.items() if k.endswith("_groups")}
        sizes = {**values, **router}
        flavor = Flavor(module=family.module, flavor=OWN_FLAVOR, zoo=family.zoo, family=family, sizes=sizes)
        if _same_parts(flavor, family, shape):
            return flavor
    return None


USUAL_ROUTER = {"router_score_func": "softmax", "router_route_scale": 1.0, "router_route_norm": False}


def own_flavor_of(source: RecipeSource) -> Flavor | None:
    """The model that a written file registers: its dictionaries LAYERS, MODEL and HEADS."""
    layers = source.settings.get("LAYERS")
    if source.flavor != OWN_FLAVOR or layers is None:
        return None
    model, heads = source.settings.get("MODEL", {}), source.settings.get("HEADS", {})
    for family in families():
        names = {**family.sizes, **family.heads}
        given = {names.get(key, key): value for key, value in {**layers, **heads}.items()}
        ranked = bool(layers.get("q_lora_rank")) == ("q_lora_rank" in load_model(family.zoo).fields())
        if family.module == source.module and ranked and family.sizes.keys() <= layers.keys() | {"q_lora_rank"}:
            sizes = {**given, "hidden_size": model.get("dim", 0), "vocab_size": model.get("vocab_size", 0)}
            sizes.setdefault("head_dim", model.get("dim", 0) // max(layers.get("n_heads", 1), 1))
            sizes["tied_embeddings"] = bool(model.get("enable_weight_tying", False))
            return Flavor(module=family.module, flavor=OWN_FLAVOR, zoo=family.zoo, family=family, sizes=sizes)
    return None


def _sizes_of(shape: TransformerShape) -> JsonDict:
    """Every size that a family's arguments may name."""
    mixer, runs = shape.attention, shape.main.runs
    latent = {name: int(getattr(mixer, name)) for name in OF_LATENT} if hasattr(mixer, OF_LATENT[0]) else {}
    dense = sum(int(run.count) for run in runs if not isinstance(run.layer.ffn, MoeFfn))
    fields = {name: int(value) for name, value in shape.fields().items()}
    return {"q_lora_rank": 0, **fields, **latent, "num_dense_layers": dense, "tied_embeddings": shape.tied_embeddings}


def _resized(base: TransformerShape, sizes: JsonDict) -> TransformerShape:
    """A zoo model with other sizes: of two kinds of layers, dense ones come first, and windows take turns. Raises
    `InputError` for sizes that it does not have."""
    fixed = {"head_dim", "num_kv_heads"} if hasattr(base.attention, OF_LATENT[0]) else set[str]()
    dense, layers, two = int(sizes.get("num_dense_layers", 0)), int(sizes["num_layers"]), len(base.main.runs) == 2
    fixed |= {"num_layers", "num_full_layers"} if two else set()
    names = [name for name in base.fields() if name in EDITABLE and name not in fixed]
    shape = edit(base, **{name: int(sizes[name]) for name in names if sizes.get(name)})
    if two:
        in_turn = bool(base.main.runs[0].positions)
        where = [tuple(range(i, layers, 2)) if in_turn else () for i in range(2)]
        counts = [len(positions) for positions in where] if in_turn else [dense, layers - dense]
        runs = tuple(
            replace(run, count=count, positions=positions, layer=_with_head_dims(run.layer, sizes))
            for run, count, positions in zip(shape.main.runs, counts, where, strict=True)
            if count
        )
        shape = replace(shape, stacks=(replace(shape.main, runs=runs),))
    return replace(shape, tied_embeddings=bool(sizes.get("tied_embeddings")))


def _with_head_dims(layer: Layer, sizes: JsonDict) -> Layer:
    dims: JsonDict = {name: int(sizes[name]) for name in OF_LATENT if name in sizes}
    return replace(layer, mixers=tuple(replace(mixer, **dims) for mixer in layer.mixers))


def _same_parts(flavor: Flavor, family: FlavorFamily, shape: TransformerShape) -> bool:
    """Whether a family's model is this one, layer by layer, but for the groups that its router is told of."""
    sizes = flavor.sizes
    if "head_dim" not in {*family.sizes.values(), *family.heads.values(), *OF_LATENT} & sizes.keys():
        split = sizes["num_heads"] * sizes["head_dim"] == sizes["hidden_size"]  # the family has no width of a head
        if OF_LATENT[0] not in sizes and not split:
            return False
    try:
        other = flavor.shape
    except InputError:
        return False
    return (
        other.fields() == shape.fields()
        and other.tied_embeddings is shape.tied_embeddings
        and other.main.norms == shape.main.norms
        and _by_position(other) == _by_position(shape)
        and len(shape.stacks) == 1
    )


def _by_position(shape: TransformerShape) -> list[tuple[int, Layer]]:
    """Every run of equal layers at the positions it has, without routing groups."""
    out, first = list[tuple[int, Layer]](), 0
    for run in shape.main.runs:
        positions = run.positions or range(first, first + int(run.count))
        first += int(run.count)
        ffn = run.layer.ffn
        plain = replace(ffn, routing_groups=1, groups_per_token=1) if isinstance(ffn, MoeFfn) else ffn
        layer = replace(run.layer, ffn=plain, name="")
        out += [(position, layer) for position in positions]
    return sorted(out, key=lambda pair: pair[0])


def named_flavor(module: str, flavor: str) -> Flavor | None:
    """The model with a name such as ``("llama3", "8B")``; the suffix of fine-tuning recipes is ignored."""
    bare = module.removesuffix("_ft")
    return next((x for x in flavors() if (x.module, x.flavor.lower()) == (bare, flavor.lower())), None)


def _named_config(module: str, config: str) -> tuple[str, JsonDict] | None:
    """(flavor, values) of a named configuration, ``--module llama3 --config llama3_8b``."""
    row = _flavor_table()["config"].get(config)
    if row is None or not config.startswith(module):
        return None
    return str(row["flavor"]), dict(row["values"])


def _config_names(module: str) -> list[str]:
    """Configurations of a module whose values are known."""
    return [name for name in _flavor_table()["config"] if name.startswith(module)]


@cache
def flavors() -> tuple[Flavor, ...]:
    """Every torchtitan model that is in the zoo."""
    return tuple(Flavor(**row) for row in _flavor_table()["flavor"])


@cache
def families() -> tuple[FlavorFamily, ...]:
    """The families whose configuration classes build models of any sizes."""
    rows = {row["zoo"]: row for row in _flavor_table()["family"]}
    whole = [{**rows.get(row.get("like", ""), {}), **row} for row in rows.values()]
    return tuple(FlavorFamily(**{key: value for key, value in row.items() if key != "like"}) for row in whole)


@cache
def _flavor_table() -> JsonDict:
    return packaged_toml("launch", "torchtitan_flavors.toml")
