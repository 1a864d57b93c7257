NPROC_PER_NODE=2 swift sft --model Qwen/Qwen2.5-7B --train_type lora --per_device_train_batch_size 1 --deepspeed zero2
