NPROC_PER_NODE=8 NNODES=$HOSTS NODE_RANK=$RANK megatron sft --load Out/Qwen3-30B-A3B-Instruct-2507-mcore --dataset a \
    --tensor_model_parallel_size 2 --expert_model_parallel_size 4 --micro_batch_size 1 --global_batch_size 16 --max_length 4096 \
    --tuner_type lora --lora_rank 8 --target_modules all-linear --merge_lora true
