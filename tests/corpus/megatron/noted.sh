: ${GPUS_PER_NODE:=8}
ARGS="
    `# the model` \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 --swiglu \
    --seq-length 4096 --max-position-embeddings 4096 \
    `# the batch` \
    --micro-batch-size 4 --global-batch-size 1024 --bf16 --tensor-model-parallel-size 4 --sequence-parallel \
    --tokenizer-type Llama2Tokenizer --tokenizer-model ${TOKENIZER}
"
torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py $ARGS
