tune run --nnodes 1 --nproc_per_node 4 full_finetune_distributed --config base.yaml batch_size=4 enable_activation_checkpointing=False
