"""What a user installs is whole, and holds nothing else."""

import zipfile
from email.parser import Parser

import pytest

from rlctl import __version__


def test_wheel_has_every_module_and_no_test(release_check, wheel, tree):
    release_check.check_names(release_check.wheel_names(wheel), tree)


def test_sdist_has_them_as_files_not_as_links(release_check, dist, tree):
    release_check.check_names(release_check.sdist_names(next(dist.glob("*.tar.gz"))), tree)


def test_a_missing_file_is_told(release_check, wheel, tree):
    names = release_check.wheel_names(wheel) - {"rlctl/safety/shield.py"}
    with pytest.raises(release_check.Failed, match=r"lacks rlctl/safety/shield\.py"):
        release_check.check_names(names, tree)


def test_file_that_has_no_business_there_is_told(release_check, wheel, tree):
    names = release_check.wheel_names(wheel) | {"rlctl/tests/conftest.py"}
    with pytest.raises(release_check.Failed, match=r"has rlctl/tests/conftest\.py"):
        release_check.check_names(names, tree)


def test_every_extra_that_a_message_names_exists(wheel, tree):
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        said = Parser().parsestr(archive.read(metadata).decode())
    named = {
        extra
        for path in (*tree.rglob("*.py"), tree / "README.md")
        for part in path.read_text().split("pip install 'rlctl[")[1:]
        for extra in part.split("]")[0].split(",")
        if extra.isidentifier()
    }
    assert named
    assert named <= {*said.get_all("Provides-Extra")}
    assert said["Version"] == __version__


def test_the_man_pages_go_where_man_looks(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition(".data/data/")[2] for name in archive.namelist()}
    assert {"share/man/man1/rlctl.1", "share/man/man1/rlctl-serve.1", "share/man/man5/rlctl-serve.yaml.5"} <= names
