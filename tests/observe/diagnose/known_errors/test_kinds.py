"""What an error means that no known error matches: by its kind, by the source line, by what the program did.

The messages have the form of the libraries that write them; names, numbers and paths are invented.
"""

from __future__ import annotations

import re
import string
import time
from pathlib import Path

import pytest

from frog.observe.diagnose.find import diagnose_paths
from frog.observe.diagnose.known_errors.explain import Explanation, explain_log
from frog.observe.diagnose.known_errors.kinds import kinds, meaning_of
from frog.observe.diagnose.known_errors.log_answer import log_answer, log_text
from frog.observe.diagnose.known_errors.table import known_errors
from frog.observe.diagnose.known_errors.table.known import Level

LIB = "/opt/env/lib/python3.12/site-packages"
BEGIN = "Traceback (most recent call last):\n"


def frame(file: str, function: str, code: str = "", line: int = 7) -> str:
    return f'  File "{file}", line {line}, in {function}\n' + (f"    {code}\n" if code else "")


def raised(exception: str, *frames: str) -> str:
    return BEGIN + "".join(frames or (frame("/home/me/train.py", "main", "step(batch)"),)) + f"{exception}\n"


def explain(text: str) -> Explanation:
    return explain_log(text.splitlines(keepends=True))


def kind_of(text: str) -> str | None:
    cause = explain(text).cause
    assert cause is not None
    return cause.meaning.id if cause.meaning else None


def test_each_kind_is_complete_and_its_sentences_can_be_filled_in() -> None:
    assert len({kind.id for kind in kinds()} | {error.id for error in known_errors().errors}) == (
        len(kinds()) + len(known_errors().errors)
    )
    assert {id for error in known_errors().errors for id in error.kinds} <= {kind.id for kind in kinds()}
    for kind in kinds():
        names = {name for text in (kind.says, kind.advice) for _, name, _, _ in string.Formatter().parse(text) if name}
        assert names <= {*re.compile(kind.text).groupindex, "message"}, kind.id
        assert kind.says.endswith("."), kind.id
        assert not kind.advice.endswith("."), kind.id
        assert re.compile(kind.code).groups == 0, kind.id
        assert kind.exceptions or kind.text, kind.id


def test_key_error_that_is_a_sentence_is_of_a_kind_of_messages_not_of_keys() -> None:
    """The form of public issues 87 of microsoft/SoftTeacher and 2 of LL3RD/ACFormer."""
    assert kind_of(raised("KeyError: 'OddSampler is not in the sampler registry'")) == "not-registered"
    assert kind_of(raised("KeyError: 'there is no such thing as this here'")) is None


@pytest.mark.parametrize(
    ("message", "kind", "says"),
    [
        ("No module named 'pondlib.runner'", "package-lacks-module", "`pondlib` was found, but has no `runner`"),
        ("No module named 'pondlib.ops._ext'", "module-not-compiled", "compiled part `_ext`"),
        ("No module named 'pondlib._C'", "module-not-compiled", "compiled part `_C`"),
        ("No module named 'pondlib.runner'; 'pondlib' is not a package", "file-instead-of-package", "pondlib.py"),
        ("No module named 'pondlib'", None, "not installed"),
    ],
)
def test_missing_module_says_whether_its_package_was_found(message: str, kind: str | None, says: str) -> None:
    """Python names the whole path only after it has found the package (the form of public issue 34 of SysCV/pcan)."""
    explanation = explain(raised(f"ModuleNotFoundError: {message}"))
    assert explanation.cause is not None
    assert explanation.cause.id == "module-not-found"
    assert (explanation.cause.meaning.id if explanation.cause.meaning else None) == kind
    assert says in log_answer("job.log", explanation).meaning


def test_store_on_the_same_node_leads_to_rank_0_not_to_the_network() -> None:
    """The form of public issue 415 of RangiLyu/nanodet."""
    text = "TimeoutError: The client socket has timed out after 900s while trying to connect to ({address}, 29512).\n"
    own = log_answer("job.log", explain(text.format(address="127.0.0.1")))
    other = log_answer("job.log", explain(text.format(address="10.0.0.7")))
    assert own.known_error == other.known_error == "master-unreachable"
    assert "same node (127.0.0.1)" in own.meaning
    assert "firewall" in other.meaning
    assert not own.certain
    assert not other.certain


def test_script_in_slurms_spool_folder_is_explained() -> None:
    """The form of public issue 2894 of open-mmlab/mmcv."""
    text = "python: can't open file '{}/go.py': [Errno 2] No such file or directory\n"
    assert "runs a copy of the job file" in log_text("job.log", explain(text.format("/var/spool/slurmd/job8")))
    assert "relative to another folder" in log_text("job.log", explain(text.format("/home/me")))


