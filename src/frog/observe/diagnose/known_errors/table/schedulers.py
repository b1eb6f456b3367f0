"""Known errors of Slurm, Kubernetes, containers and the shell of a job."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.table.known import KnownError, Level

ERRORS = (
    KnownError(
        "slurm-time-limit",
        ("DUE TO TIME LIMIT",),
        "The job reached its time limit.",
        "request more time, or a signal before the end (--signal=B:USR1@60) with a checkpoint, --requeue and a program "
        "that resumes",
        section=39,
    ),
    KnownError(
        "slurm-preempted",
        ("DUE TO PREEMPTION", "job was preempted", "Preempted by … on node"),
        "The scheduler took the job's nodes for a job of higher priority.",
        "submit with --requeue and let the program resume from its last checkpoint",
    ),
    KnownError(
        "slurm-node-failed",
        (
            "DUE TO NODE FAILURE",
            "DUE TO NODE_FAIL",
            "error: Node failure on",
            "lost due to node failure",
            "Node failure on node",
        ),
        "A node of the job failed.",
        "submit again, exclude the node if it repeats, and resume from the last checkpoint",
    ),
    KnownError(
        "slurm-account",
        ("Invalid account or account/partition combination",),
        "The account is not yours, not for that partition, missing, or a variable that Slurm does not expand.",
        "`sacctmgr show associations user=$USER` lists your accounts; write the name out",
        section=38,
    ),
    KnownError(
        "slurm-gres",
        ("Invalid generic resource (gres) specification", "Invalid GRES specification", "invalid gres"),
        "The cluster has no such GPUs under this name, or the partition has none.",
        "`sinfo -o '%P %G'` lists the names; request them as the site writes them, for example --gres=gpu:a100:4",
    ),
    KnownError(
        "slurm-partition",
        ("invalid partition specified", "Invalid partition name specified"),
        "The partition does not exist under this name.",
        "`sinfo -s` lists the partitions",
    ),
    KnownError(
        "slurm-configuration-unavailable",
        (
            "Requested node configuration is not available",
            "Requested partition configuration not available",
            "Node count specification invalid",
            "More processors requested than permitted",
            "Memory required by task is not available",
            "CPU count per node can not be satisfied",
            "Requested nodes are busy",
        ),
        "No node of the partition has what is requested together (GPUs, CPUs, memory), or the job's other steps use "
        "it.",
        "compare with `scontrol show node NODE`; an srun in a job shares the job's CPUs and memory (--exact, "
        "--cpus-per-task)",
    ),
    KnownError(
        "slurm-limit",
        (
            "QOSMax",
            "AssocMax",
            "AssocGrp",
            "violates accounting/QOS policy",
            "Requested time limit is invalid",
            "QOSGrp",
        ),
        "The request is above a limit of the account, the QOS or the partition.",
        "reduce time, nodes or number of jobs; `sacctmgr show assoc`, `sacctmgr show qos` and `scontrol show "
        "partition` list the limits",
    ),
    KnownError(
        "slurm-qos",
        ("Invalid qos specification",),
        "The quality of service (QOS) does not exist, or is not for your account or partition.",
        "`sacctmgr show associations user=$USER format=account,partition,qos` lists yours",
    ),
    KnownError(
        "slurm-conflicting-options",
        ("are mutually exclusive", "set by two different environment variables"),
        "Two options of the job contradict each other; srun also reads those of the surrounding job.",
        "unset one of the named variables, or request memory and CPUs in one way only",
        alone=Level.HINT,
    ),
    KnownError(
        "job-file-line-ends",
        (
            "Batch script contains DOS line breaks",
            "bad interpreter: …^M",
            "^M: bad interpreter",
            "$'\\r': command not found",
        ),
        "The script has the line ends of Windows.",
        r"sed -i 's/\r$//' FILE",
        section=38,
    ),
    KnownError(
        "slurm-pmi",
        ("OMPI was not built with SLURM's PMI support", "PMI2_Init failed"),
        "MPI and srun do not agree on how ranks find each other (PMI).",
        "start with mpirun in the allocation, or with the site's `srun --mpi=…` (`srun --mpi=list`)",
    ),
    KnownError(
        "mpi-not-started",
        ("An error occurred in MPI_Init",),
        "MPI could not start in this process: it was not started by mpirun or srun, or the two do not fit.",
        "start it with the mpirun or `srun --mpi=…` that fits the MPI library, or switch off what needs MPI",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "slurm-working-folder",
        ("error: couldn't chdir to",),
        "The job's working folder does not exist on this node, so Slurm started the job in /tmp: relative paths lead "
        "elsewhere.",
        "submit from a folder on a shared disk, or name one with --chdir",
        level=Level.HINT,
    ),
    KnownError(
        "mpi-slots",
        ("There are not enough slots available in the system",),
        "mpirun has fewer slots than the number of processes.",
        "request more tasks from the scheduler, or pass a hostfile or --oversubscribe",
    ),
    KnownError(
        "kubernetes-no-gpu",
        ("Insufficient nvidia.com/gpu", "Insufficient amd.com/gpu"),
        "No node has enough free GPUs, or the device plugin does not run.",
        "look for nvidia.com/gpu under Allocatable in `kubectl describe node`; if it is 0 or missing on a node with "
        "GPUs, read the plugin's log",
        section=40,
        yields=True,
    ),
    KnownError(
        "kubernetes-no-room",
        (
            "Insufficient cpu",
            "Insufficient memory",
            "Insufficient ephemeral-storage",
            "had untolerated taint",
            "didn't match Pod's node affinity",
            "didn't match node selector",
            "exceeded quota:",
            "unbound immediate",
            "No available node types can fulfill resource request",
        ),
        "The pod or worker gets no node: too large a request, a taint, a selector, a volume, or a quota.",
        "`kubectl describe pod POD` counts the nodes by what they lack; for a quota, `kubectl describe quota`",
        yields=True,
    ),
    KnownError(
        "kubernetes-evicted",
        (
            "The node was low on resource: ephemeral-storage",
            "pod was evicted",
            "Pod ephemeral local storage usage exceeds",
            "condition: [DiskPressure",
            "NodeHasDiskPressure",
            "reason:…evicted",
            " Evicted   ",
        ),
        "The kubelet removed the pod because its node ran low on disk or memory, or the pod used more local storage "
        "than its limit.",
        "write to a volume, not to the container's own disk; set requests and limits for memory and ephemeral-storage",
    ),
    KnownError(
        "kubernetes-image",
        ("ImagePullBackOff", "ErrImagePull", "Failed to pull image", "manifest unknown", "pull access denied"),
        "The image does not exist under this name, or the node cannot or may not pull it.",
        "check the name and tag, and the imagePullSecrets",
        yields=True,
    ),
    KnownError(
        "kubernetes-volume",
        ("Unable to attach or mount volumes", "MountVolume.SetUp failed", "FailedMount", "FailedAttachVolume"),
        "A volume of the pod cannot be mounted, for example because it does not exist or another node uses it.",
        "`kubectl describe pod POD` and `kubectl get pvc`; several nodes that write need ReadWriteMany",
        yields=True,
    ),
    KnownError(
        "container-no-gpu-runtime",
        ("could not select device driver", "nvidia-container-cli: ", "unknown or invalid runtime name: nvidia"),
        "The container runtime cannot pass GPUs: the NVIDIA container toolkit is missing, or it or the image does not "
        "fit the driver.",
        "install and configure nvidia-container-toolkit, then restart the runtime",
    ),
    KnownError(
        "script-not-found",
        ("can't open file",),
        "Python does not find the program's file: the path is relative to another folder, or not on this node.",
        "use an absolute path, or change to the program's folder in the job file",
    ),
    KnownError(
        "program-not-executable",
        (
            "sh: … Permission denied",
            "slurm_script: line … Permission denied",
            "execve(): … Permission denied",
            "exec … failed: permission denied",
        ),
        "The job's shell may not run this file.",
        "make it executable (chmod +x FILE), or start it with its interpreter; check that its disk allows programs",
    ),
    KnownError(
        "program-not-found",
        (
            "command not found",
            "sh: …: …: not found",
            "execve(): … No such file or directory",
            "slurm_script: line … No such file or directory",
            "sh: line … No such file or directory",
            "couldn't exec … No such file",
            "executable file not found in $PATH",
            "No module named torch.distributed",
            "CondaError: Run 'conda init'",
            "launcher 'pdsh' not installed",
            "Couldn't find executable",
        ),
        "The job's shell does not find a program or script: it is not installed, its environment is not active there, "
        "or the path is relative to another folder.",
        "activate the environment in the job file itself (module load, source …/activate), and use absolute paths",
        alone=Level.HINT,
    ),
    KnownError(
        "slurm-credentials",
        (
            "Protocol authentication error",
            "Munge decode failed",
            "Job credential revoked",
            "Job credential expired",
            "Munge encode failed",
            "If munged is up, restart with",
            "Zero Bytes were transmitted or received",
            "Invalid job credential",
        ),
        "Slurm's daemons do not trust each other: munge, clocks, or a node that lost its job.",
        "report the node to the site",
        sure=False,
    ),
    KnownError(
        "node-missing",
        (
            "Unable to contact slurm controller",
            "Unable to confirm allocation for job",
            "Socket timed out on send/recv",
            "Communication connection failure",
        ),
        "Slurm's controller or a node did not answer, or SLURM_JOB_ID is of a job that has ended.",
        "check SLURM_JOB_ID; submit again later; report it to the site if it repeats",
        level=Level.SYMPTOM,
        sure=False,
    ),
)
