"""`rlctl pause` and its kin: until when, why, and what is said where there is no service."""

import argparse
import datetime

import pytest

from rlctl.cli import main
from rlctl.commands.operator import moment, print_answer, span


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90.0), ("15m", 900.0), ("2h", 7200.0), ("1.5d", 129600.0)])
def test_lengths_of_time(text, seconds):
    assert span(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "0s", "-1h", "2 h", "1e3s"])
def test_what_is_no_length_of_time(text):
    with pytest.raises(argparse.ArgumentTypeError, match="not a length of time"):
        span(text)


def test_a_time_of_day_is_the_next_one():
    now = datetime.datetime.now()
    for hours in (-1, 1):
        at = (now + datetime.timedelta(hours=hours)).replace(second=0, microsecond=0)
        assert 0.0 < moment(f"{at:%H:%M}") - now.timestamp() <= 86400.0
    assert moment("2026-11-24T06:00") == datetime.datetime(2026, 11, 24, 6).timestamp()


@pytest.mark.parametrize("text", ["", "25:00", "tomorrow", "2026-13-01T00:00", "6pm"])
def test_what_is_no_time(text):
    with pytest.raises(argparse.ArgumentTypeError, match="not a time"):
        moment(text)


@pytest.mark.parametrize("words", [("pause",), ("resume",), ("limit", "0.5"), ("release",), ("pause", "--show")])
def test_without_service_it_is_75_in_one_line(words, tmp_path, capsys):
    assert main([*words, "--state", str(tmp_path)]) == 75
    assert capsys.readouterr().err == (
        f"rlctl: error: no rlctl serves with {tmp_path}: where one runs with another, give its --config or --state\n"
    )


@pytest.mark.parametrize(
    "words", [("limit", "0"), ("limit", "-1"), ("limit",), ("pause", "--for", "2h", "--until", "18:00")]
)
def test_wrong_words_are_usage_errors(words):
    assert main([*words]) == 2


def test_an_answer_in_words(capsys):
    nothing = {"said": "", "holds": []}
    print_answer(nothing, as_json=False)
    print_answer({**nothing, "holds": [{"text": "paused by root"}]}, as_json=False)
    print_answer({**nothing, "said": "BE is paused", "holds": [{"text": "paused"}]}, as_json=False)
    shown = ["no pause and no limit holds BE", "BE is paused by root", "BE is paused"]
    assert capsys.readouterr().out.splitlines() == shown


def test_approve_is_refused_with_the_way_out(capsys):
    assert main(["approve"]) == 2
    assert "`rlctl approve` was removed: review changes" in capsys.readouterr().err
