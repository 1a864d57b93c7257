#!/bin/bash
NODES=2
GPUS=8
cat << EOF > sharded.yaml
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD_ZERO2
  fsdp_offload_params: false
  fsdp_limit_all_gathers: true
mixed_precision: bf16
num_machines: $NODES
num_processes: $((NODES * GPUS))
EOF
accelerate launch --config_file sharded.yaml run.py --model_name_or_path Qwen/Qwen2.5-7B \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 4096 --gradient_checkpointing --bf16
