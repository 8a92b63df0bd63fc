"""`rlctl app`: best-effort applications with working modes, launched or adopted, and how they fare."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.commands import one_thread
from rlctl.commands.outputs import print_json
from rlctl.config.sections import ApplicationsSection
from rlctl.envs.errors import ConfigError, RlctlError
from rlctl.envs.host.apps.launch import LaunchSite, adopt, forget, release
from rlctl.envs.host.apps.launch import run as launch
from rlctl.envs.host.apps.registry import Registration, Registry, load_description
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import STATE_DIR
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout

if TYPE_CHECKING:
    from rlctl.config.serve import ServeConfig

DESCRIPTION = "Best-effort applications that share BE's budget by their working modes and priorities."

EXAMPLES = """examples:
  rlctl app run encoder.yaml -- ffmpeg -i in.mkv out.mp4
  rlctl app adopt encoder.yaml 4711
  rlctl app list
  rlctl app show 4711:encoder --json
  rlctl app release 4711:encoder     # back to where it was adopted from

encoder.yaml:
  name: encoder
  priority: 1            # 0 is served first, 9 last
  modes:                 # from the least CPU time to the most
    - {cpus: 0.5, threads: 1, value: 0.3}
    - {cpus: 2, threads: 4, value: 1, memory_bytes: 2000000000}

`run` ends with the command's exit code. A running `rlctl serve` with a section `be.applications` notices it
within a tick; without a service it runs in its group, held to nothing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    starting = actions.add_parser("run", help="launch a command as an application, and wait for it")
    starting.add_argument("file", type=Path, metavar="FILE", help="its description")
    starting.add_argument("words", nargs="*", metavar="COMMAND", help="after --; default: the description's")
    taking = actions.add_parser("adopt", help="take a running process in, with all its threads")
    taking.add_argument("file", type=Path, metavar="FILE", help="its description")
    taking.add_argument("pid", type=int, metavar="PID")
    returning = actions.add_parser("release", help="return an adopted process to where it was")
    listing = actions.add_parser("list", help="the applications, and what each has now")
    showing = actions.add_parser("show", help="one application with all its modes")
    for one in (returning, showing):
        one.add_argument("name", metavar="PID:NAME")
    for one in (listing, showing):
        one.add_argument("--json", action="store_true", help="as JSON")
    for one in (starting, taking, returning, listing, showing):
        one.add_argument("--config", type=Path, metavar="FILE", help="serve's: its section be.applications")


def run(args: argparse.Namespace) -> int:
    """Run the command; `app run` ends with the application's own exit code."""
    config = _config(args.config)
    place = _place(config)
    if config is not None and config.be.applications is not None and args.action in ("run", "adopt"):
        from rlctl.serve.workloads import platform_of

        platform_of(config.be.applications, place.layout, place.knobs)  # HostError: its partitions do not stand
    if args.action == "run":
        one_thread.not_for_others()
        return launch(load_description(args.file), args.words, place)
    if args.action == "adopt":
        if config is not None:
            _refuse_lc(args.pid, config)
        print(adopt(load_description(args.file), args.pid, place).key)
        return 0
    if args.action == "release":
        release(_find_registration(args.name, place.registry), place)
        return 0
    if args.action == "show":
        _show(_find_registration(args.name, place.registry), place, as_json=args.json)
        return 0
    _list(place, as_json=args.json)
    return 0


def _config(file: Path | None) -> ServeConfig | None:
    """Serve's configuration with a section for applications; None where its defaults hold."""
    if file is None:
        return None
    from rlctl.config.serve import load_config

    config = load_config(file)
    if config.be.applications is None:
        raise ConfigError("has no section be.applications: nobody would share BE's budget", file)
    return config


def _refuse_lc(pid: int, config: ServeConfig) -> None:
    """A process of an LC among BE would be throttled and frozen with it."""
    from rlctl.serve.workloads import lc_of

    if name := lc_of(config, pid):
        raise ConfigError(f"process {pid} is of the latency-critical service {name!r}: BE is what it is kept from")


def _place(config: ServeConfig | None) -> LaunchSite:
    """Where applications go, by serve's configuration or by its defaults."""
    section = (config and config.be.applications) or ApplicationsSection()
    state = config.state_directory if config else STATE_DIR
    return LaunchSite(Layout.detect(), _parent(section), Registry(section.directory), state, Knobs(None))


def _parent(section: ApplicationsSection) -> str:
    """The group to start in: BE's, or that of its first cluster; the allocator moves on from there."""
    if section.platform is None:
        return section.group
    from rlctl.envs.host.partition.platform import load_platform

    platform = load_platform(section.platform_source)
    return platform.cluster_group(platform.clusters[0].name)


def _find_registration(name: str, registry: Registry) -> Registration:
    known = registry.read()
    if name not in known:
        raise ConfigError(f"no application {name!r}; there are {', '.join(known) or 'none'}")
    return known[name]


def _list(place: LaunchSite, *, as_json: bool) -> None:
    for registration in tuple(place.registry.read().values()):
        if not registration.runs():
            forget(registration, place)  # unless processes of it have outlived the one that was launched
    rows = [_state(one, place) for one in place.registry.read().values()]
    if as_json:
        print_json({"schema": 1, "applications": rows})
        return
    from rlctl.report.page import render

    shown = ("name", "priority", "state", "mode", "threads", "cpus", "group")
    cells = [tuple("-" if row[key] is None else str(row[key]) for key in shown) for row in rows]
    print(render([shown, *cells]) if rows else f"no applications are registered in {place.registry.directory}")


def _show(registration: Registration, place: LaunchSite, *, as_json: bool) -> None:
    state = _state(registration, place)
    if as_json:
        print_json({"schema": 1, **state})
        return
    for key, value in state.items():
        if key != "modes":
            print(f"{key}: {'-' if value is None else value}")
    for index, mode in enumerate(registration.modes):
        mark = "*" if index == state["mode"] else " "
        memory = f", {mode.memory_bytes} bytes" if mode.memory_bytes else ""
        print(f"{mark} mode {index}: {mode.cpus:g} CPU, {mode.threads} threads, value {mode.value:g}{memory}")


def _state(registration: Registration, place: LaunchSite) -> dict[str, Any]:
    """What stands in its files: those of the kernel, and the one that tells its mode."""
    mode = _read_mode(place.registry.mode_file(registration.key))
    return {
        "name": registration.key,
        "priority": registration.priority,
        "state": _running(registration, place),
        "mode": mode.get("mode"),
        "threads": mode.get("threads"),
        "cpus": mode["millicpus"] / 1000.0 if "millicpus" in mode else None,
        "group": registration.group,
        "adopted": bool(registration.home),
        "modes": [mode.model_dump() for mode in registration.modes],
    }


def _running(registration: Registration, place: LaunchSite) -> str:
    try:
        group = Group.open(place.layout, registration.group, place.knobs)
        if not group.pids():
            return "ended"
        if group.freezer is None or not group.freezer.frozen():
            return "running"
        return "deferred" if group.freezer.is_ordered() else "suspended with BE"
    except RlctlError:
        return "ended"


def _read_mode(path: Path) -> dict[str, int]:
    try:
        words = path.read_text().split()
        return {key: int(value) for key, value in zip(words[::2], words[1::2], strict=True)}
    except (OSError, ValueError):
        return {}
