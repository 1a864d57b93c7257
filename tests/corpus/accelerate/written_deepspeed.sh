#!/bin/bash
ZERO=2
MICRO=4
cat <<JSON > zero.json
{
  "bf16": {"enabled": true},
  "train_micro_batch_size_per_gpu": $MICRO,
  "gradient_accumulation_steps": "auto",
  "zero_optimization": {"stage": ${ZERO}, "overlap_comm": true}
}
JSON
deepspeed --num_gpus 8 sft.py --deepspeed zero.json --model_name_or_path meta-llama/Llama-3.1-8B \
  --per_device_train_batch_size $MICRO --gradient_accumulation_steps 2 --max_length 2048 --bf16 True \
  --gradient_checkpointing True --learning_rate 1e-5 --output_dir out
