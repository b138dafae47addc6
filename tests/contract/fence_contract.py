"""Test the contract of every fence. A subclass gives a `FencedThing`: one value behind a fence, at first none."""

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencelock.fence import FenceRefused

OURS, OTHER, OLD = "lock:ours", "lock:other", "lock:old"


class FencedThing:
    """The value, as holders of grants with these tokens reach it. Its methods may be called from any thread."""

    def read(self, token: int, source: str = OURS, *, instead_of: str | None = None) -> str | None:
        """Read the value; `instead_of` is `OLD` or nothing."""
        raise NotImplementedError

    def write(self, token: int, value: str, source: str = OURS) -> None:
        raise NotImplementedError


class FenceContract:
    @pytest.fixture
    def thing(self) -> FencedThing:
        raise NotImplementedError

    def test_a_paused_holder_is_refused_before_its_successor_writes(self, thing: FencedThing) -> None:
        """A reads and is paused; B reads. A's write would be lost under B's, and is refused."""
        thing.write(6, "old")
        assert thing.read(7) == "old"
        assert thing.read(8) == "old"
        with pytest.raises(FenceRefused):
            thing.write(7, "a")
        assert thing.read(8) == "old"
        thing.write(8, "b")
        assert thing.read(8) == "b"

    def test_a_paused_holder_is_refused_after_its_successor_wrote(self, thing: FencedThing) -> None:
        """A reads and is paused; B reads and writes. A's write would overwrite that, and is refused."""
        assert thing.read(7) is None
        assert thing.read(8) is None
        thing.write(8, "b")
        with pytest.raises(FenceRefused):
            thing.write(7, "a")
        assert thing.read(8) == "b"
        thing.write(8, "b again")
        assert thing.read(9) == "b again"

    def test_a_write_raises_the_fence_too(self, thing: FencedThing) -> None:
        """A holder need not read first: after its write, earlier holders may neither write nor read."""
        thing.write(8, "b")
        with pytest.raises(FenceRefused):
            thing.write(7, "a")
        with pytest.raises(FenceRefused):
            thing.read(7)
        assert thing.read(8) == "b"

    def test_the_same_token_passes_again(self, thing: FencedThing) -> None:
        """A holder reads and writes as often as it likes, even the same value."""
        for value in ("one", "two", "two"):
            thing.read(7)
            thing.write(7, value)
            assert thing.read(7) == value

    @pytest.mark.parametrize("token", [0, -1, 2**63])
    def test_no_token_no_fence(self, thing: FencedThing, token: int) -> None:
        """A grant without a token can't be fenced, and is refused before anything is sent."""
        thing.write(1, "there")
        with pytest.raises(ValueError, match=r"from 1 to 2\*\*63 - 1"):
            thing.read(token)
        with pytest.raises(ValueError, match=r"from 1 to 2\*\*63 - 1"):
            thing.write(token, "lost")
        assert thing.read(1) == "there"

    @pytest.mark.parametrize("source", ["", "x" * 256, "caf\u00e9", "a\nb"])
    def test_no_source_no_fence(self, thing: FencedThing, source: str) -> None:
        with pytest.raises(ValueError, match="1 to 255 printable ASCII"):
            thing.read(7, source)
        with pytest.raises(ValueError, match="1 to 255 printable ASCII"):
            thing.write(7, "lost", source)
        assert thing.read(1) is None

    @pytest.mark.parametrize(
        ("lower", "higher"), [(9, 10), (99, 1000), (2**53, 2**53 + 1), (1_790_000_000_000_000, 2**63 - 1)]
    )
    def test_tokens_are_numbers_of_any_size(self, thing: FencedThing, lower: int, higher: int) -> None:
        """Tokens are neither texts nor doubles, which can't tell some neighbouring numbers apart."""
        thing.write(lower, "lower")
        assert thing.read(higher) == "lower"
        with pytest.raises(FenceRefused):
            thing.write(lower, "lost")
        thing.write(higher, "higher")
        assert thing.read(higher) == "higher"

    @pytest.mark.parametrize("other", [OTHER, "Lock:Ours", OURS + " ", OURS + "x"])
    def test_another_source_is_refused(self, thing: FencedThing, other: str) -> None:
        """Tokens of another source can't be compared, however high they are. Sources must match exactly."""
        thing.write(7, "ours")
        with pytest.raises(FenceRefused):
            thing.read(1000, other)
        with pytest.raises(FenceRefused):
            thing.write(1000, "theirs", other)
        assert thing.read(7) == "ours"
        thing.write(7, "ours again")

    def test_any_printable_source(self, thing: FencedThing) -> None:
        source = "".join(map(chr, range(0x20, 0x7F)))
        thing.write(7, "a", source)
        assert thing.read(7, source) == "a"
        with pytest.raises(FenceRefused):
            thing.read(6, source)

    def test_a_fence_moves_to_a_source_if_that_is_said(self, thing: FencedThing) -> None:
        """When the lock system was replaced, its tokens begin anew, and the old one's no longer count."""
        thing.write(50, "old", OLD)
        assert thing.read(3, OURS, instead_of=OLD) == "old"
        with pytest.raises(FenceRefused):
            thing.write(60, "late", OLD)
        with pytest.raises(FenceRefused):
            thing.read(2, OURS, instead_of=OLD)
        with pytest.raises(FenceRefused):
            thing.read(9, OTHER, instead_of=OLD)
        thing.write(3, "new")
        assert thing.read(4) == "new"

    def test_a_fence_that_moves_to_where_it_is_stays_a_fence(self, thing: FencedThing) -> None:
        """A holder that names its own source as the old one is compared with it all the same."""
        thing.write(8, "b", OLD)
        with pytest.raises(FenceRefused):
            thing.read(7, OLD, instead_of=OLD)
        assert thing.read(8, OLD, instead_of=OLD) == "b"

    def test_the_highest_of_many_writers_wins(self, thing: FencedThing) -> None:
        """Of many concurrent writers, in any order, the highest is never refused, and nobody overwrites its value."""
        tokens = list(range(1, 13))
        random.shuffle(tokens)
        together = threading.Barrier(len(tokens))

        def hold(token: int) -> bool:
            together.wait()
            with contextlib.suppress(FenceRefused):
                thing.read(token)
                thing.write(token, str(token))
                return True
            return False

        with ThreadPoolExecutor(len(tokens)) as pool:
            written = dict(zip(tokens, pool.map(hold, tokens), strict=True))
        assert written[max(tokens)]
        assert thing.read(max(tokens)) == str(max(tokens))
