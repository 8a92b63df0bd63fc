"""`rlctl app`: best-effort applications with working modes, launched, and how they fare."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.commands import one_thread
from rlctl.commands.outputs import print_json
from rlctl.config.sections import ApplicationsSection
from rlctl.envs.errors import ConfigError, RlctlError
from rlctl.envs.host.apps.launch import LaunchSite, forget
from rlctl.envs.host.apps.launch import run as launch
from rlctl.envs.host.apps.registry import Registration, Registry, load_description
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout

if TYPE_CHECKING:
    from rlctl.config.serve import ServeConfig

DESCRIPTION = "Best-effort applications that share BE's budget by their working modes and priorities."

EXAMPLES = """examples:
  rlctl app run encoder.yaml -- ffmpeg -i in.mkv out.mp4
  rlctl app list
  rlctl app list --json              # with all modes of each

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
    listing = actions.add_parser("list", help="the applications, and what each has now")
    listing.add_argument("--json", action="store_true", help="as JSON, with all modes")
    for one in (starting, listing):
        one.add_argument("--config", type=Path, metavar="FILE", help="serve's: its section be.applications")


def run(args: argparse.Namespace) -> int:
    """Run the command; `app run` ends with the application's own exit code."""
    config = _config(args.config)
    place = _place(config)
    if args.action == "list":
        _list(place, as_json=args.json)
        return 0
    if config is not None and config.be.applications is not None:
        from rlctl.serve.workloads import platform_of

        platform_of(config.be.applications, place.layout, place.knobs)  # HostError: its partitions do not stand
    one_thread.not_for_others()
    return launch(load_description(args.file), args.words, place)


def _config(file: Path | None) -> ServeConfig | None:
    """Serve's configuration with a section for applications; None where its defaults hold."""
    if file is None:
        return None
    from rlctl.config.serve import load_config

    config = load_config(file)
    if config.be.applications is None:
        raise ConfigError("has no section be.applications: nobody would share BE's budget", file)
    return config


def _place(config: ServeConfig | None) -> LaunchSite:
    """Where applications go, by serve's configuration or by its defaults."""
    section = (config and config.be.applications) or ApplicationsSection()
    return LaunchSite(Layout.detect(), _parent(section), Registry(section.directory), Knobs(None))


def _parent(section: ApplicationsSection) -> str:
    """The group to start in: BE's, or that of its first cluster; the allocator moves on from there."""
    if section.platform is None:
        return section.group
    from rlctl.envs.host.partition.platform import load_platform

    platform = load_platform(section.platform_source)
    return platform.cluster_group(platform.clusters[0].name)


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
