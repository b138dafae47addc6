"""Writes what must agree with app/settings.py: `.env.example`, and the table in the README. Run by `make docs`."""

from pathlib import Path

from pydantic import SecretStr

from app.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- settings: written by make docs -->", "<!-- end of settings -->"


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
    rows = [f"| `{name}` | {f'`{default}`' if default else 'not set'} | {text} |" for name, default, text in defaults()]
    return "\n".join(["| variable | default | what it is |", "|---|---|---|", *rows])


def readme() -> str:
    """The README with the table of this moment."""
    before, _, rest = (ROOT / "README.md").read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


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
