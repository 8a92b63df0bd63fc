"""A measurement that is ended from outside keeps what it has."""

import os
import pty
import subprocess
import sys

from tests.waiting import until

ENDED = """
import signal, sys, time
from pathlib import Path
from rlctl.bench.workforce import kept_at_signals
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have it ignored, as nohup does
with kept_at_signals():
    try:
        print("begun", flush=True)
        time.sleep(300)
    except KeyboardInterrupt:
        print("what nobody reads any more", flush=True)
        Path(sys.argv[1]).write_text("kept")
        raise
"""


def test_a_terminal_that_was_closed_costs_no_file(tmp_path):
    """Each write to it fails, and the first one was the progress bar's or the table's."""
    ours, theirs = pty.openpty()
    command = ["setsid", "--ctty", sys.executable, "-c", ENDED, tmp_path / "result"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        assert os.read(ours, 100).startswith(b"begun")
        os.close(ours)
        assert child.wait() == 128 + 1
    until(lambda: (tmp_path / "result").read_text() == "kept")
