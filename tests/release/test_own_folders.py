"""Half of all projects have a folder `envs` or `agents`: rlctl works beside them, and they stay what they are."""

import pytest

BREAKS = "raise RuntimeError('a module of the user was imported')\n"
NAMES = ("envs", "agents", "safety", "configs")


@pytest.fixture
def project(tmp_path):
    """A working directory with packages of these names, whose import fails, and with folders and modules of data."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(BREAKS)
    (tmp_path / "configs" / "thesis.yaml").write_text("not: a scenario\n")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("managers",),
        ("scenarios", "--json"),
        ("config", "schema"),
        ("inspect", "ppo", "--json"),
        (
            "bench",
            "--scenario",
            "thesis",
            "--managers",
            "none,heracles",
            "--seeds",
            "2",
            "--duration",
            "30",
            "--jobs",
            "2",
        ),
    ],
    ids=lambda words: words[0],
)
def test_commands_use_their_own(rlctl, project, words):
    done = rlctl(*words, folder=project)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_commands_use_their_own_where_the_project_is_on_the_path(rlctl, project):
    words = ("bench", "--scenario", "thesis", "--managers", "none", "--seeds", "2", "--duration", "30", "--jobs", "2")
    done = rlctl(*words, folder=project, PYTHONPATH=str(project))  # as under `python -m`, pytest or an IDE
    assert done.returncode == 0, done.stderr


def test_packages_of_these_names_that_are_installed_are_left_alone(installed, wheel, release_check):
    names = release_check.wheel_names(wheel)
    assert not [name for name in names if name.split("/")[0] in NAMES]
