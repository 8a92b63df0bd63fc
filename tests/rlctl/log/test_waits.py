"""What the LC waits for, in words an operator can act on."""

from __future__ import annotations

import pytest

from rlctl.envs.telemetry import LC_LINK, Missing, Telemetry, Value, Why
from rlctl.log.sentences import waiting_sentence, waits_of

LC = Telemetry(0.0, 0.01, be_cpus=Value(1.0))


@pytest.mark.parametrize(("telemetry", "words"), [
    (LC.but(lc_pressure_ratio=Value(0.3)), "for a CPU 30% of the time: `be.cpus`"),
    (LC.but(counters={"lc_io_pressure_ratio": Value(0.5)}), "for its disk 50% of the time: `be.reins`"),
    (LC.but(counters={"lc_memory_pressure_ratio": Value(0.2)}), "for memory 20% of the time: `resources.lc_memory_low"),
    (LC.but(counters={LC_LINK: Value(0.7)}), "for its link 70% of its requests: `be.reins`"),
])  # fmt: skip
def test_each_wait_names_the_setting_that_helps(telemetry: Telemetry, words: str) -> None:
    assert words in waiting_sentence(telemetry)


def test_the_longest_wait_is_named() -> None:
    both = LC.but(lc_pressure_ratio=Value(0.2), counters={"lc_io_pressure_ratio": Value(0.5)})
    assert "its disk" in waiting_sentence(both)
    assert list(waits_of(both)) == ["its disk", "a CPU"]


def test_an_lc_that_hardly_waits_is_no_news() -> None:
    assert waiting_sentence(LC.but(lc_pressure_ratio=Value(0.05))) == ""
    assert waiting_sentence(LC) == ""


def test_without_pressure_the_threads_tell() -> None:
    gone = Missing(Why.NOT_SUPPORTED)
    assert waits_of(LC.but(lc_pressure_ratio=gone, lc_run_delay_ratio=Value(3.0))) == {"a CPU": 1.0}


def test_be_that_uses_nothing_is_not_blamed() -> None:
    alone = LC.but(lc_pressure_ratio=Value(0.9), be_cpus=Value(0.0))
    assert "not behind BE" in waiting_sentence(alone)
    unknown = alone.but(be_cpus=Missing(Why.NOT_CONFIGURED))
    assert "`be.cpus`" in waiting_sentence(unknown)
    assert "not behind BE" in waiting_sentence(unknown, frozen=True)
