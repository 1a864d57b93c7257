NPROC_PER_NODE=8 CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
megatron sft \
    --model Qwen/Qwen3-30B-A3B \
    --dataset 'some/data#400' 'other/data#100' \
    --fp8_recipe blockwise --fp8_format e4m3 \
    --tensor_model_parallel_size 2 --expert_model_parallel_size 8 --sequence_parallel true \
    --micro_batch_size 2 --global_batch_size 32 --max_length 4096 \
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \
    --cross_entropy_loss_fusion true --no_save_optim true \
    --optimizer_cpu_offload true --optimizer_offload_fraction 1 \
    --model_author swift --model_name swift-helper
