"""Request fields that several routes share, and the fields of each route."""

from __future__ import annotations

from sartor.web.fields import Field, listed, number, table, whole, word

MODEL = word("model", "Zoo name (GET /api/catalog/models). Give this or `config`.", example="llama-3.1-8b")
CONFIG = Field(
    name="config",
    about="A Hugging Face config.json, as an object or as text.",
    kinds=("object", "string"),
)
NAME = word("name", "Name for the model in `config`.", example="my-model")
GPU = word(
    "gpu", "Catalogue name (GET /api/catalog/gpus or /api/catalog/accelerators).", default="h100", example="a100_sxm"
)
GPU_TOML = word(
    "gpu_toml",
    "Text of a TOML datasheet, or of an accelerator's file, instead of `gpu` (docs/howto/add-a-gpu.md; start from GET "
    "/api/catalog/gpus/NAME/toml or /api/catalog/accelerators/NAME/toml). In `gpus`, use the name given in the file.",
)
CLUSTER_TOML = word(
    "cluster_toml",
    "Text of a cluster TOML file, instead of `cluster` (docs/howto/describe-my-cluster.md; start from GET "
    "/api/catalog/clusters/NAME/toml). Its GPUs are catalogue names or inline datasheets.",
)
CALIBRATION = word("calibration", "Text of a calibration file from `sartor calibrate`; applies to the first GPU.")
GPUS = listed("string", "gpus", "GPUs; the first one is estimated in detail.", most=8, example=["h100", "a100"])
PHASE = word("phase", "Training step, prefill or decode.", default="train", words=("train", "prefill", "decode"))
SEQ_LEN = whole("seq_len", "Tokens per sequence. Default: 4096, or the model's maximum if that is shorter.", least=1)
CONTEXT_LEN = whole("context_len", "Tokens already in the KV cache. Default: 4096 for decode, else 0.", least=0)
MICROBATCH = whole(
    "microbatch_size", "Sequences per microbatch. Default: 8192 tokens in train, 1 for prefill, 8 for decode.", least=1
)
TP = whole("tp", "Tensor-parallel size.", default=1, least=1)
PP = whole("pp", "Pipeline-parallel size.", default=1, least=1)
EP = whole("ep", "Expert-parallel size.", default=1, least=1)
DTYPE = word(
    "dtype",
    "Data type of the matrix multiplications: bf16, fp16, fp8, ... Default: bf16 if the GPU has it.",
    example="bf16",
)
ATTENTION = word(
    "attention", "Attention as one fused kernel, or as separate kernels.", default="flash", words=("flash", "unfused")
)
HEADROOM = number("headroom", "Share of memory that stays free. Default: 0.05 in training on GPUs, else 0.", least=0)
ROUTING_SKEW = number("routing_skew", "Tokens of the busiest expert relative to the mean.", default=1.0, least=1)
SET = table("set", 'Shape fields to change, for example {"num_heads": 32}.', example={"num_heads": 32})
ASKED = (MODEL, CONFIG, NAME)
QUESTION = (
    *ASKED,
    GPU,
    GPU_TOML,
    PHASE,
    SEQ_LEN,
    MICROBATCH,
    CONTEXT_LEN,
    TP,
    DTYPE,
    ATTENTION,
    ROUTING_SKEW,
    HEADROOM,
    CALIBRATION,
    SET,
)
SPREAD = (
    whole("num_devices", "Devices of the whole plan, in training; with `global_batch_size`.", least=1, example=64),
    whole("global_batch_size", "Sequences per step over all devices.", least=1, example=512),
    PP,
    EP,
    whole("cp", "Context-parallel size.", default=1, least=1),
    whole("zero_stage", "ZeRO stage: 0 to 3. Default: 1.", least=0),
    whole("virtual_stages", "Interleaved chunks per pipeline stage. Default: 1.", least=1),
    word("recompute", "What is recomputed in backward. Default: none.", words=("none", "selective", "full")),
    word("cluster", "Catalogue name. Default: the usual cluster of the GPU.", example="dgx-h100"),
    word("framework", "Training framework. Default: megatron.", example="torchtitan"),
)
ALLOW = listed("string", "allow", "Rules to skip, by name or code.", most=64)
TOLERANCE = number("params_tolerance", "Largest allowed change of the parameter count (0.01 is 1%).", default=0.01)
FREEZE = listed("string", "freeze", "Fields that must not change.", most=16)
FREE = listed(
    "string",
    "free",
    "Fields that may change though they stay by default: num_layers, kv_lora_rank, num_full_layers, experts_per_token "
    "(coarser experts).",
    most=16,
)
TOP = whole("top", "Number of results to return.", default=10, least=1)
EVIDENCE = number("evidence", "Width of the quality guard: 1 is the range covered by published evidence.", default=1.0)
ADVISE = (
    *(field for field in QUESTION if field.name not in ("gpu", "phase")),
    GPUS,
    word("objective", "Phase to optimize for.", default="train", words=("train", "prefill", "decode")),
    TOLERANCE,
    FREEZE,
    FREE,
    TOP,
    EVIDENCE,
)
PLAN = (
    *ASKED,
    word("cluster", "Catalogue name (GET /api/catalog/clusters).", default="dgx-h100", example="dgx-a100"),
    CLUSTER_TOML,
    Field(
        name="num_devices",
        about="Number of devices, or a list of numbers to compare. Default: all devices of the cluster.",
        kinds=("integer", "array"),
        items="integer",
        most=8,
        least=1,
        example=64,
    ),
    whole("global_batch_size", "Sequences per step over all devices.", least=1, example=512),
    whole("seq_len", "Tokens per sequence. Default: 4096, or the model's maximum if that is shorter.", least=1),
    word("dtype", "Training precision: bf16, fp16, fp8, mxfp8, nvfp4, ...", example="bf16"),
    table("fix", 'Plan fields to hold fixed, for example {"tp": 8}.', example={"tp": 8, "recompute": "none"}),
    word("framework", "Training framework.", default="megatron", example="torchtitan"),
    word("optimizer", "Optimizer.", default="adam", example="muon"),
    ATTENTION,
    word(
        "context_parallel",
        "Communication scheme of context parallelism. Default: what the trainer does.",
        words=("ring", "all_to_all", "all_gather"),
    ),
    ROUTING_SKEW,
    Field(
        name="tokens",
        about="Token budget for the cost: a number, optionally with suffix k, M, B or T.",
        kinds=("number", "string"),
        default=1e12,
        example="300B",
    ),
    CALIBRATION,
    TOP,
    SET,
)
DESIGN = (
    *ASKED,
    listed("string", "also", "Zoo names of further models that the chip is for.", most=8, example=["gpt2-xl"]),
    whole("num_devices", "Number of devices.", least=1, example=1024),
    whole("global_batch_size", "Sequences per step over all devices.", least=1, example=4096),
    whole("seq_len", "Tokens per sequence. Default: 4096, or the model's maximum if that is shorter.", least=1),
    word("space", "Space of accelerators (GET /api/catalog/spaces).", default="published"),
    word("objective", "What is to be largest.", default="throughput", example="throughput_per_watt"),
    number("area_mm2", "Largest die [mm2].", example=600),
    number("power_w", "Most power of a device [W].", example=500),
    number("hbm_gib", "Most memory of a device [GiB].", example=96),
    number("tolerance", "Stop when no point can be better by more than this share.", default=0.0),
    number("time_limit", "Time limit in seconds, at most 3600.", default=120.0, least=1),
    SET,
)
RUN = (
    word("run", "The log or trace, in base64; at most 24 MiB.", required=True, example="c3RlcCAxIC4uLg=="),
    word("file", "Its name, for the answer.", example="train.log"),
    whole("number", "Which run of a log with several. Default: the last.", least=1),
    *ASKED,
    word("gpu", "Catalogue name. Default: as the run says.", example="h100"),
    GPU_TOML,
    word("cluster", "Catalogue name. Default: the usual cluster of the GPU.", example="dgx-h100"),
    whole("num_devices", "Devices of the job, where the run does not say.", least=1, example=64),
    whole("global_batch_size", "Sequences per step, where the run does not say.", least=1, example=512),
    whole("seq_len", "Tokens per sequence, where the run does not say.", least=1),
    word("dtype", "Training precision, where the run does not say.", example="bf16"),
    word("framework", "Training framework. Default: as the run says.", example="torchtitan"),
    table("fix", 'Facts of the plan, for example {"tp": 8}.', example={"tp": 8, "recompute": "full"}),
    CALIBRATION,
    SET,
)
