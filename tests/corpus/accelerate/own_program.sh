deepspeed --num_gpus=8 ours.py --base_model Qwen/Qwen3-8B --micro_batch_size 2 --cutoff_len 2048 --deepspeed_config ds/zero2.json
