"""Rendered manifests: valid by the official schemas, safe, consistent, and equal to the shipped examples."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifest_schemas import ROOT, documents, schema_problems

from frog.cli import main
from frog.cluster.kubernetes.local_pod import expand
from frog.cluster.kubernetes.manifest import read_manifest
from frog.cluster.kubernetes.manifest_text import block, scalar
from frog.cluster.submit import kubernetes_manifests
from frog.cluster.submit.kubernetes_manifests import KubernetesRequest
from frog.cluster.submit.submitted_work import ProgramWork
from frog.core.config import load_run_config
from frog.core.errors import ConfigError, FrogError

EXAMPLES = sorted((ROOT / "config" / "kubernetes").glob("*.yaml"))
DEMO = str(ROOT / "config" / "demo.toml")
Rendered = Callable[..., str]


@pytest.fixture
def rendered(capsys: pytest.CaptureFixture[str]) -> Rendered:
    """Return the output of `frog submit --to kubernetes --dry-run`."""

    def render(*options: str, run_file: str = DEMO) -> str:
        code = main(["submit", run_file, "--to", "kubernetes", "--dry-run", *options])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return render


@pytest.mark.parametrize(
    "options",
    [
        ["--nodes", "2"],
        ["--nodes", "2", "--kind", "trainjob"],
        ["--nodes", "1", "--ranks-per-node", "1", "--no-gpus"],
        ["--nodes", "4", "--no-gpus", "--claim", "my.own", "--restarts", "0", "--namespace", "ml", "--name", "x"],
        ["--kind", "trainjob", "--no-gpus", "--storage-class", "fast", "--memory", "1.5Gi", "--cpus", "3"],
        ["--kind", "trainjob", "--runtime", "torch-distributed.2", "--claim", "mine"],
        ["--image", "registry.example.org:5000/a/frog:1@sha256:" + "0" * 64, "--storage", "1Ti"],
        ["--name", "y", "--namespace", "12e4567", "--storage-class", "null"],
        ["--name", "true", "--namespace", "0x10", "--claim", "1e3"],
        ["--set", "train.steps=4", "--set", "name=no", "--set", 'eval.prompt="a: b # {c}"'],
    ],
    ids=" ".join,
)
def test_manifests_are_valid(rendered: Rendered, options: list[str]) -> None:
    for document in documents(rendered(*options)).values():
        assert schema_problems(document) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_shipped_example_matches_its_recorded_command(
    path: Path, rendered: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = path.read_text()
    words = shlex.split(text.splitlines()[0].partition("Made by: frog submit ")[2])
    assert words[1:3] == ["--to", "kubernetes"]
    assert rendered(*words[3:], run_file=words[0]) == text, (
        f"render it again: frog submit {shlex.join(words)} --dry-run"
    )


def test_examples_cover_both_kinds() -> None:
    kinds = {kind for path in EXAMPLES for kind in documents(path.read_text())}
    assert {"Job", "TrainJob", "Service", "ConfigMap", "PersistentVolumeClaim"} == kinds


def change(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy with one key set; the last part of the path may be new."""
    changed = copy.deepcopy(document)
    target: Any = changed
    *parts, last = path.split(".")
    for part in parts:
        target = target[int(part) if part.isdigit() else part]
    target[last] = value
    return changed


POD = "spec.template.spec"
WRONG = [
    ("Job", "spec.completionmode", "Indexed"),
    ("Job", "spec.completions", "2"),
    ("Job", "spec.backoffLimit", 1.5),
    ("Job", f"{POD}.restartpolicy", "Never"),
    ("Job", f"{POD}.containers.0.cmd", ["python"]),
    ("Job", f"{POD}.containers.0.args", "torchrun"),
    ("Job", f"{POD}.containers.0.securityContext.runAsNonRoot", "yes"),
    ("Job", f"{POD}.containers.0.livenessProbe.exec.comand", ["true"]),
    ("Job", f"{POD}.containers.0.resources.limit", {"nvidia.com/gpu": 1}),
    ("Job", f"{POD}.volumes.0.persistentVolumeClaim.claim", "x"),
    ("Service", "spec.publishNotReadyAddress", True),
    ("Service", "spec.publishNotReadyAddresses", "true"),
    ("ConfigMap", "data.number", 7),
    ("PersistentVolumeClaim", "spec.accessModes", "ReadWriteMany"),
]
WRONG_TRAINJOB = [
    ("TrainJob", "spec.trainer.numNode", 2),
    ("TrainJob", "spec.trainer.numNodes", "2"),
    ("TrainJob", "spec.trainer.env.0.valeu", "x"),
    ("TrainJob", "spec.runtimePatches.0.trainingRuntimeSpec.templat", {}),
    ("TrainJob", "spec.runtimeref", {"name": "x"}),
]


