torchrun --nproc_per_node=4 -m openrlhf.cli.train_sft --backend fsdp2 --pretrain meta-llama/Llama-3.1-8B --dataset a --max_len 1024 \
  --train_batch_size 32 --micro_train_batch_size 2 --param_dtype bf16 --gradient_checkpointing
