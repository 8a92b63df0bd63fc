"""A wheel and an sdist of this checkout, and an environment that has the wheel and nothing of the checkout."""

import os
import subprocess
import sys
import venv
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]


def _script(name):
    """A script of this checkout as a module."""
    loader = SourceFileLoader(name, str(ROOT / "scripts" / name))
    module = module_from_spec(spec_from_loader(name, loader))
    sys.modules[name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def release_check():
    """scripts/release-check as a module."""
    return _script("release-check")


@pytest.fixture(scope="session")
def tree(release_check, tmp_path_factory):
    """A copy of what git would add."""
    folder = tmp_path_factory.mktemp("release") / "tree"
    release_check.copy_tree(folder)
    return folder


@pytest.fixture(scope="session")
def dist(tree):
    """The folder with the sdist and the wheel that was built from it; setuptools is the one installed here."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", tree.parent / "dist", tree],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return tree.parent / "dist"


@pytest.fixture(scope="session")
def wheel(dist):
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """The Python of an environment with the wheel; what the wheel needs is that of this one, its `rlctl` is not."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, symlinks=True)
    packages = next(home.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Of those, .pth files, the checkout's, are not read. A thin environment has its packages elsewhere.
    (packages / "needed.pth").write_text("\n".join(one for one in sys.path if one.endswith("site-packages")))
    return home / "bin" / "python"


@pytest.fixture
def rlctl(installed):
    """Runs the installed `rlctl` as its console script does: what stands in the working directory is not importable."""

    def run(*words, folder, **environment):
        launch = "import sys; from rlctl.cli import main; sys.exit(main())"
        return subprocess.run(
            [installed, "-P", "-c", launch, *map(str, words)],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    return run
