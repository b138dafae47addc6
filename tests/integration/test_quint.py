"""The specification in docs/model/sale.qnt: Quint's simulator finds a broken promise only where a mechanism is off."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.servers import where_installed
from tests.interop import builds

pytestmark = pytest.mark.slow

SPEC = Path(__file__).parents[2] / "docs" / "model" / "sale.qnt"

Quint = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def quint() -> Quint:
    program = where_installed(builds.quint_program)

    def run(command: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(program), command, *options, str(SPEC)], capture_output=True, text=True, timeout=100)

    return run


def simulate(quint: Quint, module: str, *, samples: int, step: str = "step") -> subprocess.CompletedProcess[str]:
    return quint(
        "run",
        "--backend=typescript",  # the other one is downloaded when it is first used
        "--verbosity=1",
        "--seed=0x4000000",
        f"--main={module}",
        f"--step={step}",
        "--invariant=promises",
        "--max-steps=60",
        f"--max-samples={samples}",
    )


def test_it_is_well_typed(quint: Quint) -> None:
    """Its names, types and effects are in order."""
    done = quint("typecheck")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["sale", "saleOfTwoUnits"])
def test_the_whole_protocol_keeps_its_promises(quint: Quint, module: str) -> None:
    """No violation in some seconds of random histories; `seckill model` is what looks at every one."""
    done = simulate(quint, module, samples=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[ok] No violation found" in done.stdout


@pytest.mark.parametrize(
    ("mechanism", "step"),
    [
        ("Lock", "step"),
        ("Lease", "step"),
        ("FenceAtWrite", "stepWithLostAnswers"),
        ("Compare", "step"),
        ("Keys", "step"),
        ("Doubt", "step"),
        ("AnswerLast", "step"),
        ("Marks", "step"),
    ],
)
def test_without_a_mechanism_a_promise_is_broken(quint: Quint, mechanism: str, step: str) -> None:
    """Each is needed. Those that are missed only in a rare history (fence at the read, tokens, settle) take longer."""
    done = simulate(quint, f"without{mechanism}", samples=5_000, step=step)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[violation]" in done.stdout
