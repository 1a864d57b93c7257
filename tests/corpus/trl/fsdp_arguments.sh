torchrun --nproc_per_node 8 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --bf16 True \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --block_size 4096 --optim adamw_torch_fused \
  --gradient_checkpointing True --output_dir out --do_train
