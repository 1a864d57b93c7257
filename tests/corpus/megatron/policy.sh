ray job submit -- python3 train.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --bf16 \
  --advantage-estimator grpo --rollout-batch-size 16 --global-batch-size 128 --micro-batch-size 1
