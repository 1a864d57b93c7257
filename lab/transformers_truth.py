"""Ground truth from transformers itself: parameters and matrix multiplications of models built on the meta device.

A development tool, not part of the package: it needs torch and transformers, sartor needs neither. Columns are those of
``shared/data/configs/truth.csv``: eager attention, experts as grouped GEMMs, no weights, attention FLOPs of the full
S x S matrix.

    python lab/transformers_truth.py check ../shared/data/configs          # reproduces truth.csv
    python lab/transformers_truth.py one path/to/config.json               # one config, as JSON
    python lab/transformers_truth.py generate /tmp/oracle/out [model_type ...]
"""

from __future__ import annotations

import contextlib
import copy
import csv
import json
import multiprocessing
import random
import re
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig
from transformers.models.auto import modeling_auto

transformers.logging.set_verbosity_error()

TOWER = re.compile(
    r"(^|[._])(vision|visual|vit|image|img|audio|speech|video|pixel|projector|connector|merger|perceiver|resampler|"
    r"multi_modal|mm|talker|token2wav|code2wav|vqmodel|vqgan|vqvae|qformer|aligner|patch_embed|embed_vision|embed_audio|"
    r"newline|generation_(embeddings|aligner|head)|language_projection|query_tokens|modality_projection|image_newline|"
    r"abstractor|siglip|conformer|encoder_projector|mlp_AR|vpm)",
    re.I,
)
TOWER_NOT_TEXT = re.compile(r"^(?!.*projector).*(cross_attn|visual_bert|vilt)")
STACK = re.compile(
    r"(^|\.)(layers|h|block|blocks|layer|decoder_layers|resblocks|albert_layer_groups|attentions|layer_module|model_layers)$"
)
AUTO = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    modeling_auto.MODEL_MAPPING_NAMES,
)
EXPERT_PARAMETER = re.compile(r"(^|\.)(experts|expert_list|local_experts)\.")


def truth(fields: dict[str, Any]) -> dict[str, Any]:
    """The columns of truth.csv for one config."""
    config = load_config(fields)
    model = build_model(config, fields.get("architectures"))
    out = parameter_columns(model, config)
    try:
        out |= flop_columns(model, config, out)
        out["flops_status"] = "ok"
    except Exception as error:
        out["flops_status"] = f"{type(error).__name__}: {str(error)[:200]}"
    return out


def load_config(fields: dict[str, Any]) -> Any:
    fields = {k: v for k, v in copy.deepcopy(fields).items() if k not in ("quantization_config", "auto_map")}
    model_type = fields.pop("model_type")
    return AutoConfig.for_model(model_type, **fields)


def build_model(config: Any, architectures: list[str] | None) -> Any:
    name = next((a for a in architectures or [] if hasattr(transformers, a)), None)
    if name is None:
        for mapping in AUTO:
            found = mapping.get(config.model_type)
            if found:
                name = found if isinstance(found, str) else found[0]
                break
    if name is None:
        raise ValueError(f"no model class for {config.model_type}")
    set_eager(config)
    with torch.device("meta"):
        model = getattr(transformers, name)._from_config(config, dtype=torch.bfloat16)
    model.eval()
    model.tie_weights()
    return model


def set_eager(config: Any) -> None:
    """Set eager attention everywhere, and the token ids that every published file has."""
    for c in [config, *[v for v in vars(config).values() if hasattr(v, "to_diff_dict")]]:
        if not hasattr(c, "pad_token_id"):
            c.pad_token_id = None
        c._attn_implementation = "eager"
        if hasattr(c, "use_mamba_kernels"):
            c.use_mamba_kernels = False


