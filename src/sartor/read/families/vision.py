"""Image models (ViT and its relatives), and image-text pairs (CLIP, SigLIP)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sartor.model.layer import DenseFfn, Linear, Vectors
from sartor.model.shape import Stack, TransformerShape
from sartor.read.families.encoders import Encoder, read_encoder
from sartor.read.families.parts import Head, head_of, in_every_layer, num_labels, plain
from sartor.read.families.towers import grid, read_tower, tower_of
from sartor.read.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageModel:
    """A tower that is the whole model, by its row in ``towers.toml``.

    ``pooler``: the bare model ends in a dense layer on the first token;
    ``doubled``: the classifier reads the first token concatenated with the mean of the others."""

    tokens: Callable[[Fields], int] | None = None
    """Tokens of one image (sound, video), if not its patches plus the learned ones."""
    pooler: bool = False
    doubled: bool = False


def read_image_model(f: Fields, model: ImageModel) -> TransformerShape:
    """The shape of an image model, with the classifier its architecture names."""
    tower = tower_of(f.model_type)
    assert tower is not None, f"{f.model_type} has no row in towers.toml"
    stack = swiglu(f, read_tower(f, tower, name="encoder"))
    hidden, tokens = int(stack.hidden_size), model.tokens(f) if model.tokens else grid(f) + tower.class_token
    top: tuple[Linear, ...] = ()
    if f.architecture.endswith("ForImageClassification"):
        top = (plain("classifier", hidden * (2 if model.doubled else 1), num_labels(f), bias=True, rows=1),)
    elif f.architecture.endswith("ForImageClassificationWithTeacher"):
        one = plain("classifier", hidden, num_labels(f), bias=True, rows=1)
        top = (one, replace(one, name="distillation_classifier"))
    elif f.architecture.endswith("ForObjectDetection"):
        top = detection_heads(f, hidden)
    elif model.pooler and head_of(f) in (Head.NONE, Head.LM):
        top = (plain("pooler", hidden, f.optional_size("pooler_output_size") or hidden, bias=True, rows=1),)
    return TransformerShape(
        name=f.model_type,
        stacks=(replace(stack, tokens=tokens),),
        vocab_size=0,
        max_positions=tokens,
        lm_head=False,
        encoder_only=True,
        linears=top,
        model_type=f.model_type,
    )


def detection_heads(f: Fields, hidden: int) -> tuple[Linear, ...]:
    """YOLOS: class and box of each detection token, by three linear layers each (arXiv 2106.00666)."""
    rows = f.size("num_detection_tokens")
    inner = plain("detection", hidden, hidden, bias=True, rows=rows)
    ends = (("class", num_labels(f) + 1), ("box", 4))
    out = (plain(f"{name}_out", hidden, width, bias=True, rows=rows) for name, width in ends)
    return (replace(inner, count=4), *out)


def swiglu(f: Fields, stack: Stack) -> Stack:
    """DINOv2's largest model has a gated feed-forward part of two thirds the width, rounded up to a multiple of 8."""
    if not f.flag("use_swiglu_ffn", default=False):
        return stack
    width = (int(int(stack.hidden_size) * (f.number("mlp_ratio") or 4) * 2 / 3) + 7) // 8 * 8
    ffn = DenseFfn(ffn_hidden_size=width, up_bias=True, down_bias=True)
    return in_every_layer(stack, lambda layer: replace(layer, ffn=ffn))


def spectrogram_patches(f: Fields) -> int:
    """Overlapping patches of a spectrogram and two learned tokens (AST, arXiv 2104.01778)."""
    side = f.size("patch_size")
    down = (f.size("num_mel_bins") - side) // f.size("frequency_stride") + 1
    return down * ((f.size("max_length") - side) // f.size("time_stride") + 1) + 2


def film_patches(f: Fields) -> int:
    """Patches over several frames each (VideoMAE, ViViT)."""
    depth, *_ = f.sizes("tubelet_size") or [2]
    learned = int(f.model_type == "vivit")
    side = (f.sizes("tubelet_size") or [0])[-1] if learned else f.size("patch_size")
    return (f.size("num_frames") // depth) * (f.size("image_size") // side) ** 2 + learned


def unmasked_patches(f: Fields) -> int:
    """The unmasked patches of a masked autoencoder, and the class token (arXiv 2111.06377)."""
    return int(grid(f) * (1 - (f.number("mask_ratio") or 0.75))) + 1


def patches_and_detections(f: Fields) -> int:
    """Patches, the class token and the detection tokens (YOLOS)."""
    return grid(f) + 1 + f.size("num_detection_tokens")


def patches_and_registers(f: Fields) -> int:
    """Patches, the class token and the registers (DINOv3)."""
    return grid(f) + 1 + f.size("num_register_tokens", least=0)


def mask_token(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """DINOv2's mask token."""
    return (), (Vectors(name="mask_token", per_hidden=1),)


def mask_and_registers(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """DINOv2's mask token and registers (arXiv 2309.16588)."""
    return (), (Vectors(name="mask_and_registers", per_hidden=1 + f.size("num_register_tokens")),)


def relative_positions(f: Fields, hidden: int) -> tuple[Vectors, ...]:
    """BEiT's optional table of relative positions in each layer."""
    if not f.flag("use_relative_position_bias", default=False):
        return ()
    side = f.size("image_size") // f.size("patch_size")
    rows = (2 * side - 1) ** 2 + 3
    return (Vectors(name="relative_positions", fixed=rows * f.size("num_attention_heads"), embedding=True),)


TEXT = Encoder(
    token_types=False, embedding_norm=False, final_norm=True, pooler=False, transform=False, lm_head_bias=False
)


def read_clip_text(f: Fields) -> TransformerShape:
    """CLIP's causal text encoder, with a projection if the class has one."""
    return _text_tower(replace(f, architecture="CLIPTextModel"), "WithProjection" in f.architecture)


def read_siglip_text(f: Fields) -> TransformerShape:
    """SigLIP's text encoder with its pooling layer."""
    shape = _text_tower(replace(f, architecture="SiglipTextModel"), False)
    out = f.optional_size("projection_size") or int(shape.hidden_size)
    return replace(shape, linears=(plain("head", int(shape.hidden_size), out, bias=True, rows=1),))


def _text_tower(f: Fields, projected: bool) -> TransformerShape:
    shape = read_encoder(f, TEXT)
    if not projected:
        return shape
    return replace(shape, linears=(plain("projection", int(shape.hidden_size), f.size("projection_dim"), rows=1),))


def read_pair(f: Fields, *, text: str, vision: str) -> TransformerShape:
    """CLIP and SigLIP: a text and an image encoder with outputs that are compared."""
    t = f.part("text_config", text)
    v = f.part("vision_config", vision)
    clip = text.startswith("clip")
    shape = read_clip_text(t) if clip else read_siglip_text(t)
    kind = tower_of(vision)
    assert kind is not None
    tower = read_tower(v, kind)
    scalars = Vectors(name="logit_scale", fixed=1 if clip else 2)
    if clip:
        out = f.size("projection_dim")
        seen = plain("visual_projection", int(tower.hidden_size), out, rows=0)
        shape = replace(shape, linears=(plain("text_projection", int(shape.hidden_size), out, rows=1),))
        tower = replace(tower, linears=(*tower.linears, seen))
    return replace(shape, stacks=(*shape.stacks, tower), vectors=(*shape.vectors, scalars), model_type=f.model_type)
