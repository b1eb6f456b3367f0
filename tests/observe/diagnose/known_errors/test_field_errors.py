"""Errors that the field often asks about lead to their entries, and what merely looks like them does not.

The lines have the form of the programs that print them; names, numbers and paths are invented.
"""

from __future__ import annotations

import pytest

from frog.observe.diagnose.known_errors.explain import Explanation, explain_log
from frog.observe.diagnose.known_errors.log_answer import log_text
from frog.observe.diagnose.known_errors.table.known import Level


def explain(text: str) -> Explanation:
    return explain_log(text.splitlines(keepends=True))


def answer(text: str) -> str | None:
    cause = explain(text).cause
    return cause.id if cause else None


def raised(last: str, *frames: tuple[str, str, str]) -> str:
    """Return a traceback: frames of file, function and source line, and its last line."""
    lines = "".join(f'  File "{file}", line 7, in {function}\n    {code}\n' for file, function, code in frames)
    return f"Traceback (most recent call last):\n{lines}{last}\n"


LIB = "/opt/env/lib/python3.11/site-packages"
MAIN = ("/home/ada/train.py", "main", "run()")
CACHE = (f"{LIB}/triton/runtime/cache.py", "put", "os.replace(temp_path, filepath)")
LOAD = (f"{LIB}/torch/serialization.py", "_cuda_deserialize", "return obj.cuda(device)")
KINDS = {
    "triton's cache, by its frames": (raised("json.decoder.JSONDecodeError: Expecting value", MAIN, CACHE),
        "compile-cache-damaged"),
    "triton's cache, by its path": (raised("FileNotFoundError: [Errno 2] No such file or directory: "
        "'/home/ada/.triton/cache/AB12/k.json.tmp.pid_7' -> '/home/ada/.triton/cache/AB12/k.json'", MAIN),
        "compile-cache-on-shared-disk"),
    "inductor's cache": (raised("torch._inductor.exc.InductorError: OSError: [Errno 116] Stale file handle: "
        "'/nfs/ada/triton/0/x.so'", MAIN), "compile-cache-on-shared-disk"),
    "a compiler that is missing": (raised("FileNotFoundError: [Errno 2] No such file or directory: 'gcc'", MAIN,
        (f"{LIB}/triton/runtime/build.py", "_build", "subprocess.check_call(cc)")), "file-not-found"),
    "pyxis": ("slurmstepd: error: pyxis: container start failed with error code: 1\n"
        "slurmstepd: error: pyxis: printing enroot log file:\nsrun: error: n7: task 3: Exited with exit code 1\n",
        "pyxis-container"),
    "pmix": ("It looks like pmix_init failed for some reason; your parallel process is\nlikely to abort.\n",
        "slurm-pmix"),
    "launch failed": ("srun: error: Task launch for StepId=96.0 failed on node n2: No such process\n"
        "srun: error: Application launch failed: No such process\nsrun: Job step aborted\n", "slurm-launch-failed"),
    "no_sync of ZeRO": (raised("AssertionError: no_sync context manager is incompatible with gradient partitioning "
        "logic of ZeRO stage 3", MAIN), "deepspeed-no-sync"),
    "out of memory at resume": (raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 "
        "has a total capacity of 79.15 GiB", MAIN, LOAD), "gpu-memory-full-while-loading"),
    "out of memory in a step": (raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 "
        "has a total capacity of 79.15 GiB", MAIN), "gpu-out-of-memory"),
    "extra state": (raised('RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: '
        '"layers.0.qkv._extra_state", "layers.1.qkv._extra_state".', MAIN), "checkpoint-extra-state"),
    "missing weights": (raised('RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: '
        '"module.a.weight".', MAIN), "checkpoint-missing-keys"),
    "an AMD fault": ("Memory access fault by GPU node-2 (Agent handle: 0x1) on address 0x7f00. Reason: Page not "
        "present or supervisor privilege.\nAborted (core dumped)\n", "amd-gpu-fault"),
    "HSA": (raised("RuntimeError: HIP error: HSA_STATUS_ERROR_EXCEPTION", MAIN), "amd-gpu-fault"),
    "EFA": ("n1:70:71 [7] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data\n",
        "efa-libfabric"),
    "HCCL": ("[rank1]: EI0006: [PID: 12] 2025-04-08 Getting socket times out. Reason: Remote Rank did not send the "
        "data in time.\n", "ascend-communication"),
    "CANN": (raised("RuntimeError: The Inner error is as above. EZ9999: Inner Error!", MAIN), "ascend-runtime"),
    "a TPU in use": (raised("RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by "
        "process with pid 7.", MAIN), "tpu-in-use"),
    "SIGFPE": ("E1125 10:54:43.191000 7 torch/distributed/elastic/multiprocessing/api.py:9] failed (exitcode: -8) "
        "local_rank: 1\n", "floating-point-exception"),
    "SIGFPE of UCX": ("[n1:176055:0:176055] Caught signal 8 (Floating point exception: integer divide by zero)\n",
        "floating-point-exception"),
    "admission": ('Error from server (Forbidden): admission webhook "v.kueue.x-k8s.io" denied the request: spec.x\n',
        "kubernetes-admission"),
    "Kueue": ("  Warning  Pending  kueue-admission  couldn't assign flavors to pod set main: insufficient unused quota "
        "for nvidia.com/gpu in flavor a100, 4 more needed\n", "kueue-suspended"),
    "cuMem": ("n1:774:854 [0] transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between "
        "these two devices'\n", "nccl-cumem"),
    "peer access": (raised("RuntimeError: CUDA error: peer access is not supported between these two devices", MAIN),
        "peer-access"),
    "the fabric manager": ("systemd[1]: nvidia-fabricmanager.service failed because the control process exited\n",
        "fabric-manager"),
    "busybox": ("Server: 10.96.0.10\n** server can't find job-master-0.ml.svc.cluster.local: NXDOMAIN\n"
        "*** Can't find job-master-0: No answer\n", "busybox-resolver"),
    "gloo on the loopback": (raised("RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] "
        "timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:14215", MAIN), "gloo-on-loopback"),
    "gloo elsewhere": (raised("RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] "
        "timed out connecting: SO_ERROR: Connection refused, remote=[10.0.0.7]:14215", MAIN), "master-unreachable"),
    "a file named random.py": (raised("AttributeError: module 'random' has no attribute 'seed' (consider renaming "
        "'/home/ada/random.py' since it has the same name as the standard library module named 'random' and prevents "
        "importing that standard library module)", MAIN), "user-file-shadows-module"),
    "torch imported twice": (raised("RuntimeError: Only a single TORCH_LIBRARY can be used to register the namespace "
        "prims", MAIN), "user-file-shadows-module"),
    "a program inside torch's folder": (raised("ImportError: cannot import name 'Random' from 'random' "
        f"({LIB}/torch/random.py)", (f"{LIB}/torch/__init__.py", "<module>", "import random"),
        (f"{LIB}/torch/random.py", "<module>", "import torch")), "user-file-shadows-standard-module"),
    "quota of the cache of kernels": (raised("OSError: [Errno 122] Disk quota exceeded", MAIN, CACHE),
        "cache-disk-full"),
    "state of SGD": (raised("RuntimeError: invalid argument 3: sizes do not match at TensorMath.cu:27", MAIN,
        (f"{LIB}/torch/optim/sgd.py", "step", "buf.mul_(momentum).add_(1 - dampening, d_p)")),
        "optimizer-state-differs"),
    "state of Adam": (raised("RuntimeError: Expected all tensors to be on the same device, but found two", MAIN,
        (f"{LIB}/torch/optim/adam.py", "_single_tensor_adam", "exp_avg.lerp_(grad, 1 - beta1)")),
        "optimizer-state-differs"),
    "closure in an optimizer's step": (raised("RuntimeError: Expected all tensors to be on the same device",
        (f"{LIB}/torch/optim/adam.py", "step", "loss = closure()"), MAIN), "different-devices"),
    "file of SentencePiece": (raised("RuntimeError: Internal: src/sentencepiece_processor.cc(9) [model_proto->"
        "ParseFromArray(serialized.data(), serialized.size())]", MAIN), "tokenizer-file-damaged"),
    "file of tiktoken": (raised("ValueError: not enough values to unpack (expected 2, got 1)", MAIN,
        (f"{LIB}/tiktoken/load.py", "load_tiktoken_bpe", "token, rank = line.split()")),
        "tokenizer-file-of-another-kind"),
    "a launcher's ssh": (raised("subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no n2 hostname' "
        "returned non-zero exit status 255.", (f"{LIB}/deepspeed/launcher/runner.py", "main", "check_call(ssh)")),
        "ssh-failed"),
    "CUDA's word in a check of glog": ("F0925 14:07:56.489186 14091 math_functions.cu:79] Check failed: error == "
        "cudaSuccess (74 vs. 0)  misaligned address\n*** Check failure stack trace: ***\n", "illegal-memory-access"),
    "an older NCCL's connection": ("n1:90:91 [0] include/socket.h:403 NCCL WARN Connect to fe80::c4eb%6<57> failed : "
        "Network is unreachable\n", "nccl-cannot-connect"),
    "CUDA's number for out of memory": (raised("RuntimeError: src/indice_cuda.cu 124\ncuda execution failed with error "
        "2", MAIN), "gpu-out-of-memory"),
    "quotation marks of a forum": ("y Traceback (most recent call last): File \u201cnode.py\u201d, line 5, in run "
        "ModuleNotFoundError: No module named \u2018dgl\u2019 Called process error\n", "module-not-found"),
    "conda in the shell of a job": ("CommandNotFoundError: Your shell has not been properly configured to use 'conda "
        "activate'.\nTo initialize your shell, run\n", "program-not-found"),
    "a loss scale that cannot sink": ("[INFO] [stage2.py:1357:step] OVERFLOW! Rank 0 Skipping step. Attempted "
        "loss scale: 0.0, reducing to 0.0\n", "loss-scale-vanished"),
    "a task of TensorFlow": ("2026-05-25 11:10:57.934361: E tensorflow/core/base.cc:249] StartAbort DEADLINE_EXCEEDED\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:0:\n"
        "2026-05-25 11:10:57.934547: F tensorflow/core/grpc_server_lib.cc:103] Non-OK-status: Stop()\n",
        "tensorflow-task-lost"),
    "EFA's plugin without an adapter": ("n1:22:572 [1] nccl_net_ofi_create_plugin:257 NCCL WARN NET/OFI aws-ofi-nccl "
        "initialization failed\nn1:22:572 [1] NCCL INFO Using network Socket\n", "efa-not-used"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_error_of_the_field_leads_to_its_entry(kind: str) -> None:
    text, id = KINDS[kind]
    assert answer(text) == id


def test_gloo_on_the_loopback_begins_with_its_interface() -> None:
    found = explain(KINDS["gloo on the loopback"][0])
    assert found.cause is not None
    assert found.cause.known is not None
    assert found.cause.known.advice.startswith("set GLOO_SOCKET_IFNAME")


# ---- one message with several causes: what stands around it decides --------------------------------------------------

FULL = "OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("text", "id"),
    [
        (raised(f"{FULL}: '/dev/shm/psm_1a2b'", MAIN), "shared-memory-too-small"),
        (raised(FULL, MAIN, ("/usr/lib/python3.11/multiprocessing/heap.py", "__init__", "os.ftruncate(fd, size)")),
         "shared-memory-full-in-python"),
        (raised(FULL, MAIN, ("/home/ada/ring.py", "make", "os.posix_fallocate(fd, 0, size)")),
         "shared-memory-full-in-python"),
        ("n1:7:8 [0] misc/shmutils.cc:72 NCCL WARN Call to posix_fallocate failed : No space left on device\n",
         "shared-memory-too-small"),
        (raised(f"{FULL}: '/scratch/ada/step_9.pt'", MAIN), "disk-full"),
        (raised(FULL, MAIN), "disk-full"),
    ],
)  # fmt: skip
def test_full_shared_memory_is_not_called_a_full_disk(text: str, id: str) -> None:
    assert answer(text) == id


