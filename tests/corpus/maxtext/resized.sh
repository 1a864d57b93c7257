# A named model with other heads.
export LENGTH=1048576
python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml model_name=llama3.1-8b \
    override_model_config=true head_dim=256 base_num_query_heads=16 base_num_kv_heads=4 \
    per_device_batch_size=0.0625 max_target_length=$LENGTH ici_context_parallelism=16 ici_fsdp_parallelism=1 \
    attention=flash remat_policy=full dataset_type=synthetic
