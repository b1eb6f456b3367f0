"""Names in job files: the variable that a misspelled one means, and the language of the first line."""

from __future__ import annotations

import pytest

from frog.cluster.jobfile.job_file import language
from frog.cluster.jobfile.traps_shell import _similar_variable


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("RNAK", {"RANK", "PORT"}, "RANK"),  # two letters swapped
        ("RANC", {"RANK"}, None),  # another letter, in a short name
        ("NKAR", {"RANK"}, None),  # the same letters, more than two of them moved
        ("AB", {"BA"}, None),
        ("ABC", {"BAC"}, None),
        ("MASTER_ADR", {"MASTER_ADDR"}, "MASTER_ADDR"),
        ("MASTER_ADDRR", {"MASTER_ADDR"}, "MASTER_ADDR"),
        ("MASTER_PORT", {"MASTER_ADDR"}, None),
        ("DATASET1", {"DATASET"}, None),  # numbered
        ("DATASETX", {"DATASET1"}, None),
        ("SLURM_PROCIDD", set(), "SLURM_PROCID"),
        ("SLURM_PROCID", {"SLURM_PROCIDS"}, None),
        ("SLURM_NTASK", set(), "SLURM_NTASKS"),
        ("HOSTNAMES", {"HOSTNAME"}, None),  # one and many
        ("HOSTNAMEX", {"HOSTNAME"}, "HOSTNAME"),
    ],
)
def test_variable_that_differs_by_one_letter_may_be_meant(name: str, known: set[str], meant: str | None) -> None:
    assert _similar_variable(name, known, is_list=False) == meant


def test_plural_may_be_meant_where_a_list_is_expected() -> None:
    assert _similar_variable("HOSTNAMES", {"HOSTNAME"}, is_list=True) == "HOSTNAME"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("#!/bin/sh", None),
        ("#!/bin/bash -l", None),
        ("#!/usr/bin/env bash", None),
        ("#!/usr/bin/python3", "python3"),
        ("#!/usr/bin/env python3 -u", "python3"),
        ("#!/usr/bin/env -S python3 -u", "python3"),
        ("#! /bin/tcsh", "tcsh"),
        ("# /usr/bin/python3", None),
        ("!#/usr/bin/python3", None),
        ("#!", None),
        ("", None),
    ],
)
def test_language_is_the_interpreter_of_the_first_line(line: str, name: str | None) -> None:
    assert language([line, "#!/usr/bin/perl"]) == name
