"""Writes what must agree with the code (`make docs`): `.env.example`, and tables in docs."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from app.errors import StockBehind
from app.settings import PREFIX, Settings
from app.telemetry.metrics import Metrics
from fencelock.registry import CLASSES, backend_class, scheme_of
from lab.model.protocol import BREAKS, MEANING, Mechanism
from lab.torture.bugs import BUGS
from lab.torture.nemesis import KINDS, SEVERAL

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


def settings() -> str:
    """The settings as a Markdown table."""
    return _settings("| variable | default | what it is |", "not set", {name: text for name, _, text in defaults()})


def chinese_settings() -> str:
    """The same in Chinese; `LookupError` as in `translated`."""
    texts = translated({name: text for name, _, text in defaults()}, tomllib.loads(TRANSLATIONS.read_text()))
    return _settings("| 变量 | 默认值 | 说明 |", "未设置", texts)


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


def families() -> dict[str, Metric]:
    """What an instance renders, with an example of everything that it may have."""
    example = Metrics()
    example.describe(name="8080", version="1", lock="etcd", store="redis", guard="fence")
    example.watch_mode(lambda: "lock")
    example.watch_renewal(lambda: True)
    example.watch_queues(lambda: {"default": 0})
    example.watch_blocked(lambda: {"default": StockBehind("older")})
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
    return "\n".join(["| alert | severity | what it means | what to do | read on |", "|---|---|---|---|---|", *rows])


def locks() -> str:
    """What the locks guarantee, as a Markdown table."""
    signs = (
        "fair",
        "fencing",
        "survives_silence",
        "survives_restart",
        "survives_cut",
        "shows_queue",
        "elects",
    )
    rows = []
    for name in CLASSES:
        has = backend_class(name).guarantees
        promised = " | ".join("yes" if getattr(has, sign) else "no" for sign in signs)
        rows.append(f"| [{name}](#{name}) | `{scheme_of(name)}://` | {has.scope} | {promised} |")
    head = "| lock | URL | keeps apart | fair | fencing token | survives silence | survives a restart | survives a cut | shows the queue | elections |"
    return "\n".join([head, "|---" * 10 + "|", *rows])


def faults() -> str:
    """The faults of `seckill torture`, as a Markdown table."""
    rows = [f"| `{name}` | {kind.what} |" for name, kind in KINDS.items()]
    return "\n".join(
        ["| fault | what happens |", "|---|---|", *rows, f"| `{SEVERAL}` | two or three of them at once |"]
    )


def bugs() -> str:
    """The bugs on demand, as a Markdown table."""
    rows = [f"| `{name}` | {bug.what} | {', '.join(f'`{one}`' for one in bug.nemeses)} |" for name, bug in BUGS.items()]
    return "\n".join(["| bug | what is switched off | under |", "|---|---|---|", *rows])


def mechanisms() -> str:
    """What can be left out of the model, and what breaks then, as a Markdown table."""
    rows = [f"| `{mechanism}` | {MEANING[mechanism]} | {BREAKS[mechanism]} |" for mechanism in Mechanism]
    return "\n".join(["| mechanism | what it means | without it |", "|---|---|---|", *rows])


def documents() -> dict[Path, str]:
    """The files that are generated, or have generated tables, with their text of this moment."""
    tables = {
        "settings.md": {"settings": settings},
        "settings.zh-CN.md": {"settings": chinese_settings},
        "locks.md": {"guarantees": locks},
        "operations.md": {"metrics": metrics, "alerts": alerts},
        "torture.md": {"faults": faults, "bugs": bugs},
        "model.md": {"mechanisms": mechanisms},
    }
    found = {ROOT / ".env.example": env_example()}
    for name, parts in tables.items():
        text = (ROOT / "docs" / name).read_text()
        for what, table in parts.items():
            text = _filled(text, what, table())
        found[ROOT / "docs" / name] = text
    return found


def _settings(head: str, unset: str, texts: Mapping[str, str]) -> str:
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


def _text(default: object) -> str:
    if default is None:
        return ""
    if isinstance(default, SecretStr):
        return default.get_secret_value()
    if isinstance(default, list):
        return ",".join(default)
    return f"{default:.3g}" if isinstance(default, float) else str(default)


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
