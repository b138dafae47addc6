"""Writes what must agree with the code (`make docs`): `.env.example`, docs/locks.md, tables in the READMEs and docs."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from app.locks.registry import NAMES, backend_class
from app.settings import PREFIX, Settings
from app.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[1]
TRANSLATIONS = ROOT / "docs" / "settings.zh-CN.toml"


def defaults() -> list[tuple[str, str, str]]:
    """Variable, default as one would write it, and description of each setting."""
    return [
        (PREFIX + name.upper(), _text(field.get_default(call_default_factory=True)), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


def env_example() -> str:
    """The text of `.env.example`."""
    lines = ["# Copy to .env and take the # away where you want something else. These are the defaults.", ""]
    for name, default, description in defaults():
        lines += [f"# {description.replace('`', '')}", f"#{name}={default}", ""]
    return "\n".join(lines)


def table() -> str:
    """The settings as a Markdown table."""
    return _table("| variable | default | what it is |", "not set", {name: text for name, _, text in defaults()})


def chinese_table() -> str:
    """The same in Chinese; `LookupError` as in `translated`."""
    texts = translated({name: text for name, _, text in defaults()}, tomllib.loads(TRANSLATIONS.read_text()))
    return _table("| 变量 | 默认值 | 说明 |", "未设置", texts)


def translated(described: Mapping[str, str], kept: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The Chinese text of each setting.

    `described`: the English one of each; `kept`: what was translated (`en`), and into what (`zh`). `LookupError` has a
    line for each setting without a translation, translation without a setting, and description that has changed since.
    """
    wrong = [f"{name} has no translation" for name in described if not kept.get(name, {}).get("zh")]
    wrong += [f"{name} is not a setting" for name in kept if name not in described]
    wrong += [
        f'{name} was translated from "{kept[name].get("en")}", and is now "{text}"'
        for name, text in described.items()
        if name in kept and kept[name].get("en") != text
    ]
    if wrong:
        raise LookupError("\n".join(f"{TRANSLATIONS.relative_to(ROOT)}: {line}" for line in wrong))
    return {name: kept[name]["zh"] for name in described}


def readme() -> str:
    """The README with the table of this moment."""
    return _filled((ROOT / "README.md").read_text(), "settings", table())


def chinese_readme() -> str:
    """README.zh-CN.md with the table of this moment; `LookupError` as in `translated`."""
    return _filled((ROOT / "README.zh-CN.md").read_text(), "settings", chinese_table())


def families() -> dict[str, Metric]:
    """What an instance renders, with an example of everything that it may have."""
    example = Metrics()
    example.describe(name="8080", version="1", lock="etcd", store="redis", guard="fence")
    example.watch_way(lambda: "lock")
    example.watch_renewal(lambda: True)
    example.watch_queues(lambda: {"default": 0})
    example.watch_auditor(lambda: True, lambda: 0, lambda: {"default": (300, 0)})
    return {family.name: family for family in text_string_to_metric_families(example.render().decode())}


