"""From a running PyTorch module to a `TracedModel`. Modules here import torch; `extract` alone imports them, late."""
