"""Sections of the serve configuration for an operator: who may hold BE, and at which times BE is held."""

from __future__ import annotations

import datetime
import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from rlctl.config.fields import Described
from rlctl.envs.yaml_edge import Name

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60


def _time(value: object) -> str:
    """`HH:MM`; YAML itself reads `10:30` without quotes as 630. Below 60 it was no such time: `8` is no 8 o'clock."""
    text = f"{value // 60:02d}:{value % 60:02d}" if isinstance(value, int) and value >= 60 else value
    if not isinstance(text, str) or not _TIME.fullmatch(text) or _minutes(text) > DAY_MINUTES:
        raise ValueError(f"{value!r} is not a time of day, such as '03:30'")
    return text


def _minutes(time: str) -> int:
    hours, minutes = map(int, time.split(":"))
    return 60 * hours + minutes


def _days(value: object) -> tuple[str, ...]:
    """`mon-fri`, `sat,sun`, or a list of such."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise ValueError(f"{value!r} is not a list of days, such as mon-fri")
    days: list[int] = []
    for part in parts:
        first, _, last = str(part).strip().lower().partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ValueError(f"{part!r} is not a day; they are {', '.join(DAYS)}")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        days += [day % 7 for day in range(begin, end + 1 + 7 * (end < begin))]
    return tuple(DAYS[day] for day in sorted(set(days)))


_TIME = re.compile(r"\d{1,2}:[0-5]\d")
TimeOfDay = Annotated[str, BeforeValidator(_time, json_schema_input_type=str | int)]
Days = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_days, json_schema_input_type=str | list[str])]


class ControlSection(Described):
    """Who may pause and limit BE, at `control.sock` in the state directory: root, and who runs the service.

    Attributes:
        group: Members of this group may, too.
    """

    group: Name | None = None


class ScheduleEntry(Described):
    """A time at which BE may have no more than so much, whatever the policy says; in local time.

    That is the service's `/etc/localtime`, of which a container has its own; the log says at the start which it is.

    Attributes:
        name: For logs, `backup`.
        days: `mon-fri`, `sat,sun`; by default all. A time that goes on after midnight belongs to the day it began on.
        begins: Time of day, '22:00'.
        ends: Time of day; one that is not after `begins` is on the next day.
        be_cpus: The largest quota in CPUs; 0 is none: BE at the safe allocation.
    """

    name: Name
    days: Days = DAYS
    begins: TimeOfDay
    ends: TimeOfDay
    be_cpus: float = Field(ge=0.0)

    def covers(self, moment: datetime.datetime) -> bool:
        """Whether it holds at this local time."""
        minute, today, yesterday = 60 * moment.hour + moment.minute, DAYS[moment.weekday()], DAYS[moment.weekday() - 1]
        begins, ends = _minutes(self.begins), _minutes(self.ends)
        if begins < ends:
            return today in self.days and begins <= minute < ends
        return (today in self.days and minute >= begins) or (yesterday in self.days and minute < ends)
