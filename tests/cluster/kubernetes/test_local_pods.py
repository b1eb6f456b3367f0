"""`frog run --from`: runs a manifest's pods as processes in their own namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import Harness, all_gone, run_to_end, tree, wait_until

HEAD = """
apiVersion: v1
kind: Service
metadata: {name: small}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {job-name: small}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: files}
data: {greeting: "hello there", other.txt: "x"}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk, annotations: {frog/local-folder: disk}}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
---
"""


def job(script: str, **changes: Any) -> dict[str, Any]:
    """Return a Job whose pods run a bash script with the volume at /disk. Keys of `changes`: spec__completions=2."""
    value: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "small"},
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": {"colour": "green"}},
                "spec": {
                    "subdomain": "small",
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 60,
                    "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True},
                    "containers": [
                        {
                            "name": "one",
                            "image": "any",
                            "command": ["bash", "-c", script],
                            "workingDir": "/disk",
                            "volumeMounts": [{"name": "disk", "mountPath": "/disk"}],
                        }
                    ],
                    "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}],
                },
            },
        },
    }
    for path, change in changes.items():
        target: Any = value
        *parts, last = path.split("__")
        for part in parts:
            target = target[part]
        target[last] = change
    return value


@pytest.fixture
def here(tmp_path: Path, may_make_pods: None, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Create a folder to run manifests in, with one for temporary files."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return Harness(tmp_path)


def start(here: Harness, value: dict[str, Any]) -> tuple[str, ...]:
    """Write a manifest; return the command that runs it."""
    (here.root / "k8s.yaml").write_text(HEAD + json.dumps(value))
    return ("frog", "run", "--from", "k8s.yaml")


def left_behind(here: Harness) -> list[str]:
    return os.listdir(here.root / "tmp")


LOOK = """
exec > seen.$(JOB_COMPLETION_INDEX)
echo peer $(getent hosts small-1.small | wc -l)
echo uid $(id -u) $(id -g)
echo host $(hostname) $(hostname -f)
echo ip $(MY_IP) $(hostname -i)
echo env $(env -i PATH=$$PATH true; env | cut -d= -f1 | sort | tr '\\n' ' ')
echo said $GREETING, $COLOUR, $NAME, $COMPOSED
echo file $(cat /config/deep/greeting)
echo config $(ls /config) $(touch /config/x 2>&1 | grep -c Read-only)
echo root $(touch /new MACHINE/new 2>&1 | grep -c Read-only)
echo tmp $(touch /scratch/x && ls /scratch) $(df --output=size -k /dev/shm | tail -n 1)
echo caps $(grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status | tr -d '\\n\\t ')
echo processes $$$$ $(ls /proc | grep -c '^[0-9]')
for _ in $(seq 600); do getent hosts small-1.small > peer.$(JOB_COMPLETION_INDEX) && break; sleep 0.1; done
echo peer $(cut -d' ' -f2- peer.$(JOB_COMPLETION_INDEX))
until test -s peer.0 -a -s peer.1; do sleep 0.1; done  # an ended pod has no name
"""


def test_pod_is_isolated(here: Harness) -> None:
    """A pod has its own user, host name, address, processes and files, and finds other pods' names as in Kubernetes."""
    value = job(LOOK.replace("MACHINE", str(here.root)), spec__completions=2, spec__parallelism=2)
    container = value["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [
        {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "files", "key": "greeting"}}},
        {"name": "COLOUR", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['colour']"}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "MY_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "COMPOSED", "value": "$(COLOUR)-$(JOB_COMPLETION_INDEX)-$$(COLOUR)"},
    ]
    container["securityContext"] = {"readOnlyRootFilesystem": True}
    container["volumeMounts"] += [
        {"name": "config", "mountPath": "/config"},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    value["spec"]["template"]["spec"]["volumes"] += [
        {"name": "config", "configMap": {"name": "files", "items": [{"key": "greeting", "path": "deep/greeting"}]}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "3Mi"}},
    ]
    done = here.run(*start(here, value), env={"SECRET": "of the launcher"})
    lines = (line.partition(" ") for line in (here.root / "disk" / "seen.1").read_text().splitlines())
    output = [(key, rest.strip()) for key, _, rest in lines]
    seen = dict(output)
    assert seen["uid"] == "1000 1000"
    assert seen["host"] == "small-1 small-1.small.default.svc.cluster.local"
    address, resolved = seen["ip"].split()
    assert address == resolved
    assert address.startswith("127.0.1.")
    names = "COLOUR COMPOSED GREETING HOME HOSTNAME JOB_COMPLETION_INDEX MY_IP NAME PATH"
    assert set(seen["env"].split()) - {"PWD", "SHLVL", "_"} == set(names.split()), "no variables of the launcher"
    greeting, colour, name, composed = seen["said"].split(", ")
    assert (greeting, colour, composed) == ("hello there", "green", "green-1-$(COLOUR)")
    assert f"pod {name} started: {address}" in done.stderr
    assert name.startswith("small-1-")
    assert seen["file"] == "hello there"
    assert seen["config"] == "deep 1", "only the listed items, read-only"
    assert seen["root"] == "2", "only volumes are writable"
    assert seen["tmp"] == "x 3072"
    assert seen["caps"] == "CapEff:0000000000000000CapBnd:0000000000000000NoNewPrivs:1"
    first, count = seen["processes"].split()
    assert first == "1", "its command is process 1"
    assert int(count) < 8, "it sees only its own processes"
    early, late = (rest for key, rest in output if key == "peer")
    assert early == "0", "a name does not resolve immediately"
    assert late.split() == ["small-1.small.default.svc.cluster.local"]
    peers = {(here.root / "disk" / f"peer.{index}").read_text().split()[0] for index in (0, 1)}
    assert peers == {address}
    assert left_behind(here) == []


