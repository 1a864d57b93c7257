"""Fields of a config that no reader looked up: sizes, experts and mixers left out of the counts, and misspellings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from sartor.json_types import JsonDict
from sartor.model.reading import unread_words
from sartor.read.config_text import packaged_json
from sartor.read.fields import Fields, Ledger
from sartor.read.published import class_defaults, published_field_names
from sartor.read.verified import STATED, ignored_fields

UNREAD = 1.2
"""Factor on the interval of a model with sizes that were not read: one more matrix in each layer may hang on them."""

MIXERS = re.compile(
    r"^(linear|mamba|ssm|gdn|gla|kda|rwkv|lru|hyena|retention|delta)_|_(mamba|ssm)_|^full_attention_interval$|"
    r"^(attn_layer|attn_type|attention_types?$|block_type|layers_block_type|hybrid_)|^conv_L_cache$|^layer_types$"
)
"""Fields of layers that are not plain attention, by the names that published configs give them."""
EXPERTS = re.compile(r"experts?(_|$)|(^|_)moe_(?!layer_freq_|aux|z_)")
SIZES = re.compile(r"_(sizes?|dims?|width|ranks?|layers?|heads?|experts?|interval|channels|groups?)$|^(num|n|d)_")
NO_STRUCTURE = re.compile(
    r"router|aux|loss|coef|capacity|jitter|dropout|norm_|_norm|_eps|dtype|scal|_bias|overlap|parallel|_impl|backend|act$|"
    r"window|time_step|dt_|_min$|_max$|vocab|position|chunk|max_batch|_batch_size|layer_?norm|residual|_(e|t)p_size|"
    r"^ep_size|sink_size|spatial_patch_size|feature_layer|labels|beam|_sequences$|steps|epochs|train|logits|frames|crops|"
    r"n_ctx$|n_special|image_tokens|image_size|tokens_per|_per_token$|^num_nextn_|no_rope_layer"
)
"""What changes neither parameters nor FLOPs, although its name holds one of the words above."""


def unread(config: JsonDict, ledger: Ledger, path: str, model_type: str, outer_type: str = "") -> list[str]:
    """Names of sizes, experts and mixers in one (sub-)config that say more than 0 or 1, that no reader asked for, that
    the class of ``model_type`` does not have, and without which no count of that class was compared."""
    defaults = class_defaults(model_type)
    read = {
        *ledger.asked.get(path, ()),
        *defaults.values,
        *defaults.aliases,
        *ignored_fields(part_name(model_type, outer_type, path)),
    }
    return [
        name for name, value in config.items() if name not in read and _is_structure(name) and _says_much(name, value)
    ]


def part_name(model_type: str, outer_type: str, path: str) -> str:
    """The model type of a (sub-)config, or where it stands in one that has a type: ``molmo2.adapter_config``."""
    return model_type or f"{outer_type}.{path.removesuffix('.')}"


def refuse_unread(f: Fields) -> None:
    """Raise if a config of an unknown model type has experts or another mixer that the reading left out."""
    left = [n for n in unread(f.raw, f.ledger, f.path, f.model_type) if MIXERS.search(n) or EXPERTS.search(n)]
    if left:
        what = "a mixer other than attention" if MIXERS.search(left[0]) else "experts"
        also = f" (as {_shown(left[1:])})" if left[1:] else ""
        must = f"describes {what}{also}: counted only for a known model_type, and {f.model_type} is unknown"
        raise f.refuse(left[0], f.raw[left[0]], must, _nearest_type(f.raw, left))


def say_unread(config: JsonDict, ledger: Ledger, *, sparse: bool, path: str = "", outer_type: str = "") -> None:
    """Report the fields that were ignored.

    A size that no reader knows makes the parameter count unknown. One that resembles a field missing from the file is
    taken for a misspelling; that, and experts in a model counted without any, make the counts inexact too.
    """
    stated = config.get("model_type")
    model_type = stated if isinstance(stated, str) else ""
    left = unread(config, ledger, path, model_type, outer_type)
    left = [name for name in left if not _repeats(config, name) and not _restates(ledger, name, config[name])]
    names_read, published = ledger.asked.get(path, set()), published_field_names()
    strange = [
        k for k in config if k not in names_read and k not in published and not k.startswith("_") and k != STATED
    ]
    lacking = sorted(names_read - config.keys())
    meant = {name: difflib.get_close_matches(name[:60], lacking, 1, 0.85) for name in strange[:20]}
    for name in (name for name, near in meant.items() if near):
        lost = f"it may mean {meant[name][0]}, which is not in the file"
        ledger.guess(f"{path}{name[:60]} is ignored: no published class has it; {lost}")
    left = [name for name in left if not meant.get(name)]
    if sizes := [f"{path}{name[:60]}={config[name]}" for name in left if _is_size(config[name])]:
        ledger.unread_sizes += sizes
        ledger.guess(unread_words(sizes), UNREAD)
    if rest := [name for name in left if not _is_size(config[name])]:
        shown = ", ".join(f"{path}{name[:60]}={config[name]!r:.30}" for name in rest[:12])
        suffix = f" and {len(rest) - 12} more" if len(rest) > 12 else ""
        sentence = f"ignored, as the class of this model_type does not read them: {shown}{suffix}"
        changes_layers = any(MIXERS.search(n) for n in rest) or (not sparse and any(EXPERTS.search(n) for n in rest))
        ledger.guess(sentence) if changes_layers else ledger.note(sentence)
    if strange := [name for name in strange if not meant.get(name) and name not in left]:
        suffix = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
        shown = ", ".join(path + name[:60] for name in strange[:5])
        ledger.note(f"ignored, as no published class has such a field: {shown}{suffix}")
    for name, value in config.items():
        if isinstance(value, dict) and f"{path}{name}." in ledger.asked:
            say_unread(
                value, ledger, sparse=sparse, path=f"{path}{name}.", outer_type=outer_type if path else model_type
            )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _is_structure(name: str) -> bool:
    words = MIXERS.search(name) or EXPERTS.search(name) or SIZES.search(name)
    return bool(words) and not NO_STRUCTURE.search(name)


def _says_much(name: str, value: object) -> bool:
    """Whether a value can change a count: an integer above 1, or a list or object that is not empty."""
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, (int, float)):
        return value > 1 and float(value).is_integer()
    if isinstance(value, list) and name == "layer_types":
        return any("attention" not in str(item) or "linear" in str(item) for item in value)
    return isinstance(value, (list, dict)) and bool(value) and len(set(map(str, value))) > 1


def _repeats(config: JsonDict, name: str) -> bool:
    """Whether a number of key-value heads only repeats that of the heads, as older files of classes without it do."""
    return name == "num_key_value_heads" and config[name] == config.get("num_attention_heads")


def _restates(ledger: Ledger, name: str, value: object) -> bool:
    """Whether a size names one that was read elsewhere in the file: ``text_hidden_size`` and the text's
    ``hidden_size``."""
    words = name.split("_")
    return any(ledger.read_sizes.get("_".join(words[i:])) == value for i in range(1, len(words) - 1))


def _shown(names: list[str]) -> str:
    return ", ".join(name[:60] for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _nearest_type(config: JsonDict, left: list[str]) -> str:
    """The published model type that has most of the fields left out, then most of all fields of the file."""
    best = max(_shared(config, left), default=(0, 0, ""))
    return f"model_type={best[2]}" if best[0] else ""


def _shared(config: JsonDict, left: list[str]) -> Iterator[tuple[int, int, str]]:
    for name in packaged_json("class_defaults.json")["model_types"]:
        defaults = class_defaults(name)
        has = {*defaults.values, *defaults.aliases}
        yield sum(n in has for n in left), sum(n in has for n in config) - len(has - config.keys()), name
