NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B --load_safetensors true --train_type full \
    --expert_model_parallel_size 8 --tensor_model_parallel_size 1 --moe_permute_fusion true \
    --micro_batch_size 1 --global_batch_size 16 --packing true --max_length 8192 \
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \
    --cross_entropy_loss_fusion true --attention_backend flash
