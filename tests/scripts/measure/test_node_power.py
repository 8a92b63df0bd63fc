"""Power of the whole machine, from a power meter or a board controller."""

from pathlib import Path

import pytest

from rlctl.envs.telemetry import Missing, Why
from scripts.studies.mixes.node_power import IpmiPower, ipmi_watts, power_source


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("    Instantaneous power reading:                   220 Watts\n", 220.0),
        ("Could not open device at /dev/ipmi0 or /dev/ipmi/0: Permission denied\n", Why.NO_PERMISSION),
        ("\n    DCMI request failed because: Invalid command (c1)\n", Why.NOT_SUPPORTED),
        ("", Why.NOT_SUPPORTED),
    ],
)
def test_what_ipmitool_says_is_watts_or_a_reason(said, expected):
    found = ipmi_watts(said)
    assert (found.why if isinstance(found, Missing) else found) == expected


def test_a_board_controller_that_hangs_is_not_waited_for():
    answer = IpmiPower(("sleep", "600"), timeout_seconds=0.1)()
    assert isinstance(answer, Missing)
    assert "no answer" in answer.detail


def test_the_power_meter_is_preferred(tmp_path: Path):
    assert isinstance(power_source(tmp_path, tmp_path), Missing)
    folder = tmp_path / "class/hwmon/hwmon1"
    folder.mkdir(parents=True)
    (folder / "name").write_text("power_meter\n")
    (folder / "power1_average").write_text("312000000\n")
    source, _ = power_source(tmp_path, tmp_path)
    assert source() == pytest.approx(312.0)
