"""Data parallelism: each rank processes different samples. DDP, ZeRO 1 to 3, DiLoCo."""