WRITE = """
set -e
cd MACHINE
echo changed > kept
rm -r folder
touch new /NAME /tmp/NAME
mkdir -p /opt/NAME/deep
ln -s /disk link
in_tmp=$(find /tmp -maxdepth 1 -type f)
echo "$(cat kept) $(ls | tr '\\n' ' ') $in_tmp $(pwd) $(stat -c %a /tmp) $(cat link/given)" > /disk/seen
"""


@pytest.fixture
def machine() -> Iterator[Path]:
    """Create a folder of this machine outside of /tmp, which pods do not share. No other file has its name."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="frog-test-") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_pod_writes_to_its_root_and_changes_nothing_on_the_machine(here: Harness, machine: Path) -> None:
    """Its working folder does not exist here, and a volume is mounted through a folder that is a link."""
    (machine / "folder").mkdir()
    (machine / "folder" / "file").touch()
    (machine / "kept").write_text("original")
    (here.root / "disk").mkdir()
    (here.root / "disk" / "given").write_text("given")
    script = WRITE.replace("MACHINE", str(machine)).replace("NAME", machine.name)
    value = job(script + "test -d /run/scratch\n")
    spec = value["spec"]["template"]["spec"]
    spec["containers"][0]["volumeMounts"].append({"name": "scratch", "mountPath": "/var/run/scratch"})
    spec["volumes"].append({"name": "scratch", "emptyDir": {}})
    spec["containers"][0]["workingDir"] = "/not/on/this/machine"
    absent = {machine.name, "not", "disk", "scratch"} - set(os.listdir("/"))
    assert machine.name in absent
    done = here.run(*start(here, value))
    assert "Job small is complete" in done.stderr
    assert (here.root / "disk" / "seen").read_text() == (
        f"changed kept link new  /tmp/{machine.name} {machine} 1777 given\n"
    )
    assert absent & set(os.listdir("/")) == set()
    assert sorted(os.listdir(machine)) == ["folder", "kept"]
    assert (machine / "kept").read_text() == "original"
    assert (machine / "folder" / "file").exists()
    assert [place for place in ("/tmp", "/opt") if Path(place, machine.name).exists()] == []
    assert left_behind(here) == []


BECOMES_READY = (
    "for _ in $(seq 30); do getent hosts small-0.small && exit 9; sleep 0.1; done; touch ready; "
    "until getent hosts small-0.small; do sleep 0.1; done"
)
"""Queries for longer than the two seconds after which a ready pod gets a name."""


@pytest.mark.slow
def test_pod_name_resolves_once_pod_is_ready(here: Harness) -> None:
    value = job(BECOMES_READY)
    value["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = {
        "exec": {"command": ["test", "-e", "ready"]},
        "periodSeconds": 1,
    }
    command = start(here, value)
    path = here.root / "k8s.yaml"
    path.write_text(path.read_text().replace("publishNotReadyAddresses: true, ", ""))
    assert "Job small is complete" in here.run(*command).stderr


COUNTED = "echo $(NAME) $(MY_IP) >> tries; test $(wc -l < tries) -gt 2 || exit 7"
WHO = [
    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "MY_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
]


def counted(**changes: Any) -> dict[str, Any]:
    """Return a Job whose pod fails twice with exit code 7 and then succeeds."""
    value = job(COUNTED.replace("$(wc", "$$(wc"), **changes)
    value["spec"]["template"]["spec"]["containers"][0]["env"] = WHO
    return value


def tries(here: Harness) -> list[list[str]]:
    return [line.split() for line in (here.root / "disk" / "tries").read_text().splitlines()]


@pytest.mark.slow
def test_restart_policy_never_creates_new_pods(here: Harness) -> None:
    done = here.run(*start(here, counted(spec__backoffLimit=2)))
    assert "(failure 2, backoffLimit 2)" in done.stderr
    assert "Job small is complete" in done.stderr
    assert [len({column[n] for column in tries(here)}) for n in (0, 1)] == [3, 3], "new names and addresses"


@pytest.mark.slow
def test_restart_policy_on_failure_restarts_the_container(here: Harness) -> None:
    value = counted(spec__backoffLimit=1, spec__template__spec__restartPolicy="OnFailure")
    script = value["spec"]["template"]["spec"]["containers"][0]["command"]
    script[-1] = script[-1].replace("-gt 2", "-gt 1")
    here.run(*start(here, value))
    assert len(tries(here)) == 2
    assert len({tuple(line) for line in tries(here)}) == 1, "one pod, one address"


@pytest.mark.slow
def test_job_fails_at_backoff_limit(here: Harness) -> None:
    done = here.run(*start(here, counted(spec__backoffLimit=1)), code=1)
    assert "error: Job small failed (BackoffLimitExceeded)" in done.stderr
    assert len(tries(here)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "code", "num_tries", "words"),
    [("FailJob", 1, 1, "(PodFailurePolicy)"), ("Ignore", 0, 3, "exit code 7; this failure does not count")],
)
def test_pod_failure_policy_determines_retries_and_exit_code(
    here: Harness, action: str, code: int, num_tries: int, words: str
) -> None:
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": action, "onExitCodes": {"containerName": "one", "operator": "In", "values": [7]}},
    ]
    done = here.run(*start(here, counted(spec__podFailurePolicy={"rules": rules})), code=code)
    assert words in done.stderr
    assert len(tries(here)) == num_tries


@pytest.mark.slow
def test_failed_job_stops_its_other_pods(here: Harness) -> None:
    script = (
        "trap 'echo asked > asked; exit 0' TERM; touch up.$(JOB_COMPLETION_INDEX); test $(JOB_COMPLETION_INDEX) = 0 && "
        "{ until test -e up.1; do sleep 0.1; done; exit 3; }; sleep 600 & wait"
    )
    done = here.run(*start(here, job(script, spec__completions=2, spec__parallelism=2)), code=1)
    assert "BackoffLimitExceeded" in done.stderr
    assert (here.root / "disk" / "asked").exists()


@pytest.mark.slow
def test_failing_liveness_probe_restarts_the_pod(here: Harness) -> None:
    """The probe runs in the pod, sees its files, and starts only after the startup probe has passed."""
    script = (
        "echo up >> starts; test $$(wc -l < starts) = 3 && exit 0; sleep 3; echo ok >> starts; touch /dev/shm/ok; "
        "until test -e seen; do sleep 0.1; done; rm /dev/shm/ok; exec sleep 600"
    )
    value = job(script, spec__backoffLimit=1, spec__template__spec__terminationGracePeriodSeconds=1)
    often = {"periodSeconds": 1, "timeoutSeconds": 30}
    starts = {"exec": {"command": ["bash", "-c", "ls /dev/shm/ok && touch seen"]}, "failureThreshold": 60, **often}
    lives = {"exec": {"command": ["ls", "/dev/shm/ok"]}, "failureThreshold": 2, **often}
    value["spec"]["template"]["spec"]["containers"][0] |= {"startupProbe": starts, "livenessProbe": lives}
    done = here.run(*start(here, value))
    assert "ended with exit code 137: its liveness probe failed 2 times: ls: cannot access '/dev/shm/ok'" in done.stderr
    assert (here.root / "disk" / "starts").read_text() == "up\nok\nup\n"


@pytest.mark.slow
def test_hanging_probe_does_not_block_the_end_of_the_pod(here: Harness) -> None:
    """A killed probe's orphans must be reaped; otherwise the pod could not end."""
    value = job("until test -e asked; do sleep 0.1; done; sleep 1.5")
    probe = {"exec": {"command": ["bash", "-c", "touch asked; exec sleep 600"]}, "timeoutSeconds": 1}
    value["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = probe
    assert "Job small is complete" in here.run(*start(here, value)).stderr


@pytest.mark.slow
def test_manifest_is_read_from_a_pipe(here: Harness) -> None:
    start(here, job("true"))
    done = here.run("bash", "-c", "cat k8s.yaml | frog run --from /dev/stdin")
    assert "Job small is complete" in done.stderr


@pytest.mark.slow
def test_job_fails_at_its_deadline(here: Harness) -> None:
    done = here.run(*start(here, job("exec sleep 600", spec__activeDeadlineSeconds=1, **GRACE)), code=1)
    assert "(DeadlineExceeded)" in done.stderr


GRACE = {"spec__template__spec__terminationGracePeriodSeconds": 1}


def begin(here: Harness, script: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start a Job of two pods that keep running, and wait until each has executed the script's UP."""
    value = job(script.replace("UP", "touch up.$(JOB_COMPLETION_INDEX)"), spec__completions=2, spec__parallelism=2)
    process = here.start(*start(here, value), start_new_session=True)
    disk = here.root / "disk"
    wait_until(lambda: all((disk / f"up.{n}").exists() for n in (0, 1)), "two pods", process)
    return process, tree(process)


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_launcher_forwards_sigterm_to_pods(here: Harness, number: signal.Signals) -> None:
    process, family = begin(here, "trap 'echo bye; exit 0' TERM; UP; sleep 600 & wait")
    process.send_signal(number)
    out, err = run_to_end(process)
    assert process.returncode == 128 + number, err
    assert {"small-0 | bye", "small-1 | bye"} <= set(out.splitlines())
    wait_until(lambda: all_gone(family), "the end of all processes")
    assert left_behind(here) == []


@pytest.mark.slow
def test_second_signal_kills_pods_that_ignore_the_first(here: Harness) -> None:
    process, family = begin(here, "trap '' TERM; UP; while true; do sleep 1; done")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    _, err = run_to_end(process)
    assert process.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert "Traceback" not in err
    wait_until(lambda: all_gone(family), "the end of all processes")


@pytest.mark.slow
def test_killed_launcher_leaves_no_processes(here: Harness) -> None:
    process, family = begin(here, "setsid sleep 600 & sleep 600 & UP; wait")
    assert len(family) > 6
    process.kill()
    run_to_end(process)
    wait_until(lambda: all_gone(family), "the end of all processes")
    assert left_behind(here) != [], "no process could remove its files"
    here.run(*start(here, job("true")))
    assert left_behind(here) == [], "the next launcher removes them"


def test_manifest_mistakes_show_no_traceback(here: Harness) -> None:
    done = here.run(*start(here, job("true", spec__completions="two")), code=2)
    assert "k8s.yaml: a mistake\n  - Job.spec.completions: must be an integer, is a string ('two')" in done.stderr
    assert "cannot be read" in here.run("frog", "run", "--from", "none.yaml", code=2).stderr
    done = here.run(*start(here, job("true", spec__template__spec__volumes=[])), code=2)
    assert "'disk': no such volume" in done.stderr


def test_missing_command_fails_with_exit_code_128(here: Harness) -> None:
    value = job("true")
    value["spec"]["template"]["spec"]["containers"][0]["command"] = ["not-there"]
    done = here.run(*start(here, value), code=1)
    assert "small-0 | not-there: No such file or directory" in done.stdout
    assert "exit code 128" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_forbidden_namespaces_are_reported(here: Harness) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can disable namespaces, inside its own namespace")
    command = start(here, job("true"))
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec " + " ".join(command)
    done = here.run("unshare", "--user", "--map-root-user", "bash", "-c", forbid, code=2)
    assert "this system does not allow you to create namespaces" in done.stderr
    assert "frog run --nodes 2x4" in done.stderr


PEERS = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set}
spec:
  replicatedJobs:
    - name: driver
      template:
        spec:
          template:
            spec:
              containers:
                - name: one
                  image: any
                  command: [bash, -c, "until getent hosts set-workers-0-1.set; do sleep 0.1; done; touch /disk/met"]
                  volumeMounts: &mounts [{name: disk, mountPath: /disk}]
              volumes: &volumes [{name: disk, persistentVolumeClaim: {claimName: disk}}]
    - name: workers
      template:
        spec:
          completions: 2
          parallelism: 2
          template:
            spec:
              containers:
                - name: one
                  image: any
                  command: [bash, -c, "until test -e /disk/met; do sleep 0.1; done; hostname"]
                  volumeMounts: *mounts
              volumes: *volumes
"""


@pytest.mark.slow
def test_pods_of_a_job_set_find_each_other_by_name(here: Harness) -> None:
    (here.root / "set.yaml").write_text(PEERS)
    done = here.run("frog", "run", "--from", "set.yaml")
    assert {"set-workers-0-0 | set-workers-0-0", "set-workers-0-1 | set-workers-0-1"} <= set(done.stdout.splitlines())
    assert "JobSet set is complete" in done.stderr