@pytest.mark.parametrize(
    ("exception", "code", "kind"),
    [
        ("KeyError: None", "state_dict_class = _classes[kind]", "key-is-none"),
        ("ValueError: max() arg is an empty sequence", "most = max(sizes(self.params_groups))", "nothing-to-optimize"),
        ("ValueError: max() arg is an empty sequence", "most = max(lengths)", "data-empty"),
        ("AssertionError", "assert len({t.dtype for t in ponds}) == 1", "types-in-the-condition"),
        ("AssertionError", "assert ponds.shape == lakes.shape", "sizes-in-the-condition"),
        ("AssertionError", "assert is_pond", "check-of-the-program"),
        ("ValueError: File data/pond.json not found.", "load(name)", "file-missing"),
        ("Exception: the dataset path /data/pond does not exist", "load(name)", "file-missing"),
        ("FailedJobError: sbatch: error: Job rejected: say how long it takes", "submit()", "job-refused"),
        ("OverflowError: (34, 'Numerical result out of range')", "total += norm**2", "number-too-large"),
        ("RuntimeError: Trying to create tensor with negative dimension -7: [-7]", "net(x)", "size-negative"),
        ("RuntimeError: expected there to be only one unique element in <x>", "net(x)", "values-differ-in-group"),
        (
            "RuntimeError: Gather got an input of invalid size: got [2, 2], but expected [2, 1]",
            "net(x)",
            "outputs-differ-in-size",
        ),
        ("InterpolationResolutionError: HydraConfig was not set", "run()", "hydra-not-in-this-process"),
    ],
)
def test_kind_follows_from_message_and_source_line(exception: str, code: str, kind: str) -> None:
    """The forms of public issues 26159 of huggingface/transformers, 2546 and 3634 of hiyouga/LlamaFactory."""
    assert kind_of(raised(exception, frame("/home/me/train.py", "main", code))) == kind


def test_exception_that_another_one_carries_says_what_is_wrong() -> None:
    """The form of public issue 31 of FoundationVision/Infinity: torch.compile puts it below its own."""
    carrier = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
    carried = explain(raised(f"{carrier}NameError: name 's4' is not defined"))
    assert carried.cause is not None
    assert carried.cause.exception == "BackendCompilerFailed"
    assert "s4" in carried.cause.text
    assert carried.cause.meaning is not None
    assert carried.cause.meaning.id == "name-not-defined"
    alone = explain(raised(f"{carrier}FrobError: of no kind"))
    assert alone.cause is not None
    assert alone.cause.meaning is not None
    assert alone.cause.meaning.id == "compilation-failed"


def test_traceback_in_the_message_of_an_exception_is_read() -> None:
    """The form of public issue 3534 of dmlc/dgl."""
    inner = raised("ValueError: the pond is empty", frame("/home/me/train.py", "run", "dig()"))
    cause = explain(raised("ValueError: " + inner.rstrip(), frame(f"{LIB}/pondlib/pool.py", "wrapped"))).cause
    assert cause is not None
    assert cause.text == "ValueError: the pond is empty"


def test_data_of_another_collective_is_no_damaged_checkpoint() -> None:
    """The form of public issue 2203 of facebookresearch/fairseq."""
    first = raised("_pickle.UnpicklingError: could not find MARK", frame("/home/me/comm.py", "all_gather_list"))
    text = f"{first}\nDuring handling of the above exception, another exception occurred:\n\n"
    explanation = explain(text + raised("Exception: the workers have fallen out of sync"))
    assert explanation.cause is not None
    assert explanation.cause.id == "ranks-out-of-step"
    assert not explanation.certain


def test_source_line_above_a_bare_exception_is_read() -> None:
    """The form of public issue 25 of lxe/simple-llm-finetuner."""
    text = "{}\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (5x2 and 3x4)\n"
    shared = explain(text.format("out += torch.matmul(subA, state.subB)")).cause
    other = explain(text.format("out = torch.matmul(pond, lake)")).cause
    assert shared is not None
    assert other is not None
    assert (shared.id, other.id) == ("int8-on-several-gpus", "matrix-shapes")


def test_exception_of_no_kind_of_a_named_rank_is_explained_by_who_raised_it(tmp_path: Path) -> None:
    lines = raised("FrobError: it is so", frame("/home/me/train.py", "main"), frame(f"{LIB}/pondlib/net.py", "forward"))
    file = tmp_path / "job.log"
    file.write_text("".join(f"[rank3]: {line}" for line in lines.splitlines(keepends=True)))
    diagnosis = diagnose_paths([str(file)]).diagnosis
    assert diagnosis.rank == 3
    assert diagnosis.meaning.startswith("pondlib does not accept")


