deepspeed --num_gpus 8 openrlhf/cli/train_sft.py --pretrain meta-llama/Llama-3.1-8B --max_len 65536 --ring_attn_size 4 \
  --train_batch_size 8 --micro_train_batch_size 1 --zero_stage 3 --bf16 --flash_attn --packing_samples --gradient_checkpointing
