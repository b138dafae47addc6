"""Each planted bug still finds the code that it patches."""

import json
import subprocess
import sys

from lab.torture.bugs import BUGS
from lab.torture.command import broken_by
from lab.torture.judge import OF_THE_RUN, judge
from lab.torture.nemesis import NAMES
from tests.unit import test_judge, test_judge_drops, test_judge_money

# Each bug needs a child process, as nothing takes it out again; the imports are made once.
_PLANT_EACH = """
import json, os, sys
from app.stock.redis.client import Script
from lab.torture.bugs import BUGS

for name, bug in BUGS.items():
    if not (child := os.fork()):
        bug.plant()
        shas = [Script(script).sha for script in ("look.lua", "put.lua")]
        print(json.dumps({name: shas}), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_each_bug_can_be_planted() -> None:
    """Each bug can be planted; one in the store's scripts changes their digest, else servers would run the old text."""
    done = subprocess.run([sys.executable, "-c", _PLANT_EACH], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    shas: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        shas |= json.loads(line)
    assert list(shas) == list(BUGS)
    whole = shas["deaf"]
    unfenced = ["no-fence", "tokens-as-text", "fence-at-write-only", "settles-without-a-fence"]
    assert [name for name, found in shas.items() if found != whole] == unfenced


def test_each_bug_says_what_it_is_and_what_shows_it() -> None:
    """Each bug is described in a sentence, with faults and rules that exist; that a run was no test proves none."""
    histories = (test_judge.history(), test_judge_money.history(), test_judge_drops.history())
    findings = [one for made in histories for one in judge(made)]
    rules = {one.rule for one in findings if not one.promise.startswith(OF_THE_RUN)}
    for bug in BUGS.values():
        assert bug.what.endswith(".")
        assert set(bug.nemeses) <= set(NAMES)
        assert bug.rules
        assert set(bug.rules) <= rules


def test_a_bug_is_found_only_by_a_rule_that_it_breaks() -> None:
    """Another broken rule is named, and proves nothing."""
    made = test_judge.history()
    test_judge.FORGED["nobody waits"]["a long wait in peace"](made)
    findings = judge(made)
    found, broken = broken_by("deaf", findings)
    assert (found, [one.rule for one in broken]) == (True, ["service.nobody_waits"])
    assert broken_by("no-fence", findings) == (False, broken)
