# Experts over tensor-parallel and data-parallel ranks of two stages.
NPROC_PER_NODE=8 CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 megatron sft --model Qwen/Qwen3-30B-A3B-Instruct-2507 \
    --load_safetensors true --dataset own/traces --pipeline_model_parallel_size 2 --tensor_model_parallel_size 2 \
    --expert_model_parallel_size 4 --moe_grouped_gemm true --micro_batch_size 1 --global_batch_size 16 \
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --max_length 8192 \
    --sequence_parallel true --attention_backend flash
