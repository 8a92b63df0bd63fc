"""memcached as LC: one thread that answers 100-key gets, about 40 us of CPU time each."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import ConfigError, TestbedError
from rlctl.envs.testbed.generator import GeneratorConfig
from rlctl.envs.testbed.launch import Launcher, Process, find_program
from rlctl.envs.testbed.workloads import READY_SECONDS, await_ready, make_socket_folder, talk

__all__ = ["Memcached", "MemcachedConfig"]


@dataclass(frozen=True, slots=True)
class MemcachedConfig:
    """Size of the service and of a request.

    Attributes:
        threads: Worker threads; one, so that one CPU is all that it can use.
        memory_megabytes: Memory for items.
        keys_per_get: Keys of one request.
        preload_keys: Items that the load generator writes before the first request; above 60 000 it takes seconds.
        value_bytes: Bytes of an item.

    Raises:
        ConfigError: A number that cannot be.
    """

    threads: int = 1
    memory_megabytes: int = 64
    keys_per_get: int = 100
    preload_keys: int = 10_000
    value_bytes: int = 100

    def __post_init__(self) -> None:
        if min(self.threads, self.memory_megabytes, self.keys_per_get, self.preload_keys, self.value_bytes) < 1:
            raise ConfigError(f"impossible memcached: {self}: every number is 1 or more")


class Memcached:
    """A memcached of our own, on a unix socket in a folder of its own.

    Args:
        config: Size of the service and of a request.
    """

    def __init__(self, config: MemcachedConfig | None = None) -> None:
        self.config = config or MemcachedConfig()
        self._socket: Path | None = None
        self._process: Process | None = None

    def start(self, launcher: Launcher) -> None:
        """Start it, empty.

        Raises:
            TestbedError: It is not installed, runs already, or cannot be run.
        """
        if self._process is not None:
            raise TestbedError("memcached runs already; stop it first")
        program = find_program("memcached", "memcached")
        self._socket = make_socket_folder(launcher, "memcached", "socket") / "socket"
        command = [program, f"--threads={self.config.threads}", f"--memory-limit={self.config.memory_megabytes}"]
        command += [f"--unix-socket={self._socket}", "--unix-mask=0700"]
        if os.geteuid() == 0:
            command.append("--user=root")  # as nobody it could not make its socket in our folder
        self._process = launcher.start("memcached", command)

    def ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Wait until it tells its version.

        Raises:
            TestbedError: It ended, or does not answer in time; with its last words.
        """
        if self._process is None:
            raise TestbedError("memcached has not been started")
        await_ready(self._process, lambda: talk(self.socket, b"version\r\n").startswith(b"VERSION"), timeout_seconds)

    @property
    def socket(self) -> Path:
        """Where it listens.

        Raises:
            TestbedError: It has not been started.
        """
        if self._socket is None:
            raise TestbedError("memcached has not been started")
        return self._socket

    def pids(self) -> tuple[int, ...]:
        """Its process; empty when it does not run."""
        return () if self._process is None else self._process.pids()

    def load(self) -> GeneratorConfig:
        """Multi-key gets over the unix socket, of items that the generator writes first."""
        return GeneratorConfig(
            "memcached",
            unix_path=self.socket,
            keys_per_get=self.config.keys_per_get,
            preload_keys=self.config.preload_keys,
            value_bytes=self.config.value_bytes,
        )

    def stop(self) -> None:
        """End it. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.stop(signal.SIGKILL)  # asked politely it takes a second, and there is nothing to save
