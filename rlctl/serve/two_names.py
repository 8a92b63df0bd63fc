"""From two names and a target to a configuration: what people type is found on this host, and said in one line each."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from rlctl.config import sources as source
from rlctl.config.serve import ServeConfig
from rlctl.envs.errors import ConfigError, HostError, on_one_line
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.process import PROC, memberships, read_task
from rlctl.envs.yaml_edge import validate
from rlctl.serve.workloads import groups_of

_TARGET = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_UNIT = re.compile(r"\S+\.(service|slice|scope)")
_RESTRICTING = (CgroupController.CPU, CgroupController.CPUSET, CgroupController.FREEZER)
PROCESS, CONTAINER, POD, QOS = "name:", "container:", "pod:", "qos:"

FILE = """\
# Written by `rlctl init` for this host. A key that does not stand here has its default, which `rlctl config show FILE`
# prints. `rlctl serve --config FILE --dry-run` shows what rlctl would do, and writes nothing.

lc: # the latency-critical service: {lc_found}
  workload: {lc}
  slo:
    target_milliseconds: {target} # `auto` proposes one from the LC's own tail
    quantile_percent: 95 # the tail: of a hundred requests five may take longer
    # max_load_rps: 480 # the most that it serves in time without BE; it is learned where it does not stand here
  # latency: {{kind: tcp}} # from the kernel, on the ports that it listens on; others: docs/howto/prometheus-source.md
  # cpus: [0] # those that it runs on, where they are not those of its cpuset

be: # best-effort work, held to what the LC leaves: {be_found}
  workloads:
    - {be}
  # cpus: [1, 0] # what it may be given, safest first

