"""Writes src/sartor/read/class_defaults.json: what published model classes assume when a config omits a field.

Development tool. Run it in an environment of its own that has transformers and torch:

    python lab/class_defaults.py src/sartor/read/class_defaults.json src/sartor/read/published_classes.json

Only facts are written (names and default values of fields that affect the shape, field aliases, model types of nested
configurations), no code of the library.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import json
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto

NO_SHAPE = re.compile(
    r"dropout|drop_path|droprate|_pdrop|_token_id|token_ids?$|_eps|epsilon|initializer|init_|_init|_std$|use_cache|"
    r"loss|_coef|theta|scaling|temperature|softcap|return_dict|^output_(?!embedding)|dtype|id2label|label2id|problem_type|"
    r"transformers_version|architectures|chunk_size_feed|time_step|_alpha|_beta$|seed|rope_parameters|_weight$|"
    r"_cost$|_thresh|_prob$|pretraining_tp|_range$|cache_implementation|_factor$(?<!expansion_factor)"
)
"""Fields that change no count: probabilities, scales, token ids, run-time switches."""


CLASS = re.compile(
    r"(?P<stem>\w+?)(?P<end>For[A-Z]\w*|(LMHead|DoubleHeads|TextModelWithProjection|VisionModelWithProjection|WithLMHead|"
    r"MT|Encoder|Text|Vision|PreTraining|Pretrained|PreTrained|Reward|ContextEncoder|QuestionEncoder|Reader)?Model\w*|"
    r"ContextEncoder|QuestionEncoder|Reader)$"
)
AUTO = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT")
"""For a file that names no class, the first of these auto classes that has one is built, else the bare model."""


OF_ANY_MODEL = """
model_type auto_map torch_dtype tokenizer_class is_composition transformers_version quantization_config
compression_config attn_implementation use_return_dict output_attentions output_hidden_states torchscript use_bfloat16
tf_legacy_loss pruned_heads is_decoder cross_attention_hidden_size add_cross_attention tie_encoder_decoder max_length
min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values
exponential_decay_length_penalty suppress_tokens begin_suppress_tokens finetuning_task prefix task_specific_params
sep_token_id decoder_start_token_id gradient_checkpointing ignore_index padding_idx
"""
"""Fields that every configuration of transformers 4.x could have; most have moved to generation_config.json."""


def write_classes(target: Path) -> None:
    """Write the published model classes by stem, and the class of each model type for files that name none."""
    named = {n for n in dir(transformers) if CLASS.match(n)} | auto_classes()
    stems: dict[str, list[str]] = {}
    for name in sorted(n for n in named if not re.search(r"^(_|AutoModel|TF[A-Z]|Flax|Data[Cc])|PreTrainedModel$", n)):
        found = CLASS.match(name)
        stems.setdefault(found["stem"] if found else name, []).append(found["end"] if found else "")
    mappings = [getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES") for kind in AUTO]
    default: dict[str, str] = {}
    for mapping in (*mappings, modeling_auto.MODEL_MAPPING_NAMES):
        for model_type, name in mapping.items():
            default.setdefault(model_type, name if isinstance(name, str) else name[0])
    lines = [f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in stems.items()]
    own = [f"{json.dumps(k)}:{json.dumps(v)}" for k, v in sorted(default.items())]
    source = f"names of the model classes of transformers {transformers.__version__} (Apache-2.0), read "
    source += f"{datetime.date.today().isoformat()} by lab/class_defaults.py"
    text = ",\n".join(lines), ",\n".join(own)
    target.write_text(
        f'{{"source":{json.dumps(source)},\n"classes":{{\n{text[0]}\n}},\n"default":{{\n{text[1]}\n}}}}\n',
        encoding="utf-8",
    )


def auto_classes() -> set[str]:
    """Every model class that an auto class can build."""
    tables = [v for k, v in vars(modeling_auto).items() if k.endswith("_MAPPING_NAMES")]
    values = [x for table in tables for x in table.values()]
    return {name for x in values for name in ((x,) if isinstance(x, str) else x)}


def main(target: Path) -> None:
    """Collect every configuration class of the installed release and write the table."""
    table = {
        "source": f"configuration classes of transformers {transformers.__version__} (Apache-2.0; default values "
        f"are facts), read {datetime.date.today().isoformat()} by lab/class_defaults.py",
        "model_types": {name: entry(cls) for name, cls in sorted(classes().items())},
    }
    lines = [f'"{k}":{json.dumps(v, separators=(",", ":"), sort_keys=True)}' for k, v in table["model_types"].items()]
    body = ",\n".join(lines)
    head = f'"source":{json.dumps(table["source"])},\n"field_names":{json.dumps(" ".join(field_names()))}'
    target.write_text(f'{{{head},\n"model_types":{{\n{body}\n}}}}\n', encoding="utf-8")


def field_names() -> list[str]:
    """Every field that some configuration class has or had: other fields in a file are misspelled."""
    names = set(OF_ANY_MODEL.split())
    for cls in classes().values():
        names.update(f.name for f in dataclasses.fields(cls))
        names.update(cls.attribute_map or {}, getattr(cls, "sub_configs", None) or {})
    return sorted(names)


def classes() -> dict[str, type[PreTrainedConfig]]:
    """Configuration classes by model type; if several share a type, the one that the auto class picks."""
    found: dict[str, type[PreTrainedConfig]] = {}
    root = importlib.import_module("transformers.models")
    for package in pkgutil.iter_modules(root.__path__):
        folder = Path(root.__path__[0]) / package.name
        for file in sorted(folder.glob("configuration_*.py")):
            try:
                module = importlib.import_module(f"transformers.models.{package.name}.{file.stem}")
            except Exception as error:
                print(f"left out {package.name}: {error}", file=sys.stderr)
                continue
            for value in vars(module).values():
                mine = isinstance(value, type) and issubclass(value, PreTrainedConfig)
                if mine and value.__module__ == module.__name__ and value.model_type:
                    found.setdefault(value.model_type, value)
    return found


def entry(cls: type[PreTrainedConfig]) -> dict[str, Any]:
    """Default values, aliases and nested model types of one class."""
    nested = {
        name: sub.model_type
        for name, sub in (getattr(cls, "sub_configs", None) or {}).items()
        if getattr(sub, "model_type", "")
    }
    values = {}
    for f in dataclasses.fields(cls):
        if NO_SHAPE.search(f.name) or f.name in nested:
            continue
        value = f.default
        if value is dataclasses.MISSING:
            value = f.default_factory() if f.default_factory is not dataclasses.MISSING else None
        if isinstance(value, tuple):
            value = list(value)
        if value is None or not plain(value) or len(json.dumps(value)) > 2000:
            continue
        values[f.name] = value
    if "tie_word_embeddings" not in values and isinstance(getattr(cls, "tie_word_embeddings", None), bool):
        values["tie_word_embeddings"] = cls.tie_word_embeddings
    out: dict[str, Any] = {"values": values}
    if cls.attribute_map:
        out["aliases"] = dict(cls.attribute_map)
    if nested:
        out["nested"] = nested
    return out


def plain(value: Any) -> bool:
    """Whether a default value can be written as JSON."""
    if isinstance(value, (list, tuple)):
        return all(plain(x) for x in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and plain(v) for k, v in value.items())
    return isinstance(value, (bool, int, str)) or (isinstance(value, float) and value == value and abs(value) < 1e30)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        write_classes(Path(sys.argv[2]))
