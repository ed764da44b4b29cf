"""A model space: a program that asks a `pick` for every choice, and the operations on such a program."""

import contextlib
import copy
import inspect
import json
import logging
import math
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from nasflow.clean_text import clean_text, error_message
from nasflow.errors import InvalidArchitecture, SpaceError, UserError
from nasflow.space.architecture import Architecture
from nasflow.space.domain import Domain
from nasflow.space.enumeration import EndlessDomain, OdometerPick, ProbePick, Step, next_prefix, steps_to
from nasflow.space.pick import FixedPick, Pick, RandomPick

logger = logging.getLogger(__name__)

_SAMPLES = 1000  # invalid samples in a row before sampling fails
_CHILDREN = 100  # invalid children in a row before the parent is returned
_INVALID = 10_000  # invalid architectures in a row before an enumeration warns
_PROBES = 64
_LOOKS = 10  # architectures that are looked at to count valid ones, as a multiple of their limit


class Count(NamedTuple):
    """How many architectures a space has: a whole number if `exact` (`math.inf` if infinite), else an estimate."""

    value: float
    exact: bool

    def __str__(self) -> str:
        if self.exact:
            return f"{self.value:,.0f}"
        return f"about {Decimal(self.value):.3g}"  # an estimate may be larger than any float


class Space:
    """A space is its program: it stores no tree of choices and answers each question by running the program.

    Exploring runs it on torch's `meta` device, where tensors have shapes but no memory, so that is fast for any model.
    A program that fails only there, because it reads values, is run with real tensors from then on.
    The program must ask the same labels whenever it gets the same answers.

    Args:
        program: called with a `Pick`; gives the model, or whatever is built.
        name: for messages.
        complete: called with what was built to be inspected (by `validate`, or for `on_explored`), on the device where
            it was built; returns whether all its sizes are known. If they are not on `meta`, it is built for real.

    Attributes:
        on_explored: called with the architecture that `explore` found, and what was built for it.
        is_real: whether exploring builds for real.
    """

    def __init__(
        self, program: Callable[[Pick], Any], name: str = "space", complete: Callable[[Any], bool] | None = None
    ):
        self.program = program
        self.name = name
        self.on_explored: Callable[[Architecture, Any], None] | None = None
        self.is_real = False
        self._complete = complete

    @classmethod
    def of(cls, build: Callable[..., Any], params: Mapping[str, Any] | None = None) -> "Space":
        """Return the space of a user's `build(pick, **params)`.

        Raises:
            SpaceError: `build` can't be called like that.
        """
        params = dict(params or {})
        name = f"{getattr(build, '__module__', '?')}:{getattr(build, '__qualname__', build)}"
        if not callable(build):
            raise SpaceError(f"space '{name}' should be a function build(pick, **params), not {build!r}")
        try:
            inspect.signature(build).bind(None, **params)
        except TypeError as error:
            raise SpaceError(f"space '{name}' can't be called with pick and params {sorted(params)}: {error}") from None
        return cls(lambda pick: build(pick, **copy.deepcopy(params)), name)  # it may change its own

    def build(self, architecture: Mapping[str, Any]) -> Any:
        """Build `architecture` on the current default device and from torch's current seed.

        Raises:
            SpaceError: a label is unknown, missing or out of range. The program's own exceptions pass unchanged.
        """
        pick = FixedPick(architecture)
        built = self.program(pick)
        self._refuse_unused(pick)
        return built

    def explore(self, pick: Pick) -> Architecture:
        """Run the program with `pick`, on the `meta` device if possible, and return the choices.

        Raises:
            InvalidArchitecture: the program refuses this combination of choices.
            SpaceError: the program misused a label, or raised something other than a UserError (which is chained).
        """
        built = self._build_to_explore(pick, is_looked_at=self.on_explored is not None)
        found = pick.architecture
        if self.on_explored is not None:
            self.on_explored(found, built)
        return found

    def validate(self, architecture: Mapping[str, Any]) -> Any:
        """Build `architecture`, on the `meta` device if possible, and return the result.

        Raises:
            SpaceError: names the label by which `architecture` is not exactly one point of this space.
        """
        pick = FixedPick(architecture)
        built = self._build_to_explore(pick, is_looked_at=True)
        self._refuse_unused(pick)
        return built

    def domains(self, architecture: Mapping[str, Any]) -> dict[str, Domain]:
        """Return the domain of each label of a valid `architecture`, in the order asked. Raises as `validate`."""
        pick = FixedPick(architecture)
        self.explore(pick)
        self._refuse_unused(pick)
        return pick.domains

    def sample(self, rng: random.Random) -> Architecture:
        """Return an architecture, each choice uniformly random when asked. Raises SpaceError if none is valid."""
        for _ in range(_SAMPLES):
            try:
                return self.explore(RandomPick(rng))
            except InvalidArchitecture as error:
                last = error
        raise SpaceError(
            f"space '{self.name}': {_SAMPLES} samples in a row were invalid, the last one: {last}"
        ) from last

    def mutate(self, architecture: Mapping[str, Any], rng: random.Random) -> Architecture:
        """Return `architecture` with one choice changed, or itself if none can be or 100 changes were all invalid.

        Choices that no longer occur are dropped; new ones, and those that no longer fit, are drawn at random.
        """
        domains = self.domains(architecture)
        labels = [label for label, domain in domains.items() if domain.size() != 1]
        if not labels:
            return Architecture(architecture)

        def changed() -> Pick:
            label = rng.choice(labels)
            return RandomPick(rng, {**architecture, label: _another(domains[label], architecture[label], rng)})

        return self._child(changed) or Architecture(architecture)

    def crossover(self, a: Mapping[str, Any], b: Mapping[str, Any], rng: random.Random) -> Architecture:
        """Return a child of two architectures: each choice from a random parent (uniform crossover).

        Returns `a` itself if 100 children were all invalid.
        """

        def mixed() -> Pick:
            labels = dict.fromkeys([*a, *b])
            given = {}
            for label in labels:
                parent = rng.choice([p for p in (a, b) if label in p])
                given[label] = parent[label]
            return RandomPick(rng, given)

        return self._child(mixed) or Architecture(a)

    def enumerate(
        self, float_steps: int | None = None, after: Mapping[str, Any] | None = None
    ) -> Iterator[Architecture]:
        """Yield every valid architecture once, in a fixed order: the last choice changes fastest.

        Args:
            float_steps: how many values of a float domain are used.
            after: continue after this architecture, without enumerating those before it.

        Raises:
            SpaceError: a float domain without `float_steps`, or `after` is not in the space (both name the label).
        """
        invalid = 0
        for found in self._walk(float_steps, after):
            invalid = invalid + 1 if found is None else 0
            if found is not None:
                yield found
            elif invalid == _INVALID:
                logger.warning(
                    "space '%s': all its architectures are looked at in order, and %d in a row were invalid; let pick "
                    "offer only what fits what was picked before, or use a strategy that samples",
                    self.name, invalid,
                )  # fmt: skip

    def _walk(self, float_steps: int | None, after: Mapping[str, Any] | None = None) -> Iterator[Architecture | None]:
        """As `enumerate`, but yield None in place of those that begin with choices that the program refuses."""
        prefix: list[Step] | None = []
        if after is not None:
            prefix = next_prefix(steps_to(self.domains(after), after, float_steps))
        while prefix is not None:
            odometer = OdometerPick(prefix, float_steps)
            found = None
            with contextlib.suppress(InvalidArchitecture):
                found = self.explore(odometer)
            yield found
            prefix = next_prefix(odometer.steps)

    def count(self, limit: int = 10_000, float_steps: int | None = None, seed: int = 0) -> Count:
        """Count the valid architectures.

        Exact if there are at most `limit`, by enumeration; infinite with a float domain and no `float_steps`. Else, or
        if the enumeration meets ten times as many that the program refuses, an estimate from random probes: the product
        of the numbers of options along a random run has the count as its mean (Knuth 1975, Estimating the efficiency
        of backtrack programs).
        """
        rng = random.Random(seed)
        probes = [self._probe(rng, float_steps) for _ in range(_PROBES)]
        if None in probes:
            return Count(math.inf, exact=True)
        sizes = [probe for probe in probes if probe is not None]
        estimate = sum(sizes) // _PROBES
        # With at most `limit` architectures a probe passes twice that with probability below 1/2 (Markov's
        # inequality), nine tenths of them with probability below 1e-11: do not walk a space that is surely larger.
        if sum(size > 2 * limit for size in sizes) > 0.9 * _PROBES:
            return Count(estimate, exact=False)
        looks = found = 0
        try:
            for architecture in self._walk(float_steps):
                looks += 1
                found += architecture is not None
                if found > limit or looks > _LOOKS * limit:
                    return Count(max(estimate, found), exact=False)
        except EndlessDomain:
            return Count(math.inf, exact=True)
        return Count(found, exact=True)

    def _build_to_explore(self, pick: Pick, is_looked_at: bool) -> Any:
        from nasflow.space.meta_build import is_of_meta, on_meta  # noqa: PLC0415  # torch is slow, and not always needed

        why: Exception | None = None
        if not self.is_real:
            try:
                with on_meta():
                    built = self.program(pick)
                    if self._complete is None or not is_looked_at or self._complete(built):
                        return built
            except Exception as error:  # its message need not mention meta: a real build shows whether it was the cause
                if isinstance(error, UserError) and not is_of_meta(error):
                    raise
                why = error
        return self._build_for_real(pick, is_looked_at, why)

    def _build_for_real(self, pick: Pick, is_looked_at: bool, why: Exception | None) -> Any:
        """Build with values, after a build without them failed or left sizes unknown."""
        from nasflow.space.meta_build import for_real  # noqa: PLC0415  # torch is slow, and not always needed

        began = time.perf_counter()
        try:
            with for_real():
                built = self.program(pick)
                if self._complete is not None and is_looked_at:
                    self._complete(built)
        except UserError:
            raise
        except Exception as error:
            raise SpaceError(self._explain(error, pick)) from error
        if why is not None:
            self.is_real = True
            logger.warning(
                "space '%s' looks at values while it builds, so it is built for real from now on, not on torch's meta "
                "device: every architecture that is looked at takes about %.2g s and the memory of its weights (%s)",
                self.name, time.perf_counter() - began, _error_text(why),
            )  # fmt: skip
        return built

    def _probe(self, rng: random.Random, float_steps: int | None) -> int | None:
        """Return Knuth's product along one random run: 0 if it ends invalid, None if it met an infinite domain."""
        pick = ProbePick(rng, float_steps)
        try:
            self.explore(pick)
        except InvalidArchitecture:
            return 0
        except EndlessDomain:
            return None
        return pick.product

    def _child(self, make_pick: Callable[[], Pick]) -> Architecture | None:
        """Return the first valid architecture from fresh picks, None if there is none."""
        for _ in range(_CHILDREN):
            with contextlib.suppress(InvalidArchitecture):
                return self.explore(make_pick())
        return None

    def _refuse_unused(self, pick: FixedPick) -> None:
        if pick.unused:
            known = ", ".join(f"'{label}'" for label in pick.domains) or "none"
            raise SpaceError(
                f"label '{pick.unused[0]}' is unknown to space '{self.name}' (with these choices it has: {known})"
            )

    def _explain(self, error: Exception, pick: Pick) -> str:
        """Say in one sentence what the program raised, where, and with which choices."""
        return (
            f"space '{self.name}' raised {_error_text(error)}; choices so far: {pick.architecture.to_json()}; where "
            "choices make no sense together, raise nasflow.errors.InvalidArchitecture"
        )


def _error_text(error: Exception) -> str:
    """Return an error and the user's line that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    others = ("site-packages", str(Path(__file__).with_name("meta_build.py")))
    own = [frame for frame in frames[1:] if not any(other in frame.filename for other in others)] or frames
    return f"{error_message(error)} ({clean_text(own[-1].filename)}, line {own[-1].lineno})"


def _another(domain: Domain, value: Any, rng: random.Random) -> Any:
    """Return a value of `domain` other than `value`."""
    while True:
        other = domain.sample(rng)
        if json.dumps(other) != json.dumps(value):
            return other