# policy: {{name: ppo}} # who decides; `rlctl managers` lists others
# metrics: {{listen: "127.0.0.1:9842"}} # for Prometheus
"""


@dataclass(frozen=True, slots=True)
class FoundWorkload:
    """A workload that a name meant on this host.

    Attributes:
        section: What a configuration says of it.
        words: Its control group and processes, in words.
    """

    section: source.Workload
    words: str


def parse_target(text: str) -> float | Literal["auto"]:
    """A tail latency such as 10ms, in milliseconds, or `auto`; ConfigError: it has no unit, or is not above 0."""
    if text.strip() == "auto":
        return "auto"
    match = _TARGET.fullmatch(text.strip())
    if match is None or not float(match[1]) > 0.0:
        raise ConfigError(f"--target {text!r} is neither auto nor a time with its unit, such as 10ms, 500us or 1.5s")
    return float(match[1]) * _MILLISECONDS[match[2]]


def find_workload(name: str, layout: Layout | None = None, proc: Path = PROC) -> FoundWorkload:
    """What a name means on this host: a unit, a control group, a container, or what its prefix says.

    `name:` is a process, `container:` a container, `pod:` a Kubernetes pod, `qos:` every pod of a class.

    Raises:
        ConfigError: A process by that name shares its control group with the rest of the host.
        HostError: There is nothing of that name now.
    """
    layout = layout or Layout.detect()
    candidates = _candidates(name, layout, proc)
    for section in candidates:
        with contextlib.suppress(HostError):
            return FoundWorkload(section, _describe(section, layout, proc))
    if name.startswith((PROCESS, CONTAINER, POD, QOS)) or "/" in name or _UNIT.fullmatch(name):
        groups_of(candidates[0], layout, Knobs(None))  # its own words say what is amiss
    raise HostError(
        f"nothing here is called {name!r}: no systemd unit, control group or container; for a process write "
        f"{PROCESS}{name}, for a pod {POD}NAMESPACE/{name}"
    )


@dataclass(frozen=True, slots=True)
class TwoNames:
    """LC and BE as they were found, and the target in milliseconds."""

    lc: FoundWorkload
    be: FoundWorkload
    target_milliseconds: float | Literal["auto"]

    @classmethod
    def find(cls, lc: str, be: str, target: str, layout: Layout | None = None, proc: Path = PROC) -> TwoNames:
        """Find both; errors as `find_workload` and `parse_target` raise them."""
        milliseconds, layout = parse_target(target), layout or Layout.detect()
        return cls(find_workload(lc, layout, proc), find_workload(be, layout, proc), milliseconds)

    def __str__(self) -> str:
        return f"LC is {self.lc.words}; BE is {self.be.words}; target p95 {self._target}"

    @property
    def _target(self) -> str:
        return "auto" if self.target_milliseconds == "auto" else f"{self.target_milliseconds:g} ms"

    @property
    def file(self) -> str:
        """The commented file of `rlctl serve` for them."""
        return FILE.format(
            lc=_flow(self.lc.section), lc_found=self.lc.words, be=_flow(self.be.section), be_found=self.be.words,
            target=self._target.removesuffix(" ms"),
        )  # fmt: skip

    @property
    def config(self) -> ServeConfig:
        """The configuration that this file describes."""
        return validate(ServeConfig, yaml.safe_load(self.file), "--lc, --be and --target")


def _candidates(name: str, layout: Layout, proc: Path) -> list[source.Workload]:
    if name.startswith(PROCESS):
        return [_of_process(name.removeprefix(PROCESS), layout, proc)]
    if name.startswith(POD):
        pod = {"kind": "kubernetes", "pod": name.removeprefix(POD)}
        return [validate(source.KubernetesWorkload, pod, name)]
    if name.startswith(QOS):
        # Each pod by itself: the group of the whole class belongs to kubelet.
        pods = {"kind": "kubernetes", "qos": name.removeprefix(QOS), "each_pod": True}
        return [validate(source.KubernetesWorkload, pods, name)]
    container = {"kind": "container", "name": name.removeprefix(CONTAINER)}
    if name.startswith(CONTAINER):
        return [validate(source.ContainerWorkload, container, name)]
    group = validate(source.CgroupWorkload, {"kind": "cgroup", "path": f"/{name.strip('/')}"}, name)
    if "/" in name:
        return [group]
    found: list[source.Workload] = [source.UnitWorkload(kind="unit", unit=name), group]
    # Last, since the runtimes' tools have to be asked.
    with contextlib.suppress(ConfigError):
        found.append(validate(source.ContainerWorkload, container, name))
    return found


def _of_process(name: str, layout: Layout, proc: Path) -> source.Workload:
    """The control group of the processes of a name; the process itself where its groups have several names."""
    pids = sorted(int(one.name) for one in proc.iterdir() if one.name.isdecimal() and _is_called(one, name))
    if not pids:
        raise HostError(f"no process is called {name!r}; `ps -e` lists names")
    groups = {pid: frozenset(_own_groups(pid, layout, proc)) for pid in pids}
    kinds = Counter(groups.values())
    if frozenset() in kinds:
        raise ConfigError(
            f"process {pids[0]} ({name}) has no control group of its own; start it as a unit, such as with "
            f"`systemd-run --unit={name}`, or in a container"
        )
    if len(kinds) > 1:
        places = ", ".join(sorted({path for group in kinds for path in group})[:4])
        raise ConfigError(f"processes called {name!r} are in {len(kinds)} control groups ({places}): name one of them")
    (paths,) = kinds
    if len(paths) > 1:
        return source.PidWorkload(kind="pid", pid=pids[0])
    return source.CgroupWorkload(kind="cgroup", path=next(iter(paths)))


def _own_groups(pid: int, layout: Layout, proc: Path) -> set[str]:
    """Paths of the groups of a process in the hierarchies that can restrict it, the root left out."""
    inside = memberships(pid, proc)
    mounts = ((one, layout.mounts[one]) for one in _RESTRICTING if one in layout.mounts)
    return {inside.get("" if mount.version == 2 else one.v1_name, "/") for one, mount in mounts} - {"/", ""}


def _is_called(process: Path, name: str) -> bool:
    task = read_task(int(process.name), process.parent)
    if task is None or not task.alive:
        return False
    with contextlib.suppress(OSError):
        first = (process / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
        # Servers write their state behind the name: "nginx: master process".
        return name in (task.name, Path(first).name, first.partition(":")[0])
    return False


def _describe(section: source.Workload, layout: Layout, proc: Path) -> str:
    groups = groups_of(section, layout, Knobs(None))
    pids = sorted(pid for group in groups for pid in group.pids())
    tasks = Counter(task.name for pid in pids if (task := read_task(pid, proc)) is not None)
    names = ", ".join(name for name, _ in tasks.most_common(3))
    places = ", ".join(str(group.directories[0]) for group in groups[:3])
    processes = f"{len(pids)} process{'es' if len(pids) != 1 else ''}" + (f" ({names})" if names else " now")
    return on_one_line(f"{section.kind} {places}, {processes}")


def _flow(section: source.Workload) -> str:
    keys = {"kind": section.kind} | section.model_dump(exclude_none=True)
    return yaml.safe_dump(keys, default_flow_style=True, sort_keys=False, width=1000).strip()
