"""The profiles that ship: complete, documented, and what they say of themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from rlctl.envs.sim import profile as module
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import Constants, HostProfile, load_profile
from tests.doubles.shipped import HOST_PROFILES

SHIPPED = {name: load_profile(name) for name in HOST_PROFILES}
FOLDER = Path(__file__).parents[3] / "configs/plants"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_is_a_named_profile(path: Path) -> None:
    profile = load_profile(path.stem)
    assert profile.name == path.stem
    assert profile.source
    assert profile == load_profile(str(path)) == SHIPPED[path.stem]


def test_every_constant_is_documented_where_it_is_defined() -> None:
    """A string stands below each field of the sections; pydantic does not ask for it."""
    tree = ast.parse(Path(module.__file__).read_text())
    sections = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Constants")]
    documented = set()
    for section in sections[:-1]:
        for field, text in zip(section.body, section.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                documented.add(field.target.id)
    assert documented == set(SHIPPED["thesis-host"].values())


@pytest.mark.parametrize("profile", SHIPPED.values(), ids=list(SHIPPED))
def test_ranges_are_drawn_within_and_differ_by_seed(profile: HostProfile) -> None:
    drawn = Constants.drawn(profile, np.arange(500, dtype=np.uint64))
    again = Constants.drawn(profile, np.arange(499, -1, -1, dtype=np.uint64))
    for name, value in profile.values().items():
        low, high = profile.ranges.get(name, (value, value))
        column = getattr(drawn, name)
        assert low <= column.min() <= column.max() <= high
        assert (column == getattr(again, name)[::-1]).all()
        assert len(np.unique(column)) > 400 or low == high


def test_digest_is_of_constants_and_of_nothing_else() -> None:
    one = SHIPPED["thesis-host"]
    assert one.digest == one.model_copy(update={"description": "another"}).digest
    assert one.digest != one.but(cpi=one.interference.cpi * 1.01).digest


def frozen_run(name: str, load: float, ticks: int = 100, hosts: int = 30) -> np.ndarray:
    """Tails of a steady load with BE frozen, by the target, shape (ticks, hosts)."""
    steady = SHIPPED[name].but(drift_cv=0.0)
    batch = SimBatch(steady, range(hosts), lambda seed, count, seconds: np.full(count, load), ticks)
    return np.array([batch.step().tail_latency_seconds for _ in range(ticks)]) / SHIPPED[name].lc.target_seconds


@pytest.mark.parametrize("name", SHIPPED)
def test_load_of_1_is_held_with_be_frozen(name: str) -> None:
    assert np.mean(frozen_run(name, 1.0) <= 1.0) >= 0.99


def test_not_much_more_than_that_is_held() -> None:
    """The thesis' knee is what max_load_rps says it is, not somewhere far above."""
    assert np.mean(frozen_run("thesis-host", 1.1) <= 1.0) < 0.5


def test_restarted_lc_is_another_from_then_on() -> None:
    plain = SHIPPED["two-core-nginx"]
    new = plain.but(restart_seconds=30.0, restart_ratio=1.5)
    assert plain.but(cpi=1.0).restart is None, "nothing about a restart in a file or digest that has none"

    def cpus(profile: HostProfile) -> np.ndarray:
        batch = SimBatch(profile, range(10), lambda seed, count, seconds: np.full(count, 0.4), 60)
        return np.array([batch.step().lc_cpus for _ in range(60)])

    ratio = cpus(new) / cpus(plain)
    assert (ratio[:30] == 1.0).all()
    assert ratio[30:] == pytest.approx(1.5, rel=0.2), "wake-ups cost what they did"
