"""Settings: from the environment and .env, checked at start, in step with .env.example and both READMEs."""

import importlib.util
import re
from pathlib import Path

import pytest

from app.errors import ConfigurationError
from app.locks.registry import NAMES
from app.settings import PREFIX, Guard, LockName, Settings, StoreName, load, unknown_variables

ROOT = Path(__file__).parents[2]

_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No SECKILL_ variable and no .env of the machine that the tests run on."""
    import os

    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_defaults_are_for_servers_on_this_machine() -> None:
    """With nothing set: etcd and Redis on their usual ports, locked and guarded."""
    settings = load()
    assert settings.etcd_endpoints == ["http://127.0.0.1:2379"]
    assert settings.redis_url.get_secret_value() == "redis://127.0.0.1:6379/0"
    assert (settings.lock_backend, settings.store, settings.guard) == (LockName.ETCD, StoreName.REDIS, Guard.FENCE)


def test_environment_beats_dotenv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """.env is read from the folder that one is in; a variable of the environment counts more."""
    (tmp_path / ".env").write_text("SECKILL_PORT=8090\nSECKILL_BATCH_MAX=7\n")
    monkeypatch.setenv("SECKILL_PORT", "8100")
    monkeypatch.setenv("SECKILL_ETCD_ENDPOINTS", "http://a:2379, http://b:2379,")
    settings = load()
    assert (settings.port, settings.batch_max) == (8100, 7)
    assert settings.etcd_endpoints == ["http://a:2379", "http://b:2379"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SECKILL_PORT", "80a"),
        ("SECKILL_PORT", "70000"),
        ("SECKILL_LOCK_TTL_S", "0"),
        ("SECKILL_LOCK_TTL_S", "nan"),
        ("SECKILL_LOCK_RENEW_RATIO", "1"),
        ("SECKILL_LOCK_BACKEND", "zookeper"),
        ("SECKILL_LOCK_PREFIX", "no-slash"),
        ("SECKILL_GUARD", "maybe"),
        ("SECKILL_STORE", "oracle"),
        ("SECKILL_BATCH_MAX", "0"),
        ("SECKILL_ETCD_ENDPOINTS", ","),
        ("SECKILL_ADMIN_TOKEN", "short"),
        ("SECKILL_LOG_LEVEL", "loud"),
        ("SECKILL_LOG_FORMAT", "xml"),
        ("SECKILL_SALE_STARTS_AT", "tomorrow"),
        ("SECKILL_SALE_ENDS_AT", "2026-11-11T20:00:00"),  # whose eight o'clock?
    ],
)
def test_a_wrong_value_is_one_line_with_the_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """What is wrong is said in one line that begins with the variable's name."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as error:
        load()
    assert re.fullmatch(rf"{name}: [^\n]+", str(error.value))


