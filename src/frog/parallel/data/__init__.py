"""Data parallelism: each rank computes other samples. DDP, ZeRO 1 to 3, DiLoCo."""
