ATTENTION="--q-lora-rank 1536 --kv-lora-rank 512 --qk-nope-head-dim 128 --qk-rope-head-dim 64 --v-head-dim 128"
torchrun --nproc_per_node 8 pretrain_deepseek.py --num-layers 27 --hidden-size 2048 --num-attention-heads 16 \
    --ffn-hidden-size 10944 --seq-length 2048 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \
    --swiglu --bf16 --vocab-size 102400 $ATTENTION
