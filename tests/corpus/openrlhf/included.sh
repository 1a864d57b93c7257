deepspeed --include localhost:0,1,2,3 --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-7B-Instruct \
  --train_batch_size 64 --micro_train_batch_size 1 --max_len 8192 --zero_stage 3 --adam_offload --param_dtype bf16 \
  --gradient_checkpointing --attn_implementation flash_attention_2
