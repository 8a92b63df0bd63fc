"""The shipped constants, and what an operator is told about a profile that cannot be."""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path

import pytest

from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError
from rlctl.safety.profile import DEFAULT, Profile, load_profile
from rlctl.safety.shield import Shield
from tests.doubles.shipped import SAFETY_PROFILES


def text_of(name: str) -> str:
    return (importlib.resources.files("rlctl") / "configs" / "safety" / f"{name}.yaml").read_text(encoding="utf-8")


def test_these_profiles_ship() -> None:
    assert SAFETY_PROFILES == ("heracles", "knee", "measured", "responsive")
    assert tuple(load_profile(name).name for name in SAFETY_PROFILES) == SAFETY_PROFILES


def test_heracles_has_the_published_constants() -> None:
    heracles = load_profile("heracles")
    assert (heracles.load_suspend_ratio, heracles.load_resume_ratio) == (0.85, 0.80)
    assert (heracles.slack_suspend_ratio, heracles.slack_floor_ratio, heracles.slack_hold_ratio) == (0.0, 0.05, 0.10)
    assert (heracles.poll_seconds, heracles.cool_down_seconds, heracles.suspend_after_strikes) == (15.0, 300.0, 1)


def test_responsive_is_the_same_guards_judged_every_tick() -> None:
    responsive, heracles = load_profile("responsive"), load_profile("heracles")
    assert (responsive.load_suspend_ratio, responsive.load_resume_ratio) == (0.95, 0.90)
    assert (responsive.poll_seconds, responsive.cool_down_seconds, responsive.suspend_after_strikes) == (0.0, 30.0, 2)
    assert [type(guard) for guard in responsive.guards()] == [type(guard) for guard in heracles.guards()]


def test_knee_is_responsive_with_another_load_gate() -> None:
    """Who reads a table of both must know that nothing else was let go."""
    knee, responsive = load_profile("knee"), load_profile("responsive")
    gate = {"load_suspend_ratio": 1.00, "load_resume_ratio": 0.98}
    assert knee.model_dump(exclude={"name"}) == responsive.model_dump(exclude={"name"}) | gate
    assert knee.digest != responsive.digest


def test_measured_is_responsive_where_nothing_was_measured() -> None:
    measured, responsive = load_profile("measured"), load_profile("responsive")
    assert measured.model_dump(exclude={"name", "measured"}) == responsive.model_dump(exclude={"name", "measured"})
    assert (responsive.measured, load_profile(DEFAULT)) == (None, measured)
    assert measured.digest != responsive.digest


def test_digests_without_it_are_as_before() -> None:
    """Bundles and results name them."""
    digests = {name: load_profile(name).digest for name in ("heracles", "knee", "responsive")}
    assert (digests["knee"], digests["responsive"]) == ("219ff86eb8a8", "ef728702fa02")


@pytest.mark.parametrize("name", SAFETY_PROFILES)
def test_every_constant_is_written_down(name: str) -> None:
    """No hidden defaults: what a profile file does not say is an error, not a guess."""
    optional = {key for key, field in Profile.model_fields.items() if not field.is_required()}
    assert optional == {"measured", "memory_pressure", "memory_bandwidth"}
    assert set(re.findall(r"^(\w+):", text_of(name), re.MULTILINE)) == set(Profile.model_fields)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        (
            "load_suspend_ratio: 0.85",
            "load_suspend_ratio: 85",
            ["load_suspend_ratio is 85", "a percentage? write 0.85"],
        ),
        ("slack_hold_ratio: 0.10", "slack_hold_ratio: 10", ["a percentage? write 0.1"]),
        ("load_resume_ratio: 0.80", "load_resume_ratio: 0.90", ["load_resume_ratio is above load_suspend_ratio"]),
        ("slack_floor_ratio: 0.05", "slack_floor_ratio: 0.5", ["must not descend"]),
        ("slack_suspend_ratio: 0.0", "slack_suspend_ratio: -1", ["slack_suspend_ratio is -1"]),
        ("poll_seconds:", "poll_second:", ["unknown key 'poll_second'", "did you mean 'poll_seconds'?"]),
        ("min_samples: 20", "min_samples: many", ["min_samples is 'many'"]),
        ("min_samples: 20", "min_samples: yes", ["min_samples is True"]),
        ("cool_down_seconds: 300.0", "cool_down_seconds: .nan", ["cool_down_seconds is nan"]),
        ("min_samples: 20", "", ["key 'min_samples' is missing"]),
        ("min_samples: 20", "min_samples: 20\nmin_samples: 1", ["'min_samples' stands on line"]),
    ],
)
def test_wrong_constant_is_one_line(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    path = tmp_path / "mine.yaml"
    text = text_of("heracles")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert re.match(rf"{re.escape(str(path))}:\d+: ", message)
    assert "\n" not in message
    assert all(part in message for part in parts), message


def test_a_path_may_be_given_as_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text_of("heracles").replace("name: heracles", "name: mine"), encoding="utf-8")
    assert load_profile(str(path)).name == "mine"


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(
        ConfigError, match=r"'mine', nor is it a \.yaml file; there are heracles, knee, measured, responsive"
    ):
        load_profile("mine")
    with pytest.raises(ConfigError, match="did you mean 'heracles'"):
        load_profile("hercules")


def test_time_scale_changes_poll_and_cool_down_alone() -> None:
    real = load_profile("heracles")
    scaled = real.scale_time(15.0)
    assert (scaled.poll_seconds, scaled.cool_down_seconds) == (1.0, 20.0)
    same = {"poll_seconds": 15.0, "cool_down_seconds": 300.0}
    assert scaled.model_copy(update=same) == real


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_time_scale_is_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match="time scale"):
        load_profile("heracles").scale_time(scale)


def test_the_digest_is_of_the_constants() -> None:
    heracles = load_profile("heracles")
    assert re.fullmatch(r"[0-9a-f]{12}", heracles.digest)
    assert heracles.model_copy(update={"name": "other"}).digest == heracles.digest
    for name, value in heracles.model_dump(exclude={"name"}, exclude_none=True).items():
        assert heracles.model_copy(update={name: value + 1}).digest != heracles.digest
    shield = Shield(heracles, Limits(cpus=2))
    assert (shield.profile.name, shield.digest) == ("heracles", heracles.digest)
