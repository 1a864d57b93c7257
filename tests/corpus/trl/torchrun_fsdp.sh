torchrun --nnodes 2 --nproc_per_node 8 sft.py --model_name_or_path Qwen/Qwen3-8B --max_length 4096 --packing \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 --fsdp "hybrid_shard auto_wrap" \
  --fsdp_transformer_layer_cls_to_wrap Qwen3DecoderLayer
