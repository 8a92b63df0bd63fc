"""memcached as LC: one thread that answers 100-key gets, about 40 us of CPU time each."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from rlctl.envs.errors import ConfigError
from rlctl.envs.testbed.generator import GeneratorConfig
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.workloads import Service


@dataclass(frozen=True, slots=True)
class MemcachedConfig:
    """Size of the service and of a request.

    Attributes:
        threads: Worker threads; one, so that one CPU is all that it can use.
        memory_megabytes: Memory for items.
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


class Memcached(Service):
    """A memcached of our own, empty at its start."""

    name = "memcached"
    request = b"version\r\n"
    answer = b"VERSION"

    def __init__(self, config: MemcachedConfig | None = None, address: tuple[str, int] | None = None) -> None:
        super().__init__(address)
        self.config = config or MemcachedConfig()

    def load(self) -> GeneratorConfig:
        """Multi-key gets of items that the generator writes first."""
        config = self.config
        return self._aimed(
            GeneratorConfig(
                "memcached",
                keys_per_get=config.keys_per_get,
                preload_keys=config.preload_keys,
                value_bytes=config.value_bytes,
            )
        )

    def stop(self) -> None:
        """End it at once. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.stop(signal.SIGKILL)  # asked politely it takes a second, and there is nothing to save

    def _command(self, launcher: Launcher) -> list[str]:
        program = find_program("memcached", "memcached")
        self._make_folder(launcher)
        command = [program, f"--threads={self.config.threads}", f"--memory-limit={self.config.memory_megabytes}"]
        if self.address is None:
            command += [f"--unix-socket={self.socket}", "--unix-mask=0700"]
        else:
            command += [f"--listen={self.address[0]}", f"--port={self.address[1]}"]
        if os.geteuid() == 0:
            command.append("--user=root")  # as nobody it could not make its socket in our folder
        return command
