"""Output of `frog slurm status`: daemons, nodes, jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from frog.cluster.slurm.real_cluster import Cluster, daemons, is_answering, read_cluster


def status_text(folder: Path) -> str:
    """Return the state of a cluster, as tables. Raises UsageError if there is none."""
    cluster = read_cluster(folder)
    tables = [_daemons(cluster)]
    if is_answering(cluster):
        tables += [_nodes(cluster), _jobs(cluster)]
    else:
        tables.append("slurmctld does not answer: `frog slurm down` removes its remains")
    return "\n\n".join(tables)


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows in columns of even width; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _daemons(cluster: Cluster) -> str:
    site, running = cluster.site, daemons(cluster)
    places = [str(site.munge_socket), *(f"{site.address}:{port}" for port in site.ports)]
    rows = [["DAEMON", "PID", "LISTENS AT", "STATE"]]
    for (name, pid), place in zip(running.items(), places, strict=True):
        rows.append([name, str(pid or "-"), place, "runs" if pid else "dead"])
    return format_table(rows)


def _nodes(cluster: Cluster) -> str:
    columns = "NodeList:|,StateLong:|,Gres:|,GresUsed:|,CPUsState:|"
    lines = cluster.ask("sinfo", "--noheader", "--Node", f"--Format={columns}").splitlines()
    rows = [["NODE", "STATE", "GPUS USED", "CPUS USED"]]
    for line in lines:
        name, state, gres, used, cpus, _ = line.split("|")
        allocated, _, _, total = cpus.split("/")
        rows.append([name, state, f"{_count(used)} of {_count(gres)}", f"{allocated} of {total}"])
    return format_table(rows)


def _count(gres: str) -> int:
    """Return the number in gpu:4, gpu:(null):2(IDX:0-1) or (null)."""
    for part in gres.replace("(", ":").split(":"):
        if part.isdigit():
            return int(part)
    return 0


def _jobs(cluster: Cluster) -> str:
    lines = cluster.ask("squeue", "--noheader", "--format=%i|%T|%M|%l|%D|%R|%j").splitlines()
    if not lines:
        return "no jobs"
    rows = [["JOB", "NAME", "STATE", "TIME", "LIMIT", "NODES", "WHERE OR WHY"]]
    for line in lines:
        number, *rest, name = line.split("|", 6)  # the name comes last because it may contain anything
        rows.append([number, name, *rest])
    return format_table(rows)
