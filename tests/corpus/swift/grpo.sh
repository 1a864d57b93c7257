NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B --tuner_type lora --use_vllm true --max_length 2048
