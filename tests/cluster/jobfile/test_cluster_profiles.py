"""Cluster profiles: parsed and validated, with one error for all mistakes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from mutations import held_to_its_schema

from frog.cluster.jobfile.cluster_profile import Limits, load_profile, parse_profile, profile_names
from frog.core.errors import ConfigError

CLUSTERS = Path(__file__).parents[3] / "config" / "clusters"
NAMES = sorted(path.stem for path in CLUSTERS.glob("*.toml"))


def test_shipped_profiles_are_valid() -> None:
    assert profile_names(CLUSTERS) == NAMES
    generic, mn5 = (load_profile(name, CLUSTERS) for name in ("generic", "marenostrum5"))
    assert (generic.name, generic.network, generic.account_required) == ("generic", True, False)
    assert (mn5.partition, mn5.gpus_per_node, mn5.cpus_per_gpu, mn5.network) == ("acc", 4, 20, False)
    assert mn5.source
    assert mn5.check


@pytest.mark.parametrize("name", NAMES)
def test_profile_with_wrong_types_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_bytes((CLUSTERS / path.name).read_bytes())
    held_to_its_schema(path, lambda: load_profile(name, tmp_path))


def test_profile_limits_depend_on_qos() -> None:
    mn5 = load_profile("marenostrum5", CLUSTERS)
    assert (mn5.max_time_s(None), mn5.max_nodes_of(None)) == (72 * 3600, 100)
    assert (mn5.max_time_s("acc_debug"), mn5.max_nodes_of("acc_debug")) == (2 * 3600, 8)
    assert (mn5.max_time_s("acc_other"), mn5.max_nodes_of("acc_other")) == (72 * 3600, 100)
    free = load_profile("generic", CLUSTERS)
    assert (free.max_time_s(None), free.max_nodes_of("any")) == (None, None)


def test_profile_is_read_from_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('gpus_per_node = 8\nmodules = ["cuda/12"]\n[limits.short]\nmax_time = "01:00:00"\n')
    profile = load_profile(str(path))
    assert (profile.name, profile.gpus_per_node, profile.modules) == ("mine", 8, ("cuda/12",))
    assert profile.limits == {"short": Limits(max_time="01:00:00")}


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_profile(tomllib.loads(text), Path("mine.toml"))
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines() if line.startswith("  - ")]


def test_one_error_lists_all_profile_mistakes() -> None:
    message = problems(
        'gpu_per_node = 4\ncpus_per_gpu = "8"\nmodules = "cuda"\nenvironment = 3\n[limits.a]\nmax_tim = "1"\n'
    )
    assert message == [
        "modules='cuda': must be a list of strings",
        "environment=3: must be a table, [environment], of strings",
        "limits.a.max_tim: unknown key; did you mean limits.a.max_time?",
        "gpu_per_node: unknown key; did you mean gpus_per_node?",
        "cpus_per_gpu='8': must be a whole number or null",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus_per_node = -1", "gpus_per_node=-1: must be at least 0"),
        ("max_nodes = 0", "max_nodes=0: must be at least 1"),
        ('gpu_option = "gpus"', "gpu_option='gpus': must be 'gpus-per-node' or 'gres'"),
        ('max_time = "tomorrow"', "max_time='tomorrow': must be a time such as '12:00:00'"),
        ('[limits.a]\nmax_time = "x"', "limits.a.max_time='x': must be a time such as '12:00:00'"),
        ('directives = ["--exlusive"]', "directives: '--exlusive': --exlusive: no such option"),
        ('directives = ["exclusive"]', "directives: 'exclusive': not an option of sbatch"),
        ('[environment]\n"A B" = "c"', "environment.A B: not a valid variable name"),
        ('modules = ["a"]\ncontainer = "b.sif"', "modules=('a',) and container='b.sif': a job uses one or the other"),
        ('account = "a b"', "account='a b': not a valid name"),
        ('python = "a\\nb"', "python='a\\nb': must be one line, without control characters"),
        ("limits = 3", "limits=3: must be tables, [limits.NAME], one for each QOS"),
    ],
)
def test_each_profile_rule_is_enforced(text: str, message: str) -> None:
    assert problems(text) == [message]


def test_unknown_profile_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="--profile marenostrum5"):
        load_profile("marenostrum", CLUSTERS)
    with pytest.raises(ConfigError, match=f"one of {', '.join(NAMES)}"):
        load_profile("zzz", CLUSTERS)
    with pytest.raises(ConfigError, match="the project's folder"):
        load_profile("generic", CLUSTERS / "nowhere")


def test_profile_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("gpus_per_node: 4")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_profile(str(path))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match="found a folder, expected a file"):
        load_profile(str(tmp_path / "folder.toml"))