@pytest.mark.parametrize(("kind", "path", "value"), WRONG + WRONG_TRAINJOB)
def test_schemas_refuse_invalid_manifests(rendered: Rendered, kind: str, path: str, value: Any) -> None:
    document = documents(rendered("--kind", "trainjob" if kind == "TrainJob" else "job"))[kind]
    problems = schema_problems(change(document, path, value))
    assert any(path.rpartition(".")[2] in problem for problem in problems), problems


@pytest.mark.parametrize(("kind", "path", "value"), [case for case in WRONG if case[0] != "PersistentVolumeClaim"])
def test_frog_run_refuses_manifests_that_schemas_refuse(
    rendered: Rendered, kind: str, path: str, value: Any, tmp_path: Path
) -> None:
    """`frog run --from` detects these mistakes without schemas. It treats a claim as a folder and ignores its spec."""
    objects = documents(rendered())
    objects[kind] = change(objects[kind], path, value)
    file = tmp_path / "k8s.yaml"
    file.write_text("\n---\n".join(json.dumps(document) for document in objects.values()))
    with pytest.raises(FrogError, match=re.escape(path.rpartition(".")[2])):
        read_manifest(file)


@pytest.mark.parametrize("kind", ["job", "trainjob"])
def test_pods_have_no_privileges(rendered: Rendered, kind: str) -> None:
    spec = documents(rendered("--kind", kind))
    if kind == "job":
        pod = spec["Job"]["spec"]["template"]["spec"]
    else:
        patch = spec["TrainJob"]["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]
        pod = patch["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 1000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/workspace", "/dev/shm", "/tmp"}
    shm = next(volume for volume in pod["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}


def test_manifest_requests_gpus_from_the_device_plugin(rendered: Rendered) -> None:
    job = documents(rendered("--ranks-per-node", "2"))["Job"]
    resources = job["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == 2
    assert "nvidia.com" not in rendered("--ranks-per-node", "2", "--no-gpus")
    train_job = documents(rendered("--ranks-per-node", "2", "--kind", "trainjob"))["TrainJob"]
    assert train_job["spec"]["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == "2"
    assert train_job["spec"]["trainer"]["numProcPerNode"] == 2


def test_rendered_objects_refer_to_each_other(rendered: Rendered) -> None:
    spec = documents(rendered("--nodes", "2", "--restarts", "5"))
    job, pod = spec["Job"]["spec"], spec["Job"]["spec"]["template"]["spec"]
    assert job["completions"] == job["parallelism"] == 2
    assert job["backoffLimit"] == 10, "a restart of the world costs a failure of each pod"
    assert pod["subdomain"] == spec["Service"]["metadata"]["name"]
    assert f"--master-addr=frog-demo-0.{pod['subdomain']}" in pod["containers"][0]["args"]
    assert spec["Service"]["spec"]["selector"] == {"batch.kubernetes.io/job-name": spec["Job"]["metadata"]["name"]}
    torchrun_s = int(next(w for w in pod["containers"][0]["args"] if "shutdown-timeout" in w).partition("=")[2])
    assert 30 < torchrun_s < pod["terminationGracePeriodSeconds"], "torchrun gives up before the kubelet does"


def test_config_map_contains_exact_files(rendered: Rendered, tmp_path: Path) -> None:
    run_file = tmp_path / "odd.toml"
    run_file.write_text('  name = "odd"\n[model]\nfile = "sub/m.json"\n\n# ünïcode, a tab\t and: {yaml}\n\n')
    (tmp_path / "sub").mkdir()
    model = (ROOT / "config" / "config.json").read_text().rstrip("\n")
    (tmp_path / "sub" / "m.json").write_text(model)
    spec = documents(rendered("--ranks-per-node", "1", "--no-gpus", run_file=str(run_file)))
    assert spec["ConfigMap"]["data"] == {"odd.toml": run_file.read_text(), "m.json": model}
    args = spec["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-4:] == ["/config/odd.toml", "--continue", "--set", "model.file=m.json"]


def test_config_map_preserves_unicode(rendered: Rendered, tmp_path: Path) -> None:
    """Emoji stay readable in a block; characters that YAML treats as line breaks force a quoted string."""
    (tmp_path / "config.json").write_text((ROOT / "config" / "config.json").read_text())
    run_file = tmp_path / "odd.toml"
    for letters in ("🐸 ü", "\u2028", "\x85", "\ufeff"):
        run_file.write_text(f'name = "odd"  # {letters}\n', encoding="utf-8")
        text = rendered("--ranks-per-node", "1", run_file=str(run_file))
        assert documents(text)["ConfigMap"]["data"]["odd.toml"] == run_file.read_text(encoding="utf-8")
        assert ("🐸" in text) == ("🐸" in letters)


def test_settings_reach_the_program_unchanged(rendered: Rendered) -> None:
    """YAML and Kubernetes, which expands $(NAME) and $$, keep the user's text; Frog's own variables still expand."""
    settings = [
        f'eval.prompt="{words}"' for words in ("🐸", "a: b # c, [d] \u2028", "$(JOB_COMPLETION_INDEX) $$(X) $$")
    ]
    for kind in ("job", "trainjob"):
        words = [word for setting in settings for word in ("--set", setting)]
        spec = documents(rendered("--kind", kind, *words))
        if kind == "job":
            args = spec["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
            assert "--node-rank=$(JOB_COMPLETION_INDEX)" in args
        else:
            args = spec["TrainJob"]["spec"]["trainer"]["args"]
        assert [expand(word, {"JOB_COMPLETION_INDEX": "7"}) for word in args[-6:]] == words


def test_ambiguous_names_are_quoted(rendered: Rendered) -> None:
    text = rendered("--name", "y", "--namespace", "12e4567", "--claim", "null")
    assert {line.strip() for line in text.splitlines() if line.strip().startswith(("name: ", "claimName:"))} >= {
        'name: "y"',
        'claimName: "null"',
    }
    assert 'namespace: "12e4567"' in text


@pytest.mark.parametrize(
    "text",
    [
        *("", "y", "No", "TRUE", "null", "~", "12e4567", "1_000", "0x1f", "0o7", "1:30", "2026-01-01", ".5", ".inf"),
        *(
            "1e3Gi",
            "-1",
            "+1",
            "-.nan",
            "=",
            "<<",
            "a:",
            "a: b",
            "a,b",
            "a #b",
            "- a",
            "*a",
            "&a",
            "!a",
            "@a",
            "[",
            "{",
        ),
        *("a\n", "a\n  \n", "a\r\nb", "\x00\x1b", "\x85", "\ufffe", "🐸", "\\ud83d\\udc38", '"', "'", "ä", "\u0663Gi"),
    ],
)
def test_ambiguous_scalars_are_quoted(text: str) -> None:
    written = scalar(text)
    assert written.isascii()
    assert written[0] == written[-1] == '"'
    assert yaml.safe_load(f"[{written}]") == [text]
    assert yaml.safe_load(f"k: {block(text, 2)}\n") == {"k": text}


@pytest.mark.parametrize(
    "text", ["a", "50Gi", "--set", "-m", "/config/a.toml", "train.steps=4", "--rank=$(I)", "r.example.org:5/a/f:1@b"]
)
def test_unambiguous_scalars_stay_plain(text: str) -> None:
    assert scalar(text) == text
    assert yaml.safe_load(f"[{text}, a: {text}]") == [text, {"a": text}]


def test_deepspeed_run_includes_its_file(rendered: Rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "strategy.implementation=deepspeed", "--set", "strategy.name=zero1"]
    spec = documents(rendered("--ranks-per-node", "2", *settings))
    assert "deepspeed_zero1.json" in spec["ConfigMap"]["data"]
    args = spec["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-1] == "strategy.deepspeed_file=/config/deepspeed_zero1.json"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--name", "Frog"], "--name Frog"),
        (["--name", "f" * 53], "at most 52 characters"),
        (["--name", "f" * 46, "--kind", "trainjob"], "at most 45 characters"),
        (["--name", "1b-run"], "starting with a letter"),
        (["--namespace", "a b"], "--namespace a b"),
        (["--claim", "a_b"], "--claim a_b"),
        (["--memory", "much"], "--memory much"),
        (["--image", "a b"], "--image a b"),
        (["--kind", "trainjob", "--restarts", "3"], "--restarts 3: the runtime of a TrainJob"),
        (["--runtime", "x"], "--kind trainjob"),
        (["--claim", "mine", "--storage", "50Gi"], "--storage 50Gi: --claim mine names an existing volume"),
        (["--claim", "mine", "--storage-class", "fast"], "--storage-class fast"),
        (["--set", 'eval.prompt="\udcff"'], "not UTF-8"),
        (["--nodes", "5"], "train.global_batch_size"),
        (["--set", "train.stepz=1"], "did you mean train.steps"),
    ],
)
def test_mistakes_are_reported_before_anything_is_printed(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", DEMO, "--to", "kubernetes", "--dry-run", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, words in err, "Traceback" in err) == ("", True, False), err


def test_invalid_config_map_file_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file = tmp_path / "my run.toml"
    run_file.write_text(f'name = "odd"\n[model]\nfile = {json.dumps(str(ROOT / "config" / "config.json"))}\n')
    assert main(["submit", str(run_file), "--to", "kubernetes", "--dry-run"]) == 2
    assert "my run.toml: a file name in a ConfigMap" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "cpus", "memory"),
    [
        ({}, 32, "128Gi"),
        ({"gpus": False}, 4, "8Gi"),
        ({"ranks_per_node": 1}, 8, "32Gi"),
        ({"ranks_per_node": 3, "gpus": False}, 3, "6Gi"),
        ({"cpus": 5, "memory": "7Gi"}, 5, "7Gi"),
    ],
)
def test_pod_has_cpus_and_memory_for_each_rank(changes: dict[str, Any], cpus: int, memory: str) -> None:
    request = KubernetesRequest(ProgramWork(("my.py",), "my"), {}, **changes)
    assert (request.cpus_per_pod, request.memory_per_pod) == (cpus, memory)


@pytest.mark.parametrize(
    ("name", "job_name"),
    [
        ("My Run!", "frog-my-run"),
        ("__a__", "frog-a"),
        ("x" * 80, "frog-" + "x" * 40),
        ("x" * 39 + "--y", "frog-" + "x" * 39),
    ],
)
def test_name_of_a_job_is_short_enough_for_its_pods(name: str, job_name: str) -> None:
    request = KubernetesRequest(ProgramWork(("my.py",), name), {})
    assert request.job_name == job_name
    assert len(request.job_name) <= 45
    assert KubernetesRequest(ProgramWork(("my.py",), name), {}, name="own").job_name == "own"


@pytest.mark.parametrize("more", [0, 1])
def test_files_of_a_run_must_fit_into_a_config_map(more: int) -> None:
    config = load_run_config(Path(DEMO))
    text = "#" * ((1 << 20) - len("run.toml") + more)
    request = KubernetesRequest(config, {"run.toml": text}, "run.toml", nodes=1, ranks_per_node=2)
    if more:
        with pytest.raises(ConfigError, match="have 1048577 bytes, but a ConfigMap holds at most 1048576"):
            kubernetes_manifests._check_request(request, "job")
    else:
        kubernetes_manifests._check_request(request, "job")
