"""The Dockerfile makes an image without the tools that built it. No image is built here."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAGES = re.split(r"^(?=FROM )", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]


def test_all_stages_have_one_base_with_its_version() -> None:
    """Only the first stage names an image, by its whole version; so one digest pins them all."""
    first, *others = (stage.split()[1] for stage in STAGES)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", first)
    assert set(others) == {"base"}


def test_the_last_stage_installs_nothing() -> None:
    """All packages are copied from the builder, which checks their hashes; pip is taken away."""
    builder, last = STAGES[1], STAGES[-1]
    assert "install --require-hashes -r requirements.lock" in builder
    assert "install --no-deps --build-constraint build.lock ./fencelock ." in builder
    assert "install" not in re.sub(r"^#.*", "", last, flags=re.MULTILINE).replace("/opt/", "")
    assert re.findall(r"^COPY (.*)", last, re.MULTILINE) == ["--from=builder /opt/seckill /opt/seckill"]
    assert re.search(r"^RUN rm .*site-packages/pip\*", last, re.MULTILINE)


def test_what_is_copied_is_sent_to_the_builder() -> None:
    """.dockerignore lets through what the Dockerfile copies from the checkout, which is there."""
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", "".join(STAGES), re.MULTILINE)
        for name in line.split()
    }
    let_through = set(re.findall(r"^!(.+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert copied == let_through
    assert all((ROOT / name).exists() for name in copied)


def test_nothing_is_made_for_one_processor() -> None:
    """The same file builds for amd64 and arm64."""
    assert not re.search(r"amd64|x86_64|arm64|aarch64|--platform", re.sub(r"(?m)^#.*", "", "".join(STAGES)))
