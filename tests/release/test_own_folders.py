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


BENCH = (
    *("bench", "--scenario", "thesis", "--managers", "none,heracles"),
    *("--seeds", "2", "--duration", "30", "--jobs", "2"),
)


@pytest.mark.parametrize(
    "words",
    [
        BENCH,
        ("managers",),
        pytest.param(("scenarios", "--json"), marks=pytest.mark.slow),
        pytest.param(("config", "schema"), marks=pytest.mark.slow),
        pytest.param(("inspect", "ppo", "--json"), marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_commands_use_their_own(rlctl, project, words):
    done = rlctl(*words, folder=project)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_theirs_win_where_the_project_is_on_path(rlctl, project):
    done = rlctl(*BENCH, folder=project, PYTHONPATH=str(project))  # as under `python -m`, pytest or an IDE
    assert done.returncode == 0, done.stderr


def test_the_wheel_installs_no_such_names(installed, wheel, release_check):
    names = release_check.wheel_names(wheel)
    assert not [name for name in names if name.split("/")[0] in NAMES]
