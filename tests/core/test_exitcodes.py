from __future__ import annotations

import signal

from frog.core.errors import describe_exit, shell_code, signal_code, signal_name


def test_signals_give_the_exit_codes_of_a_shell() -> None:
    assert [shell_code(code) for code in (0, 3, -9)] == [0, 3, 137]
    assert signal_code(signal.SIGTERM) == 143


def test_describe_exit_names_the_signal_or_the_code() -> None:
    assert describe_exit(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert describe_exit(69) == "ended with exit code 69"
    assert signal_name(1000) == "signal 1000"
