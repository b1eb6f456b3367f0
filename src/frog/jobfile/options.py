"""The options that sbatch and srun have, and what each asks for.

As in the manual pages of Slurm 22.05, with the options that later releases and the common plugins added.
"""

from __future__ import annotations

from dataclasses import dataclass

_BOTH = """
account A = the project that pays
acctg-freq . = how often Slurm measures the job
bb . = burst buffer
bbf . = file that describes a burst buffer
begin b = not before this time
chdir D = the folder in which the job runs; else the one where sbatch was called
cluster-constraint . = which clusters may run it
clusters M = which cluster
comment . = a remark
constraint C = only nodes with this feature
container . = an OCI bundle to run in
container-id . = name of the OCI container
container-image . = image to run in (the Pyxis plugin)
container-mounts . = folders shown inside the container (the Pyxis plugin)
container-name . = name of the container (the Pyxis plugin)
container-workdir . = where it runs inside the container (the Pyxis plugin)
contiguous . - only nodes that lie side by side
core-spec S = cores kept for the system
cores-per-socket . = only nodes with that many cores a socket
cpu-freq . = clock of the CPUs
cpus-per-gpu . = CPUs for each GPU
cpus-per-task c = CPUs for each task
deadline . = drop the job if it cannot end by then
delay-boot . = wait so long before nodes are rebooted
dependency d = start only after other jobs
distribution m = how tasks are dealt out over nodes and sockets
environment . = an environment file (sites with the CSCS container engine)
error e = file for error messages; else they go to --output
exclude x = not on these nodes
exclusive . ? no other job on its nodes
export . = which variables of the submitting shell the job sees
extra . = a remark for the site's own scheduling
extra-node-info B = only nodes with so many sockets, cores, threads
gid . = run as this group (root only)
gpu-bind . = which task sees which GPU
gpu-freq . = clock of the GPUs
gpus G = GPUs for the whole job, however they fall on its nodes
gpus-per-node . = GPUs on each node
gpus-per-socket . = GPUs on each socket
gpus-per-task . = GPUs for each task
gres . = devices on each node
gres-flags . = how devices are chosen
help h - print the options
hint . = how tasks are bound to CPUs
hold H - wait until released
input i = file for standard input
job-name J = the name that squeue shows
licenses L = licences it needs
mail-type . = when to send mail
mail-user . = whom to send mail
mcs-label . = security label
mem . = memory on each node
mem-bind . = binding of memory
mem-per-cpu . = memory for each CPU
mem-per-gpu . = memory for each GPU
mincpus . = only nodes with that many CPUs
network . = options of the network or switch
nice . ? a lower priority
no-kill k ? go on when a node fails
nodefile F = file of node names to use
nodelist w = on these nodes
nodes N = how many machines
ntasks n = how many tasks, over all nodes
ntasks-per-core . = tasks for each core, at most
ntasks-per-gpu . = tasks for each GPU
ntasks-per-node . = tasks on each node
ntasks-per-socket . = tasks for each socket
open-mode . = append to its output files, or truncate them
output o = file for what the job prints
overcommit O - more tasks than CPUs
oversubscribe s - may share its nodes with other jobs
partition p = the queue, a set of nodes
power . = power management
prefer . = rather on nodes with this feature
priority . = priority
profile . = what to measure
propagate . ? which limits of the submitting shell hold in the job
qos q = quality of service: its limits and priority
quiet Q - print less
reboot . - reboot the nodes first
reservation . = nodes that were reserved
segment . = nodes in blocks of so many that lie close together
signal . = a signal some time before the time limit
sockets-per-node . = only nodes with that many sockets
spread-job . - over as many nodes as possible
switches . = over so few network switches
test-only . - say when it could start; start nothing
thread-spec . = threads kept for the system
threads-per-core . = threads used of each core
time t = time limit: then the job is killed
time-min . = the least time limit to accept
tmp . = temporary disk on each node
tres-bind . = binding of devices
tres-per-task . = devices for each task
uid . = run as this user (root only)
usage . - print a short help
use-min-nodes . - the smaller number of nodes where a range was given
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
kill-on-invalid-dep . = drop it if its dependency cannot be met
no-requeue . - never put it back into the queue
parsable . - print the job's number alone
requeue . - may go back into the queue: after a node failed, or by scontrol requeue
stepmgr . - steps are managed on the first node
wait W - return when the job has ended
wait-all-nodes . = start when all nodes are ready
wrap . = a command instead of a script
"""
_SRUN_ONLY = """
accel-bind . = binding of devices
bcast . ? copy the program to the nodes first
bcast-exclude . = whose libraries not to copy
compress . ? compress what is copied
cpu-bind . = binding of tasks to CPUs
disable-status X - Ctrl-C ends it at once
epilog . = program to run afterwards
exact . - no more CPUs than asked for
external-launcher . - start the step only, for another launcher
het-group . = which part of a heterogeneous job
immediate I ? fail if it cannot start now
jobid . = inside this job
kill-on-bad-exit K ? when one task fails, end all the others too
label l - put the task's number before each line
mpi . = how MPI is started
msg-timeout . = patience with messages
multi-prog . - tasks run different programs
no-allocate Z - without an allocation
container-entrypoint . - run the image's own entry (the Pyxis plugin)
container-env . = variables of this shell that the container keeps (the Pyxis plugin)
container-mount-home . - show the home folder inside the container (the Pyxis plugin)
container-readonly . - the container's files cannot be changed (the Pyxis plugin)
container-remap-root . - be root inside the container (the Pyxis plugin)
container-save . = image that the container is saved to (the Pyxis plugin)
container-writable . - the container's files can be changed (the Pyxis plugin)
no-container-entrypoint . - do not run the image's own entry (the Pyxis plugin)
no-container-remap-root . - be oneself inside the container (the Pyxis plugin)
no-container-mount-home . - keep the home folder out of the container (the Pyxis plugin)
overlap . - may share CPUs with other steps
preserve-env E - keep the variables of the allocation
prolog . = program to run first
pty . ? in a terminal
quit-on-interrupt . - end at the first Ctrl-C
relative r = begin at this node of the allocation
resv-ports . ? reserve ports
send-libs . ? send libraries too
slurmd-debug . = what slurmd logs
task-epilog . = program to run after each task
task-prolog . = program to run before each task
threads T = threads that srun uses to start tasks
unbuffered u - print at once
wait W = seconds after the first task ended until the others are killed
x11 . ? forward X11
"""


@dataclass(frozen=True)
class Option:
    """One option of sbatch or srun."""

    name: str
    short: str | None
    takes: str
    """`=` a value, `?` perhaps one, `-` none."""
    meaning: str


def _table(*texts: str) -> dict[str, Option]:
    rows = [line.split(" ", 3) for text in texts for line in text.strip().splitlines()]
    return {name: Option(name, None if short == "." else short, takes, say) for name, short, takes, say in rows}


SBATCH = _table(_BOTH, _SBATCH_ONLY)
SRUN = _table(_BOTH, _SRUN_ONLY)
