NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --dataset some/data --tensor_model_parallel_size 2 --micro_batch_size 1 \
    --global_batch_size 16 --max_length 4096 --tuner_type full --torch_dtype bfloat16 --fp8_format hybrid \
    --recompute_granularity full --recompute_method block --recompute_num_layers 4
