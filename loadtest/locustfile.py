"""A crowd of buyers. In a rush all of them wait at a rendezvous and press the button at the same instant.

    locust -f loadtest/locustfile.py --headless -u 500 -r 500 --host http://localhost:8080,http://localhost:8090
    locust -f loadtest/locustfile.py --headless -u 50 -r 50 -t 60s --mode sustained --host http://localhost:8080

With `--pay 80` buyers hold units. Of the buyers who get them 80 % pay (some twice, some too late), the others cancel
or let their time run out; the rest come again for `--patience` seconds, as long as units may come back.

The buyers are spread over the hosts. At the end the stock is checked, and the run fails (exit status 1) unless it is
consistent: stock + held + lucky is what it was at the start, lucky has grown by the units reported as sold, and the
orders of buyers who were told "sold" can be looked up (a thousand of them at most). Needs nothing but Locust and this
file, and PyJWT to sign for buyers. `seckill rehearse` runs it against the user's own servers.
"""

import itertools
import json
import random
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any, Final

import gevent
from gevent.event import Event
from locust import FastHttpUser, constant, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser

_CONNECT_WITHIN_S: Final = 30  # buyers who are not connected by then miss the rendezvous, and are counted as failed
_TOKENS_LAST_S: Final = 3600


class LocustCrowd:
    """The state that the buyers share: the gate of the rendezvous, and their answers."""

    def __init__(self) -> None:
        self.gate = Event()
        self.at_gate = 0
        self.numbers = itertools.count()
        self.opened_at = self.closed_at = 0.0
        self.answers: list[dict[str, Any]] = []
        self.before: dict[str, dict[str, int] | None] = {}
        self.problems: list[str] = []


crowd = LocustCrowd()


@events.init_command_line_parser.add_listener
def options(parser: LocustArgumentParser) -> None:
    """Add options to Locust's own."""
    group = parser.add_argument_group("seckill")
    group.add_argument("--mode", choices=["rush", "sustained"], default="rush", env_var="LOADTEST_MODE")
    group.add_argument("--sku", default="default", env_var="LOADTEST_SKU", help="the item to buy; several with commas")
    group.add_argument("--over", type=float, default=0, help="seconds over which a rush comes, 0 for all at once")
    group.add_argument("--retries", type=int, default=0, help="how often a buyer asks again, with the same key")
    group.add_argument("--again", type=float, default=0, help="which part of those who were told asks once more")
    group.add_argument("--sign-with", default="", help="file with the secret or the private key that signs buyers")
    group.add_argument("--quantity", type=int, default=1, env_var="LOADTEST_QUANTITY", help="units a purchase")
    group.add_argument("--pay", type=float, default=None, help="units are held: this percentage of buyers pays")
    group.add_argument("--patience", type=float, default=0, help="seconds for which a buyer who got none comes again")
    group.add_argument("--shop-token", default="", env_var="LOADTEST_SHOP_TOKEN", help="with it payments are confirmed")
    group.add_argument("--report", default="", env_var="LOADTEST_REPORT", help="a file for all answers, as JSON")


@events.test_start.add_listener
def look_at_stock(environment: Environment, **_: Any) -> None:
    """Remember the stock before the run."""
    crowd.before = _stocks(environment)


