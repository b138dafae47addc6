"""Writes texts that must agree with the code (`make docs`): `.env.example`, tables in docs, the reference of HTTP."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from app.errors import ConfigurationError, StockBehind
from app.main import create_app
from app.orders import NO_UNITS, Event, EventKind, OrderId
from app.outbox.message import Message
from app.outbox.pull import Pulled
from app.settings import PREFIX, Settings
from app.telemetry.metrics import OUTBOX, Metrics
from app.web.events import body_of
from app.web.problem_types import URN, Effect, Kind, types
from fencelock.registry import CLASSES, backend_class, scheme_of
from lab import events as event_facts
from lab import life
from lab.model.money import Money
from lab.model.protocol import Protocol
from lab.model.search import Model
from lab.steps import counts
from lab.torture.bugs import BUGS
from lab.torture.nemesis import KINDS, SEVERAL

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "seckill"


def defaults() -> dict[str, list[tuple[str, str, str]]]:
    """Return the variable, the default as one would write it, and the description of each setting, in their groups."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for heading, name in re.findall(
        r"^    (?:# -- (.+)|(\w+): .*(?:Field|_term)\()", inspect.getsource(Settings), re.MULTILINE
    ):
        if heading:
            of_group = found.setdefault(heading, [])
        else:
            field = Settings.model_fields[name]
            value = _default(field.get_default(call_default_factory=True))
            of_group.append((PREFIX + name.upper(), value, field.description or ""))
    return found


def env_example() -> str:
    """Return the text of `.env.example`."""
    lines = ["# Copy to .env and take the # away where you want something else. These are the defaults.", ""]
    for heading, of_group in defaults().items():
        lines += [f"# -- {heading}", ""]
        for name, default, description in of_group:
            lines += [f"# {description.replace('`', '')}", f"#{name}={default}", ""]
    return "\n".join(lines)


def settings() -> str:
    """Return the settings as a Markdown table for each group."""
    lines = []
    for heading, of_group in defaults().items():
        rows = [f"| `{name}` | {f'`{value}`' if value else 'not set'} | {text} |" for name, value, text in of_group]
        lines += ["", f"## {heading}", "", "| variable | default | meaning |", "|---|---|---|", *rows]
    return "\n".join([*lines, ""])


def families() -> dict[str, Metric]:
    """Return the metrics that an instance renders, with an example of everything that it may have."""
    example = Metrics()
    example.describe(name="8080", version="1", lock="etcd", store="redis", guard="fence")
    example.watch_mode(lambda: "lock")
    example.watch_renewal(lambda: True)
    example.watch_clock(lambda: 0.0, lambda: 0.0)
    example.watch_queues(lambda: {"default": 0})
    example.watch_blocked(lambda: {"default": StockBehind("older")})
    example.watch_outbox(lambda: {one: dict.fromkeys(OUTBOX, 0.0) for one in ("", "erp")})
    example.watch_auditor(lambda: True, lambda: 0, lambda: 0, lambda: {"default": (300, 0, 0, 0, 0)})
    return {family.name: family for family in text_string_to_metric_families(example.render().decode())}


