"""Device placement: which layers form which pipeline stage, how often the pipeline is copied, how wide a layer is split."""