class Buyer(FastHttpUser):
    """A buyer, with a connection of its own to one of the hosts."""

    wait_time = constant(0)
    network_timeout = connection_timeout = 60.0

    def __init__(self, environment: Environment) -> None:
        hosts = _hosts(environment)
        self.number = next(crowd.numbers)
        self.host = hosts[self.number % len(hosts)]
        self.sku = _skus(environment)[self.number % len(_skus(environment))]
        self.name = _name(environment, f"buyer-{self.number}")
        super().__init__(environment)

    def on_start(self) -> None:
        """Connect, so that the rush measures the sale and not 500 handshakes."""
        with self.client.get("/healthz", name="connect", catch_response=True) as response:
            response.success()
        if self.environment.parsed_options.mode == "rush":
            self.meet()

    def meet(self) -> None:
        """Wait for the others; the last one opens the gate."""
        crowd.at_gate += 1
        if crowd.at_gate == self.environment.parsed_options.num_users:
            crowd.opened_at = time.perf_counter()
            crowd.gate.set()
        if not crowd.gate.wait(_CONNECT_WITHIN_S):
            crowd.problems.append("not everybody came to the rendezvous")
            self.environment.runner.quit()
        gevent.sleep(random.uniform(0, self.environment.parsed_options.over))

    @task
    def buy(self) -> None:
        """Press the button; in a rush only once."""
        options, key = self.environment.parsed_options, uuid.uuid4().hex
        if options.pay is not None:
            self.hold_and_pay()
            return
        began = time.perf_counter()
        for tries in range(options.retries + 1):
            answer = self.ask(key)
            if answer["outcome"] != "failed" or tries == options.retries:
                break
            gevent.sleep(answer["retry_after_s"] * random.uniform(0.5, 1))
        ended = time.perf_counter()
        if random.random() < options.again:
            again = self.ask(key)
            if answer["outcome"] == "sold" != again["outcome"] or answer["order"] != again["order"]:
                crowd.problems.append(f"a buyer was told {answer} and then {again}")
        self.leave(answer, tries + 1, ended - began)

    def leave(self, answer: dict[str, Any], tries: int, latency_s: float) -> None:
        """Keep an answer; in a rush the buyer goes home."""
        told = {"host": self.host, "sku": self.sku, "tries": tries, "latency_ms": latency_s * 1000}
        crowd.answers.append(answer | told)
        crowd.closed_at = time.perf_counter()
        options = self.environment.parsed_options
        if options.mode == "rush":
            if len(crowd.answers) == options.num_users:
                gevent.spawn_later(0, self.environment.runner.quit)
            raise StopUser

    def hold_and_pay(self) -> None:
        """Hold, come again if that fails, and pay, or not."""
        options = self.environment.parsed_options
        came, tries = time.perf_counter(), 0
        while True:
            began, tries = time.perf_counter(), tries + 1
            held = self.post("/holds", {"sku": self.sku, "quantity": options.quantity, "buyer": self.name})
            latency_s = time.perf_counter() - began
            if held["outcome"] not in ("sold_out", "failed") or time.perf_counter() - came >= options.patience:
                break
            level = _stock(self.environment, self.sku)
            if level and level["stock"] + level.get("held", 0) == 0:
                break
            gevent.sleep(random.uniform(0.2, 0.6))
        answer = self.settle(held) if held["outcome"] == "held" else held
        self.leave(answer, tries, latency_s)

    def settle(self, held: dict[str, Any]) -> dict[str, Any]:
        """Pay what is held, at once, twice or too late; or cancel it; or let it run out. Return what came of it."""
        of_hold = f"/holds/{held['order']}"
        if random.uniform(0, 100) >= self.environment.parsed_options.pay:
            if random.random() < 0.5:
                return self.post(f"{of_hold}/cancel", {}) | {"order": held["order"]}
            return held | {"outcome": "expired"}
        payment = {"payment_ref": f"pay-{uuid.uuid4().hex}"}
        late = random.random() < 0.05
        if late:
            self.wait_for_the_end(of_hold, held["pay_by"])
        else:
            self.post(f"{of_hold}/extend", {})
        paid = self.post(f"{of_hold}/confirm", payment)
        if paid["outcome"] != "confirmed" and not late and paid.get("now", 0) < held["pay_by"]:
            crowd.problems.append(f"a payment in time was not taken: {paid}")
        if random.random() < 0.1:  # a provider says it again
            again = self.post(f"{of_hold}/confirm", payment)
            if paid["outcome"] == "confirmed" != again["outcome"] != "already_confirmed":
                crowd.problems.append(f"a payment was told {paid} and then {again}")
        if random.random() < 0.05:  # and a second one
            second = self.post(f"{of_hold}/confirm", {"payment_ref": f"pay-{uuid.uuid4().hex}"})
            if paid["outcome"] == "confirmed" and second["outcome"] != "duplicate_payment":
                crowd.problems.append(f"a second payment of one order was told {second}")
        return paid | {"outcome": "sold" if paid["outcome"] == "confirmed" else paid["outcome"]}

    def wait_for_the_end(self, of_hold: str, pay_by: float) -> None:
        """Wait until a hold has ended, for a minute longer than its buyer was told."""
        give_up = time.perf_counter() + max(0.0, pay_by - time.time()) + 60
        while time.perf_counter() < give_up:
            gevent.sleep(0.3)
            with self.client.get(of_hold, name="/holds/…", catch_response=True) as response:
                response.success()
                if '"state":"held"' not in (response.text or ""):
                    return

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a command about a hold until it has an answer, a few times; return it."""
        token = self.environment.parsed_options.shop_token
        headers = {"Idempotency-Key": uuid.uuid4().hex} | ({"Authorization": f"Bearer {token}"} if token else {})
        verb = path.rpartition("/")[2]
        for _ in range(self.environment.parsed_options.retries + 3):
            name = "/holds" if path == "/holds" else f"/holds/…/{verb}"
            with self.client.post(path, json=body, headers=headers, name=name, catch_response=True) as response:
                answer = _answer(response)
                if answer["outcome"] != "failed":
                    return answer
                response.failure(f"{response.status_code}: {answer['detail']}")
            gevent.sleep(answer["retry_after_s"] * random.uniform(0.5, 1))
        return answer

    def ask(self, key: str) -> dict[str, Any]:
        """Send one request, and return its result."""
        with self.client.post(
            f"/stock/reduce?sku={self.sku}&quantity={self.environment.parsed_options.quantity}&buyer={self.name}",
            headers={"Accept": "application/json", "Idempotency-Key": key},
            name="/stock/reduce",
            catch_response=True,
        ) as response:
            answer = _answer(response)
            if answer["outcome"] == "failed":
                response.failure(f"{response.status_code}: {answer['detail']}")
        return answer


@events.test_stop.add_listener
def judge(environment: Environment, **_: Any) -> None:
    """Look at the stock again, write the report, and decide whether the run has failed."""
    sold = [answer for answer in crowd.answers if answer["outcome"] == "sold"]
    failed = [answer for answer in crowd.answers if answer["outcome"] == "failed"]
    after = _stocks(environment)
    for sku, was in crowd.before.items():
        told = sum(answer["quantity"] for answer in sold if answer["sku"] == sku)
        crowd.problems += _judge_item(sku, was, after[sku], told)
    missing = [answer for answer in sold[:: max(1, len(sold) // 1000)] if not _order_exists(answer)]
    if missing:
        crowd.problems.append(f"{len(missing)} buyers were told 'sold' and have no order: {missing[0]['order']}")
    if len({answer["order"] for answer in sold}) != len(sold):
        crowd.problems.append("two buyers were given one order")
    if failed:
        crowd.problems.append(f"{len(failed)} purchases failed, the first with: {failed[0]['detail']}")
    if environment.parsed_options.report:
        report = {
            "wall_s": crowd.closed_at - crowd.opened_at,
            "before": crowd.before,
            "after": after,
            "problems": crowd.problems,
            "answers": crowd.answers,
        }
        Path(environment.parsed_options.report).write_text(json.dumps(report))
    sold_out = len(crowd.answers) - len(sold) - len(failed)
    levels = after if len(after) > 1 else next(iter(after.values()))
    print(f"sold {len(sold)}, refused {sold_out}, failed {len(failed)}; stock now: {levels}")
    print("consistent" if not crowd.problems else "NOT consistent: " + "; ".join(crowd.problems))


def _judge_item(sku: str, was: dict[str, int] | None, now: dict[str, int] | None, told: int) -> list[str]:
    of = "" if sku == "default" else f" of {sku}"
    if was is None or now is None:
        return [f"the stock{of} could not be read"]
    problems = []
    units = now["lucky"] - was["lucky"]
    total, before = (level["stock"] + level.get("held", 0) + level["lucky"] for level in (now, was))
    if total != before:
        problems.append(f"stock + held + lucky{of} is {total}, and was {before}")
    if units < told:
        problems.append(f"{told} units{of} were said to be sold, but lucky grew by {units}")
    if now["stock"] < 0:
        problems.append(f"stock{of} is {now['stock']}")
    return problems


@events.quitting.add_listener
def exit_status(environment: Environment, **_: Any) -> None:
    """Set the exit status; Locust itself only counts failed requests."""
    environment.process_exit_code = 1 if crowd.problems else 0


def _hosts(environment: Environment) -> list[str]:
    hosts = environment.host or "http://localhost:8080,http://localhost:8090"
    return [host.strip().rstrip("/") for host in hosts.split(",") if host.strip()]


def _order_exists(answer: dict[str, Any]) -> bool:
    try:
        with urllib.request.urlopen(f"{answer['host']}/orders/{answer['order']}", timeout=10) as found:
            return bool(json.load(found)["quantity"] == answer["quantity"])
    except (OSError, ValueError):
        return False


def _skus(environment: Environment) -> list[str]:
    return [sku.strip() for sku in environment.parsed_options.sku.split(",") if sku.strip()]


def _name(environment: Environment, name: str) -> str:
    """Return the `buyer` that a buyer sends: the name, or a token with it, signed with the shop's key."""
    if not (file := environment.parsed_options.sign_with):
        return name
    import jwt

    key = Path(file).read_text().strip()
    kind = "HS256" if "-----BEGIN" not in key else "ES256" if "EC PRIVATE" in key else "EdDSA"
    if "RSA" in key:
        kind = "RS256"
    return jwt.encode({"sub": name, "exp": int(time.time()) + _TOKENS_LAST_S}, key, kind)


