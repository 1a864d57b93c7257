accelerate launch --config_file "./examples/train/fsdp.yaml" \
    swift/cli/sft.py \
    --model 'Qwen/Qwen3-32B' --train_type lora --dataset 'a/b#1000' --torch_dtype bfloat16 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_length 2048 --packing true
