"""What `rlctl inspect` says of a bundle, in words, in JSON and as a figure."""

import json

import numpy as np
import pytest

from rlctl.cli import main
from rlctl.report import response


@pytest.fixture
def coarse(monkeypatch):
    """Surfaces of every fifth load and slack, which have settled or not after two cycles."""
    for name in ("LOADS", "SLACKS"):
        monkeypatch.setattr(response, name, getattr(response, name)[::5])
    monkeypatch.setattr(response, "MOST_TICKS", 2 * response.CYCLE_TICKS)


@pytest.mark.usefixtures("coarse")
def test_the_card_and_the_surface_are_readable(make_bundle, tmp_path, capsys):
    assert main(["inspect", str(make_bundle(tmp_path / "tiny"))]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for said in ("tiny: PPO, exported", "network: 136 > 35, tanh", "slack, latency", ": keep, ", "seed 1"):
        assert said in out
    assert "on 4 x thesis-host (000000000000), BE weight minimum, no shield" in out
    assert "1 shared CPU, BE at equal weight" in out
    assert all(len(line) < 160 for line in out.splitlines() if line.startswith("|"))


@pytest.mark.slow
def test_policy_that_follows_slack_is_shown_so(make_bundle, tmp_path, capsys):
    assert main(["inspect", str(make_bundle(tmp_path / "tiny")), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["card"]["name"] == "tiny"
    assert said["card"]["schema"] == 2
    for one in said["response"]:
        loads, slacks = np.array(one["load_ratio"]), np.array(one["slack_ratio"])
        share = np.array(one["be_share"])
        assert share.shape == (len(slacks), len(loads))
        calm = share[:, loads < 0.9]  # the gate opens below it
        assert (np.diff(calm, axis=0) >= -1e-9).all(), "more slack, no less for BE"
        assert calm[-1].min() > 0.7
        assert share[slacks < 0].max() == 0.0, "the shield has the last word"
        assert share[:, loads > 0.95].max() == 0.0
        assert np.array(one["settled"]).all()


@pytest.mark.usefixtures("coarse")
def test_a_bundle_without_history_is_inspected_too(make_bundle, tmp_path, capsys):
    assert main(["inspect", str(make_bundle(tmp_path / "now", lags=(0,)))]) == 0
    assert "at ticks now, a tick being 1 s" in capsys.readouterr().out


@pytest.mark.usefixtures("coarse")
def test_the_surfaces_are_drawn(make_bundle, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="figures need rlctl[cli]")
    file = tmp_path / "response.png"
    assert main(["inspect", str(make_bundle(tmp_path / "tiny")), "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert str(file) in capsys.readouterr().err


def test_unservable_bundle_is_not_shown(make_bundle, tmp_path, capsys):
    folder = make_bundle(tmp_path / "tiny")
    (folder / "weights.npz").write_bytes(b"")
    assert main(["inspect", str(folder)]) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "damaged or replaced" in err
