"""Finds the smallest case that still fails."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace

from tests.trust.apart import EndedError, RaisedError, each
from tests.trust.case import Case, Verdict, run
from tests.trust.jobs import run_job
from tests.trust.model import Program, source_of

_VALUE = re.compile(r"\b(?:v\d+|x)\b")


def shrink(case: Case, verdict: Verdict, seconds: float = 60.0) -> tuple[Case, Verdict]:
    """Return a smaller case and its verdict: nothing more can be left out of it, or time is up."""
    end, place, since_last = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        smaller = list(_smaller(case))
        if since_last > len(smaller):
            break
        one = smaller[place % len(smaller)]
        found = judge(one, frozenset(verdict.failed_alone)) if one != case else Verdict()
        if found.differences:
            case, verdict, since_last = one, found, 0
        else:
            place, since_last = place % len(smaller) + 1, since_last + 1
    return case, verdict


def judged(case: Case, may_fail: frozenset[int] | None = None) -> Verdict:
    """Return the verdict on a unit or a whole job."""
    return run_job(case) if case.job else run(case, may_fail)


def judge(case: Case, may_fail: frozenset[int] | None = None) -> Verdict:
    """Return the verdict on a case that may end the process; if it raises alone, it is no case."""
    [(_, found)] = each(lambda one: judged(one, may_fail), [case])
    if isinstance(found, EndedError):
        return Verdict(differences=[str(found)])
    return Verdict() if isinstance(found, RaisedError) else found


def _smaller(case: Case) -> Iterator[Case]:
    count = len(case.programs)
    for member in range(count):
        keep = [place for place in range(count) if place != member]
        programs, optimizers = (tuple(of[place] for place in keep) for of in (case.programs, case.optimizers))
        if programs:
            yield replace(case, programs=programs, optimizers=optimizers)
    yield replace(case, epochs=1)
    yield replace(case, job="")
    for batches in ((6,), (6, 6)):
        if len(batches) < len(case.batches):
            yield replace(case, batches=batches)
    yield replace(case, optimizers=(0,) * count)
    yield replace(case, clip=None)
    yield replace(case, kind="classification")
    for program in dict.fromkeys(case.programs):
        yield replace(case, programs=(program,) * count)
    for member, program in enumerate(case.programs):
        for shorter in _shorter(program):
            programs = (*case.programs[:member], shorter, *case.programs[member + 1 :])
            yield replace(case, programs=programs)
            if case.programs.count(program) > 1:
                yield replace(case, programs=tuple(shorter if own == program else own for own in case.programs))


def _shorter(program: Program) -> Iterator[Program]:
    """Yield the program with one line fewer."""
    for place in range(len(program.steps) - 1, -1, -1):
        rest = program.steps[:place] + program.steps[place + 1 :]
        name, _, text = program.steps[place].partition(" = ")
        for source in dict.fromkeys(_VALUE.findall(text)) if _VALUE.fullmatch(name) else ():
            renamed = [re.sub(rf"\b{name}\b", source, line) for line in rest]
            yield replace(program, steps=tuple(renamed), output=program.output.replace(name, source))
        yield replace(program, steps=rest)
    for place in range(len(program.layers)):
        yield replace(program, layers=program.layers[:place] + program.layers[place + 1 :])


def as_code(case: Case, verdict: Verdict) -> str:
    """Return a failing case as code to read."""
    lines = [
        f"# {case.inputs} in batches of {case.batches}, {case.epochs} epochs, {case.kind}, {case.precision}",
        f"# merge.fuse: {case.fuse}, random costs of seed {case.seed} and a loop {case.loop:g} times as dear",
        *(f"# member {n}: Model{n}, {case.config(n)['optimizer']}" for n in range(len(case.programs))),
        *(f"# {text}" for text in verdict.differences[:8]),
    ]
    parts = dict.fromkeys(name for program in case.programs for name in program.parts)
    models = [p.source.replace("Model", f"Model{n}", 1) for n, p in enumerate(case.programs)]
    return "\n\n".join(["\n".join(lines), *map(source_of, parts), *models])
