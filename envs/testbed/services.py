"""The services of a testbed: nginx, memcached and PostgreSQL, each as an LC of our own."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
from pathlib import Path

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.generator import GeneratorConfig
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.workloads import READY_SECONDS, LcProgram, talk

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
    access_log off;
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
    """An nginx of our own: workers that compress a text for every request, about a millisecond of CPU time each.

    Args:
        workers: Its processes: one, so that one CPU is all that it can use.
    """

    name = "nginx"
    request = f"GET /{PAGE} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()
    answer = b" 200 "

    def __init__(self, *, workers: int = 1, address: tuple[str, int] | None = None) -> None:
        super().__init__(address)
        self.workers = workers

    def load(self) -> GeneratorConfig:
        """GET of the text."""
        return self._aim_at_listener(GeneratorConfig("http", http_path=f"/{PAGE}"))

    def _command(self, launcher: Launcher) -> list[str]:
        program = find_program("nginx", "nginx-light")
        folder = self._make_folder(launcher)
        (folder / PAGE).write_text(_text(TEXT_BYTES))
        (folder / "nginx.conf").write_text(self._configuration(folder))
        return [program, "-p", str(folder), "-c", "nginx.conf"]

    def _configuration(self, folder: Path) -> str:
        return CONFIGURATION.format(
            workers=self.workers,
            folder=folder,
            listen=f"unix:{self.socket}" if self.address is None else "{}:{}".format(*self.address),
            user="user root root;" if os.geteuid() == 0 else "",  # its folder is ours alone
            temporary=" ".join(f"{name}_temp_path temporary;" for name in MODULES_WITH_TEMPORARY_FILES),
            gzip_level=GZIP_LEVEL,
        )


def _text(length_bytes: int) -> str:
    """Words of an invented language, rare and frequent ones, the same at each call."""
    dice = random.Random(1)
    words = ["".join(dice.choices("etaoinshrdlucmfwypvbgkjqxz", k=dice.randint(2, 9))) for _ in range(WORDS)]
    weights = [1 / rank for rank in range(1, WORDS + 1)]
    return " ".join(dice.choices(words, weights, k=length_bytes // 2))[:length_bytes]


MEMORY_MEGABYTES, ITEM_BYTES = 64, 256
"""Memory for items, unless they need more; what an item of the generator's takes at most."""

PRELOAD_KEYS, MOST_KEYS = 10_000, 9_999_999
"""Items, unless somebody wants more; what the load generator has names for."""


