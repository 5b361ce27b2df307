"""Sizes as people write them, which arguments of the package take."""

import itertools

import pytest
import world

pytestmark = [world.full_only, world.not_pages]


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (0, 0), (1 << 62, 1 << 62), ("512M", 512 << 20), (" 2 GiB ", 2 << 30), ("2gb", 2 << 30), ("0.5 KiB", 512), ("7 bytes", 7),
        ("4194304T", 1 << 62), ("0.3 GiB", 322_122_547), ("4611686018427387903", (1 << 62) - 1), ("1." + "3" * 60 + "K", 1365),
        ("0" * 90 + "1 K", 1024),
    ],
)  # fmt: skip
def test_a_size_is_exact(size, count):
    from cachalot._base.sizes import bytes_of

    assert bytes_of("limit", size) == count


@pytest.mark.parametrize(
    "size",
    ["1e5", "1e400", "inf", "nan", "-5", "", "1 EiB", "1_000", "0x10", "1.5.5 G", "1. G", 1.5, float("inf"), None, True, b"1", [1]],
)
def test_what_is_no_size_is_refused(size):
    from cachalot._base.sizes import bytes_of

    with pytest.raises(ValueError, match="^limit is .*; it must be a number of bytes or a size such as '2 GiB' or '512M'$"):
        bytes_of("limit", size)


@pytest.mark.parametrize(
    ("size", "limit"),
    [
        *((size, ", at least 1 MiB, at most 2^62 bytes") for size in ((1 << 62) + 1, "4611686018427387905", "4194304.1T", "9" * 30)),
        *((size, ", at least 1 MiB, at most 2^62 bytes") for size in ("9" * 400, "9" * 5000 + " KiB", 10**30, 10**5000)),
        *((size, ", at least 1 MiB") for size in (-1, -(10**5000), "x" * 100_000, "0." + "9" * 5000, 1 << 19)),
    ],
    ids=itertools.count(),
)
def test_a_size_out_of_range_is_refused_in_one_short_line(size, limit):
    from cachalot._base.sizes import bytes_of

    with pytest.raises(ValueError, match="^limit is [^\n]*; it must be a number of bytes or a size such as") as error:
        bytes_of("limit", size, least=1 << 20)
    assert len(str(error.value)) < 300 and str(error.value).endswith(f"'512M'{limit}")
