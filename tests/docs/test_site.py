"""The site builds without a warning, and everything that has a name has its heading."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("sphinx", reason="the documentation's tools are missing: pip install 'rlctl[docs]'")

from rlctl_docs import reference
from rlctl_docs.blocks import DOCS, ROOT, pages
from rlctl_docs.models import keys
from rlctl_docs.site import slug

from rlctl.agents import catalogue
from rlctl.cli import COMMANDS
from rlctl.config.serve import ServeConfig, schema
from rlctl.envs.telemetry import Why
from rlctl.safety.verdict import Reason
from rlctl.scenarios.shipped import shipped_scenarios


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site and what Sphinx said: built once, elsewhere than `scripts/docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-d", folder / "cache"]
    done = subprocess.run([*command, DOCS, folder / "html"], capture_output=True, text=True, timeout=600)
    return folder / "html", done


@pytest.mark.slow
def test_it_builds_without_a_warning(site):
    _, done = site
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_no_page_asks_the_network_for_anything(site):
    folder, _ = site
    for page in folder.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)|<link[^>]+href="(https?:[^"]+)', page.read_text()
        )
        assert not loaded, page


def headings(name):
    return set(re.findall(r"^#+ (.*)$", (DOCS / "reference" / f"{name}.md").read_text(), re.MULTILINE))


@pytest.mark.slow
@pytest.mark.usefixtures("site")
class TestEverythingHasItsHeading:
    def test_commands(self):
        names = [name for name, _ in reference.commands()]
        assert {name.split()[1] for name in names} == set(COMMANDS)
        assert set(names) <= headings("commands")

    def test_configuration_keys(self):
        found = headings("serve")
        assert {key.path for key in keys(ServeConfig)} <= found
        last = {path.rpartition(".")[2] for path in found}
        for section in schema()["$defs"].values():
            assert set(section.get("properties", ())) <= last

    def test_metrics(self):
        assert {name for name, *_ in reference.metric_families()} <= headings("metrics")

    def test_managers(self):
        assert {*catalogue.NAMES, *catalogue.LEARNED, *catalogue.BOUNDS} <= headings("managers")

    def test_reasons(self):
        assert {*Reason, *Why} <= headings("reasons")

    def test_scenarios(self):
        assert set(shipped_scenarios()) <= headings("scenarios")

    def test_requirements(self):
        from rlctl.commands.doctor import examine

        assert {capability.name for capability in examine()} <= headings("requirements")


def test_every_configuration_key_says_what_it_means():
    for section in (schema(), *schema()["$defs"].values()):
        for name, said in section.get("properties", {}).items():
            assert said.get("description"), f"{section['title']}.{name}"


def test_every_key_of_the_other_files_says_what_it_means():
    for title, _, model in reference.FILES:
        for line in "\n".join(reference._tables(model, "", {})).splitlines():
            assert not line.endswith("|  |"), f"{title}: {line}"


def test_every_environment_variable_is_told():
    assert reference.environment_variables() <= reference.VARIABLES.keys()


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_external_links_are_addresses(page):
    for link in re.findall(r"\]\((https?:[^)]*)\)|<(https?:[^>]*)>", page.read_text()):
        parts = urlsplit("".join(link))
        assert re.fullmatch(r"[\w.-]+\.\w+(:\d+)?", parts.netloc), link
        assert not re.search(r"\s", "".join(link)), link


def test_anchors_are_the_words_of_the_heading():
    assert slug("rlctl app launch") == "rlctl-app-launch"
    assert slug("lc.slo.target_milliseconds") == "lc-slo-target_milliseconds"
    assert slug("What `gap` means, and why?") == "what-gap-means-and-why"


def test_root_pages_are_there():
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        assert (Path(ROOT) / name).is_file()
