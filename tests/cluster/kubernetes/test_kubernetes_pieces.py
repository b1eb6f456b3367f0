"""The parts of a local cluster that need no processes: reading a manifest, names, probes, exit codes."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import run_files
from small_manifest import SMALL, read

from frog.cluster.kubernetes import workloads
from frog.cluster.kubernetes.local_cluster import dns_reply
from frog.cluster.kubernetes.local_pod import expand
from frog.cluster.kubernetes.manifest import read_manifest
from frog.cluster.kubernetes.manifest_text import Fields, ManifestError
from frog.cluster.kubernetes.objects import FailureRule, Rule
from frog.cluster.kubernetes.pod import exit_code, rendezvous_host
from frog.cluster.kubernetes.probe import main as probe_main
from frog.cluster.kubernetes.probe import problem
from frog.cluster.kubernetes.published_schemas import resource_problems
from frog.core.runs.folder import RunFolder


def test_small_manifest_is_parsed(tmp_path: Path) -> None:
    manifest = read(tmp_path, SMALL)
    assert (manifest.job.completions, manifest.job.parallelism, manifest.job.backoff_limit) == (2, 1, 6)
    assert manifest.job.template.container.args == ["-c", "true", "more"]
    assert manifest.job.template.grace_s == 30


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kind: Job", "kind: CronJob", "CronJob: this kind is not supported on one machine"),
        ("kind: Job", "kind: TrainJob", "expected trainer.kubeflow.org/v1alpha1 for a TrainJob"),
        ("kind: Job", "kind: [1]", "this kind"),
        ("batch/v1", "batch/v1beta1", "expected batch/v1 for a Job"),
        ("completions: 2", "completion: 2", "Job.spec.completion: unknown; did you mean completions?"),
        ("completions: 2", "completions: 0", "must be at least 1"),
        ("completions: 2", "completions: 2\n  suspend: true", "suspend: unknown, or not supported"),
        ("completionMode: Indexed", "completionMode: NonIndexed", "Frog supports only Indexed"),
        ("restartPolicy: Never", "restartPolicy: Always", "'Always': Frog supports only Never or OnFailure"),
        ("restartPolicy: Never", "restartPolicy: Never\n      hostNetwork: true", "hostNetwork"),
        ("restartPolicy: Never", "restartPolicy: Never\n      initContainers: [{name: a}]", "initContainers"),
        ("restartPolicy: Never", "restartPolicy: Never\n      securityContext: {runAsNonRoot: true}", "runAsUser is 0"),
        (
            "restartPolicy: Never",
            "restartPolicy: Never\n      volumes: [{name: v, hostPath: {path: /}}]",
            "Frog supports no other volumes",
        ),
        ("command: [sh],", "", "command: missing, and Frog does not read the image's default command"),
        ("image: any", "image: any, securityContext: {privileged: true}", "no privileges here"),
        ("image: any", "image: any, volumeMounts: [{name: w, mountPath: /w}]", "'w': no such volume"),
        ("image: any", "image: any, envFrom: []", "envFrom"),
        ("image: any", "image: any, env: [{name: A=B, value: c}]", "'A=B': not a valid Kubernetes name"),
        ("name: small", "name: ../small", "Job.metadata.name: '../small': not a valid Kubernetes name"),
        (
            "restartPolicy: Never",
            "restartPolicy: Never\n      volumes: [{name: /v, emptyDir: {}}]",
            "'/v': not a valid Kubernetes name",
        ),
        (
            "restartPolicy: Never",
            "restartPolicy: Never\n      volumes: [{name: v, persistentVolumeClaim: {claimName: ../v}}]",
            "claimName: '../v': not a valid Kubernetes name",
        ),
        ("image: any", "image: any, livenessProbe: {httpGet: {port: 80}}", "Frog supports no other probes"),
        ("image: any", "image: any, env: [{name: A, valueFrom: {secretKeyRef: {}}}]", "secretKeyRef"),
        ("image: any", "image: any, resources: {limits: {memory: lots}}", "not a quantity"),
        ("template:", "template: [", "not valid YAML"),
        ("completions: 2", "completions: 2\n  completions: 3", "duplicate key 'completions'"),
    ],
)
def test_unsupported_manifest_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(ManifestError) as error:
        read(tmp_path, SMALL, (old, new))
    assert words in str(error.value)


@pytest.mark.parametrize("path", ["/tmp/x", "../x", "a/../../x", "..x", ""])
def test_config_map_paths_cannot_leave_the_volume(tmp_path: Path, path: str) -> None:
    volume = f"volumes: [{{name: v, configMap: {{name: files, items: [{{key: k, path: {path!r}}}]}}}}]"
    with pytest.raises(ManifestError, match="not a path inside the volume"):
        read(tmp_path, SMALL, ("restartPolicy: Never", f"restartPolicy: Never\n      {volume}"))


@pytest.mark.parametrize("key", ["/tmp/x", "../x", "..", ".", "a/b", "my run.toml", "..x"])
def test_invalid_config_map_keys_are_refused(tmp_path: Path, key: str) -> None:
    files = f"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: files}}\ndata: {{{key!r}: x}}\n"
    with pytest.raises(ManifestError, match="not a valid key"):
        read(tmp_path, SMALL + files)


def test_one_error_lists_all_manifest_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="3 mistakes"):
        read(tmp_path, SMALL, ("completions: 2", "completions: two"), ("Never", "Sometimes"), ("args", "argz"))


def test_inconsistent_objects_are_refused(tmp_path: Path) -> None:
    volume = "restartPolicy: Never\n      volumes: [{name: v, configMap: {name: files}}]"
    with pytest.raises(ManifestError, match="no ConfigMap files"):
        read(tmp_path, SMALL, ("restartPolicy: Never", volume))
    elsewhere = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: files, namespace: other}\n"
    with pytest.raises(ManifestError, match="in the namespace other, but the Job is in default"):
        read(tmp_path, SMALL + elsewhere)
    with pytest.raises(ManifestError, match="2 Jobs"):
        read(tmp_path, f"{SMALL}---{SMALL}")
    policy = "completions: 2\n  podFailurePolicy: {rules: [{action: Count, onExitCodes: {operator: In, values: [1]}}]}"
    with pytest.raises(ManifestError, match="needs restartPolicy Never"):
        read(tmp_path, SMALL, ("completions: 2", policy), ("restartPolicy: Never", "restartPolicy: OnFailure"))


def test_quantities_are_parsed() -> None:
    texts = {"a": "2Gi", "b": "1.5k", "c": 3, "d": "250m", "e": "1G", "f": "2Ki", "g": "3Mi", "h": "1Ti", "i": "2M"}
    fields = Fields(texts, "", [])
    expected = [2 << 30, 1500, 3, 0, 10**9, 2 << 10, 3 << 20, 1 << 40, 2 * 10**6]
    assert [fields.quantity(key) for key in texts] == expected


@pytest.mark.parametrize(
    ("value", "number", "problem"),
    [
        (3, 3, None),
        (2, 2, None),
        (5, 5, None),
        (1, 1, "Job.spec.n: 1: must be at least 2"),
        (6, 6, "Job.spec.n: 6: must be at most 5"),
        (0, 0, "Job.spec.n: 0: must be at least 2"),
    ],
)
def test_number_of_a_manifest_has_limits(value: int, number: int, problem: str | None) -> None:
    problems: list[str] = []
    fields = Fields({"n": value}, "Job.spec", problems)
    assert fields.number("n", least=2, most=5) == number
    assert problems == ([] if problem is None else [problem])
    assert Fields({}, "Job.spec", problems).number("n", 4) == 4
    assert Fields({}, "Job.spec", problems).optional_number("n") is None


@pytest.mark.parametrize(
    ("resources", "ranks"),
    [
        ({"limits": {"nvidia.com/gpu": 4}}, 4),
        ({"limits": {"nvidia.com/gpu": "4"}, "requests": {"cpu": 8}}, 4),
        ({"requests": {"nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpu": 3}}, 3),
        ({"requests": {"cpu": 8}, "limits": {"cpu": 16}}, 8),
        ({"limits": {"cpu": "1500m"}}, 2),
        ({"limits": {"cpu": "1000m"}}, 1),
        ({"limits": {"cpu": "1001m"}}, 2),
        ({"limits": {"cpu": "xm"}}, 1),
        ({"limits": {"cpu": "lots"}}, 1),
        ({"limits": [4]}, 1),
        (None, 1),
    ],
)
def test_ranks_of_a_node_are_its_gpus_or_cpus_rounded_up(resources: object, ranks: int) -> None:
    assert workloads._ranks_of(resources) == ranks


GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"limits": {GPU: 4}}, []),
        ({"limits": {GPU: 4}, "requests": {GPU: 4}}, []),
        ({"limits": {GPU: "4"}, "requests": {GPU: 4}}, []),
        ({"limits": {"cpu": "0.5"}, "requests": {"cpu": 2}}, []),
        ({"requests": {GPU: 4}}, [f"c.requests.{GPU}: 4 without a limit: Kubernetes refuses it; write the limit"]),
        (
            {"limits": {GPU: 4}, "requests": {GPU: 2}},
            [f"c.requests.{GPU}: 2, but the limit is 4: they must be equal"],
        ),
        ({"limits": {GPU: "0.5"}}, [f"c.limits.{GPU}: 0.5: must be a whole number"]),
        ({"limits": {GPU: None}}, []),
        ({"limits": [GPU]}, []),
    ],
)
def test_gpus_need_equal_whole_requests_and_limits(resources: dict[str, Any], said: list[str]) -> None:
    assert list(resource_problems(resources, "c")) == said


def test_pod_failure_rules_match_exit_codes() -> None:
    assert [Rule("FailJob", (2, 3)).matches(code) for code in (1, 2, 3)] == [False, True, True]
    assert [Rule("FailJob", (2, 3), inside=False).matches(code) for code in (1, 2)] == [True, False]
    for inside in (True, False):
        assert not Rule("Ignore", None, inside).matches(143), "a local cluster has no disruptions"


@pytest.mark.parametrize(
    ("reasons", "targets", "matches"),
    [
        ((), (), True),
        (("r",), (), True),
        (("other",), (), False),
        ((), ("a",), True),
        ((), ("b",), False),
        (("r",), ("a",), True),
        (("other",), ("a",), False),
        (("r",), ("b",), False),
    ],
)
def test_failure_rule_needs_its_job_and_its_reason(
    reasons: tuple[str, ...], targets: tuple[str, ...], matches: bool
) -> None:
    assert FailureRule("FailJobSet", reasons, targets).matches("a", "r") == matches


def test_references_are_expanded_as_kubernetes_does() -> None:
    assert (
        expand("--rank=$(INDEX) $(NOT_THERE) $$(INDEX) $INDEX", {"INDEX": "3"})
        == "--rank=3 $(NOT_THERE) $(INDEX) $INDEX"
    )


def question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def test_name_server_answers_queries_for_pod_names() -> None:
    names = {"a-0.a.default.svc.cluster.local": "127.0.1.2"}
    reply = dns_reply(question("A-0.a.default.svc.cluster.LOCAL"), names)
    assert reply is not None
    number, flags, asked, answered, *_ = struct.unpack_from("!6H", reply)
    assert (number, flags & 0x8000, flags & 0xF, asked, answered) == (7, 0x8000, 0, 1, 1)
    assert reply[-4:] == socket.inet_aton("127.0.1.2")
    unknown = dns_reply(question("a-1.a.default.svc.cluster.local"), names)
    assert unknown is not None
    assert struct.unpack_from("!6H", unknown)[1] & 0xF == 3, "no such name"
    ipv6 = dns_reply(question("a-0.a.default.svc.cluster.local", kind=28), names)
    assert ipv6 is not None
    assert struct.unpack_from("!6H", ipv6)[1:4] == (0x8500, 1, 0), "the name exists, but has no such address"


def of_questions(count: int) -> bytes:
    return question("a.b")[:4] + struct.pack("!H", count) + question("a.b")[6:]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0" * 11,
        question("a.b")[:-3],
        b"\0\7\x81\0" + question("a.b")[4:],  # a response
        of_questions(0),
        of_questions(2),
    ],
)
def test_name_server_ignores_invalid_queries(message: bytes) -> None:
    assert dns_reply(message, {}) is None


def test_name_server_does_only_plain_queries_of_addresses() -> None:
    names = {"a.b": "127.0.1.2"}
    for flags, code in ((0x0100, 0), (0x0000, 0), (0x2800, 4)):
        reply = dns_reply(question("a.b")[:2] + struct.pack("!H", flags) + question("a.b")[4:], names)
        assert reply is not None
        told = struct.unpack_from("!6H", reply)
        assert (told[1], told[3]) == (0x8400 | (flags & 0x0100) | (flags & 0x7800) | code, int(code == 0))
    other_class = question("a.b")[:-1] + b"\3"
    reply = dns_reply(other_class, names)
    assert reply is not None
    assert struct.unpack_from("!6H", reply)[3] == 0


def beat(folder: RunFolder, rank: int, *, age_s: float = 0, **fields: Any) -> None:
    folder.heartbeats.mkdir(parents=True, exist_ok=True)
    value = run_files.beat(rank=rank, host="pod-0", step=1, unix_ns=time.time_ns() - int(age_s * 1e9)) | fields
    folder.heartbeat(rank).write_text(json.dumps(value).ljust(2048))


def test_probe_checks_heartbeats(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "x")
    two = range(2)
    assert "0 of 2 ranks of pod-0" in str(problem(folder, "pod-0", two, 60))
    beat(folder, 0)
    beat(folder, 1, host="pod-1")
    assert "1 of 2 ranks" in str(problem(folder, "pod-0", two, 60)), "another pod's rank does not count"
    beat(folder, 1)
    assert problem(folder, "pod-0", two, 60, training=True) is None
    beat(folder, 1, step=0)
    assert problem(folder, "pod-0", two, 60, fresh=True) is None
    assert problem(folder, "pod-0", two, 60, training=True) == "rank 1 has not begun its first step"
    beat(folder, 1, age_s=90)
    told = problem(folder, "pod-0", two, 60)
    assert re.fullmatch(r"rank 1 has sent no heartbeat for 9\d s \(step 1, reduce\)", told or ""), told
    beat(folder, 1, age_s=90, status="completed")
    assert problem(folder, "pod-0", two, 60) is None, "the rank has ended and waits for others"
    assert "1 of 2 ranks" in str(problem(folder, "pod-0", two, 60, fresh=True)), "the heartbeat may be an earlier pod's"


def test_probe_program_reports_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FROG_NODE_NAME", "pod-0")
    monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)
    folder = RunFolder(tmp_path)
    assert probe_main([str(tmp_path), "--ranks", "1"]) == 1
    assert "0 of 1 ranks of pod-0" in capsys.readouterr().out
    beat(folder, 0, age_s=5)
    assert probe_main([str(tmp_path), "--ranks=1", "--fresh", "--training"]) == 0
    assert probe_main([str(tmp_path), "--ranks=1", "--within=4"]) == 1


def test_probe_ignores_heartbeats_of_a_larger_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods of 4 ranks were killed, and the run continues in pods of 2: pod 1 now has the ranks 2 and 3."""
    monkeypatch.setenv("FROG_NODE_NAME", "pod-1")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    folder = RunFolder(tmp_path)
    for rank in range(8):
        beat(folder, rank, host=f"pod-{rank // 4}", age_s=90)
    for rank in range(4):
        beat(folder, rank, host=f"pod-{rank // 2}")
    assert probe_main([str(tmp_path), "--ranks=2"]) == 0
    beat(folder, 3, host="pod-1", age_s=90)
    assert probe_main([str(tmp_path), "--ranks=2"]) == 1