def test_command_that_is_not_there_is_no_file_of_the_job() -> None:
    """The form of public issue 272 of metagenome-atlas/atlas."""
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'qsub -N dig'"
    started = explain(raised(missing, frame("/usr/lib/python3.12/subprocess.py", "_execute_child"))).cause
    opened = explain(raised(missing, frame("/home/me/train.py", "main"))).cause
    assert started is not None
    assert opened is not None
    assert started.id == opened.id == "file-not-found"
    assert started.meaning is not None
    assert "`qsub -N dig`" in started.meaning.says
    assert opened.meaning is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("__init__() got an unexpected keyword argument 'ponds'", "arguments-differ"),
        ("'Pond' object has no attribute 'lake'", "attribute-missing"),
        ("name 'pond' is not defined", "name-not-defined"),
    ],
)
def test_pythons_words_without_a_class_are_an_own_message(text: str, kind: str) -> None:
    """The form of public issue 1 of lcn-kul/madress-2023."""
    assert kind_of(f"{text}\n") == kind
    assert explain(f"the manual says that {text}\n").cause is None


def test_warnings_of_nccl_are_quoted_with_an_error_that_they_explain() -> None:
    """The form of public issue 266 of NVIDIA-NeMo/Run."""
    warning = "host:9:9 [0] graph/topo.h:230 NCCL WARN Could not find NET with id 0\n"
    error = "RuntimeError: NCCL error in: /src/NCCL.cpp:7, internal error, NCCL version 2.25.1\n"
    evidence = log_answer("job.log", explain(warning + error)).evidence
    assert "NCCL's warning, line 1: Could not find NET with id 0" in evidence
    other = log_answer("job.log", explain(warning + raised("KeyError: 'pond'"))).evidence
    assert not any("NCCL" in line for line in other)


def test_line_of_a_kind_answers_only_if_the_job_failed() -> None:
    line = "Operator failed: the lake's path /data/lake does not exist\n"
    failed = "E0801 13:23:20.000000 32974 torch/distributed/elastic/api.py:8] failed (exitcode: 1) local_rank: 1\n"
    assert kind_of(line + failed) == "file-missing"
    assert explain(line).cause is None


def test_index_of_a_gather_is_not_a_token() -> None:
    """The form of public issue 14 of xhw205/GPLinker_torch."""
    text = "/src/cuda/{}.cu:115: operator(): block: [0,0,0], thread: [1,0,0] Assertion `{}` failed.\n"
    gathered = explain(text.format("ScatterGatherKernel", "idx_dim >= 0 && idx_dim < index_size"))
    looked_up = explain(text.format("Indexing", "srcIndex < srcSelectDimSize"))
    assert "token" not in log_answer("job.log", gathered).meaning
    assert "token" in log_answer("job.log", looked_up).meaning


def test_optimizers_entry_that_a_checkpoint_lacks_is_not_a_weights() -> None:
    """The form of public issue 3971 of huggingface/accelerate."""
    text = "RuntimeError: Missing key in checkpoint state_dict: {}.\n"
    of_optimizer = log_answer("job.log", explain(text.format("optimizer.state.0.step")))
    of_model = log_answer("job.log", explain(text.format("model.pond.weight")))
    assert of_optimizer.known_error == of_model.known_error == "checkpoint-missing-keys"
    assert "`optimizer.state.0.step` of the optimizer" in of_optimizer.meaning
    assert "prefix" in of_model.meaning


def test_librarys_own_argparse_is_not_the_programs_command_line() -> None:
    """The form of public issue 19 of lavis-nlp/jerex: Lightning wraps its Trainer in a file of that name."""
    of_library = frame(f"{LIB}/pytorch_lightning/utilities/argparse.py", "insert_env_defaults")
    of_python = frame("/usr/lib/python3.12/argparse.py", "parse_args")
    for last, expected in ((of_library, ""), (of_python, "while the configuration or command line was read")):
        cause = explain(raised("TypeError: it is so", frame("/home/me/train.py", "main"), last)).cause
        assert cause is not None
        assert cause.stage == expected


def test_program_that_a_spawned_process_runs_again_is_told() -> None:
    """The form of public issue 805 of LibreYOLO/libreyolo."""
    again = frame("/usr/lib/python3.12/multiprocessing/spawn.py", "_fixup_main_from_path")
    cause = explain(raised("RuntimeError: it is so", again, frame("/home/me/train.py", "<module>", "train()"))).cause
    assert cause is not None
    assert "ran the program's file again" in cause.stage


def test_exception_below_a_cut_box_is_read() -> None:
    """The form of public issue 32 of yangjianxin1/Firefly."""
    box = "│   7 │   pond = read(file)        │\n╰──────────────────────────────╯\n"
    failed = "E0801 13:23:20.000000 32974 torch/distributed/elastic/api.py:8] failed (exitcode: 1) local_rank: 1\n"
    explanation = explain(f"{box}Exception: expected value at line 3 column 9\n{failed}")
    assert explanation.cause is not None
    assert explanation.cause.exception == "Exception"
    assert "JSON" in log_answer("job.log", explanation).meaning
    assert explain(f"Exception: made of words\n{failed}").cause is None