def metrics() -> str:
    """Return our metrics as a Markdown table, without Python's own and the creation times of counters."""
    rows = []
    for family in families().values():
        if not family.name.startswith("seckill_") or family.name.endswith("_created"):
            continue
        suffix = "_total" if family.type == "counter" else ""
        labels: dict[str, dict[str, None]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                labels.setdefault(label, {})[value] = None
        labels.pop("le", None)
        told = [
            f"`{label}`" + (f": {', '.join(values)}" if family.type == "counter" and "" not in values else "")
            for label, values in labels.items()
        ]
        rows.append(f"| `{family.name}{suffix}` | {family.type} | {family.documentation} | {'; '.join(told)} |")
    return "\n".join(["| metric | type | meaning | labels |", "|---|---|---|---|", *rows])


def alerts() -> str:
    """Return the alerts as a Markdown table."""
    rules = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
    rows = [
        f"| `{rule['alert']}` | {rule['labels']['severity']} | "
        f"{_spoken(rule['annotations']['summary'], rule['expr'])} | {_spoken(rule['annotations']['action'], rule['expr'])} | [{rule['annotations']['runbook'].partition('#')[2].replace('-', ' ')}]"
        f"({rule['annotations']['runbook'].removeprefix('docs/').removeprefix('operations.md')}) |"
        for rule in rules
    ]
    return "\n".join(["| alert | severity | meaning | remedy | read on |", "|---|---|---|---|---|", *rows])


def locks() -> str:
    """Return the guarantees of the locks as a Markdown table."""
    signs = (
        "fair",
        "fencing",
        "survives_silence",
        "survives_restart",
        "survives_cut",
        "shows_queue",
        "elects",
        "forces_release",
    )
    rows = []
    for name in CLASSES:
        has = backend_class(name).guarantees
        promised = " | ".join("yes" if getattr(has, sign) else "no" for sign in signs)
        rows.append(f"| [{name}](#{name}) | `{scheme_of(name)}://` | {has.scope} | {promised} |")
    head = "| lock | URL | keeps apart | fair | fencing token | survives silence | survives a restart | survives a cut | shows the queue | elections | forced release |"
    return "\n".join([head, "|---" * 11 + "|", *rows])


def faults() -> str:
    """Return the faults of `seckill torture` as a Markdown table."""
    rows = [f"| `{name}` | {kind.what} |" for name, kind in KINDS.items()]
    return "\n".join(["| fault | effect |", "|---|---|", *rows, f"| `{SEVERAL}` | two or three of them at once |"])


def bugs() -> str:
    """Return the bugs on demand as a Markdown table."""

    def names(those: Sequence[str]) -> str:
        return ", ".join(f"`{one}`" for one in those)

    rows = [f"| `{name}` | {bug.what} | {names(bug.nemeses)} | {names(bug.rules)} |" for name, bug in BUGS.items()]
    return "\n".join(["| bug | switched off | under | found by |", "|---|---|---|---|", *rows])


def steps() -> str:
    """Return what `python -m lab.steps` runs as a Markdown table."""
    lines = ["| system | operation | steps | faults | runs | seconds |", "|---|---|---|---|---|---|"]
    for system, operations in counts.read().items():
        for name, one in operations.items():
            numbers = [str(one.get(what, "")) for what in ("steps", "faults", "runs", "seconds")]
            lines.append(f"| {system} | {name} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def mechanisms(model: type[Model[Any]]) -> str:
    """Return the mechanisms of a model, and what breaks without each, as a Markdown table."""
    rows = [f"| `{one}` | {model.meaning[one]} | {model.breaks[one]} |" for one in model.mechanisms]
    return "\n".join(["| mechanism | meaning | without it |", "|---|---|---|", *rows])


def decisions() -> str:
    """Return the index of the decisions as a page."""
    lines = [
        "# Decisions",
        "",
        "Why it is done this way, and which other ways were rejected. Some pages have become part of others: 5 of 1, 7 of 13,",
        "12 of 16, 14 and 29 of 19, 15 of [own-lock.md](../own-lock.md), 17 of",
        "[operations.md](../operations.md#while-it-runs), 18 and 20 of 26, 22 and 27 of",
        "`fencelock/src/fencelock/zookeeper/session.py`, 23 of 3, 24 of",
        "[code.md](../code.md#where-things-are), 28 of [holds.md](../holds.md), 30 of 25. `make docs` writes this list.",
        "",
    ]
    for file in sorted((ROOT / "docs" / "adr").glob("0*.md")):
        title = file.read_text().partition("\n")[0]
        lines.append(f"- [{title.removeprefix('# ')}]({file.name})")
    return "\n".join([*lines, ""])


def documents() -> dict[Path, str]:
    """Return the files that are generated, or have generated tables, with their current text."""
    tables = {
        "settings.md": {"settings": settings},
        "locks.md": {"guarantees": locks},
        "operations.md": {"alerts": alerts},
        "metrics.md": {"metrics": metrics},
        "scale.md": {"scale": scale},
        "torture.md": {"faults": faults, "bugs": bugs, "steps": steps},
        "kubernetes.md": {"values": values},
        "webhooks.md": {"events": events, "a batch": batch, "a page": page},
        "model.md": {"mechanisms": lambda: mechanisms(Protocol), "mechanisms of money": lambda: mechanisms(Money)},
    }
    found = {
        ROOT / ".env.example": env_example(),
        ROOT / "docs" / "http.md": http(),
        ROOT / "docs" / "errors.md": errors(),
        ROOT / "docs" / "life.svg": life.draw(),
        ROOT / "docs" / "adr" / "README.md": decisions(),
        **deployment(),
    }
    for name, parts in tables.items():
        text = (ROOT / "docs" / name).read_text()
        for what, table in parts.items():
            text = _filled(text, what, table())
        found[ROOT / "docs" / name] = text
    return found


def _filled(text: str, what: str, table: str) -> str:
    """Return the text with this table between the marks that name its contents."""
    begin, end = f"<!-- {what}: written by make docs -->", f"<!-- end of {what} -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"


def _spoken(text: str, expression: str) -> str:
    """Return an alert's text for people: words in the place of its templates, and the bound of its expression.

    Raises `ValueError` if there is no word for a template.
    """
    bound = float((re.findall(r"> ([\d.]+)$", expression) or ["nan"])[0])
    for template, word in (
        ("{{ $labels.instance }}", "an instance"),
        ("{{ $labels.outcome }}", "an error"),
        ("{{ $labels.sku }} could", "an item could"),
        ("{{ $labels.sku }}", "ITEM"),
        ("{{ $labels.reason }}", "the reason is named"),
        ("{{ $value | humanizeDuration }}", f"more than {_duration(bound)}"),
        ("{{ $value | humanizePercentage }}", f"more than {bound:.0%}"),
        ("{{ $value }}", "some"),
    ):
        text = text.replace(template, word)
    if "{{" in text:
        raise ValueError(f"no word is known for a template in: {text}")
    return text[0].upper() + text[1:]


def _duration(seconds: float) -> str:
    if seconds == 1:
        return "a second"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def _default(default: object) -> str:
    if default is None:
        return ""
    if isinstance(default, SecretStr):
        return default.get_secret_value()
    if isinstance(default, list):
        return ",".join(default)
    return f"{default:.3g}" if isinstance(default, float) else str(default)


# -- examples of events ----------------------------------------------------------------------------------------------


def _messages() -> list[Message]:
    """Return two events of an order."""
    order, at = OrderId("lamp", "1795679839808-0", "0123456789abcdef" * 2), datetime(2026, 11, 11, 12, tzinfo=UTC)
    written: dict[str, Any] = {"order": order, "quantity": 1, "buyer": "ann", "key": None, "instance": "8080"}
    written |= {"token": 7, "epoch": 0, "batch_id": "b", "units": NO_UNITS}
    two = (
        (EventKind.HELD, order.number, {"ref": "shop's own number"}),
        (EventKind.CONFIRMED, "1795679840000-0", {"payment_ref": "pi_1", "amount": 49900}),
    )
    return [
        Message.of(
            Event(kind=kind, entry=entry, at=at.timestamp(), number=number, facts=facts, **written), "shop's own number"
        )
        for number, (kind, entry, facts) in enumerate(two, 1)
    ]


def events() -> str:
    """Return what each event says, as a Markdown table: when it comes, and an example."""
    rows = ["| type | `about` | `state` | when it comes | its own facts, as an example |", "|---|---|---|---|---|"]
    examples = event_facts.examples()
    for (kind, about), when in event_facts.WHEN.items():
        body = examples[kind, about]
        said = json.dumps(event_facts.own_facts(body)).removeprefix("{").removesuffix("}")
        rows.append(f"| `{body['type']}` | {about} | {body['data']['state']} | {when} | {said and f'`{said}`'} |")
    return "\n".join(rows)


def batch() -> str:
    """Return the request that has two events in it."""
    message = Message.batch(_messages())
    return f"```\nwebhook-id: {message.id}\n\n{_by_element(message.body)}\n```"


def page() -> str:
    """Return the answer to a pull that has two events in it."""
    return f"```json\n{_by_element(body_of(Pulled(_messages(), 'eJyr…', more=False, unread=[])))}\n```"


def _by_element(body: bytes) -> str:
    """Return a body with each event on a line of its own."""
    return body.decode().replace('{"id"', '\n {"id"').replace('}}],"', '}}],\n "')


# -- how it would scale ----------------------------------------------------------------------------------------------

# Milliseconds, measured on two cores with all servers beside the instances; docs/scale.md names the commands.
HAND_OFF_MS, ROUND_TRIP_MS, PURCHASE_MS, ITEM_MS = 2.0, 0.2, 0.017, 0.112
BATCH, HOLD_MS = 500, 10.0  # purchases in a batch; SECKILL_MAX_HOLD_MS
AIM = 100_000  # sales a second


def grant(items: int, between_ms: float = 0.0) -> tuple[int, float]:
    """Return how many purchases one grant serves, and its time in milliseconds; two batches of buyers wait behind it.

    They want `items` at random. `between_ms` is a round trip between zones: four of them belong to the hand-over of the
    lock, and WAIT asks a replica in another zone than the store's.
    """
    trip_ms = max(ROUND_TRIP_MS, between_ms)
    distinct = items * (1 - (1 - 1 / items) ** BATCH) if items > 1 else 0
    batch_ms = 2 * trip_ms + between_ms + PURCHASE_MS * BATCH + ITEM_MS * distinct
    batches = 1 if batch_ms >= HOLD_MS else 2
    return batches * BATCH, HAND_OFF_MS + 4 * between_ms + batches * batch_ms


def scale() -> str:
    """Return the calculation of docs/scale.md as a Markdown table, for one zone and for three."""
    rows = [
        "| items | zones | a grant | sales a second under one lock | locks for 100,000 a second | writes of etcd a second then |",
        "|---|---|---|---|---|---|",
    ]
    for items in (1, 100, 10_000):
        for zones, between_ms in (("one", 0.0), ("three", 1.0)):
            served, took_ms = grant(items, between_ms)
            for locks in (1, 2, 4, 8, 16, 32, 64):
                share, share_ms = grant(max(1, items // locks), between_ms)
                if locks <= items and locks * share * 1000 / share_ms >= AIM:
                    more = f"{locks} | {2 * AIM / share:,.0f}"
                    break
            else:
                more = "can't be reached |"
            rows.append(
                f"| {items:,} | {zones} | {served:,} in {took_ms:.0f} ms | {1000 * served / took_ms:,.0f} | {more} |"
            )
    return "\n".join(rows)


# -- the reference of HTTP -------------------------------------------------------------------------------------------


def http() -> str:
    """Return the OpenAPI document of an instance as a page."""
    document = create_app(Settings(_env_file=None)).openapi()
    by_tag: dict[str, dict[str, dict[str, Any]]] = {}  # tag, then path with methods
    meanings: dict[str, dict[str, None]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            of_tag = by_tag.setdefault(operation["tags"][0], {})
            twin = next((name for name, one in of_tag.items() if name.endswith(path) and _same(one, operation)), None)
            of_tag[f"{method.upper()} or {twin}" if twin else f"{method.upper()} {path}"] = of_tag.pop(
                twin or "", operation
            )
            for status, answer in operation["responses"].items():
                if status >= "400":
                    meanings.setdefault(status, {})[answer["description"]] = None
    lines = [
        "# HTTP: reference",
        "",
        "Look up the parameters and answers of each endpoint, as `/openapi.json` of an instance has them. `make docs` writes this page.",
        "[commands.md](commands.md#http) and [holds.md](holds.md) show how the endpoints are used.",
        *("", "## Errors", "", "| status | what it means |", "|---|---|"),
        *(f"| {status} | {'; or: '.join(meanings[status])} |" for status in sorted(meanings)),
        *("", "Their body is a [`Problem`](#problem). [errors.md](errors.md) has a row for each `type`."),
    ]
    for tag, operations in by_tag.items():
        lines += ["", f"## {tag.capitalize()}"]
        for name, operation in operations.items():
            lines += ["", f"### `{name}`", "", *operation["description"].splitlines()]
            if (of := operation.get("security")) and {} not in of:
                whose = "the shop's back end and operators" if {"shop": []} in of else "operators"
                lines += ["", f"For {whose}: `Authorization: Bearer` and a token."]
            lines += ["", *_table(_parameters(operation, document["components"]["schemas"])), "", _answers(operation)]
    lines += [
        *(
            "",
            "## Events",
            "",
            "Requests of the service to the shop: [webhooks.md](webhooks.md). The body is an [`OrderEventView`](#ordereventview).",
        ),
        *("", "| type | what has happened |", "|---|---|"),
        *(f"| `{name}` | {methods['post']['summary']} |" for name, methods in document["webhooks"].items()),
        *("", "## Types"),
    ]
    for name, schema in sorted(document["components"]["schemas"].items()):
        fields = _table(_fields(schema), "field") if "properties" in schema else [f"One of {_type(schema)}."]
        lines += ["", f"### {name}", "", schema.get("description", ""), "", *fields]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def errors() -> str:
    """Return what each type of problem means for the caller as a page."""
    head = ["| type | status | title | when | ask again |", "|---|---|---|---|---|"]

    def rows(effect: Effect) -> list[str]:
        return [_problem(name, kind) for name, kind in types().items() if kind.effect is effect]

    lines = [
        "# Errors: reference",
        "",
        "Look up the `type` of an error (`application/problem+json`) to know whether to send the request again. `make docs` writes this",
        "page from the code.",
        "",
        "`effect` in the answer says what became of the request:",
        "",
        "- `nothing`: this request has changed nothing, and never will. An earlier one whose answer was lost may have:",
        "  with the same idempotency key that is found out, and with a new one it would be done twice.",
        "- `unknown`: it may have been done. Send it again *with the same key*: the answer says what has happened. So do you",
        "  when there is no answer at all, or one without `effect`, which a proxy on the way has made.",
        "",
        "No error means that it has happened: a success is 200 with an `outcome`, and so is an expected refusal, such as",
        "`sold_out` or `already_confirmed`. Where it says *ask again*, the same request may be answered otherwise when the",
        "seconds of `Retry-After` have passed; elsewhere something has to be changed first. A type is never renamed, and",
        "there may be further ones: go by `effect` and `status`.",
        *("", "## Outcome unknown", "", *head, *rows(Effect.UNKNOWN)),
        *(
            "",
            "A request that only reads changes nothing, whatever `effect` says. Of a store that was not reached it says `nothing`.",
        ),
        *("", "## Nothing happened", "", *head, *rows(Effect.NOTHING)),
    ]
    return "\n".join([*lines, ""])


def _problem(name: str, kind: Kind) -> str:
    again = "yes" if kind.may_come_again else "no"
    return f'| <a id="{name}"></a>`{URN}{name}` | {kind.status} | {kind.title} | {kind.when} | {again} |'


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return {**one, "operationId": ""} == {**other, "operationId": ""}


def _parameters(operation: dict[str, Any], schemas: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the parameters of an endpoint and the fields of its body: name, type and place, description."""
    rows = []
    for one in operation.get("parameters", []):
        kind = _type(one["schema"]) + _optional(one["schema"], one["required"])
        rows.append((one["name"], f"{kind}, in the {one['in']}", one.get("description", "")))
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        schema = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
        fields = _fields(schema) if "properties" in schema else [("(all of it)", _type(schema), "")]
        rows += [(name, f"{kind}, in the body", text) for name, kind, text in fields]
    return rows


def _fields(schema: dict[str, Any], before: str = "") -> list[tuple[str, str, str]]:
    """Return the fields of an object, with those of the objects in it."""
    rows = []
    for name, field in schema["properties"].items():
        if "properties" in field:
            rows += _fields(field, f"{before}{name}.")
        else:
            kind = _type(field) + _optional(field, name in schema.get("required", []))
            rows.append((before + name, kind, field.get("description", "")))
    return rows


def _optional(schema: dict[str, Any], required: bool) -> str:
    default = schema.get("default")
    return (
        "" if required else ", optional" if default in (None, "") else f", else `{json.dumps(default).strip(chr(34))}`"
    )


def _table(rows: list[tuple[str, str, str]], what: str = "parameter") -> list[str]:
    """Return rows as a Markdown table, and none as nothing."""
    head = [f"| {what} | type | meaning |", "|---|---|---|"] if rows else []
    return [*head, *(f"| `{name}` | {kind} | {text} |" for name, kind, text in rows)]


def _answers(operation: dict[str, Any]) -> str:
    """Return the answers of an endpoint as a sentence."""
    good, bad = [], []
    for status, answer in sorted(operation["responses"].items()):
        kinds = [_type(content["schema"]) for content in answer.get("content", {}).values() if content.get("schema")]
        headers = [f"`{name}`" for name in answer.get("headers", {})]
        if kinds == ["[`Problem`](#problem)"]:
            bad.append(status)
        else:
            told = " or ".join(kinds) or ", ".join(answer.get("content", ["nothing"]))
            good.append(f"{status}: {told}" + (f", with {', '.join(headers)}" if headers else ""))
    return f"Answers {'; '.join(good)}" + (f". Errors: {', '.join(bad)}." if bad else ".")


def _type(schema: dict[str, Any]) -> str:
    """Return a type of JSON in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema and "properties" not in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    least, most = (f"{schema[key]:,.0f}" if key in schema else "" for key in ("minimum", "maximum"))
    return (
        f"{schema.get('type', 'anything')}{f', {least} to {most}' if most else f', {least} or more' if least else ''}"
    )


# -- the chart -------------------------------------------------------------------------------------------------------

# Settings that the chart itself gives each instance.
OF_THE_CHART = {"port", "operator_port", "instance", "catalogue", "traces", "lock", "store"}


def helm(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run Helm: the one that the group `dev` installs beside Python, or the user's. Raises `ConfigurationError`."""
    program = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if program is None:
        raise ConfigurationError("helm is not on PATH: https://helm.sh/docs/intro/install")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)


def deployment() -> dict[Path, str]:
    """Return the files in deploy that are made of others: a chart reads only its own folder, so it has copies."""
    return {
        CHART / "files" / "alerts.yml": (ROOT / "monitoring" / "alerts.yml").read_text(),
        CHART / "files" / "dashboard.json": (ROOT / "monitoring/grafana/dashboards/seckill.json").read_text(),
        CHART / "values.schema.json": _schema(),
        ROOT / "deploy" / "kubernetes" / "seckill.yaml": _manifests(),
    }


# Characters of the shortest secret that the service takes.
LEAST = {"ADMIN_TOKEN": 8, "ADMIN_TOKENS": 10, "SHOP_TOKEN": 8, "WEBHOOK_SECRET": 32, "PAYMENTS_SECRET": 32}


def values() -> str:
    """Return the chart's values as a Markdown table: each one that has a comment, and its default."""
    rows: list[str] = []
    path: list[str] = []
    said = ""
    given = yaml.safe_load((CHART / "values.yaml").read_text())
    for line in (CHART / "values.yaml").read_text().splitlines()[1:]:
        if comment := re.match(r" *# (.+)", line):
            said = comment[1]
        elif key := re.match(r"( *)([\w.-]+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if said:
                value = given
                for part in path:
                    value = value[part]
                shown = "" if value and isinstance(value, dict | list) else f"`{json.dumps(value)}`"
                rows.append(f"| `{'.'.join(path)}` | {shown} | {said} |")
            said = ""
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])


def _schema() -> str:
    """Return the schema of the chart's values, with the settings that there are."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    own = Settings.model_json_schema()
    for part in ("settings", "secrets"):
        schema["properties"][part]["properties"] = {
            PREFIX + name.upper(): _property(of | own["$defs"].get(of.get("$ref", "").rpartition("/")[2], {}))
            for name, of in own["properties"].items()
            if name not in OF_THE_CHART and (part == "secrets") == ("password" in json.dumps(of))
        }
    # Lengths only: of a pattern that is missed Helm 4 prints the value, too.
    for name, least in LEAST.items():
        schema["properties"]["secrets"]["properties"][PREFIX + name]["minLength"] = least
    return json.dumps(schema, indent=2) + "\n"


def _property(of: dict[str, Any]) -> dict[str, Any]:
    """Return a setting's schema without what Helm has no use for; a text may be empty, if the setting may be unset."""
    kinds = [kind for kind in of.get("anyOf", [of]) if kind.get("type") != "null"]
    bounds = ("type", "enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "maxLength")
    return {name: kinds[0][name] for name in bounds if name in kinds[0]}


@cache
def _manifests() -> str:
    """Return what the chart makes of its default values, for those without Helm; without Helm, what is there."""
    try:
        done = helm("template", "seckill", CHART, "--skip-tests", "--skip-schema-validation")
    except ConfigurationError:
        return (ROOT / "deploy" / "kubernetes" / "seckill.yaml").read_text()
    if done.returncode:
        raise RuntimeError(done.stderr)
    ours = re.sub(
        r"^ *(?:helm\.sh/chart|app\.kubernetes\.io/managed-by): .+\n|^# Source: .+\n",
        "",
        done.stdout,
        flags=re.MULTILINE,
    )
    return (
        "# Made from deploy/helm/seckill with its default values (`make docs`). Change the chart, or this copy of yours:\n"
        "# the image, and the Secret. `kubectl apply -n NAMESPACE -f servers.yaml -f seckill.yaml`\n" + ours
    )


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
