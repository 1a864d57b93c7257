from megatron.bridge.recipes.llama import llama3_8b_pretrain_config

from .ours import made_fast


def fast():
    cfg = llama3_8b_pretrain_config()
    cfg.model.tensor_model_parallel_size = cfg.model.pipeline_model_parallel_size = 1
    cfg.train.micro_batch_size, cfg.train.global_batch_size = 1, 64
    cfg.model.seq_length = 8192
    made_fast(cfg)
    return cfg
