deepspeed --num_gpus 1 --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-7B --load_in_4bit --lora_rank 64 --lora_alpha 64 \
  --train_batch_size 16 --micro_train_batch_size 4 --max_len 1024 --zero_stage 0 --bf16