def metrics() -> str:
    """What we count, as a Markdown table: what Python counts is left out, and when a counter was created."""
    rows = []
    for family in families().values():
        if not family.name.startswith("seckill_") or family.name.endswith("_created"):
            continue
        suffix = "_total" if family.type == "counter" else ""
        labels: dict[str, list[str]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                labels.setdefault(label, []).append(value)
        labels.pop("le", None)
        told = [
            f"`{label}`" + (f": {', '.join(values)}" if family.type == "counter" else "")
            for label, values in labels.items()
        ]
        rows.append(f"| `{family.name}{suffix}` | {family.type} | {family.documentation} | {'; '.join(told)} |")
    return "\n".join(["| metric | type | what it is | labels |", "|---|---|---|---|", *rows])


def alerts() -> str:
    """The alerts as a Markdown table."""
    rules = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
    rows = [
        f"| `{rule['alert']}` | {rule['labels']['severity']} | {_spoken(rule['annotations']['summary'])} | "
        f"{rule['annotations']['action']} | [{rule['annotations']['runbook'].partition('#')[2].replace('-', ' ')}]"
        f"(#{rule['annotations']['runbook'].partition('#')[2]}) |"
        for rule in rules
    ]
    return "\n".join(["| alert | severity | what is so | what to do | read on |", "|---|---|---|---|---|", *rows])


def operations() -> str:
    """docs/operations.md with the tables of this moment."""
    text = (ROOT / "docs" / "operations.md").read_text()
    return _filled(_filled(text, "metrics", metrics()), "alerts", alerts())


def _table(head: str, unset: str, texts: Mapping[str, str]) -> str:
    """The settings below this head; `texts`: what each is."""
    rows = [f"| `{name}` | {f'`{value}`' if value else unset} | {texts[name]} |" for name, value, _ in defaults()]
    return "\n".join([head, "|---|---|---|", *rows])


def _filled(text: str, what: str, table: str) -> str:
    """The text with this table between the marks that say what it is of."""
    begin, end = f"<!-- {what}: written by make docs -->", f"<!-- end of {what} -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"


def _spoken(summary: str) -> str:
    """A template's text without its braces: "{{ $labels.instance }}" is an instance."""
    for template, word in (
        ("{{ $labels.instance }}", "an instance"),
        ("{{ $labels.outcome }}", "an error"),
        ("{{ $value | humanizeDuration }}", "a second"),
        ("{{ $value }}", "some"),
    ):
        summary = summary.replace(template, word)
    return summary[0].upper() + summary[1:]


_LOCKS = """<!-- written by make docs, from what app/locks declares -->
# The locks

Ten ways to keep the instances apart, under one contract: whatever a lock declares here its tests hold it to
(`tests/contract`). `SECKILL_LOCK_BACKEND=redis`, `seckill demo --lock redis` and `seckill locks` go with each, and

```
make demo ARGS="--lock all"
```

runs the same rush over all of them, and over the two optimistic ways without a lock (see the end). All are re-entrant, for threads and for event loops, with timed, cancellable and trying
acquires; none runs the body of a `with` unlocked. [etcd-lock.md](etcd-lock.md) goes into the etcd lock.

| lock | keeps apart | fair | fencing token | outlives a silent server | outlives its restart | shows who waits | elections | calls |
|---|---|---|---|---|---|---|---|---|
{rows}

- **fair**: served in the order of arrival.
- **fencing token**: a number that grows from grant to grant, for the store to check (`SECKILL_GUARD=fence`). Without one the
  store can only compare what was read (`compare`); a holder that was paused beyond its TTL is found out by either.
- **outlives**: a server that does not answer for less than a TTL, or is killed and comes back within it with what it had on
  disk, costs nobody the lock. Where it does, the holder is told: the grant is lost.
- **elections**: one of several candidates is elected, and heard by all. The service's auditor needs them; without them
  `/stock` has no audit, and `seckill check` remains.

What is not declared is not promised: a lock without fairness may serve anybody first; one without a token is refused with
`SECKILL_GUARD=fence`, with the reason.
"""


_BESIDES = """# Besides the locks

## Optimistic: no lock at all

`SECKILL_LOCK_BACKEND=none`, `SECKILL_STORE=mysql` and a guard that finds out at the write that somebody was faster. Each commit is a
transaction: `UPDATE ... SET stock = stock - n, version = version + 1 WHERE sku = ? AND version = ? AND stock >= n`, and the orders.
Nothing was changed: decide again on what is there now, after a pause that is drawn at random and grows to 100 ms, until the
purchase's own deadline.

- `SECKILL_GUARD=version` is right whatever happens: a version that is given once never comes again.
- `SECKILL_GUARD=timestamp` compares the time of the last change instead, as many tables have one anyway. A clock has ticks, and this
  column's are a second long: two writes within one tick look like none, and the second one, decided on what is no longer there, is
  written. It can't sell units that do not exist (`stock >= n` is looked at, too), but it can sell a buyer more than the limit
  (`test_within_a_tick_a_timestamp_does_not_see_a_write`). It is here to be seen, not to be chosen.

Under little contention that is the cheapest way. Under much of it all but one of those who read the same version have worked for
nothing, and nobody's turn comes for sure: that is what the lock is for. The same guard works under any lock, too.

## Fallback: a lock that may be done without

`SECKILL_LOCK_FALLBACK=true`, with the guard `version` and any lock that can be away. While its system is, grants are given without a
lock, `SECKILL_LOCK_FALLBACK_MAX` (10) at once in each instance so that the database survives it, and everything is as above; when it is
back, so is the lock. Both ways write by the same condition, so it does no harm that some go one way and some the other for a
moment ([ADR 9](adr/0009-a-lock-that-may-be-done-without.md)). `/readyz` says `"way": "optimistic"`, `/metrics`
`seckill_optimistic 1`, and the log says each change.

## Elections and sessions

For programs that use the etcd locks: [etcd-lock.md](etcd-lock.md#elections).
"""


def locks() -> str:
    """The text of docs/locks.md."""

    def sign(promised: bool) -> str:
        return "yes" if promised else "no"

    rows, portraits = [], []
    for name in NAMES:
        kind = backend_class(name)
        has, is_like = kind.guarantees, kind.portrait
        rows.append(
            f"| [{name}](#{name}) | {has.reach} | {sign(has.fair)} | {sign(has.fencing)} | {sign(has.survives_silence)} "
            f"| {sign(has.survives_restart)} | {sign(has.shows_queue)} | {sign(has.elects)} | {is_like.costs} |"
        )
        portraits.append(
            f"## {name}\n\n{is_like.works}\n\n"
            f"- It costs: {is_like.costs}.\n- It fails: {is_like.fails}.\n- Choose it {is_like.choose}.\n"
        )
    return "\n".join([_LOCKS.format(rows="\n".join(rows)), *portraits, _BESIDES])


def _text(default: object) -> str:
    if default is None:
        return ""
    if isinstance(default, SecretStr):
        return default.get_secret_value()
    if isinstance(default, list):
        return ",".join(default)
    return f"{default:.3g}" if isinstance(default, float) else str(default)


if __name__ == "__main__":
    (ROOT / ".env.example").write_text(env_example())
    (ROOT / "README.md").write_text(readme())
    (ROOT / "docs" / "locks.md").write_text(locks())
    (ROOT / "docs" / "operations.md").write_text(operations())
    # The last one: a setting that nobody has translated yet does not keep the others from being written.
    (ROOT / "README.zh-CN.md").write_text(chinese_readme())
