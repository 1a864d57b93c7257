deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config ds_config_gpt.json --num-layers 24 --hidden-size 2048 \
    --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 \
    --vocab-size 50304 --fp16