IN_USE = "RuntimeError: The server socket has failed to listen on any local network address. EADDRINUSE, port: 29500\n"
MEMBER = "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/{}\n"


@pytest.mark.parametrize(
    ("text", "id"),
    [
        (MEMBER.format(4) * 2 + IN_USE, "every-process-is-rank-0"),
        (MEMBER.format(1) * 4 + IN_USE, "every-process-is-rank-0"),
        ("| distributed init (rank 0): env://\n" * 2 + IN_USE, "every-process-is-rank-0"),
        (MEMBER.format(4) + IN_USE, "port-in-use"),
        (MEMBER.format(4) * 2, None),
    ],
)
def test_processes_that_all_start_as_rank_0_are_not_a_second_job(text: str, id: str | None) -> None:
    assert answer(text) == id


@pytest.mark.parametrize(
    ("code", "id"),
    [("os.makedirs(out, exist_ok=True)", "path-is-not-a-folder"), ("os.makedirs(out)", "folder-created-twice")],
)
def test_broken_link_is_not_called_a_folder_that_was_created_twice(code: str, id: str) -> None:
    text = raised("FileExistsError: [Errno 17] File exists: 'out'", ("train.py", "main", code))
    assert answer(text) == id
    assert id != "path-is-not-a-folder" or "broken symbolic link" in log_text("log", explain(text)).replace("\n", " ")


