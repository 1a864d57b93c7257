deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo --pretrain Qwen/Qwen2.5-7B --max_len 4096 --train_batch_size 64 \
  --micro_train_batch_size 2 --zero_stage 3 --bf16 --beta 0.1