def parameter_columns(model: Any, config: Any) -> dict[str, Any]:
    seen: dict[int, str] = {}
    tied = []
    total = unique = text = 0
    for name, p in model.named_parameters(remove_duplicate=False):
        total += p.numel()
        if id(p) in seen:
            tied.append(name)
            continue
        seen[id(p)] = name
        unique += p.numel()
        text += 0 if is_tower(name, config) else p.numel()
    path, stack, others = stacks(model, config)
    runs = run_lengths([sum(p.numel() for p in layer.parameters()) for layer in stack])
    routed, experts, top_k = routed_experts(model, config)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    table = safe_input_embeddings(model)
    active = unique - routed + (routed * top_k // experts if experts else 0)
    return {
        "model_class": type(model).__name__,
        "total_params": total,
        "unique_params": unique,
        "text_params": text if has_text(model) else "",
        "tied_names": ";".join(tied),
        "input_embedding_params": table.numel() if table is not None else 0,
        "lm_head_params": sum(p.numel() for p in head.parameters()) if head is not None else 0,
        "lm_head_tied": int(head is not None and table is not None and getattr(head, "weight", None) is table),
        "layers_path": path,
        "num_layers": len(stack),
        "layer_params_runs": runs,
        "other_stacks": ";".join(
            f"{p}[{len(s)}]:{run_lengths([sum(q.numel() for q in x.parameters()) for x in s])}" for p, s in others
        ),
        "num_experts": experts or "",
        "top_k": top_k or "",
        "routed_expert_params": routed or "",
        "active_params": active,
    }


def safe_input_embeddings(model: Any) -> Any:
    try:
        return getattr(model.get_input_embeddings(), "weight", None)
    except (NotImplementedError, AttributeError):
        return None


def is_tower(name: str, config: Any) -> bool:
    if not is_composite(config):
        return False
    if config.model_type in ("vision-encoder-decoder", "speech-encoder-decoder"):
        return name.startswith("encoder.")
    return bool(TOWER.search(name)) and not TOWER_NOT_TEXT.search(name)


def is_composite(config: Any) -> bool:
    return any(hasattr(v, "to_diff_dict") for v in vars(config).values())


def stacks(model: Any, config: Any) -> tuple[str, Any, list[tuple[str, Any]]]:
    found: list[tuple[str, Any]] = []
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and STACK.search(name) and len(module):
            if any(name.startswith(other + ".") for other, _ in found):
                continue
            found.append((name, module))
    if not found:
        return "", [], []

    def rank(entry: tuple[str, Any]) -> tuple[Any, ...]:
        name, module = entry
        size = sum(p.numel() for p in module.parameters())
        return (not is_tower(name, config), bool(re.search(r"(^|\.)decoder\.", name)), size)

    main = max(found, key=rank)
    return main[0], main[1], [f for f in found if f is not main]


def run_lengths(sizes: list[int]) -> str:
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][1] == size:
            runs[-1][0] += 1
        else:
            runs.append([1, size])
    return ";".join(f"{count}x{size}" for count, size in runs)