def test_traceback_of_a_worker_at_the_top_is_the_answer_though_its_words_are_a_launchers() -> None:
    worker = raised("RuntimeError: converter exited with status 3", ("/home/ada/data.py", "convert", "run(tool)"))
    summary = raised("torch.multiprocessing.spawn.ProcessRaisedException: gone", (f"{LIB}/torch/x.py", "join", "raise"))
    found = explain(worker + summary + "Sending process 7 closing signal SIGTERM\n")
    assert found.cause is not None
    assert (found.cause.exception, str(found.cause.frame)) == ("RuntimeError", "/home/ada/data.py:7 in convert")


def test_first_traceback_is_shown_if_all_of_them_follow_from_another_failure() -> None:
    lost = raised("ConnectionResetError: [Errno 104] Connection reset by peer", ("/home/ada/data.py", "fetch", "get()"))
    found = explain(lost + "Sending process 7 closing signal SIGTERM\n")
    assert found.cause is None
    assert "/home/ada/data.py:7 in fetch" in log_text("log", found)


def test_traceback_of_a_spawned_process_that_is_cut_is_not_answered_by_its_launchers() -> None:
    outer = raised("Exception: ", (f"{LIB}/torch/multiprocessing/spawn.py", "join", "raise Exception(msg)"))
    inner = "\n-- Process 0 terminated with the following error:\n" + raised("", MAIN).rstrip("\n")
    found = explain(outer + inner)
    assert found.cause is None
    assert found.cut


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("Now I get this error - ImportError: flash.so: undefined symbol: _ZN3c105Error\n", "library-conflict"),
        ("I read about undefined symbol and such things\n", None),
    ],
)
def test_exception_that_a_description_quotes_is_answered_but_not_certain(text: str, id: str | None) -> None:
    assert answer(text) == id
    assert not explain(text).certain


