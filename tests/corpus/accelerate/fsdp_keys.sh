#!/bin/bash
torchrun --nproc_per_node 4 tune.py --model_name_or_path meta-llama/Llama-2-7b-hf --fp16 \
  --fsdp "full_shard auto_wrap" --fsdp_config '{"backward_prefetch":"backward_pre","use_orig_params":true}' \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --model_max_length 1024 --output_dir out