def _stocks(environment: Environment) -> dict[str, dict[str, int] | None]:
    return {sku: _stock(environment, sku) for sku in _skus(environment)}


def _stock(environment: Environment, sku: str) -> dict[str, int] | None:
    for host in _hosts(environment):
        try:
            url = f"{host}/stock?sku={sku}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                level: Any = json.load(answer)
        except (OSError, ValueError):
            continue
        if isinstance(level, dict) and {"stock", "lucky"} <= set(level):
            return level
    return None


def _answer(response: Any) -> dict[str, Any]:
    try:
        body = json.loads(response.text or "")
    except ValueError:
        body = {}
    if not isinstance(body, dict):  # an answer of another server
        body = {}
    if response.status_code == 200 and {"outcome", "quantity"} <= set(body):
        order = body.get("order") or body.get("id")
        return body | {"outcome": body["outcome"], "quantity": body["quantity"], "order": order, "detail": None}
    detail = body.get("detail") or str(getattr(response, "error", None) or "this is not an answer of the sale")
    retry_after = str((response.headers or {}).get("Retry-After", "1"))
    wait_s = min(float(retry_after), 10.0) if retry_after.isdigit() else 1.0
    return {"outcome": "failed", "quantity": 0, "order": None, "detail": detail, "retry_after_s": wait_s}
