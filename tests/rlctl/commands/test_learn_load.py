"""`rlctl learn-load`: the maximum load of a recorded log."""

import json

import pytest

from rlctl.cli import main
from rlctl.envs.allocation import Limits
from rlctl.envs.host.max_load import UTILISATION
from rlctl.envs.telemetry import Value, worst_of
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.doubles.plant import FakePlant
from tests.doubles.tick_logs import record_run


class Counting(FakePlant):
    """Says how many requests came, at 1000 a second for a load of 1, and what each took."""

    def read(self):
        telemetry = super().read()
        counters = {"offered_rps": Value(1000.0 * telemetry.load_ratio.value)}
        return telemetry.but(counters=counters, lc_cpu_seconds_per_request=Value(0.00085))


def recorded(folder, plant, always):
    policy, shield = always(lambda o: plant.limits.safe), Shield(load_profile("responsive"), plant.limits)
    return record_run(folder, plant, policy, shield, 30)


@pytest.fixture
def limits():
    return Limits(cpus=2)


def test_it_says_what_a_log_shows(tmp_path, capsys, always, limits):
    folder = recorded(tmp_path, Counting(limits, loads=(0.2, 0.2, 0.4)), always)
    assert main(["learn-load", str(folder)]) == 0
    said = capsys.readouterr().out
    assert said == (
        "maximum load of the LC: estimated at 1059 rps, between 1059 and 1176 (0.85 ms of CPU a request on 1 CPU, "
        "200 held, no tail has confirmed it, so BE is not suspended for it); 30 ticks\n"
    )
    assert main(["learn-load", str(folder), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["at_least_rps"], plain["borne_out"]) == (pytest.approx(UTILISATION / 0.00085), False)
    assert (plain["held_rps"], plain["missed_rps"], plain["ticks"]) == (200.0, None, 30)


def test_configuration_names_the_log(tmp_path, capsys, always, limits, serve_yaml):
    folder = recorded(tmp_path, Counting(limits, loads=(0.2,)), always)
    assert main(["learn-load", "--config", str(serve_yaml(new=f"log: {{directory: {folder}}}\n"))]) == 0
    assert "30 ticks" in capsys.readouterr().out


def test_where_second_lc_came_later_each_is_told(tmp_path, capsys, always, limits):
    class Several(Counting):
        def read(self):
            own = super().read()
            return worst_of({"web": own, "cache": own})

    recorded(tmp_path, Counting(limits, loads=(0.2,)), always)
    folder = recorded(tmp_path, Several(limits, loads=(0.2,)), always)
    assert main(["learn-load", str(folder), "--json"]) == 0
    assert {"web", "cache"} <= json.loads(capsys.readouterr().out)["lcs"].keys()


def test_a_log_without_requests_says_nothing_of_it(tmp_path, capsys, always, limits):
    folder = recorded(tmp_path, FakePlant(limits), always)
    assert main(["learn-load", str(folder)]) == 1
    assert "no tick here says how many requests came" in capsys.readouterr().err
    assert main(["learn-load", str(tmp_path / "none")]) == 78
