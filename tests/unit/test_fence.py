"""All fences share the refusal, and imports that need no library until one is used."""

import pickle
import subprocess
import sys

import fencelock.fence
from fencelock.fence import FenceRefused, Fencing


def test_a_refusal_says_what_was_seen() -> None:
    """A refusal names both tokens and their sources, and can be pickled to another process."""
    refused: FenceRefused = pickle.loads(pickle.dumps(FenceRefused(7, "lock:ours", 8, "lock:ours")))
    assert (refused.token, refused.source, refused.highest, refused.highest_source) == (7, "lock:ours", 8, "lock:ours")
    assert str(refused) == "the fence has seen token 8 of 'lock:ours', and ours is 7: we come too late"
    assert not refused.foreign
    other = FenceRefused(*Fencing(7, "lock:ours"), *Fencing(8, "lock:other"))
    assert other.foreign
    assert "8 of 'lock:other', and ours is 7 of 'lock:ours'" in str(other)


def test_each_name_is_there() -> None:
    """Every public name exists, even those that are imported only on use."""
    assert all(getattr(fencelock.fence, name) is not None for name in fencelock.fence.__all__)
    assert dir(fencelock.fence) == sorted(fencelock.fence.__all__)
    assert not hasattr(fencelock.fence, "nothing")


def test_no_library_is_imported_before_it_is_wanted() -> None:
    """`FenceRefused`, `Fencing` and `Granted` can be imported without redis-py and SQLAlchemy."""
    program = """
import sys
sys.modules["redis"] = sys.modules["sqlalchemy"] = None  # an import of these fails
from fencelock.fence import FenceRefused, Fencing, Granted
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
