from __future__ import annotations

import signal

from frog.core.exitcodes import describe_exit, shell_code, signal_code, signal_name


def test_a_signal_ends_a_process_as_a_shell_says_it() -> None:
    assert [shell_code(code) for code in (0, 3, -9)] == [0, 3, 137]
    assert signal_code(signal.SIGTERM) == 143


def test_how_a_process_ended() -> None:
    assert describe_exit(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert describe_exit(69) == "ended with exit code 69"
    assert signal_name(1000) == "signal 1000"