UNRESOLVED = "[W803 10:00:0{}.1 socket.cpp:752] [c10d] The IPv6 network addresses of (n{}, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n"  # noqa: E501
STOPPED = "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-08-03T10:20:00 ***\n"
OOM_AFTER = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=17.batch. Some of the step tasks have been OOM Killed.\n"
)


def test_job_that_was_stopped_by_hand_after_many_unresolved_names_is_not_out_of_memory() -> None:
    names = "".join(UNRESOLVED.format(number % 10, number) for number in range(48))
    assert answer(names + STOPPED + OOM_AFTER) == "host-name-unknown"
    assert answer(UNRESOLVED.format(1, 1) + STOPPED) == "cancelled"
    assert answer(STOPPED + OOM_AFTER) == "cancelled"
    assert answer(OOM_AFTER + STOPPED) == "host-out-of-memory"


def test_state_of_transformer_engine_does_not_get_the_advice_not_to_disable_strict() -> None:
    text = log_text("log", explain(KINDS["extra state"][0]))
    assert "do not disable strict" not in text
    assert "strict=False is right if only" in text


@pytest.mark.parametrize(
    "line",
    [
        "INFO loading layers.0.qkv._extra_state of 96 layers",
        "n1:7:8 [0] NCCL INFO NET/OFI Selected provider is efa",
        "env: TRITON_CACHE_DIR=/tmp/ada/triton HCCL_CONNECT_TIMEOUT is not set here",
    ],
)
def test_harmless_line_is_not_a_cause(line: str) -> None:
    found = explain(line + "\n")
    assert found.cause is None or found.cause.level is not Level.CAUSE


@pytest.mark.parametrize("path", ["/home/ada/embed.py", "/home/ada/core/nn/__init__.py"])
def test_circular_import_names_all_its_usual_causes(path: str) -> None:
    text = f"ImportError: cannot import name '_C' from partially initialized module 'x' (most likely due to y) ({path})"
    found = explain(text + "\n")
    assert (found.cause and found.cause.id, found.certain) == ("circular-import", False)


