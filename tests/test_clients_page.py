"""`docs/clients.md` is current: versions of the packages that the tests use, and the code of its examples."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import version

from tests.e2e.conftest import REPOSITORY

_SPEC = importlib.util.spec_from_file_location("clients_page", REPOSITORY / "docs" / "clients_page.py")
assert _SPEC is not None and _SPEC.loader is not None
clients_page = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = clients_page  # dataclasses look their module up
_SPEC.loader.exec_module(clients_page)

PAGE = clients_page.PAGE.read_text()


def test_every_client_is_listed_with_its_version() -> None:
    heavy = clients_page.heavy_versions()
    for client in clients_page.CLIENTS:
        number = heavy.get(client.package) or version(client.package)
        assert f"| `{client.package}` | {number} |" in PAGE, f"{client.package} {number}: run `make clients`"


def test_every_agent_is_listed_with_its_version() -> None:
    versions = clients_page.agent_versions()
    for program in clients_page.PROGRAMS:
        assert clients_page.agent_start(program, versions) in PAGE, f"{program.id}: run `make clients`"


def test_the_examples_are_the_files() -> None:
    assert PAGE.endswith("\n".join(clients_page.examples())), "run `make clients`"


def test_every_client_test_belongs_to_a_client() -> None:
    named = {name.partition(":")[0].rpartition(".")[2] for client in clients_page.CLIENTS for name in client.tests}
    others = {"test_server", "test_load_generators"}
    assert {path.stem for path in (REPOSITORY / "tests" / "clients").rglob("test_*.py")} == named | others
