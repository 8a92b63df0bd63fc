"""PostgreSQL as LC: small transactions, each of which is on the disk when it is answered."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.generator import GeneratorConfig
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.workloads import READY_SECONDS, LcProgram, talk

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
    """A PostgreSQL of our own, with one empty table; the clusters that the host has are left alone."""

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
