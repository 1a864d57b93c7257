#!/bin/bash
# The recipe is written by the script that starts it.
BASE=Qwen/Qwen2.5-7B
STEPS=4
cat > tune.yaml << RECIPE
base_model: $BASE
datasets:
  - path: notes.jsonl
    type: alpaca
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: $((STEPS * 2))
adapter: lora
lora_r: 32
lora_target_linear: true
gradient_checkpointing: true
flash_attention: true
bf16: auto
RECIPE
pip install axolotl
accelerate launch --num_processes 4 -m axolotl.cli.train tune.yaml
