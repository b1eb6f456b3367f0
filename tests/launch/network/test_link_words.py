"""The option `--network`: its format, and the errors for invalid values."""

from __future__ import annotations

import pytest

from frog.core.errors import UsageError
from frog.launch.network import Link, parse_network


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("rate=100mbit delay=20ms", Link(1e8, 0.02)),
        ("delay=20ms", Link(1e9, 0.02)),
        ("rate=1gbit", Link(1e9)),
        ("  loss=0.1%   rate=512kibit\tseed=7 ", Link(512 * 1024, 0, 0.001, 7)),
        ("rate=1.5mbps delay=500us", Link(12e6, 0.0005)),
        ("rate=20000bit delay=.5s loss=0%", Link(20000, 0.5)),
        ("rate=100Mbit delay=20MS", Link(1e8, 0.02)),
    ],
)
def test_network_option_is_parsed_like_tc(text: str, link: Link) -> None:
    found = parse_network(text)
    assert found.rate_bits_per_s == pytest.approx(link.rate_bits_per_s)
    assert found.delay_s == pytest.approx(link.delay_s)
    assert (found.loss, found.seed) == (pytest.approx(link.loss), link.seed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--network is empty"),
        ("rate", "'rate' is not one of rate=…, delay=…, loss=…, seed=…"),
        ("jitter=5ms", "'jitter=5ms' is not one of"),
        ("rate=100mbit,delay=20ms", "rate=100mbit,delay=20ms is not a rate in tc's format"),
        ("rate=100", "rate=100 is not a rate"),
        ("rate=fast", "rate=fast is not a rate"),
        ("rate=-1mbit", "rate=-1mbit is not a rate"),
        ("rate=0mbit", "rate=0mbit is 0 Mbit/s; the switch supports 0.01 to 1000 Mbit/s"),
        ("rate=10gbit", "rate=10gbit is 10000 Mbit/s; the switch supports 0.01 to 1000 Mbit/s"),
        ("delay=20", "delay=20 is not a time"),
        ("delay=1h", "delay=1h is not a time"),
        ("delay=1min", "delay=1min is not a time"),
        ("delay=11s", "delay=11s is more than 10 s"),
        ("loss=0.1", "loss=0.1 is not a percentage"),
        ("loss=100%", "loss=100% is not a percentage"),
        ("seed=x", "seed=x is not an integer"),
        ("rate=1mbit rate=2mbit", "rate is given twice: '1mbit' and '2mbit'"),
    ],
)
def test_invalid_network_option_is_rejected_with_a_hint(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_network(text)
    assert said in caught.value.what
    assert caught.value.hint


def test_link_is_described_by_its_settings() -> None:
    link = parse_network("rate=100mbit delay=20ms loss=1%")
    assert str(link) == "100 Mbit/s, 20 ms one way, loses 1 %"
    told = link.describe()
    assert told == {"rate_bits_per_s": 1e8, "delay_s": 0.02, "loss": 0.01, "seed": 0, "mtu": 9000}
    assert parse_network("rate=99mbit").mtu == 1500


def test_queue_holds_the_bytes_of_a_round_trip() -> None:
    link = Link(1e8, 0.1)
    assert link.queue_bytes > link.rate_bits_per_s / 8 * 2 * link.delay_s
