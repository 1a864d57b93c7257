deepspeed --num_gpus=8 train.py --deepspeed zero3.json --model_name_or_path meta-llama/Llama-3.1-8B --bf16 True \
  --model_max_length 4096 --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --gradient_checkpointing True