def test_exception_without_a_traceback_names_no_line_to_open() -> None:
    assert "named line" not in log_answer("job.log", explain("FrobError: it is so\n")).advice
    assert "named line" in log_answer("job.log", explain(raised("FrobError: it is so"))).advice


def test_library_that_calls_torch_is_named_if_no_line_of_the_program_is_there() -> None:
    """The form of public issues 4007 of fastai/fastai and 209 of lucidrains/imagen-pytorch."""
    inner = frame("torch/nn/modules/module.py", "__getattr__")
    torch_inside = frame(f"{LIB}/torch/_tensor.py", "__torch_function__")
    for user, last in ((f"{LIB}/pondlib/norm.py", torch_inside), ("pondlib/norm.py", inner)):
        cause = explain(raised("RuntimeError: it is so", frame(user, "encodes"), last)).cause
        assert cause is not None
        assert cause.frame is not None
        assert cause.frame.file == user


def test_rank_with_a_symptom_is_not_the_cause_for_certain(tmp_path: Path) -> None:
    """The form of public issue 114 of Tencent-Hunyuan/HunyuanVideo: the launcher names another rank."""
    lines = raised("RuntimeError: NCCL Error 2: unhandled system error").splitlines(keepends=True)
    log = "".join(f"[rank0]: {line}" for line in lines)
    log += "E0801 13:23:20.000000 32974 torch/distributed/elastic/api.py:8] failed (exitcode: 1) local_rank: 1\n"
    file = tmp_path / "job.log"
    file.write_text(log)
    diagnosis = diagnose_paths([str(file)]).diagnosis
    assert not diagnosis.certain
    assert "it is a symptom" in diagnosis.confidence
    assert any("local rank 1" in line for line in diagnosis.evidence)


