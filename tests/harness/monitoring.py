"""Read the monitoring as shipped: the dashboard, the alerts, and the config of a real Prometheus."""

import copy
import importlib.util
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from lab.servers.process import Process, free_port
from tests.harness.servers import optional_server

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana" / "dashboards" / "seckill.json").read_text())
ALERTS: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
CONFIG: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yml").read_text())

_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


def panels() -> list[dict[str, Any]]:
    """Return the panels that show data, without rows."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[tuple[str, str]]:
    """Return each expression of the dashboard and of the alerts, and its place."""
    shown = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    return shown + [(rule["alert"], rule["expr"]) for rule in ALERTS]


def used(expression: str) -> list[tuple[str, set[str]]]:
    """Return the metrics of an expression, each with the labels that it uses, ignoring text in strings."""
    bare = re.sub(r'"[^"]*"', '""', re.sub(r"\b(?:by|without)\s*\([^)]*\)", "", expression))
    selectors = re.findall(r"\b([a-zA-Z_:][a-zA-Z0-9_:]*)\b(?!\s*\()(?:\{([^}]*)\})?", re.sub(r"\[[^]]*\]", "", bare))
    return [
        (name, set(re.findall(r"(\w+)\s*[=!]", labels)))
        for name, labels in selectors
        if name not in ("unless", "and", "or")
    ]


class Prometheus(Process):
    """A Prometheus with the config of monitoring/prometheus.yml; `targets`, by job, replace the services there."""

    graceful = False

    def __init__(self, targets: dict[str, list[str]]) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        program = str(optional_server("prometheus", "prometheus"))
        config = copy.deepcopy(CONFIG)
        config["rule_files"] = [str(MONITORING / rules) for rules in config["rule_files"]]
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": targets.pop(job["job_name"])}]
        assert not targets, f"no such jobs: {targets}"

        def argv(directory: Path) -> list[str]:
            file = directory / "prometheus.yml"
            file.write_text(yaml.safe_dump(config))
            return [
                program,
                f"--config.file={file}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--log.level=warn",
            ]

        super().__init__("prometheus", argv, ready=self._is_ready)

    def ask(self, path: str, **parameters: str) -> Any:
        """Ask its API for "rules", "query" and the like; an error in the answer fails the test."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{path}, {parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Evaluate an expression now; return labels and value of each series."""
        answer = self.ask("query", query=expression)
        assert answer["resultType"] == "vector", expression
        return [(series["metric"], float(series["value"][1])) for series in answer["result"]]

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1):
                return True
        except OSError:
            return False
