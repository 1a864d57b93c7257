"""What questions are made of: every field of a request that more than one route takes, and the lists of them."""

from __future__ import annotations

from sartor.web.fields import Field, listed, number, table, whole, word

MODEL = word("model", "A name of the zoo (GET /api/catalog/models). Either this or `config`.", example="llama-3.1-8b")
CONFIG = Field(
    name="config",
    about="A Hugging Face config.json: the object itself, or its text.",
    kinds=("object", "string"),
)
NAME = word("name", "What to call the model of `config`.", example="my-model")
GPU = word("gpu", "A name of GET /api/catalog/gpus.", default="h100", example="a100_sxm")
GPU_TOML = word(
    "gpu_toml",
    "A device of one's own in place of `gpu`: the text of a datasheet (docs/howto/add-a-gpu.md; one to "
    "change: GET /api/catalog/gpus/NAME/toml). In `gpus` it goes by the name it gives itself.",
)
CLUSTER_TOML = word(
    "cluster_toml",
    "A cluster of one's own in place of `cluster`: the text of its file (docs/howto/describe-my-cluster.md; one "
    "to change: GET /api/catalog/clusters/NAME/toml). Devices in it are names of the catalogue or datasheets in place.",
)
CALIBRATION = word("calibration", "What was measured on the (first) device: the text of a file of `sartor calibrate`.")
GPUS = listed("string", "gpus", "Devices; the first is the one estimated in detail.", most=8, example=["h100", "a100"])
PHASE = word("phase", "What the model is doing.", default="train", words=("train", "prefill", "decode"))
SEQ_LEN = whole("seq_len", "Tokens per sequence. Not given: 2048, or the model's longest.", least=1)
CONTEXT_LEN = whole("context_len", "Tokens already in the KV cache. Not given: 2048 in decode, else 0.", least=0)
MICROBATCH = whole("microbatch_size", "Sequences at once. Not given: 4 in train, 1 in prefill, 8 in decode.", least=1)
TP = whole("tp", "Tensor-parallel devices.", default=1, least=1)
PP = whole("pp", "Pipeline-parallel stages.", default=1, least=1)
EP = whole("ep", "Expert-parallel devices.", default=1, least=1)
DTYPE = word(
    "dtype", "Precision of the products: bf16, fp16, fp8, ... Not given: bf16 where the device has it.", example="bf16"
)
ATTENTION = word("attention", "Attention as one kernel, or as three.", default="flash", words=("flash", "unfused"))
SET = table("set", "Fields of the shape to change: field to whole number.", example={"num_heads": 32})
ASKED = (MODEL, CONFIG, NAME)
QUESTION = (*ASKED, GPU, GPU_TOML, PHASE, SEQ_LEN, MICROBATCH, CONTEXT_LEN, TP, DTYPE, ATTENTION, CALIBRATION, SET)
ALLOW = listed("string", "allow", "Rules to leave out, by name or code.", most=64)
TOLERANCE = number("params_tolerance", "How far the parameter count may move, as a share.", default=0.01)
FREEZE = listed("string", "freeze", "Fields that must stay.", most=16)
TOP = whole("top", "How many to answer with.", default=10, least=1)
EVIDENCE = number(
    "evidence", "Width of the quality guard: 1 as published evidence goes, 0.5 half as wide.", default=1.0
)
ADVISE = (
    *(field for field in QUESTION if field.name not in ("gpu", "phase")),
    GPUS,
    word("objective", "What to be fast in.", default="train", words=("train", "prefill", "decode")),
    TOLERANCE,
    FREEZE,
    TOP,
    EVIDENCE,
)
PLAN = (
    *ASKED,
    word("cluster", "A name of GET /api/catalog/clusters.", default="dgx-h100", example="dgx-a100"),
    CLUSTER_TOML,
    Field(
        name="num_devices",
        about="Devices, or a list of numbers of them (the front over them). Not given: as many as the cluster has.",
        kinds=("integer", "array"),
        items="integer",
        most=8,
        least=1,
        example=64,
    ),
    whole("global_batch_size", "Sequences a step over all devices.", least=1, example=512),
    whole("seq_len", "Tokens per sequence. Not given: 4096, or the model's longest.", least=1),
    word("dtype", "Recipe: bf16, fp16, fp8, mxfp8, nvfp4, ...", example="bf16"),
    table("fix", "Axes of the plan to hold: axis to value.", example={"tp": 8, "recompute": "none"}),
    word("framework", "Trainer.", default="megatron", example="torchtitan"),
    word("optimizer", "Whose states are held.", default="adam", example="muon"),
    ATTENTION,
    word(
        "context_parallel",
        "How context parallelism exchanges.",
        default="ring",
        words=("ring", "all_to_all", "all_gather"),
    ),
    number("routing_skew", "Largest expert's tokens over the mean.", default=1.0, least=1),
    Field(
        name="tokens",
        about="Token budget to cost: a number, or with k, M, B or T behind it.",
        kinds=("number", "string"),
        default=1e12,
        example="300B",
    ),
    CALIBRATION,
    TOP,
    SET,
)
