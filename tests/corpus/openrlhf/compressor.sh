#!/bin/bash
torchrun --nproc_per_node 4 -m openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-0.5B --train_batch_size 32 \
  --micro_train_batch_size 4 --zero_stage 2 --bf16 --max_len 2048 --squeeze_rate 16 --document_tokens 256 \
  --phase first --answer_loss --distance_loss --dataset pairs.jsonl
