"""Progress never reaches stdout, and is plain where nobody draws bars."""

from rlctl.log.progress import progress


def test_without_terminal_each_step_is_a_line(capsys):
    with progress(2, "runs") as advance:
        advance("none #1")
        advance("frozen #1")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "1/2 runs: none #1\n2/2 runs: frozen #1\n"


def test_on_terminal_bar_is_drawn_on_stderr(capsys, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress(1, "runs") as advance:
        advance("none #1")
    assert capsys.readouterr().out == ""


def test_no_color_means_plain_lines(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress(1) as advance:
        advance("x")
    assert capsys.readouterr().err == "1/1 steps: x\n"
