"""docs/operations.md and the alerts together name every metric, and only metrics and settings that exist.

Every setting is documented.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from server.api_keys import load_keys
from server.errors import StartError
from server.limits.refusals import LIMITS
from server.metrics import Metrics
from server.operations.pools import Pools
from server.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "operations.md").read_text()
PROMTOOL = shutil.which("promtool")
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
EXPOSED = dict(re.findall(r"^# TYPE triptych_(\w+) (\w+)", Metrics().render().decode(), re.MULTILINE))


def rules() -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def test_every_setting_is_in_the_documentation() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    words = set(re.findall(r"[A-Za-z0-9_-]+", pages))
    missing = [
        name
        for name in Settings.model_fields
        if not words
        & {name, f"--{name.replace('_', '-')}", f"--no-{name.replace('_', '-')}", f"TRIPTYCH_{name.upper()}"}
    ]
    assert not missing, "name these settings in docs/operations.md or docs/serving.md"


def test_every_flag_of_the_page_exists() -> None:
    ours = "\n".join(line for line in PAGE.splitlines() if "docker " not in line and "--health-cmd" not in line)
    flags = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", ours)) - {"help", "version", "config"}
    assert flags <= {name.replace("_", "-") for name in Settings.model_fields} | {"no-access-log"}


def test_every_metric_is_in_the_table_with_its_labels() -> None:
    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name: labels for cell in cells for name, labels in re.findall(r"`(\w+)(?:\{([^}]*)\})?`", cell)}
    missing = [name for name in EXPOSED if name not in named]
    assert not missing, "describe these metrics in docs/operations.md"


def test_alerts_use_metrics_that_exist_and_are_on_the_page() -> None:
    names = {f"triptych_{name}" for name in EXPOSED} | {f"triptych_{name}_bucket" for name in EXPOSED}
    for rule in rules():
        assert set(re.findall(r"triptych_\w+", rule["expr"])) <= names, rule["alert"]
        assert f"`{rule['alert']}`" in PAGE
    alerts = {rule["alert"] for rule in rules()}
    assert set(re.findall(r"`(Triptych\w+)`", PAGE + (ROOT / "SECURITY.md").read_text())) == alerts


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_accepts_the_alerts() -> None:
    for arguments in (("check", "rules", ALERTS.name), ("test", "rules", "alerts_test.yml")):
        checked = subprocess.run([str(PROMTOOL), *arguments], cwd=ALERTS.parent, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_table_of_limits_has_every_reason_of_a_429_beside_its_setting() -> None:
    section = PAGE.partition("## Limits and how to size them")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for row in section.splitlines():
        cells = row.split("|")
        if len(cells) > 3 and "429" in cells[3]:
            found |= dict.fromkeys(re.findall(r"`(\w+)`", cells[3]), cells[1])
    with_setting = {limit.reason: limit.setting for limit in LIMITS}
    pools = Pools()
    pools.close()
    assert set(found) == {*with_setting, *(pool.limit.reason for pool in pools)}
    for reason, setting in with_setting.items():
        words = [f"`{word}`" for word in re.findall(r"--[a-z-]+|\w+_\w+", setting)] or ["(fixed)"]
        assert all(word in found[reason] for word in words), reason


def test_the_table_of_limits_has_the_sizes_of_the_pools() -> None:
    pools = Pools()
    pools.close()
    for pool in pools:
        (row,) = (line for line in PAGE.splitlines() if f"429 `{pool.limit.reason}`" in line)
        assert row.split("|")[1].strip() == "(fixed)"
        assert f"{pool.max_waiting} requests that wait for {pool.threads} thread" in row.split("|")[2]


def test_the_key_file_of_the_page_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "keys.toml"
    file.write_text(block)
    with pytest.raises(StartError, match="sha256 must be 64 hexadecimal digits"):  # the page has no usable key
        load_keys([], file)
    file.write_text(block.replace('sha256 = "..."', f'sha256 = "{hashlib.sha256(b"mine").hexdigest()}"'))
    found = load_keys([], file).find(b"mine")
    assert found is not None and found.name == "team-b"


def test_the_error_codes_of_the_page_exist() -> None:
    from server import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)]
    statuses = {kind.code: kind.status for kind in kinds if kind is not errors.ClientGone}
    section = PAGE.partition("## What each failure looks like")[2]
    rows = [line.split("|")[1] for line in section.splitlines() if re.match(r"\| \d", line)]
    for code, status in statuses.items():
        assert any(str(status) in row and f"`{code}`" in row for row in rows), code


def test_rows_of_tables_fit_a_screen() -> None:
    assert not [line for line in PAGE.splitlines() if line.startswith("|") and len(line) > 160]
