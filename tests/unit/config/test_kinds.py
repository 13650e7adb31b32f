"""What each kind of value accepts, refuses and shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignis.config import OPTIONS
from ignis.config.kinds import (
    NUMBER_MAX,
    Address,
    Bind,
    Choice,
    Count,
    Kind,
    Number,
    Pool,
    PoolSize,
    Size,
    Switch,
    Text,
)


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        ("0", 0),
        ("1536M", 1536 << 20),
        ("1536m", 1536 << 20),
        ("1.5G", 3 << 29),
        (".5k", 512),
        ("1536 M", 1536 << 20),
        ("1536 MiB", 1536 << 20),
        ("2GB", 2 << 30),
        (" 7 ", 7),
        ("0.1K", 102),  # a part of a byte is rounded down
        ("1T", 1 << 40),
        (12345, 12345),
    ],
)
def test_size_reads(raw: object, count: int) -> None:
    assert Size().parse(raw) == count


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("1e9", "suffix"),
        ("-1", "negative"),
        ("-1G", "negative"),
        (-1, "negative"),
        ("nan", "suffix"),
        ("inf", "suffix"),
        ("", "suffix"),
        ("1.5", "fraction"),
        (1.5, "suffix"),
        (True, "suffix"),
        ("1  G", "suffix"),
        ("1G2", "suffix"),
        ("0x10", "suffix"),
        ("1_000", "suffix"),
        ("\u0661G", "suffix"),  # a digit of another script
        ("9" * 30, "at most"),
        (None, "suffix"),
    ],
)
def test_size_refuses(raw: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Size().parse(raw)


def test_size_names_its_bounds() -> None:
    with pytest.raises(ValueError, match="at least 1 bytes"):
        Size(minimum=1).parse("0")


@given(st.integers(0, NUMBER_MAX))
def test_size_shows_what_it_reads_back(count: int) -> None:
    assert Size().parse(Size().show(count)) == count


@pytest.mark.parametrize(
    ("raw", "size"),
    [
        ("256Ktok", PoolSize(256 << 10, "tokens")),
        ("256 ktok", PoolSize(256 << 10, "tokens")),
        ("1Mtok", PoolSize(1 << 20, "tokens")),
        ("100tok", PoolSize(100, "tokens")),
        ("100 tokens", PoolSize(100, "tokens")),
        ("2G", PoolSize(2 << 30, "bytes")),
        (4096, PoolSize(4096, "bytes")),
    ],
)
def test_pool_keeps_the_unit_of_its_operator(raw: object, size: PoolSize) -> None:
    assert Pool().parse(raw) == size
    assert Pool().parse(Pool().show(size)) == size


@pytest.mark.parametrize("raw", ["0", "0tok", "-1tok", "1e3tok", "tok", "1.5tok", "2Gtokk"])
def test_pool_refuses(raw: str) -> None:
    with pytest.raises(ValueError, match="is "):
        Pool().parse(raw)


@pytest.mark.parametrize("raw", ["1.0", "1e3", "", "a", 1.0, True, "0x1", "9" * 25])
def test_count_refuses(raw: object) -> None:
    with pytest.raises(ValueError, match="is "):
        Count().parse(raw)


def test_count_names_its_step_and_bounds() -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        Count(64, 65536, step=64).parse("100")
    with pytest.raises(ValueError, match="at least 1"):
        Count(1).parse("0")
    assert Count(1, suffixes=True).parse("64K") == 65536


@pytest.mark.parametrize("raw", ["nan", "inf", "-1", "x", True, [1], "1e400"])
def test_number_refuses(raw: object) -> None:
    with pytest.raises(ValueError, match="is "):
        Number().parse(raw)


@pytest.mark.parametrize(
    ("raw", "value"), [("on", True), ("OFF", False), (True, True), ("1", True), ("no", False)]
)
def test_switch_reads(raw: object, value: bool) -> None:
    assert Switch().parse(raw) is value


def test_switch_and_choice_refuse_other_words() -> None:
    with pytest.raises(ValueError, match="on or off"):
        Switch().parse("maybe")
    with pytest.raises(ValueError, match="one of a, b"):
        Choice(("a", "b")).parse("c")
    with pytest.raises(ValueError, match="quotes"):
        Text().parse(8000)


@pytest.mark.parametrize(
    ("raw", "bind", "loopback"),
    [
        ("127.0.0.1:8000", Bind("127.0.0.1", 8000), True),
        ("127.8.9.1:0", Bind("127.8.9.1", 0), True),
        ("localhost:80", Bind("localhost", 80), True),
        ("[::1]:8000", Bind("::1", 8000), True),
        ("[::]:8000", Bind("::", 8000), False),
        ("0.0.0.0:8000", Bind("0.0.0.0", 8000), False),
        ("example.org:1", Bind("example.org", 1), False),
        ("unix:/run/x.sock", Bind("", 0, Path("/run/x.sock")), True),
    ],
)
def test_address_reads(raw: str, bind: Bind, loopback: bool) -> None:
    assert Address().parse(raw) == bind
    assert str(bind) == raw
    assert bind.is_loopback is loopback


@pytest.mark.parametrize("raw", ["8000", ":8000", "::1:8000", "h:", "h:99999", "h:x", "unix:", ""])
def test_address_refuses(raw: str) -> None:
    with pytest.raises(ValueError, match="is "):
        Address().parse(raw)


KINDS: list[Kind] = [declared.kind for declared in OPTIONS.values()]


@given(
    st.sampled_from(KINDS),
    st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.none())),
)
def test_no_value_ends_in_anything_but_a_value_or_a_sentence(kind: Kind, raw: object) -> None:
    try:
        value = kind.parse(raw)
    except ValueError:
        return
    assert kind.parse(kind.show(value)) == value
