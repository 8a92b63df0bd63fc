"""nginx as LC: workers that compress a text for every request, about a millisecond of CPU time each."""

from __future__ import annotations

import os
import random
from pathlib import Path

from rlctl.envs.host.latency.line_formats import LOG_FORMAT
from rlctl.envs.testbed.generator import GeneratorConfig
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.workloads import LcProgram

PAGE = "text.txt"
MODULES_WITH_TEMPORARY_FILES = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
TEXT_BYTES, GZIP_LEVEL = 35_000, 6  # about 1.2 ms of CPU time a request (docs/measured/simulator.md)
WORDS = 2000  # a vocabulary that gzip compresses about as it does English, to a third

CONFIGURATION = """
daemon off;
worker_processes {workers};
pid nginx.pid;
error_log error.log warn;
{user}
events {{ worker_connections 1024; }}
http {{
    {log_format}
    access_log {access_log};
    {temporary}
    default_type text/plain;
    gzip on;
    gzip_comp_level {gzip_level};
    gzip_min_length 1;
    gzip_types text/plain;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    server {{
        listen {listen};
        root {folder};
    }}
}}
"""


class Nginx(LcProgram):
    """An nginx of our own.

    Args:
        workers: Its processes: one, so that one CPU is all that it can use.
        log_requests: Log each in the format of `rlctl.envs.host.latency.line_formats`.
    """

    name = "nginx"
    request = f"GET /{PAGE} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()
    answer = b" 200 "

    def __init__(self, *, workers: int = 1, log_requests: bool = False, address: tuple[str, int] | None = None) -> None:
        super().__init__(address)
        self.workers, self._log_requests = workers, log_requests

    @property
    def access_log(self) -> Path | None:
        """One line per request, if that is wanted."""
        return self.folder / "access.log" if self._log_requests else None

    def load(self) -> GeneratorConfig:
        """GET of the text."""
        return self._aim_at_listener(GeneratorConfig("http", http_path=f"/{PAGE}"))

    def _command(self, launcher: Launcher) -> list[str]:
        program = find_program("nginx", "nginx-light")
        folder = self._make_folder(launcher)
        (folder / PAGE).write_text(_text(TEXT_BYTES))
        (folder / "nginx.conf").write_text(self._configuration(folder))
        # -e: or else it complains of the packaged log's folder before it has read the configuration
        return [program, "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]

    def _configuration(self, folder: Path) -> str:
        return CONFIGURATION.format(
            workers=self.workers,
            folder=folder,
            listen=f"unix:{self.socket}" if self.address is None else "{}:{}".format(*self.address),
            user="user root root;" if os.geteuid() == 0 else "",  # its folder is ours alone
            log_format=LOG_FORMAT,
            access_log="access.log rlctl" if self._log_requests else "off",
            temporary=" ".join(f"{name}_temp_path temporary;" for name in MODULES_WITH_TEMPORARY_FILES),
            gzip_level=GZIP_LEVEL,
        )


def _text(length_bytes: int) -> str:
    """Words of an invented language, rare and frequent ones, the same at each call."""
    dice = random.Random(1)
    words = ["".join(dice.choices("etaoinshrdlucmfwypvbgkjqxz", k=dice.randint(2, 9))) for _ in range(WORDS)]
    weights = [1 / rank for rank in range(1, WORDS + 1)]
    return " ".join(dice.choices(words, weights, k=length_bytes // 2))[:length_bytes]
