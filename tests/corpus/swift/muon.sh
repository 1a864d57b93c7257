# Two devices, Muon in shards.
NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 megatron sft --model Qwen/Qwen2.5-Coder-7B-Instruct \
    --save_safetensors true --dataset own/chats --optimizer dist_muon --tensor_model_parallel_size 2 \
    --sequence_parallel true --micro_batch_size 8 --global_batch_size 16 --recompute_granularity full \
    --recompute_method uniform --recompute_num_layers 1 --max_length 4096
