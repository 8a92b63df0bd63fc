"""The site builds without a warning, and everything that has a name has its heading."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("sphinx", reason="the documentation's tools are missing: pip install 'rlctl[docs]'")

from rlctl_docs import reference
from rlctl_docs.blocks import ROOT, pages
from rlctl_docs.models import keys
from rlctl_docs.site import slug

from rlctl.agents import catalogue
from rlctl.bench.scenarios import shipped_scenarios
from rlctl.cli import COMMANDS
from rlctl.config.serve import ServeConfig, schema
from rlctl.envs.telemetry import Why
from rlctl.safety.verdict import Reason


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of the generated pages."""
    folder = tmp_path_factory.mktemp("reference")
    reference.write(folder)
    return folder


@pytest.fixture
def headings(written):
    def headings_of(name):
        return set(re.findall(r"^#+ (.*)$", (written / f"{name}.md").read_text(), re.MULTILINE))

    return headings_of


class TestEverythingHasItsHeading:
    def test_commands(self, headings):
        names = [name for name, _ in reference.commands()]
        assert {name.split()[1] for name in names} == set(COMMANDS)
        assert set(names) <= headings("commands")

    def test_configuration_keys(self, headings):
        found = headings("serve")
        assert {key.path for key in keys(ServeConfig)} <= found
        last = {path.rpartition(".")[2] for path in found}
        for section in schema()["$defs"].values():
            assert set(section.get("properties", ())) <= last

    def test_metrics(self, headings):
        assert {name for name, *_ in reference.metric_families()} <= headings("metrics")

    def test_managers(self, headings):
        assert {*catalogue.NAMES, *catalogue.LEARNED, *catalogue.BOUNDS} <= headings("managers")

    def test_reasons(self, headings):
        assert {*Reason, *Why} <= headings("reasons")

    def test_scenarios(self, headings):
        assert set(shipped_scenarios()) <= headings("scenarios")

    def test_requirements(self, headings):
        from rlctl.commands.doctor import examine

        assert {capability.name for capability in examine()} <= headings("requirements")


def test_every_configuration_key_says_what_it_means():
    for section in (schema(), *schema()["$defs"].values()):
        for name, said in section.get("properties", {}).items():
            assert said.get("description"), f"{section['title']}.{name}"


def test_every_key_of_other_files_is_explained():
    for title, _, model in reference.FILES:
        for line in "\n".join(reference._tables(model, "", {})).splitlines():
            assert not line.endswith("|  |"), f"{title}: {line}"


def test_every_environment_variable_is_told():
    assert reference.environment_variables() <= reference.VARIABLES.keys()


def test_external_links_are_addresses():
    for page in pages():
        for link in re.findall(r"\]\((https?:[^)]*)\)|<(https?:[^>]*)>", page.read_text()):
            parts = urlsplit("".join(link))
            assert re.fullmatch(r"[\w.-]+\.\w+(:\d+)?", parts.netloc), f"{page}: {link}"
            assert not re.search(r"\s", "".join(link)), f"{page}: {link}"


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("rlctl app launch", "rlctl-app-launch"),
        ("lc.slo.target_milliseconds", "lc-slo-target_milliseconds"),
        ("What `gap` means, and why?", "what-gap-means-and-why"),
        ("BE at the kernel's weight", "be-at-the-kernels-weight"),
        ("BE at the kernel’s weight", "be-at-the-kernels-weight"),
    ],
)
def test_anchors_are_the_words_of_the_heading(heading, anchor):
    assert slug(heading) == anchor


def test_each_link_to_a_heading_finds_it():
    for page in pages():
        for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([^)\s]+)\)", page.read_text()):
            linked = page.parent / target if target else page
            if linked.exists():  # the others are generated; scripts/docs finds theirs
                found = {slug(heading) for heading in re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)}
                assert anchor in found, f"{page}: {target}#{anchor}"


def test_root_pages_are_there():
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        assert (Path(ROOT) / name).is_file()