@pytest.mark.parametrize(
    ("exception", "kind", "says"),
    [
        ("AttributeError: 'DataParallel' object has no attribute 'encode'", "wrapped-model", "encode"),
        ("AttributeError: 'GPT' object has no attribute 'module'", "not-a-wrapped-model", "GPT"),
        ("AttributeError: 'NoneType' object has no attribute 'shape'", "value-is-none", "None"),
        ("AttributeError: 'TrainConfig' object has no attribute 'warmup'", "setting-missing", "warmup"),
        ("AttributeError: module 'torch.nn' has no attribute 'Frob'", "module-lacks-name", "Frob"),
        ("omegaconf.errors.ConfigAttributeError: Key 'x' is not in struct", "override-of-unknown-key", "x"),
        ("ValueError: operands could not be broadcast together with shapes (4,) (8,)", "tensor-shapes", ""),
        ("TypeError: Net.forward() takes 2 positional arguments but 3 were given", "arguments-differ", ""),
        ("TypeError: 'Net' object is not iterable", "not-a-sequence", "Net"),
        ("AssertionError: batch size 6 must be divisible by 4", "not-divisible", ""),
        ("IndexError: index 90 is out of bounds for dimension 0 with size 80", "index-outside", "80"),
        (
            "ValueError: The truth value of an array with more than one element is ambiguous",
            "array-as-condition",
            "array",
        ),
        ("AssertionError", "check-of-the-program", ""),
        ("RecursionError: maximum recursion depth exceeded", "recursion", ""),
        ("ValueError: Expected input batch_size (8) to match target batch_size (4).", "tensor-shapes", ""),
        ("ValueError: batch_size should be a positive integer value, but got batch_size=0", None, ""),
        ("TypeError: load() got multiple values for argument 'batch_size'", "arguments-differ", ""),
        ("RuntimeError: broadcast_object_list failed", None, ""),
        ("RuntimeError: Error loading checkpoint", None, ""),
        ("hydra.errors.InstantiationException: Error locating target 'app.Net'", "hydra-target", "app.Net"),
        ("hydra.errors.InstantiationException: Error in call to target 'app.Net':", "hydra-target", "app.Net"),
        ("TypeError: Error instantiating 'app.Net' : __init__() missing 2 required positional arguments: 'a' and 'b'",
         "hydra-arguments", "app.Net"),
        ("RuntimeError: the extension needs CUDA CAPABILITY 8.0", None, ""),
        ("AssertionError: Frobformer requires CUDA.", "gpu-not-visible", ""),
        ("NotImplementedError: Cuda is not available", "gpu-not-visible", ""),
        ("RuntimeError: FrobTransfer_Read not available in this library.", "library-in-two-versions", ""),
        ("RuntimeError: the extension was made for another ABI", "library-in-two-versions", ""),
        ("NotImplementedError", "not-written", ""),
        ("pl.MisconfigurationException: Trainer(gpus=-3) is no valid number", "configuration-invalid", ""),
        ("pl.MisconfigurationException: ModelCheckpoint(monitor='val_frob') not found in the metrics: ['a']",
         "metric-not-logged", "was not logged"),
        ("TypeError: Net.step() got an unexpected keyword argument 'frob'", "arguments-differ", ""),
        ("TypeError: step() missing 1 required positional argument: 'frob'", "arguments-differ", ""),
        ("ValueError: num_samples should be a positive integer value, but got num_samples=0", "data-empty", ""),
        ("RuntimeError: Found 0 images in subfolders of: /data/frobs", "data-empty", ""),
        ("RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float", "tensor-types", ""),
        ("RuntimeError: Input type (float) and bias type (c10::Half) should be the same", "tensor-types", ""),
        ("RuntimeError: FlashAttention only support fp16 and bf16 data type", "tensor-types", ""),
        ("RuntimeError: \"frob_cpu\" not implemented for 'Half'", "operation-without-type", "Half"),
        ("RuntimeError: value cannot be converted to type at::Half without overflow", "operation-without-type", "Half"),
        ("RuntimeError: The size of tensor a (9) must match the size of tensor b (7) at non-singleton dimension 1",
         "tensor-shapes", ""),
        ("RuntimeError: The size of tensor a (92274688) must match the size of tensor b (4096) at dimension 1",
         "shard-next-to-whole", "92274688"),
        ("RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0 and [4] at entry 1",
         "samples-differ-in-size", ""),
        ("futures.BrokenProcessPool: A process in the process pool was terminated abruptly", "killed-process-pool", ""),
        ("AssertionError: world size (6) is not divisible by tensor x pipeline (4)", "layout-not-divisible", ""),
        ("RuntimeError: Invalid parallel dims: dp 2 * tp 4 != WORLD_SIZE(6)", "layout-not-divisible", ""),
        ("tf.errors.InvalidArgumentError: Matrix is not square", "status-invalid-argument", ""),
        ("tf.errors.InvalidArgumentError: x was explicitly assigned to /job:a/task:0 but available devices are [/b]",
         "device-not-in-cluster", "/job:a/task:0"),
        ("ValueError: a sharding should be given. Got None", "value-is-none", ""),
        ("KeyError: 'The frob of this file is odd, because it was saved by a program of another kind.'", None, ""),
        ("KeyError: 'pytorch-lightning_version'", "not-a-training-checkpoint", "weights"),
        ("KeyError: 'Cannot restore training state, because the checkpoint contains only the model.'",
         "not-a-training-checkpoint", "weights"),
        ("ValueError: Number of devices 1 must equal the product of mesh_shape (1, 8)", "devices-and-mesh", ""),
        ("ValueError: An auto mesh context or metadata is required for a variable", "mesh-missing", ""),
        ("RuntimeError: Expected tensor #1 'a' to have the same device as tensor #2 'b'; but device 1 does not equal 0",
         "devices-differ", ""),
        ("ValueError: Received incompatible devices for jitted computation. Got x with device ids [0] on platform GPU",
         "devices-differ", ""),
        ("RuntimeError: One of the subprocesses has abruptly died during map operation.", "killed-process-pool", ""),
        ("RuntimeError: CUDA error: unknown error", "gpu-call-failed", ""),
        ("AttributeError: 'DistributedDataParallel' object has no attribute '_frob_copies'", "attribute-missing", ""),
        ("RuntimeError: Resource temporarily unavailable", "limit-of-the-system", ""),
        ("RuntimeError: Tried to access the data pointer on an invalid python storage", "tensor-without-memory", ""),
        ("triton.errors.OutOfResources: out of resource: shared memory, Required: 163840", "kernel-too-large", ""),
    ],
)  # fmt: skip
def test_kind_follows_from_class_and_message_and_names_its_object(exception: str, kind: str | None, says: str) -> None:
    cause = explain(raised(exception)).cause
    assert cause is not None
    assert (cause.id, cause.meaning.id if cause.meaning else None) == ("exception", kind)
    assert says in (cause.meaning.says if cause.meaning else "")


