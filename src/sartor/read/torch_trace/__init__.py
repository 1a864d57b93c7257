"""From a running PyTorch module to a `TracedModel`. Modules here import torch; only `extract` imports them, lazily."""