def test_pod_finds_its_rendezvous_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PET_MASTER_ADDR", raising=False)
    assert rendezvous_host(["--nnodes=2", "--master-addr=a-0.a", "x.py"]) == "a-0.a"
    assert rendezvous_host(["--master_addr", "b-0.b", "x.py"]) == "b-0.b"
    assert rendezvous_host(["--nnodes=1", "x.py"]) is None
    monkeypatch.setenv("PET_MASTER_ADDR", "c-node-0-0.c")
    assert rendezvous_host(["x.py"]) == "c-node-0-0.c"


def failure(rank: int, code: int, time_s: int = 0) -> dict[str, Any]:
    return {"rank": rank, "pid": 7, "code": code, "time_s": time_s, "error": None, "traceback": None}


@pytest.mark.parametrize(
    ("agent", "failures", "code"),
    [
        (0, [], 0),
        (1, [], 1),
        (-9, [], 137),
        (1, [failure(0, 2), failure(1, -15)], 2),
        (1, [failure(0, 1, 1), failure(1, 2, 2)], 2),
        (1, [failure(3, 1, 9), failure(1, -9, 1)], 137),
        (1, [failure(0, -15, 5), failure(1, 1, 5)], 1),
    ],
)
def test_pod_exit_code_reflects_the_first_failure(agent: int, failures: list[dict[str, Any]], code: int) -> None:
    assert exit_code(agent, failures) == code


def test_shipped_examples_are_parsed() -> None:
    folder = Path(__file__).parents[3] / "config" / "kubernetes"
    for name in ("job.yaml", "job-cpu.yaml"):
        manifest = read_manifest(folder / name)
        assert manifest.services[manifest.job.template.subdomain or ""].selects(
            {"batch.kubernetes.io/job-name": manifest.job.name}
        )
    train_job = read_manifest(folder / "trainjob.yaml")
    assert (train_job.job_set.kind, train_job.job.name) == ("TrainJob", f"{train_job.job_set.name}-node-0")
    container = train_job.job.template.container
    assert container.args[1:2] == ["torchrun"]
    assert {mount.path for mount in container.mounts} >= {"/workspace", "/config"}, "the patch of the runtime"
