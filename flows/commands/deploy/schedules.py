"""Turns the schedule options of a command into Prefect's schedules."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from nasflow.errors import UserError

if TYPE_CHECKING:
    from prefect.client.schemas.schedules import SCHEDULE_TYPES

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = timedelta(days=100_000)  # so that no date is out of range


@dataclass(frozen=True)
class When:
    """The schedule options of a command; each is None if it was not given."""

    cron: str | None = None
    interval: str | None = None
    rrule: str | None = None
    timezone: str | None = None

    def schedule(self) -> "SCHEDULE_TYPES | None":
        """Return the schedule; None if no option was given.

        Raises:
            UserError: several schedules were given, or the schedule can't be used.
        """
        options = {"cron": self.cron, "interval": self.interval, "rrule": self.rrule}
        given = [(name, text) for name, text in options.items() if text is not None]
        if len(given) > 1:
            raise UserError(f"give only one of {', '.join(f'--{name}' for name, _ in given)}")
        if given:
            return _schedule(*given[0], self.timezone)
        if self.timezone is not None:
            raise UserError("--timezone belongs to a schedule: give --cron, --interval or --rrule, too")
        return None


def schedule_text(schedule: "SCHEDULE_TYPES") -> str:
    """Describe a schedule in words."""
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule  # noqa: PLC0415 - slow

    match schedule:
        case IntervalSchedule():
            return f"every {schedule.interval}"
        case CronSchedule():
            return f"at '{schedule.cron}' ({schedule.timezone or 'UTC'})"
        case RRuleSchedule():
            return f"at '{schedule.rrule}' ({schedule.timezone or 'UTC'})"
    return "never"


def _schedule(name: str, text: str, timezone: str | None) -> "SCHEDULE_TYPES":
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule  # noqa: PLC0415 - slow
    from pydantic import ValidationError  # noqa: PLC0415 - slow

    zone = timezone or "UTC"
    try:
        match name:
            case "cron":
                return CronSchedule(cron=text, timezone=zone)
            case "rrule":
                return RRuleSchedule(rrule=text, timezone=zone)
            case _:
                return IntervalSchedule(interval=_interval(text), timezone=zone)
    except ValidationError as error:
        problem = error.errors()[0]
        message = problem["msg"].removeprefix("Value error, ")
        of_zone = "timezone" in problem["loc"] or "timezone" in message
        at_fault = f"--timezone '{timezone}'" if of_zone else f"--{name} '{text}'"
        raise UserError(f"{at_fault} can't be used: {message}") from None


def _interval(text: str) -> timedelta:
    """Parse an interval such as `90` (seconds), `30m`, `12h` or `7d`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None or not float(match[1]):
        raise UserError(f"--interval '{text}' can't be used: give seconds, or a number with m, h or d, such as 12h")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > _LONGEST.total_seconds():
        raise UserError(f"--interval '{text}' can't be used: give {_LONGEST.days}d at most")
    return timedelta(seconds=seconds)
