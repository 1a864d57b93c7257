accelerate launch --use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP --num_processes 4 --mixed_precision bf16 train.py \
  --model_name_or_path Qwen/Qwen2.5-7B --max_length 2048 --per_device_train_batch_size 2