def routed_experts(model: Any, config: Any) -> tuple[int, int, int]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    routed = sum(
        p.numel()
        for name, p in model.named_parameters()
        if EXPERT_PARAMETER.search(name) and not is_tower(name, config)
    )
    experts = first(text, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    top_k = first(
        text, "num_experts_per_tok", "top_k_experts", "num_experts_per_token", "moe_topk", "moe_k", "top_k", "moe_top_k"
    )
    if getattr(text, "ffn_config", None) is not None:
        experts = experts or first(text.ffn_config, "moe_num_experts")
        top_k = first(text.ffn_config, "moe_top_k")
    if text.model_type in ("switch_transformers",):
        top_k = 1
    if text.model_type in ("nllb-moe",):
        top_k = 2
    if isinstance(experts, (list, tuple)):
        experts = experts[0]
    if isinstance(top_k, (list, tuple)):
        top_k = top_k[0]
    if not routed or not experts:
        return 0, 0, 0
    return routed, experts, top_k or 1


def first(config: Any, *names: str) -> Any:
    for name in names:
        value = getattr(config, name, None)
        if value:
            return value
    return None


# --- products -----------------------------------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """Counts every dispatched matrix multiplication, by the module it runs in."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.path = model, [("", "")]
        self.counts: Counter[tuple[str, str, str, int, int, int, int]] = Counter()
        self.weights = {p.untyped_storage()._cdata for p in model.parameters()}
        self.hooks: list[Any] = []

    def __enter__(self) -> Products:
        for name, module in self.model.named_modules():
            label = re.sub(r"\.\d+(?=\.|$)", ".*", name)
            kind = type(module).__name__

            def push(_m: Any, *_: Any, entry: tuple[str, str] = (label, kind)) -> None:
                self.path.append(entry)

            def pop(*_: Any) -> None:
                self.path.pop()

            self.hooks += [module.register_forward_pre_hook(push), module.register_forward_hook(pop)]
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        for hook in self.hooks:
            hook.remove()
        super().__exit__(*args)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm"):
            a, b = args[-2:] if name == "mm" else args[1:3]
            self.add("linear", name, 1, a.shape[0], b.shape[1], a.shape[1])
        elif name in ("bmm", "baddbmm"):
            a, b = (args[0], args[1]) if name == "bmm" else (args[1], args[2])
            batch, m, k, n = *a.shape, b.shape[2]
            self.add(self.kind_of_bmm(a, b), name, batch, m, n, k)
        elif "grouped_mm" in name:
            a, b = args[0], args[1]
            self.add("linear", "grouped_mm", b.shape[0], a.shape[0], b.shape[-1], a.shape[-1])
        elif name == "convolution":
            w = args[1]
            groups = args[8]
            self.add("conv", "conv", groups, out.numel() // 1, 1, w[0].numel())
        return out

    def kind_of_bmm(self, a: Any, b: Any) -> str:
        if a.shape[-1] == 1:
            return "outer"
        if any(t.untyped_storage()._cdata in self.weights for t in (a, b)):
            return "linear"
        label, kind = self.path[-1]
        if re.search(r"Expert", kind):
            return "linear"
        if re.search(
            r"Mamba|SSM|Mixer(?!Attention)|DeltaNet|DeltaAttention|(?<!Kimi)LinearAttention|LightningAttention|Indexer|Rwkv|Rglru|Hyper(?!CLOVA)|mLSTM|sLSTM|Rotary",
            kind,
        ):
            return "other"
        if re.search(r"att|Att", kind + label):
            return "attention"
        return "other"

    def add(self, kind: str, op: str, batch: int, m: int, n: int, k: int) -> None:
        if kind == "linear" and k == 1 and op not in ("grouped_mm",):
            kind = "linear"
        self.counts[(kind, self.path[-1][0], op, int(batch), int(m), int(n), int(k))] += 1

    def total(self, kind: str) -> int:
        return sum(
            2 * m * n * k * (1 if op in ("grouped_mm", "conv") else batch) * count
            for (which, _, op, batch, m, n, k), count in self.counts.items()
            if which == kind
        )


def flop_columns(model: Any, config: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    inputs, seq_len, note = make_inputs(model, config)
    with torch.no_grad(), values_of_meta_tensors(), Products(model) as products:
        model(**inputs)
    linear = products.total("linear")
    routed_products = sum(
        2 * m * n * k * batch * count
        for (kind, label, op, batch, m, n, k), count in products.counts.items()
        if kind == "linear" and op in ("bmm", "baddbmm") and "expert" in label and parameters["num_experts"]
    )
    rescaled = linear
    if routed_products:
        rescaled = linear - routed_products + routed_products * parameters["top_k"] // parameters["num_experts"]
    return {
        "seq_len": seq_len,
        "flops_input": note,
        "linear_flops": linear,
        "routed_linear_flops": rescaled,
        "attention_flops": products.total("attention"),
        "other_bmm_flops": products.total("other"),
        "conv_flops": products.total("conv"),
        "outer_product_flops": products.total("outer"),
        "gemms": [
            {"kind": kind, "module": label, "op": op, "batch": batch, "m": m, "n": n, "k": k, "count": count}
            for (kind, label, op, batch, m, n, k), count in products.counts.items()
        ],
    }


@contextlib.contextmanager
def values_of_meta_tensors() -> Any:
    """Let a forward pass read values of meta tensors: masks are all ones, scales are one."""
    kept = {name: getattr(torch.Tensor, name) for name in ("item", "__bool__", "__int__", "__float__", "tolist")}

    def answer(name: str, value: Any) -> Any:
        return lambda tensor, *a: value if tensor.is_meta else kept[name](tensor, *a)

    torch.Tensor.item = answer("item", 1)
    torch.Tensor.__bool__ = answer("__bool__", True)
    torch.Tensor.__int__ = answer("__int__", 1)
    torch.Tensor.__float__ = answer("__float__", 1.0)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(torch.Tensor, name, method)


def make_inputs(model: Any, config: Any) -> tuple[dict[str, Any], int, str]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = first(
        text,
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "n_ctx",
        "max_target_positions",
    )
    if isinstance(longest, (list, tuple)):
        longest = longest[0]
    if text.model_type in PADDED_POSITIONS and longest:
        longest -= 2
    if text.model_type == "bloom":
        longest = None
    seq = min(2048, int(longest or 2048))
    if text.model_type in ("t5", "mt5", "umt5", "switch_transformers", "longt5", "udop", "pop2piano"):
        seq = min(2048, first(text, "n_positions") or 512)
    ids = torch.zeros(1, seq, dtype=torch.long, device="meta")
    main = getattr(model, "main_input_name", "input_ids")
    with_decoder = bool(getattr(config, "is_encoder_decoder", False)) or config.model_type in ("encoder-decoder",)
    if main == "pixel_values" and not has_text(model):
        size = config.image_size if hasattr(config, "image_size") else 224
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        channels = getattr(config, "num_channels", 3)
        pixels = torch.zeros(1, channels, height, width, dtype=torch.bfloat16, device="meta")
        return {"pixel_values": pixels}, 2048, f"pixel_values {height}x{width}"
    if main == "input_features":
        if config.model_type == "whisper":
            frames = 2 * config.max_source_positions
            mel = torch.zeros(1, config.num_mel_bins, frames, dtype=torch.bfloat16, device="meta")
            return (
                {"input_features": mel, "decoder_input_ids": ids},
                seq,
                f"mel frames {frames}, decoder_input_ids {seq}",
            )
        if config.model_type == "speech_to_text":
            frames = config.max_source_positions
            mel = torch.zeros(1, frames, config.input_feat_per_channel, dtype=torch.bfloat16, device="meta")
            return {"input_features": mel, "decoder_input_ids": ids}, seq, f"frames {frames}, decoder_input_ids {seq}"
    if with_decoder and main == "input_ids":
        return {"input_ids": ids, "decoder_input_ids": ids}, seq, f"input_ids 1x{seq}, decoder_input_ids 1x{seq}"
    return {"input_ids": ids}, seq, f"input_ids 1x{seq}"


PADDED_POSITIONS = {
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "longformer", "data2vec-text", "mpnet", "luke",
    "layoutlmv3", "lilt", "markuplm", "xmod", "ibert", "roberta-prelayernorm", "esm", "mra", "nystromformer",
    "yoso",
}  # fmt: skip


def has_text(model: Any) -> bool:
    return any(isinstance(m, torch.nn.Embedding) and m.num_embeddings > 1000 for m in model.modules())


# --- comparing with truth.csv --------------------------------------------------------------------------------------

COMPARED = (
    "unique_params", "text_params", "layer_params_runs", "other_stacks", "active_params",
    "routed_expert_params", "seq_len", "linear_flops", "routed_linear_flops", "attention_flops",
    "other_bmm_flops", "conv_flops", "outer_product_flops",
)  # fmt: skip


def check(folder: Path) -> None:
    good = 0
    for row in csv.DictReader((folder / "truth.csv").open()):
        if row["status"] != "ok":
            continue
        fields = json.loads((folder / row["family"] / row["name"] / "config.json").read_text())
        out = truth(fields)
        wrong = [c for c in COMPARED if str(out.get(c, "")) != row[c] and not (out.get(c) == 0 and row[c] == "")]
        good += not wrong
        print(
            "ok  " if not wrong else "DIFF",
            row["name"],
            out["flops_status"] if out["flops_status"] != "ok" else "",
            flush=True,
        )
        for column in wrong:
            print("    ", column, str(out.get(column, ""))[:90], "truth", row[column][:90])
    print(good, "rows reproduced")


# --- many configs --------------------------------------------------------------------------------------------------

LAYERS = re.compile(r"^(num_hidden_layers|n_layers?|num_layers|num_decoder_layers|(encoder|decoder)_layers|depth)$")
WIDTHS = re.compile(r"(intermediate_size|ffn_dim|^d_ff$|ffn_hidden_size|^n_inner$|inner_dim|mlp_dim)")
FLAGS = re.compile(
    r"(bias|tie_word_embeddings|norm_topk_prob|use_qk_norm|qk_layernorm|attention_k_eq_v|is_gated|gated)"
)
EXPERTS = re.compile(r"^(num_local_experts|num_experts|n_routed_experts|moe_num_experts)$")
TOP_K = re.compile(
    r"^(num_experts_per_tok|top_k_experts|num_experts_per_token|moe_topk|moe_k|moe_top_k|experts_per_token)$"
)
KV_HEADS = re.compile(r"^(num_key_value_heads|num_kv_heads|n_head_kv|attn_num_key_value_heads)$")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attn_num_attention_heads")


def perturb(fields: dict[str, Any], rng: random.Random, groups: set[str]) -> dict[str, Any]:
    """The config with other sizes; ``groups`` are the kinds of field that may change."""
    out = {k: perturb(v, rng, groups) if isinstance(v, dict) and "model_type" in v else v for k, v in fields.items()}
    out.pop("hybrid_layer_ids", None)
    for key, value in list(out.items()):
        if type(value) is int and "layers" in groups and LAYERS.match(key) and value > 2:
            new = rng.choice((value // 2, max(3, value // 4 + 1)))
            for other, entries in list(out.items()):
                if isinstance(entries, list) and len(entries) == value:
                    out[other] = entries[:new]
            out[key] = new
        elif type(value) is int and "widths" in groups and WIDTHS.search(key) and value > 1:
            out[key] = value * rng.choice((3, 5)) // 4
        elif type(value) is int and key == "vocab_size" and "vocab" in groups and value > 100:
            out[key] = value + 8 * rng.randint(1, 99)
        elif type(value) is bool and "flags" in groups and FLAGS.search(key):
            out[key] = rng.choice((value, not value))
        elif type(value) is int and "experts" in groups and EXPERTS.match(key) and value > 3:
            out[key] = value // 2
        elif type(value) is int and "experts" in groups and TOP_K.match(key) and value >= 1:
            out[key] = rng.choice((value, value + 1, max(1, value - 1)))
        elif "kv" in groups and KV_HEADS.match(key):
            heads = next((out[h] for h in HEADS if type(out.get(h)) is int), 0)
            if heads > 1 and type(value) in (int, type(None)):
                out[key] = rng.choice([d for d in range(1, heads + 1) if heads % d == 0])
        elif (
            type(value) is int and "hidden" in groups and key in ("hidden_size", "d_model", "n_embd", "dim", "emb_dim")
        ):
            out[key] = value * 2
    return out


GROUPS = ("layers", "widths", "vocab", "flags", "experts", "kv", "hidden")


def text_model_types() -> list[str]:
    names: dict[str, None] = {}
    for mapping in AUTO[:5]:
        names |= dict.fromkeys(mapping)
    for model_type in AUTO[-1]:
        try:
            config = AutoConfig.for_model(model_type)
            has_vocabulary = getattr(config.get_text_config(), "vocab_size", None)
        except Exception:
            continue
        if has_vocabulary:
            names[model_type] = None
    return [*names, "vit", "deit", "clip", "siglip", "dinov2"]


def generate(out: Path, model_types: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    wanted = model_types or [m for m in text_model_types() if not (out / m / "done").exists()]
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        jobs = [(m, pool.apply_async(generate_safely, (out, m))) for m in wanted]
        for model_type, job in jobs:
            try:
                print(model_type, job.get(timeout=400), flush=True)
            except Exception as error:
                print(model_type, "failed", type(error).__name__, str(error)[:150], flush=True)


def generate_safely(out: Path, model_type: str) -> str:
    try:
        return generate_type(out, model_type)
    except Exception as error:
        return f"failed {type(error).__name__} {str(error)[:150]}"


def generate_type(out: Path, model_type: str, variants: int = 2) -> str:
    torch.set_num_threads(1)
    started, rng, written = time.time(), random.Random(model_type), []
    default = AutoConfig.for_model(model_type)
    base = json.loads(json.dumps(default.to_dict(), default=str)) | natural_class(model_type)
    try:
        written.append(write(out, model_type, "default", base))
    except Exception as error:
        return f"failed {type(error).__name__} {str(error)[:150]}"
    for i in range(variants):
        groups = set(GROUPS)
        for _ in range(7):
            fields = perturb(base, rng, groups)
            try:
                written.append(write(out, model_type, f"perturbed{i}", fields))
                break
            except Exception:
                if len(groups) > 1:
                    groups.discard(rng.choice(sorted(groups - {"layers"}) or ["layers"]))
    (out / model_type).mkdir(exist_ok=True)
    (out / model_type / "done").write_text("")
    return f"{written} {time.time() - started:.1f}s"


def natural_class(model_type: str) -> dict[str, Any]:
    """The class that a published file of this type would name: sequence-to-sequence or masked before causal."""
    for mapping in (AUTO[2], AUTO[4], AUTO[3], AUTO[1], AUTO[0], AUTO[5]):
        if found := mapping.get(model_type):
            return {"architectures": [found if isinstance(found, str) else found[0]]}
    return {}


HEADS = (
    "Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering", "ForMultipleChoice", "EncoderModel", "ForConditionalGeneration",
)  # fmt: skip


def heads(out: Path, model_types: list[str]) -> None:
    """One config per head class of each model type."""
    for model_type in model_types:
        known = natural_class(model_type).get("architectures", [""])[0]
        stem = re.sub(r"(For[A-Z]\w*|Model|WithLMHeadModel|LMHeadModel)$", "", known)
        fields = json.loads(json.dumps(AutoConfig.for_model(model_type).to_dict(), default=str))
        for head in HEADS:
            if hasattr(transformers, stem + head):
                try:
                    write(out, model_type, stem + head, fields | {"architectures": [stem + head]})
                except Exception as error:
                    print(model_type, head, type(error).__name__, str(error)[:100])


def write(out: Path, model_type: str, variant: str, fields: dict[str, Any]) -> str:
    answer = truth(fields)
    if variant.startswith("perturbed") and answer["flops_status"] != "ok":
        known = out / model_type / "default" / "truth.json"
        if known.exists() and json.loads(known.read_text())["flops_status"] == "ok":
            raise ValueError(answer["flops_status"])
    folder = out / model_type / variant
    folder.mkdir(parents=True, exist_ok=True)
    config = load_config(fields)
    (folder / "config.json").write_text(json.dumps(json.loads(config.to_json_string(use_diff=False)), indent=1))
    sparse = json.loads(config.to_json_string(use_diff=True))
    (folder / "sparse.json").write_text(json.dumps({"model_type": model_type, **sparse}, indent=1))
    (folder / "truth.json").write_text(json.dumps(answer, indent=1))
    return variant + ("" if answer["flops_status"] == "ok" else "(no flops)")


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "check":
        check(Path(arguments[0]))
    elif command == "one":
        print(json.dumps(truth(json.loads(Path(arguments[0]).read_text())), indent=1))
    elif command == "generate":
        generate(Path(arguments[0]), arguments[1:])
    elif command == "heads":
        heads(Path(arguments[0]), arguments[1:])
    elif command == "types":
        print(*text_model_types(), sep="\n")
    else:
        sys.exit(f"unknown command {command}")
