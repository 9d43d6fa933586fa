"""How many GPUs a workload takes: pure arithmetic, one subject a module, every number with how it was come by."""
