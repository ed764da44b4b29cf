"""Many inputs of many targets. What is drawn follows from the seed, the target and the number of the input."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fuzz.mutate import mutated
from tests.fuzz.target import Target
from tests.fuzz.watch import Outcome, read
from tests.trust.apart import EndedError, RaisedError, each

_AT_ONCE = 100  # inputs of a process


@dataclass
class Tally:
    """What became of a target's inputs. `findings` has the first input of each kind."""

    target: Target
    cases: int = 0
    accepted: int = 0
    found: int = 0
    seconds: float = 0.0
    peak: int = 0
    findings: dict[str, tuple[bytes, Outcome]] = field(default_factory=dict)

    def take(self, data: bytes, outcome: Outcome) -> None:
        """Count one."""
        self.cases += 1
        self.accepted += outcome.accepted
        self.seconds = max(self.seconds, outcome.seconds)
        self.peak = max(self.peak, outcome.peak)
        if outcome.finding:
            self.found += 1
            self.findings.setdefault(outcome.kind, (data, outcome))

    @property
    def refused(self) -> int:
        """How many were refused with a sentence."""
        return self.cases - self.accepted - self.found


def draw(target: Target, seed: int, number: int) -> bytes:
    """Return an input."""
    return mutated(random.Random(f"{seed} {target.name} {number}"), target)


def campaign(targets: Sequence[Target], seed: int, cases: int, seconds: float = 0.0) -> list[Tally]:
    """Let each target read `cases` inputs, and then, in turn, more until the seconds are over."""
    tallies = [Tally(target) for target in targets]
    began = time.monotonic()
    for tally in tallies:
        _go_on(tally, seed, cases)
    while time.monotonic() - began < seconds:
        for tally in tallies:
            _go_on(tally, seed, _AT_ONCE)
    return tallies


def _go_on(tally: Tally, seed: int, cases: int) -> None:
    target, first = tally.target, tally.cases
    for number, found in each(lambda one: read(target, draw(target, seed, one)), range(first, first + cases)):
        if isinstance(found, RaisedError):
            raise found
        outcome = Outcome(finding=str(found), kind=str(found)) if isinstance(found, EndedError) else found
        tally.take(draw(target, seed, number) if outcome.finding else b"", outcome)
