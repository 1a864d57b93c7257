# A trainer upon Megatron-LM whose batches are counted in tokens and whose precision is its own default.
SIZES="--num-layers 16 --hidden-size 2048 --ffn-hidden-size 5504 --num-attention-heads 16 --swiglu --vocab-size 32000"
ray job submit --address http://127.0.0.1:8265 -- python3 train_async.py --actor-num-nodes 1 \
  --actor-num-gpus-per-node 8 $SIZES --rollout-function-path mine.generate --global-batch-size 64 \
  --use-dynamic-batch-size --max-tokens-per-gpu 8192 --tensor-model-parallel-size 2 --loss-type sft_loss