class Memcached(LcProgram):
    """A memcached of our own, empty at its start: threads that answer 100-key gets, about 40 us of CPU time each.

    Args:
        threads: Those that answer: one, so that one CPU is all that it can use.
        preload_keys: Items that the load generator writes before the first request; above 60 000 it takes seconds.
    """

    name = "memcached"
    request = b"version\r\n"
    answer = b"VERSION"

    def __init__(
        self, *, threads: int = 1, preload_keys: int = PRELOAD_KEYS, address: tuple[str, int] | None = None
    ) -> None:
        super().__init__(address)
        self.threads, self.preload_keys = threads, preload_keys

    def load(self) -> GeneratorConfig:
        """Multi-key gets of items that the generator writes first."""
        return self._aim_at_listener(GeneratorConfig("memcached", preload_keys=self.preload_keys))

    def stop(self) -> None:
        """End it at once. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.stop(signal.SIGKILL)  # asked politely it takes a second, and there is nothing to save

    def _command(self, launcher: Launcher) -> list[str]:
        program = find_program("memcached", "memcached")
        self._make_folder(launcher)
        megabytes = max(MEMORY_MEGABYTES, self.preload_keys * ITEM_BYTES >> 20)
        command = [program, f"--threads={self.threads}", f"--memory-limit={megabytes}"]
        if self.address is None:
            command += [f"--unix-socket={self.socket}", "--unix-mask=0700"]
        else:
            command += [f"--listen={self.address[0]}", f"--port={self.address[1]}"]
        if os.geteuid() == 0:
            command.append("--user=root")  # as nobody it could not make its socket in our folder
        return command


USER = "postgres"  # of Debian's package; the server refuses to run as root

INIT_SECONDS = 300.0  # only ends a hang: 2 s on an idle machine, more than a minute where others write to the disk

SEGMENT_MEGABYTES = 256
"""Of the write-ahead log: two million transactions, so that none of a run is the one that makes the next segment."""

INIT = """
set -e
"$1/initdb" --pgdata="$2" --username=rlctl --auth=trust --no-locale --encoding=UTF8 --no-sync --wal-segsize="$3"
echo "CREATE TABLE entries (entry integer)" | "$1/postgres" --single -D "$2" postgres
"""

SETTINGS = {
    "listen_addresses": "",
    "dynamic_shared_memory_type": "mmap",  # in the data folder: nothing of it is left in /dev/shm after a kill
    "shared_buffers": "32MB",
    "autovacuum": "off",  # rows are never changed; and no checkpoint, or a run's noise would be its own
    "checkpoint_timeout": "1d",
    "max_wal_size": "2GB",  # half of a provisioned disk; eight million transactions
    "wal_init_zero": "off",
}


class Postgres(LcProgram):
    """A PostgreSQL of our own, with one empty table: small transactions, on the disk when they are answered.

    The clusters that the host has are left alone.
    """

    name = "postgres"
    request = b"\0\0\0\x26\0\3\0\0user\0rlctl\0database\0postgres\0\0"
    answer = b"Z\0\0\0\5I"  # ready for query, in no transaction

    @property
    def socket(self) -> Path:
        """The socket that it listens on."""
        return self.folder / f".s.PGSQL.{self._port}"

    @property
    def _port(self) -> int:
        return self.address[1] if self.address else 5432

    def ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Wait until it answers at its unix socket, which it has beside a port too."""
        self.await_that(lambda: self.answer in talk(self.socket, self.request), "answer", timeout_seconds)

    def load(self) -> GeneratorConfig:
        """One inserted row a request, committed when it is answered."""
        return self._aim_at_listener(GeneratorConfig("postgres", query="INSERT INTO entries VALUES (1)"))

    def _command(self, launcher: Launcher) -> list[str]:
        programs, user = Path(find_program("initdb", "postgresql")).resolve().parent, unprivileged_user()
        folder = self._make_folder(launcher)
        if user:
            shutil.chown(folder, user)
            launcher.folder.chmod(0o711)  # to be passed through
        data = (launcher.storage or folder) / "data"
        making = ("sh", "-c", INIT, "initdb", str(programs), str(data), str(SEGMENT_MEGABYTES))
        init = launcher.start("initdb", [*_as_user(user), *making])
        if (code := init.wait(INIT_SECONDS)) != os.EX_OK:
            raise TestbedError(f"initdb ended with code {code}: {init.tail()}")
        settings = SETTINGS | {"unix_socket_directories": str(folder), "port": str(self._port)}
        if self.address:
            settings["listen_addresses"] = self.address[0]
        server = [str(programs / "postgres"), "-D", str(data), *(f"--{key}={value}" for key, value in settings.items())]
        return [*_as_user(user), *server]


def unprivileged_user() -> str:
    """Whom to run PostgreSQL as; empty where it is whoever runs this.

    Raises:
        TestbedError: There is no such user.
    """
    if os.geteuid() != 0:
        return ""
    try:
        return pwd.getpwnam(USER).pw_name
    except KeyError as error:
        raise TestbedError(
            f"PostgreSQL refuses root, and there is no user {USER}: apt-get install postgresql"
        ) from error


def _as_user(user: str) -> tuple[str, ...]:
    """Put before a command, runs it as this user, in an IPC namespace of its own.

    The kernel removes the namespace with its last process, and with it the System V memory that a killed server leaves.
    """
    if not user:
        return ()
    place = (find_program("unshare", "util-linux"), "--ipc", "--")
    return (*place, find_program("setpriv", "util-linux"), f"--reuid={user}", f"--regid={user}", "--clear-groups", "--")
