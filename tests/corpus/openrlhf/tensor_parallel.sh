deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-7B --ds_tensor_parallel_size 2 --max_len 4096 \
  --train_batch_size 64 --micro_train_batch_size 2 --zero_stage 1 --param_dtype bf16