# ---- the form of a line, whatever its words --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)", "killed"),
        ("=   KILLED BY SIGNAL: 11 (Segmentation fault)", "segmentation-fault"),
        ("*** SIGSEGV (@0x19) received by PID 11091 (TID 0x7f813c844700) from PID 25; stack trace: ***",
         "segmentation-fault"),
        ("  [SignalInfo: *** SIGBUS (@0x7f) received by PID 7 ***]", "bus-error"),
        ("[n1:123] Signal: Bus error (7)", "bus-error"),
        ("worker 3 finished, exit_code=0, exitcode = 136", "floating-point-exception"),
        ("rank 3 exited with code 132", "illegal-instruction"),
        ("process 0 terminated with exit code 3221226505", "segmentation-fault"),
        ("process 0 terminated with exit code -1073741819", "segmentation-fault"),
        ("Sending signal 9 (SIGKILL) to process 123", None),
        ("downloaded 9 of 11 files, exit status 0", None),
        ("signal 9 of 12 was sampled", None),
    ],
)  # fmt: skip
def test_end_by_a_signal_is_read_in_any_words(line: str, id: str | None) -> None:
    assert answer(line + "\n") == id


@pytest.mark.parametrize(
    "line",
    [
        "F1130 10:00:00.123456 77 engine.cc:33] Check failed: sizes.size() == 4 (3 vs. 4)",
        "[2026-11-30 10:00:00,123 C 77 91] (raylet) node_manager.cc:33:  Check failed: sizes.size() == 4",
        "2026-11-30 10:00:00.123456: F tensorflow/core/engine.cc:33] Check failed: sizes.size() == 4",
    ],
)
def test_record_of_the_level_fatal_names_the_line_at_which_a_process_aborted_itself(line: str) -> None:
    found = explain(f"step 3\n{line}\n")
    assert found.cause is not None
    assert (found.cause.text[:12], found.cause.frame and found.cause.frame.line) == ("Check failed", 33)
    assert not found.certain, "what it checks may have been broken by another process"
    assert "aborted its process at this line" in log_text("log", found)


@pytest.mark.parametrize("end", ["signal: Killed. ", "signal:killed"])
def test_worker_that_was_killed_is_no_proof_of_full_memory(end: str) -> None:
    found = explain(raised(f"RuntimeError: DataLoader worker (pid 7) is killed by {end}", MAIN))
    assert (found.cause and found.cause.id, found.certain) == ("loader-worker-killed", False)


def test_tool_that_a_program_calls_is_no_process_of_the_job() -> None:
    call = (f"{LIB}/tool.py", "ask", "subprocess.check_output(command)")
    failed = "subprocess.CalledProcessError: Command '{}' returned non-zero exit status 6."
    assert explain(raised(failed.format("['nvidia-smi']"), MAIN, call)).certain
    assert explain(raised(failed.format("['python', 'a.py']"), MAIN, call)).cause is None


def test_connection_that_broke_after_a_process_died_is_not_the_cause() -> None:
    died = "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
    broke = "n1:7:8 [0] NCCL WARN NET/IB: Got completion from peer 10.0.0.2 with status=12 opcode=0\n"
    assert answer(died + broke) == "ray-worker-died"
    assert answer(broke + died) == "infiniband-failed"


@pytest.mark.parametrize(
    "line",
    [
        "ERROR 2026-11-30 10:00:00,649 launch_utils.py:545] ABORT!!! Out of all 4 trainers, the trainer process with "
        "rank=[1, 2] was aborted. Please check its log.",
        "LAUNCH ERROR 2026-11-30 10:00:54,385 Container failed !!!",
        "[2026-11-30 10:00:11,062][__main__][ERROR] - Error executing job with overrides: ['lr=1']",
        "FatalError: A serious error (Termination signal) is detected. [SignalInfo: *** SIGTERM (@0x9) received by 7]",
    ],
)
def test_launchers_last_word_says_that_the_job_failed_and_no_more(line: str) -> None:
    found = explain(f"step 3\n{line}\n")
    assert found.cause is None
    assert found.consequences


def test_traceback_whose_repr_is_printed_in_one_line_is_read() -> None:
    said = raised("ValueError: unknown system", ("/home/ada/env.py", "<module>", "main()"))
    found = explain(f"({f'failed: {said}'!r}, 1)\n")
    assert found.cause is not None
    assert (found.cause.exception, str(found.cause.frame)) == ("ValueError", "/home/ada/env.py:7 in <module>")


def test_exception_that_a_worker_passed_on_is_the_one_in_the_worker() -> None:
    wrapped = raised("ValueError: Caught ValueError in DataLoader worker process 0.", MAIN)
    found = explain(wrapped + "\nValueError: not enough values to unpack (expected 3, got 0)\n")
    assert (found.cause and found.cause.text) == "ValueError: not enough values to unpack (expected 3, got 0)"
    other = explain(wrapped + "\nKeyError: 'image'\n")
    assert other.cause is not None
    assert other.cause.text.startswith("ValueError: Caught"), "another class does not belong to it"
