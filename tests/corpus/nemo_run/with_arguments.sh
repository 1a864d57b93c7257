torchrun --nproc_per_node 8 branches.py --tp 2 --batch=64