@pytest.mark.parametrize(
    ("missing", "file", "function", "code", "kind"),
    [
        ("rope", "/data/alice/run.py", "main", "return table[name]", "key-missing"),
        ("rope", "/ckpt/run.py", "main", "return table[name]", "key-missing"),
        ("rope", "/home/me/load_checkpoint.py", "main", "return table[name]", "entry-missing"),
        ("rope", "/home/me/net.py", "__getitem__", "return self.table[name]", "key-missing"),
        ("rope", "/home/me/data.py", "__getitem__", "return self.table[name]", "batch-lacks-field"),
        ("qwen2", f"{LIB}/transformers/models/auto/configuration_auto.py", "__getitem__", "raise KeyError(key)",
         "model-type-unknown"),
    ],
)  # fmt: skip
def test_entry_that_is_missing_is_told_by_the_file_and_not_by_its_folders(
    missing: str, file: str, function: str, code: str, kind: str
) -> None:
    assert kind_of(raised(f"KeyError: '{missing}'", frame(file, function, code))) == kind


def test_source_line_decides_where_the_message_is_empty() -> None:
    ended = frame("/home/me/net.py", "forward", "kind = next(self.parameters()).dtype")
    assert kind_of(raised("StopIteration", ended)) == "replica-without-parameters"
    assert (
        kind_of(raised("StopIteration", frame("/home/me/net.py", "main", "batch = next(batches)"))) == "iterator-ended"
    )


def test_answer_shows_line_source_kind_and_stage() -> None:
    text = log_text("job.log", explain(raised(
        "KeyError: 'labels'",
        frame(f"{LIB}/torch/utils/data/_utils/fetch.py", "fetch", "data = self.dataset[index]"),
        frame("/home/me/data.py", "__getitem__", "return row['labels']", 31),
    )))  # fmt: skip
    for part in (
        "KeyError (batch-lacks-field)",
        "raised at /home/me/data.py:31 in __getitem__",
        "return row['labels']",
    ):
        assert part in text
    assert "It was raised while a sample or batch of the data was prepared." in text


@pytest.mark.parametrize(
    ("frames", "stage"),
    [
        ([frame("/home/me/t.py", "main"), frame(f"{LIB}/torch/serialization.py", "_load")], "was loaded"),
        ([frame("/home/me/t.py", "<module>", "import flash_attn")], "modules were imported"),
        ([frame("/home/me/t.py", "main"), frame(f"{LIB}/torch/autograd/graph.py", "_engine_run_backward")], "backward"),
        ([frame("/home/me/t.py", "forward", "return self.head(x)")], "forward"),
        ([frame("/home/me/t.py", "main", "run()")], ""),
    ],
)
def test_stage_follows_from_the_frames(frames: list[str], stage: str) -> None:
    cause = explain(raised("ValueError: of no kind", *frames)).cause
    assert cause is not None
    assert stage in cause.stage
    assert bool(cause.stage) == bool(stage)


@pytest.mark.parametrize(
    ("innermost", "says"),
    [
        (frame(f"{LIB}/peft/tuners.py", "inject", "raise ValueError(text)"), "peft does not accept"),
        (frame("/home/me/train.py", "check", 'raise ValueError("odd")'), "The program itself raises"),
        (frame("/home/me/train.py", "check", "check(7)"), "none of the"),
    ],
)
def test_exception_of_no_kind_names_who_raised_it(innermost: str, says: str) -> None:
    text = raised("ValueError: frobs are odd", frame("/home/me/train.py", "main", "go()", 3), innermost)
    assert says in log_text("job.log", explain(text))


@pytest.mark.parametrize(
    ("files", "users"),
    [
        (["/home/me/train.py", f"{LIB}/torch/nn/modules/module.py", "/opt/env/lib/python3.12/json/decoder.py"], 0),
        ([f"{LIB}/trl/cli.py", "/opt/env/lib/python3.12/json/decoder.py"], 0),
        (["/home/me/train.py", "mtrand.pyx"], 0),
        (["D:\\me\\train.py", "C:\\Users\\me\\Lib\\json.py", "/opt/env/bin/torchrun"], 0),
    ],
)
def test_users_line_is_the_innermost_of_their_own_else_of_a_package(files: list[str], users: int) -> None:
    cause = explain(raised("ValueError: odd", *(frame(file, "f") for file in files))).cause
    assert cause is not None
    assert cause.frame is not None
    assert cause.frame.file == files[users]


def test_cut_traceback_names_the_users_line_and_rank() -> None:
    inside = frame(f"{LIB}/torch/nn/modules/module.py", "_call_impl")
    lines = (BEGIN + frame("/home/me/train.py", "main", "model(x)", 41) + inside).splitlines()
    text = "".join(f"[rank3]: {line}\n" for line in lines)
    answer = log_answer("job.log", explain(text))
    shown = "\n".join(answer.evidence)
    assert (answer.fault, answer.rank, answer.certain) == ("unknown", 3, False)
    for part in ("line 1, rank 3", "raised at /home/me/train.py:41 in main", "    model(x)", "forward pass"):
        assert part in shown


