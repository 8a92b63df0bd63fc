"""A host of plain files on which everything happens that can happen, by the dice."""

from __future__ import annotations

import collections
import errno
import math
import os
import random
import resource
import time
from collections.abc import Sequence
from pathlib import Path

from rlctl.envs.allocation import Allocation
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import Identity, KernelFiles
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from tests.doubles.cgroup_kernel import FakeKernel

MAX_LOAD_RPS = 50.0
MOST_GROUPS = 5
SETTLED_SECONDS = 20

HANG_SECONDS = 0.15
"""More than a policy has for its answer; this time is real."""

ROTATED_REQUESTS_BYTES = 8 << 10
FULL_BYTES = 16 << 10
"""A full disk is a limit for the size of a file, which the tick log is beyond and the fake host's files are below."""


class KeptKernel(FakeKernel):
    """The fake kernel's rules, over files that are kept open and told apart as on a real host.

    Args:
        folder, kind: As of `FakeKernel`.

    Attributes:
        refusal: Error number of every write now; 0 takes them.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, kind, cpus=os.cpu_count() or 1)
        self.refusal = 0
        self._files = _KeptFiles()

    def read(self, path: Path) -> str:
        """The content now."""
        if path.name in ("freezer.state", "cgroup.events"):  # an order takes effect with a reading
            super().read(path)
        return self._files.read(path)

    def write(self, path: Path, text: str) -> None:
        """Take a value or refuse it."""
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        super().write(path, text)
        self.writes.clear()

    def identity(self, group: Path) -> Identity:
        """Device and inode: the watchdog looks at them too."""
        return self._files.identity(group)

    def close(self) -> None:
        """Close all files."""
        self._files.close()


class _KeptFiles(KernelFiles):
    """Of a group that was removed a kernel answers ENODEV, where a plain file can still be read."""

    def read(self, path: Path) -> str:
        kept = self._open_files.get(path)
        if kept is not None and not os.fstat(kept).st_nlink:
            self._forget_group(path)
        return super().read(path)


class FakeHost:
    """An LC whose load changes, BE groups that come and go, and faults.

    Args:
        folder: Holds all of it; on a file system that does not use inode numbers again soon, such as tmpfs.
        kind: Of control groups, as of `FakeKernel`.
        seed: Of the dice.

    Attributes:
        kernel, layout: For who opens the host.
        requests: Where the LC's latencies are written.
        be: BE's groups now, by name.
        happened: How often what happened.
    """

    def __init__(self, folder: Path, kind: str, seed: int) -> None:
        self.kernel = KeptKernel(folder, kind)
        self.layout = Layout.detect(self.kernel.root, self.kernel.proc)
        self.requests = folder / "requests.jsonl"
        self.happened: collections.Counter[str] = collections.Counter()
        self._dice = random.Random(seed)
        self._lc = self._made("lc")
        self._lc.attach(os.getpid())
        self.be = {name: self._made(name) for name in ("be/batch-1", "be/batch-2")}
        self._troubles: dict[str, tuple[str, int]] = {}
        self._second = self._stirred = 0

    @property
    def settled(self) -> bool:
        """BE's groups have been the same for a while, and could be written."""
        return self._second - self._stirred >= SETTLED_SECONDS

    def second(self) -> None:
        """What happens in one."""
        self._second += 1
        self._trouble("latency", 0.01, 60, ("silent", "garbage", "NaN", "absurd"))
        self._trouble("lc", 0.001, 60, ("dead",))
        self._trouble("cpu", 0.002, 3, ("garbage",))
        self._trouble("write", 0.003, 4, ("EACCES", "EINVAL", "EBUSY", "ENOENT"))
        self._trouble("policy", 0.001, 10, ("raises", "answers NaN", "answers no move", "hangs"))
        self._trouble("disk", 0.0003, 300, ("full",))
        self.kernel.refusal = getattr(errno, self._has("write"), 0)
        self._fill_disk(full=bool(self._has("disk")))
        self._lc.procs_file.write_text("" if self._has("lc") else f"{os.getpid()}\n")
        self._serve_requests()
        self._use_cpus()
        if self._dice.random() < 0.004:
            self._regroup()
        if self._dice.random() < 0.002:
            self._meddle()
        if self._has("write") or self._has("disk"):
            self._stirred = self._second

    def policy_fails(self) -> object:
        """What the policy does in place of an answer; None lets it answer.

        Raises:
            RuntimeError: That, too.
        """
        match self._has("policy"):
            case "raises":
                raise RuntimeError("by the dice")
            case "answers NaN":
                return Allocation(math.nan, 1)
            case "answers no move":
                return 99
            case "hangs":
                self._troubles.pop("policy", None)  # once is enough
                time.sleep(HANG_SECONDS)
        return None

    def close(self) -> None:
        """Let go of the host."""
        self._fill_disk(full=False)
        self.kernel.close()

    def _fill_disk(self, *, full: bool) -> None:
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES if full else most, most))

    def _has(self, where: str) -> str:
        return self._troubles.get(where, ("", 0))[0]

    def _trouble(self, where: str, chance: float, most_seconds: int, kinds: Sequence[str]) -> None:
        """End a trouble that has lasted, and perhaps begin another."""
        if self._second < self._troubles.get(where, ("", 0))[1]:
            return
        self._troubles.pop(where, None)
        if self._dice.random() < chance:
            kind = self._dice.choice(kinds)
            self._troubles[where] = kind, self._second + self._dice.randint(1, most_seconds)
            self.happened[f"{where} {kind}"] += 1

    def _serve_requests(self) -> None:
        """A line for each, in a file that is rotated."""
        if self.requests.exists() and self.requests.stat().st_size > ROTATED_REQUESTS_BYTES:
            self.requests.replace(f"{self.requests}.1")
        load = 0.5 + 0.4 * math.sin(self._second / 100)
        trouble = self._has("latency")
        said = {"garbage": "}", "NaN": "NaN", "absurd": "-1e300"}.get(trouble)
        with self.requests.open("a") as file:
            for _ in range(0 if trouble == "silent" else round(load * MAX_LOAD_RPS)):
                latency = said or f"{0.001 / (1 - load) * self._dice.lognormvariate(0, 0.4):.6f}"
                file.write(f'{{"latency_seconds": {latency}}}\n')

    def _use_cpus(self) -> None:
        microseconds = self._second * 100_000
        for group in (self._lc, *self.be.values()):
            file = group.usage_file
            assert file is not None
            text = f"{microseconds}000" if file.name == "cpuacct.usage" else f"usage_usec {microseconds}\nnr_periods 0"
            file.write_text("garbage\n" if self._has("cpu") else f"{text}\n")

    def _regroup(self) -> None:
        """A BE group comes, goes, or is made anew."""
        what = self._dice.choice(("comes", "goes", "made anew"))
        if what == "comes" and len(self.be) < MOST_GROUPS:
            name = f"be/batch-{self._second}"
        elif what != "comes" and self.be:
            name = self._dice.choice(list(self.be))
            self.be.pop(name).remove()
        else:
            return
        if what != "goes":
            self.be[name] = self._made(name)
        self.happened[f"group {what}"] += 1
        self._stirred = self._second

    def _meddle(self) -> None:
        """Another program writes a quota."""
        for group in list(self.be.values())[:1]:
            FakeKernel.write(self.kernel, group.knob_files("quota")[0], self._dice.choice(("5000", "800000")))
            self.happened["foreign write"] += 1

    def _made(self, name: str) -> Group:
        """A group, made by another program, which nothing is refused."""
        self.kernel.refusal, refusal = 0, self.kernel.refusal
        group = Group.create(self.layout, name, Knobs(None, self.kernel))
        self.kernel.refusal = refusal
        return group
