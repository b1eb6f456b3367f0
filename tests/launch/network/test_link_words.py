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
        ("rate=10kbit delay=10s loss=99.9% seed=999999999999999999", Link(1e4, 10, 0.999, 10**18 - 1)),
        ("rate=1000mbit delay=0s loss=0% seed=0", Link(1e9, 0, 0, 0)),
        ("rate=2mibit", Link(2 * 2**20)),
        ("rate=.5gibit", Link(2.0**29)),
        ("rate=100kbps", Link(8e5)),
        ("delay=3usec", Link(1e9, 3e-6)),
        ("delay=3usecs", Link(1e9, 3e-6)),
        ("delay=3msec", Link(1e9, 3e-3)),
        ("delay=3msecs", Link(1e9, 3e-3)),
        ("delay=3sec", Link(1e9, 3)),
        ("delay=3secs", Link(1e9, 3)),
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
        ("rate=9999bit", "rate=9999bit is 0.009999 Mbit/s; the switch supports 0.01 to 1000 Mbit/s"),
        ("rate=1001mbit", "rate=1001mbit is 1001 Mbit/s"),
        ("delay=20", "delay=20 is not a time"),
        ("delay=10.1s", "delay=10.1s is more than 10 s"),
        ("delay=1h", "delay=1h is not a time"),
        ("delay=1min", "delay=1min is not a time"),
        ("delay=11s", "delay=11s is more than 10 s"),
        ("loss=0.1", "loss=0.1 is not a percentage"),
        ("loss=100%", "loss=100% is not a percentage"),
        ("seed=x", "seed=x is not an integer"),
        ("seed=-1", "seed=-1 is not an integer"),
        ("seed=1000000000000000000", "seed=1000000000000000000 is not an integer"),
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


@pytest.mark.parametrize(
    ("link", "mtu", "queue_bytes"),
    [
        (Link(1e8, 0.1), 9000, 3_750_000 + 144_000),  # 12.5 MB/s for a round trip of 0.2 s and 0.1 s; 16 packets
        (Link(1e7, 0.02), 1500, 175_000 + 24_000),
        (Link(), 9000, 12_500_000 + 144_000),
        (Link(99_999_999, 0), 1500, 1_249_999 + 24_000),
    ],
)
def test_queue_holds_the_bytes_of_a_round_trip_and_of_a_tenth_of_a_second(
    link: Link, mtu: int, queue_bytes: int
) -> None:
    assert (link.mtu, link.queue_bytes) == (mtu, queue_bytes)


def test_link_without_loss_says_nothing_of_it() -> None:
    assert str(Link(1.5e6, 0.0005)) == "1.5 Mbit/s, 0.5 ms one way"
