"""What an application's description may say, and how a slip in it is told."""

import pytest

from rlctl.envs.applications import WorkingMode
from rlctl.envs.errors import ConfigError
from rlctl.envs.host.apps.registry import load_description

GOOD = """\
name: encoder
priority: 1
modes:
  - {cpus: 0.5, threads: 1, value: 0.3}
  - {cpus: 2, threads: 4, memory_bytes: 1000000}
command: [sleep, "1"]
"""


def written(tmp_path, text):
    path = tmp_path / "encoder.yaml"
    path.write_text(text)
    return path


def test_a_description_becomes_modes_for_the_allocator(tmp_path):
    found = load_description(written(tmp_path, GOOD))
    assert (found.name, found.priority, found.command) == ("encoder", 1, ("sleep", "1"))
    assert found.working_modes == (WorkingMode(0.5, 1, 0.3), WorkingMode(2.0, 4, 1.0, 1_000_000))


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("name: encoder", "name: ../encoder", 1, "name"),
        ("priority: 1", "priority: 10", 2, "less than or equal to 9"),
        ("priority: 1", "prioriti: 1", 2, "did you mean 'priority'"),
        ("cpus: 0.5", "cpus: 0", 4, "greater than 0"),
        ("cpus: 0.5", "cpus: 5", 3, "sort them by 'cpus'"),
        ("threads: 4", "threads: 0", 5, "greater than or equal to 1"),
        ("value: 0.3", "value: 30", 4, "less than or equal to 1"),
        ("command: [sleep", "command: [] #", 6, "at least 1 item"),
    ],
)
def test_a_slip_is_told_with_its_line(tmp_path, old, new, line, told):
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_description(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert told in str(caught.value)


def test_an_application_without_modes_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r":2: modes is \[\]: should have at least 1 item, not 0$"):
        load_description(written(tmp_path, "name: encoder\nmodes: []\n"))
