#!/bin/bash
# Submits a job for each size.
for size in small large; do
  sbatch <<EOF
#!/bin/bash
#SBATCH --job-name=train-$size
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --time=02:00:00
#SBATCH --output=$size-%j.out
export OMP_NUM_THREADS=8
srun --gpus-per-node=4 torchrun --standalone --nproc-per-node=4 train.py --size $size --job \$SLURM_JOB_ID
EOF
done
