"""Options of sbatch and srun, and their meanings.

Source: the manual pages of Slurm 22.05, with options added by later releases and common plugins.
"""

from __future__ import annotations

from dataclasses import dataclass

_BOTH = """
account A = the account to charge
acctg-freq . = how often Slurm measures the job
bb . = burst buffer
bbf . = file that describes a burst buffer
begin b = earliest start time
chdir D = working folder of the job (default: where sbatch was called)
cluster-constraint . = features of clusters that may run it
clusters M = clusters that may run it
comment . = a comment
constraint C = only nodes with this feature
container . = an OCI bundle to run in
container-id . = name of the OCI container
container-image . = image to run in (the Pyxis plugin)
container-mounts . = folders mounted in the container (the Pyxis plugin)
container-name . = name of the container (the Pyxis plugin)
container-workdir . = working folder inside the container (the Pyxis plugin)
contiguous . - only adjacent nodes
core-spec S = cores reserved for the system
cores-per-socket . = only nodes with that many cores per socket
cpu-freq . = clock frequency of the CPUs
cpus-per-gpu . = CPUs per GPU
cpus-per-task c = CPUs per task
deadline . = remove the job if it cannot end by then
delay-boot . = delay before nodes are rebooted
dependency d = start only after other jobs
distribution m = how tasks are distributed over nodes and sockets
environment . = an environment file (sites with the CSCS container engine)
error e = file for standard error (default: the file of --output)
exclude x = exclude these nodes
exclusive . ? share its nodes with no other job
export . = variables of the submitting shell that the job gets
extra . = data for the site's own scheduling
extra-node-info B = only nodes with that many sockets, cores, threads
gid . = run as this group (root only)
gpu-bind . = which task sees which GPU
gpu-freq . = clock frequency of the GPUs
gpus G = GPUs of the whole job, in any distribution over its nodes
gpus-per-node . = GPUs per node
gpus-per-socket . = GPUs per socket
gpus-per-task . = GPUs per task
gres . = devices per node
gres-flags . = how devices are chosen
help h - print the options
hint . = how tasks are bound to CPUs
hold H - wait until released
input i = file for standard input
job-name J = the name that squeue shows
licenses L = licenses it needs
mail-type . = when to send mail
mail-user . = recipient of mail
mcs-label . = security label
mem . = memory per node
mem-bind . = binding of memory
mem-per-cpu . = memory per CPU
mem-per-gpu . = memory per GPU
mincpus . = only nodes with that many CPUs
network . = options of the network or switch
nice . ? a lower priority
no-kill k ? continue when a node fails
nodefile F = file of node names to use
nodelist w = use these nodes
nodes N = number of nodes
ntasks n = number of tasks on all nodes
ntasks-per-core . = largest number of tasks per core
ntasks-per-gpu . = tasks per GPU
ntasks-per-node . = tasks per node
ntasks-per-socket . = tasks per socket
open-mode . = append to its output files, or truncate them
output o = file for standard output
overcommit O - more tasks than CPUs
oversubscribe s - may share its nodes with other jobs
partition p = the queue, a set of nodes
power . = power management
prefer . = prefer nodes with this feature
priority . = priority
profile . = what to measure
propagate . ? limits of the submitting shell that apply to the job
qos q = quality of service: its limits and priority
quiet Q - print less
reboot . - reboot the nodes first
reservation . = use these reserved nodes
segment . = number of nodes per block of close nodes
signal . = a signal some time before the time limit
sockets-per-node . = only nodes with that many sockets
spread-job . - spread over as many nodes as possible
switches . = largest number of network switches
test-only . - print when it could start, and start nothing
thread-spec . = threads reserved for the system
threads-per-core . = threads to use per core
time t = time limit, after which Slurm kills the job
time-min . = smallest acceptable time limit
tmp . = temporary disk space per node
tres-bind . = binding of devices
tres-per-task . = devices per task
uid . = run as this user (root only)
usage . - print a short help
use-min-nodes . - use the smaller number of a range of nodes
verbose v - print more
version V - print Slurm's version
wckey . = key for accounting
"""
_SBATCH_ONLY = """
array a = several jobs from one file
batch . = where the script itself runs
export-file . = file of variables to set
get-user-env . ? as after a login
ignore-pbs . - ignore #PBS lines
kill-on-invalid-dep . = remove the job if its dependency can never be satisfied
no-requeue . - never requeue the job
parsable . - print only the job id
requeue . - allow a requeue after a node failure or by scontrol requeue
stepmgr . - steps are managed on the first node
wait W - return after the job ends
wait-all-nodes . = start when all nodes are ready
wrap . = a command instead of a script
"""
_SRUN_ONLY = """
accel-bind . = binding of devices
bcast . ? copy the program to the nodes first
bcast-exclude . = whose libraries not to copy
compress . ? compress what is copied
cpu-bind . = binding of tasks to CPUs
disable-status X - Ctrl-C ends it immediately
epilog . = program to run afterwards
exact . - use only the requested CPUs
external-launcher . - only create the step, for another launcher
het-group . = component of a heterogeneous job
immediate I ? fail if it cannot start now
jobid . = inside this job
kill-on-bad-exit K ? when one task fails, end the others too
label l - prefix each line with the task's number
mpi . = how to start MPI
msg-timeout . = timeout of messages in seconds
multi-prog . - tasks run different programs
no-allocate Z - without an allocation
container-entrypoint . - run the image's entry point (the Pyxis plugin)
container-env . = variables of this shell that the container keeps (the Pyxis plugin)
container-mount-home . - mount the home folder (the Pyxis plugin)
container-readonly . - make the container's files read-only (the Pyxis plugin)
container-remap-root . - become root inside the container (the Pyxis plugin)
container-save . = image file to save the container to (the Pyxis plugin)
container-writable . - make the container's files writable (the Pyxis plugin)
no-container-entrypoint . - do not run the image's entry point (the Pyxis plugin)
no-container-remap-root . - keep your user id inside the container (the Pyxis plugin)
no-container-mount-home . - do not mount the home folder (the Pyxis plugin)
overlap . - may share CPUs with other steps
preserve-env E - keep the variables of the allocation
prolog . = program to run first
pty . ? in a terminal
quit-on-interrupt . - end at the first Ctrl-C
relative r = start at this node of the allocation
resv-ports . ? reserve ports
send-libs . ? send libraries too
slurmd-debug . = log level of slurmd
task-epilog . = program to run after each task
task-prolog . = program to run before each task
threads T = number of threads that srun uses to start tasks
unbuffered u - do not buffer output
wait W = seconds after the end of the first task until srun kills the others
x11 . ? forward X11
"""


@dataclass(frozen=True)
class Option:
    """One option of sbatch or srun."""

    name: str
    short: str | None
    takes: str
    """`=` for a value, `?` for an optional value, `-` for none."""
    meaning: str


def _table(*texts: str) -> dict[str, Option]:
    rows = [line.split(" ", 3) for text in texts for line in text.strip().splitlines()]
    return {name: Option(name, None if short == "." else short, takes, say) for name, short, takes, say in rows}


SBATCH = _table(_BOTH, _SBATCH_ONLY)
SRUN = _table(_BOTH, _SRUN_ONLY)