@pytest.mark.parametrize(
    ("code", "exception"),
    [
        ("assert x.shape[0] == n, x.shape", "AssertionError"),
        ("raise data.BadShard(path)", None),
        ("raise ValueError(", "ValueError"),
    ],
)
def test_last_source_line_of_a_cut_traceback_may_say_what_was_raised(code: str, exception: str | None) -> None:
    found = explain(BEGIN + frame("/home/me/train.py", "main", code))
    assert (found.cause.exception if found.cause else None) == exception
    if found.cause is not None:
        assert found.cause.level is Level.SYMPTOM


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition", "job-refused", 1),
        ("step 1\nCould not override 'trainer.frob'.\nKey 'frob' is not in struct\n", "override-of-unknown-key", 2),
        ("step 1\nF0304 10:00:00.123456 17 mesh.cc:91] Check failed: size == 8 (6 vs. 8)\nframes follow\n",
         "check-in-native-code", 2),
        ("ERROR: 3 shards are odd\nterminate called after throwing\n  what():  the frob of rank 2 is gone\n", None, 3),
        ('Exception in thread "main" org.spark.FrobException: stage 3 was lost\n', None, 1),
        ("INVALID_ARGUMENT: mesh of 8 devices, but 6 are there\n", "status-invalid-argument", 1),
        ("FAILED tests/test_frob.py::test_odd[2] - KeyError: 'frob'\n", "key-missing", 1),
        ("ERROR | frob.trainer:run:12 - AttributeError: 'NoneType' object has no attribute 'x'\n", "value-is-none", 1),
        ("E frob/driver.cc:60] failed to allocate 127.99TiB (140729850295296 bytes) from device: 2\n",
         "size-that-cannot-be", 1),
        ("n1:7 [1] p2p.cc:239 NCCL WARN hipIpcGetMemHandle failed : invalid argument\n", "gpu-memory-not-shared", 1),
        ("  ptxas error   : Entry function 'frob' uses too much shared data (0x20400 bytes, 0xc000 max)\n",
         "kernel-too-large", 1),
        ("Command '['sudo', '-u', 'me', 'sbatch', '--parsable', 'a.sh']' returned non-zero exit status 1.\n",
         "submission-failed", 1),
        ("frob.errors.OutOfFrobs: out of resource: shared memory, Required: 163840\n", "kernel-too-large", 1),
        ("sbatch: error: !!! slurm_job_submit ERROR: 17 submitted a job to frobs\n", "job-refused-by-site", 1),
        ("Exception in background worker 2: frobs are odd\nRuntimeError: not the actual error\n", None, 1),
    ],
)  # fmt: skip
def test_own_message_of_a_program_is_a_symptom(text: str, kind: str | None, line: int) -> None:
    cause = explain(text).cause
    assert cause is not None
    assert (cause.level, cause.line.number) == (Level.SYMPTOM, line)
    assert (cause.meaning.id if cause.meaning else None) == kind


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: node7: task 3: Exited with exit code 1",
        "slurmstepd: error: *** STEP 17.0 ON node7 CANCELLED AT 2026-03-04T10:00:00 ***",
        "E0304 10:00:00.123000 17 torch/distributed/elastic/error_handler.py:136] no error file defined for parent",
        "step 3 errors 0 error rate 0.1",
        "loss 0.3 | ERROR_RATE 0.2",
    ],
)
def test_word_of_a_launcher_or_a_number_is_no_own_message(line: str) -> None:
    cause = explain(line + "\n").cause
    assert cause is None or cause.known is not None


def test_record_of_an_abort_has_its_further_lines_but_no_others() -> None:
    record = "F0304 10:00:00.123456 17 mesh.cc:91] the mesh is odd\n"
    cause = explain(f"{record}reason: 6 of 8 devices\n" + "E0304 10:00:01.1 17 other.cc:3] of another\n").cause
    assert cause is not None
    assert cause.text == "the mesh is odd\nreason: 6 of 8 devices"
    cause = explain(f"[rank0]: {record}[rank1]: data loaded\n").cause
    assert cause is not None
    assert cause.text == "the mesh is odd"


def test_error_right_before_the_record_of_an_abort_explains_it() -> None:
    fatal = "F frob/dnn.cc:60] Check failed: status == frobStatusSuccess (7 vs. 0)no algorithm\n"
    error = "Frob Error: /src/hip/handle.cpp:70: Memory not available to allocate buffer: 655360000\n"
    cause = explain("step 7\n" + error + fatal).cause
    assert cause is not None
    assert (cause.line.number, cause.meaning and cause.meaning.id) == (3, "memory-exhausted")
    assert "655360000" in cause.text
    cause = explain("Test Error: 0.3\n" + fatal).cause
    assert cause is not None
    assert (cause.meaning and cause.meaning.id) == "check-in-native-code"
    assert explain("Validation Error: 0.3\nTest Error: 12 %\n").cause is None


