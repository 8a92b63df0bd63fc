"""The tunable benchmarks, `datapar` and `pipeline`: how they are compiled and started, and what they say at the end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlctl.envs.errors import TestbedError
from rlctl.envs.host import apps
from rlctl.envs.testbed.generator import compile_program

TunableWorkload = Literal["datapar", "pipeline"]
"""`datapar` plays Bodytrack's part, `pipeline` Ferret's."""

MOST_THREADS = 64  # as in tunable.h

# Tells a result from what other commands print.
RESULT_BEGINS = '{"workload": '

_FOLDER = Path(__file__).parent
_HEADERS = (_FOLDER / "tunable.h", Path(apps.__file__).with_name("rlctl_mode.h"))


@dataclass(frozen=True, slots=True)
class TunableResult:
    """What one instance tells at its end.

    Attributes:
        items: Number of frames or images.
        seconds: From its first instruction to its last.
        cpu_seconds: CPU time of all its threads.
        digest: Of what it has computed: the same for the same items, however many threads there were.
        voluntary_switches: Context switches because it had to wait, as the kernel counted them.
        involuntary_switches: Context switches because others or its quota made it wait.
        threads: How many worked: (seconds since its begin, threads) of every change, the first at the begin.
    """

    workload: str
    items: int
    seconds: float
    cpu_seconds: float
    digest: str
    voluntary_switches: int
    involuntary_switches: int
    page_faults: int
    threads: tuple[tuple[float, int], ...]


def build_tunable(workload: TunableWorkload, cache: Path | None = None) -> Path:
    """The program, compiled on first use.

    Raises:
        TestbedError: There is no compiler, it failed, or the cache cannot be written.
    """
    return compile_program(_FOLDER / f"{workload}.c", "-lm", "-pthread", headers=_HEADERS, cache=cache)


def tunable_command(workload: TunableWorkload, work: int, threads: int, digest: str | None = None) -> list[str]:
    """Command line of an instance.

    Args:
        work: Number of frames or images.
        threads: The most it runs; `pipeline` so many in each of its four middle stages.
        digest: What has to come out; it fails with exit code 1 when something else does.
    """
    expected = [] if digest is None else [f"--expect={digest}"]
    return [str(build_tunable(workload)), f"--work={work}", f"--threads={threads}", *expected]


def parse_result(text: str) -> TunableResult:
    """The line of JSON that an instance ends with.

    Raises:
        TestbedError: It is no such line.
    """
    try:
        result: dict[str, Any] = json.loads(text)
        threads = tuple((float(at), int(count)) for at, count in result.pop("threads"))
        return TunableResult(**result, threads=threads)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TestbedError(f"an instance ended without its result: {text[-200:] or 'it said nothing'}") from error
