"""Calls between `Controller.tick` and the write of BE's quota, on the tests' control-group kernel.

Run by `scripts/survey` in a process of its own, which loads the code of the checkout that is measured: `python
tick_frames.py CHECKOUT` prints a JSON list of the functions on the stack, `tick` first, the kernel's `write` last.
Constructors are given what their parameters are called, so that checkouts before and after a change can be measured.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

QUOTA_FILES = ("cpu.max", "cpu.cfs_quota_us")
TICKS = 3


def main() -> None:
    """Print the longest stack with which a tick wrote a quota."""
    sys.path.insert(0, sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        stacks: list[list[str]] = []
        controller = build(Path(folder), lambda frames: stacks.append(frames) if frames else None)
        controller.begin()
        for _ in range(TICKS):
            controller.tick()
    print(json.dumps(max(stacks, key=len)))


def build(folder: Path, on_write: Callable[[list[str]], None]) -> Any:
    """A controller over a live host with one BE group, whose policy asks for another quota in every tick."""
    allocation = module("rlctl.envs.allocation")
    limits = allocation.Limits(cpus=2)
    kernel = watched_kernel(on_write)(folder, "v2")
    knobs = module("rlctl.envs.host.cgroup.knobs").Knobs(None, kernel)
    layout = module("rlctl.envs.host.cgroup.layout").Layout.detect(kernel.root, kernel.proc)
    group = module("rlctl.envs.host.cgroup.group").Group.create(layout, "be", knobs)
    offers: dict[str, Any] = {
        "limits": limits,
        "slo": module("rlctl.envs.workload").SLO(0.01, max_load_rps=100.0),
        "tick_seconds": 0.001,
        "groups": [group],
        "order": (0, 1),
        "knobs": knobs,
        "name": "lc",
        "sensors": [],
        "close": lambda: None,
        "recorder": SimpleNamespace(write=lambda _: None),
        "shield": None,
        "policy": another_quota(allocation.Allocation),
    }
    offers["actuator"] = fitted(module("rlctl.envs.host.cgroup.actuator").BeActuator, offers)
    live = module("rlctl.envs.host.live")
    offers["lcs"] = [fitted(live.Lc, offers)] if hasattr(live, "Lc") else []
    offers["plant"] = fitted(live.LiveHost, offers)
    if (seat := module("rlctl.agents.seat", missing_ok=True)) is not None:
        offers["seat"] = fitted(seat.Seat, offers)
    return fitted(module(*(f"{package}.control" for package in ("rlctl.loop", "rlctl"))).Controller, offers)


def another_quota(allocation: Callable[..., Any]) -> Any:
    """A policy that goes back and forth between two quotas, in CPUs."""

    protocol: Any = module("rlctl.agents.policy").Policy

    class AnotherQuota(protocol):  # type: ignore[misc]
        name, masked, shielded, note, remarks = "another-quota", False, False, "", ()
        quota_cpus = 1.0

        def start(self, limits: Any) -> Any:
            return allocation(self.quota_cpus, limits.cpus)

        def act(self, observation: Any) -> Any:
            self.quota_cpus = 2.5 - self.quota_cpus
            return allocation(self.quota_cpus, observation.current.cpuset_cpus)

    return AnotherQuota()


def watched_kernel(on_write: Callable[[list[str]], None]) -> type:
    """The tests' kernel, which hands over the stack of each write of a quota."""

    homes = {"tests.doubles": "cgroup_kernel", "rlctl.envs.host.cgroup": "fake"}
    kernel: Any = module(*map(".".join, homes.items())).FakeKernel

    class Watched(kernel):  # type: ignore[misc]
        def write(self, path: Path, text: str) -> None:
            if path.name in QUOTA_FILES:
                on_write(frames_since_tick())
            super().write(path, text)

    return Watched


def frames_since_tick() -> list[str]:
    """Names of the functions from `tick` to the caller, both among them; empty outside a tick."""
    names: list[str] = []
    frame = inspect.currentframe()
    while (frame := frame.f_back if frame else None) is not None:
        names.append(frame.f_code.co_qualname)
        if frame.f_code.co_name == "tick":
            return names[::-1]
    return []


def fitted(make: Callable[..., Any], offers: Mapping[str, Any]) -> Any:
    """Call with those of the values that it has parameters for."""
    return make(**{name: offers[name] for name in inspect.signature(make).parameters if name in offers})


def module(*names: str, missing_ok: bool = False) -> Any:
    """The first of the modules that has a file in this checkout: `tests` may also be found in another one."""
    for name in names:
        if (Path(sys.argv[1]) / name.replace(".", "/")).with_suffix(".py").is_file():
            return importlib.import_module(name)
    if missing_ok:
        return None
    raise ModuleNotFoundError(f"none of {', '.join(names)}")


if __name__ == "__main__":
    main()
