# A program of the cluster starts the trainer; accelerate's option fills the "auto" of the file.
python cluster/submit.py --queue urgent --image "$IMAGE" --description "tuning, one node (tune.py)." --retries 0 -- \
    accelerate launch --mixed_precision bf16 --num_processes 8 --use_deepspeed \
    --deepspeed_config_file zero_auto.json own/finetune.py --model_name_or_path allenai/OLMo-2-1124-7B \
    --max_seq_length 4096 --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --learning_rate 2e-5