@pytest.mark.parametrize(
    "line",
    [
        "ray.exceptions.RayTaskError(OddShardError): ray::Actor.load() (pid=17, ip=10.1.2.3,\n",
        "(Runner pid=17) User exception type <class 'frob.errors.OddShardError'> in RayTaskError can't be frob!\n",
    ],
)
def test_launcher_names_the_class_of_an_exception_whose_text_the_log_lacks(line: str) -> None:
    found = explain(line)
    assert found.cause is not None
    assert (found.cause.level, found.certain) == (Level.SYMPTOM, False)
    text = log_text("job.log", found)
    assert "OddShardError" in text.splitlines()[0]
    assert "not its text" in text
    assert explain(line + raised("ValueError: odd")).cause.text == "ValueError: odd"  # type: ignore[union-attr]


CUDNN = (
    "2024-05-01 12:00:00.1: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN "
    "factory: Attempting to register factory for plugin cuDNN when one has already been registered\n"
)


@pytest.mark.parametrize(
    ("before", "after", "is_cause"),
    [
        (CUDNN, "step 10/10\n", False),
        (CUDNN, "", False),
        ("ERROR:root:could not load plugin, using default\n", "step 10/10\n", False),
        ("ERROR:root:could not load plugin, using default\n", "step 3/10\n", True),
        ("ERROR: 3 shards are odd\n", "step 10/10\n", True),
    ],
)
def test_record_of_an_error_is_no_cause_if_the_program_came_to_its_last_step(
    before: str, after: str, is_cause: bool
) -> None:
    assert (explain(before + after).cause is not None) is is_cause


def test_better_explanation_precedes_an_own_message() -> None:
    cause = explain("ERROR: frobs are odd\n" + raised("ValueError: odd")).cause
    assert cause is not None
    assert cause.exception == "ValueError"
    assert explain(raised("RuntimeError: could not look up host node7")).certain
    assert not explain(raised("RuntimeError: worker failed, look further up")).certain


@pytest.mark.parametrize(
    "value", ["loss: nan", "train/loss=inf", "loss is tensor(nan, device='cuda:0')", "loss = -inf"]
)
def test_loss_that_is_no_number_is_a_hint(value: str) -> None:
    found = explain(f"step 10 loss 2.1\nstep 20 {value}\n")
    assert found.cause is not None
    assert (found.cause.id, found.cause.level) == ("loss-nan", Level.HINT)
    assert explain("step 20 loss 2.1 info 3\nno nan in loss\n").cause is None


@pytest.mark.parametrize("first", ["best_val_loss: inf", "val/best_loss=inf", "best validation loss: inf"])
def test_least_loss_before_the_first_one_may_be_infinite(first: str) -> None:
    assert explain(f"epoch 1 | {first}\n").cause is None
    assert explain(f"epoch 1 | {first} | loss: nan\n").cause is not None


def test_local_rank_of_the_launcher_is_named_and_is_no_rank() -> None:
    failed = "ERROR:torch.distributed.elastic: failed (exitcode: 1) local_rank: 5 (pid: 71) of binary: python\n"
    for text in (failed, raised("ValueError: odd") + failed):
        answer = log_answer("job.log", explain(text))
        assert answer.rank is None
        assert "local rank 5" in "\n".join(answer.evidence)


def test_tasks_of_a_dead_worker_of_dask_name_a_symptom() -> None:
    cause = explain(
        "distributed.scheduler.KilledWorker: Attempted to run task 'load-3' on 4 different workers, but all those "
        "workers died while running it.\n"
    ).cause
    assert cause is not None
    assert cause.id == "dask-worker-lost"


def test_rules_of_runs_add_what_the_exception_means(tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("run") / "job.log"
    text = raised("AttributeError: 'DataParallel' object has no attribute 'encode'")
    log.write_text("".join(f"[rank1]: {line}\n" for line in text.splitlines()))
    found = diagnose_paths([str(log)]).diagnosis
    assert (found.fault, found.rank) == ("raise", 1)
    assert "wraps the model" in found.meaning
    assert "model.module.encode" in found.advice


def test_hostile_lines_cost_little() -> None:
    """A line costs at most milliseconds of processor time, whatever it repeats."""
    starts = ("Exception: ", "ERROR: ", "E0304 10:00:00 ", "(", "shape ", "a/" * 9, "what():  ", "not ")
    units = ("shape ", "a", " ", "mismatch ", "x: ", "Assertion `", "(1, ", "INTERNAL", "/:1: ")
    lines = [start + unit * (60_000 // len(unit)) + "\n" for start in starts for unit in units]
    began = time.process_time()
    for line in lines:
        explain_log([line] * 2)
        meaning_of("RuntimeError", line, line[:1000])
    took_s = time.process_time() - began
    assert took_s < 0.1 * len(lines)