@pytest.mark.parametrize(
    "variables",
    [
        {"SECKILL_LOCK_BACKEND": "none"},
        {"SECKILL_LOCK_BACKEND": "none", "SECKILL_GUARD": "compare"},
        {"SECKILL_LOCK_BACKEND": "none", "SECKILL_STORE": "mysql"},
        {"SECKILL_GUARD": "version"},
        {"SECKILL_GUARD": "timestamp"},
        {"SECKILL_GUARD": "compare", "SECKILL_STORE": "mysql"},
        {"SECKILL_GUARD": "none", "SECKILL_STORE": "mysql"},
        {"SECKILL_REDIS_WAIT_REPLICAS": "1", "SECKILL_STORE": "mysql"},
        {"SECKILL_LOCK_BACKEND": "redlock"},
        {"SECKILL_LOCK_BACKEND": "redlock", "SECKILL_GUARD": "compare"},
        {"SECKILL_LOCK_FALLBACK": "true"},
        {
            "SECKILL_LOCK_FALLBACK": "true",
            "SECKILL_LOCK_BACKEND": "none",
            "SECKILL_STORE": "mysql",
            "SECKILL_GUARD": "version",
        },
        {"SECKILL_SALE_STARTS_AT": "2026-11-11T20:00:00Z", "SECKILL_SALE_ENDS_AT": "2026-11-11T20:00:00+00:00"},
        {"SECKILL_ETCD_USER": "shop"},
        {"SECKILL_ETCD_CERT_FILE": "/cert.pem"},
    ],
)
def test_what_does_not_go_together_is_said(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Two settings that contradict each other are both named."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as error:
        load()
    assert str(error.value).count(PREFIX) == 2
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("guard", [Guard.VERSION, Guard.TIMESTAMP])
@pytest.mark.parametrize("lock", LockName)
def test_a_version_needs_no_lock(lock: LockName, guard: Guard) -> None:
    """In MySQL a version guards the sale under any lock, and under none."""
    assert load(store=StoreName.MYSQL, lock_backend=lock, guard=guard, redlock_urls="redis://a").guard is guard


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """`SECKILL_ADMIN_TOKEN=` means no token, not an empty one that anybody knows."""
    monkeypatch.setenv("SECKILL_ADMIN_TOKEN", "")
    assert load().admin_token is None


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords and tokens don't appear when settings, or errors about them, are printed."""
    monkeypatch.setenv("SECKILL_ADMIN_TOKEN", "open-sesame")
    monkeypatch.setenv("SECKILL_REDIS_URL", "redis://:hunter2@host/0")
    monkeypatch.setenv("SECKILL_ETCD_USER", "shop")
    monkeypatch.setenv("SECKILL_ETCD_PASSWORD", "hunter3")
    shown = repr(load()) + str(load().model_dump())
    monkeypatch.setenv("SECKILL_ADMIN_TOKEN", "hunter4")
    with pytest.raises(ConfigurationError) as error:
        load()
    for secret in ("sesame", "hunter2", "hunter3", "hunter4"):
        assert secret not in shown + str(error.value)


def test_a_misspelt_variable_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that looks like ours and isn't is reported, with what may have been meant."""
    monkeypatch.setenv("SECKILL_BATCHMAX", "1")
    assert unknown_variables() == ["SECKILL_BATCHMAX is not a setting; did you mean SECKILL_BATCH_MAX?"]


def test_env_example_gives_the_defaults(tmp_path: Path) -> None:
    """.env.example is what `make docs` writes, names each setting once, and read as it is gives the defaults."""
    text = (ROOT / ".env.example").read_text()
    assert text == generate.env_example()
    (tmp_path / ".env").write_text(re.sub(r"^#(SECKILL_)", r"\1", text, flags=re.MULTILINE))
    assert load() == Settings(_env_file=None)  # type: ignore[call-arg]


def test_the_readme_has_every_setting() -> None:
    """The table in the README is what `make docs` writes."""
    assert (ROOT / "README.md").read_text() == generate.readme()


def test_the_chinese_readme_has_every_setting() -> None:
    """Its table is what `make docs` writes from docs/settings.zh-CN.toml; a setting that has no translation, or another
    description than the one that was translated, is named.
    """
    assert (ROOT / "README.zh-CN.md").read_text() == generate.chinese_readme()


@pytest.mark.parametrize(
    ("described", "kept", "said"),
    [
        ({"A": "a"}, {}, "A has no translation"),
        ({"A": "a"}, {"A": {"en": "a", "zh": ""}}, "A has no translation"),
        ({}, {"A": {"en": "a", "zh": "甲"}}, "A is not a setting"),
        ({"A": "b"}, {"A": {"en": "a", "zh": "甲"}}, 'A was translated from "a", and is now "b"'),
    ],
)
def test_a_translation_keeps_up_with_its_setting(
    described: dict[str, str], kept: dict[str, dict[str, str]], said: str
) -> None:
    """Neither is without the other, and a description that has changed since it was translated is noticed."""
    with pytest.raises(LookupError) as error:
        generate.translated(described, kept)
    assert str(error.value) == f"docs/settings.zh-CN.toml: {said}"


def test_the_table_of_locks_is_that_of_the_code() -> None:
    """docs/locks.md says what the backends declare; `make docs` writes it. No lock is missing."""
    assert (ROOT / "docs" / "locks.md").read_text() == generate.locks()
    assert list(NAMES) == [name.value for name in LockName]
