"""A case: the members of a family trained in units, and each of them alone."""

import functools
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
from pydantic import TypeAdapter
from torch import nn

from nasflow.config.search import EvaluatorConfig, MergeConfig
from nasflow.errors import TrialError
from nasflow.evaluator.candidate import Candidate
from nasflow.evaluator.make import make_evaluator
from nasflow.merge.planning import cost_model
from nasflow.merge.values.frozen_pool import FrozenPool
from nasflow.seeds import derive_seed
from nasflow.training.lightning_loop import make_trainer
from nasflow.training.member.member import Member
from nasflow.training.member.rng import RngStream
from nasflow.training.member.trainer.modes import EvaluationModes
from nasflow.training.unit import grouping
from nasflow.training.unit.base import Unit
from nasflow.training.unit.fused import FusedUnit
from nasflow.training.unit.grouping import Former
from tests.trust.costs import RandomCosts, once
from tests.trust.family import OUTPUTS, draw_family, sample
from tests.trust.model import Program, build
from tests.trust.paths import Paths
from tests.trust.same import differences, gradient_differences

HERE = Path(__file__).parent
EXACT, SINGLE = 1e-9, 1e-4
ROUNDING = 1e-6  # most that rounding may grow to, where it grows as much in a model alone
_EVALUATOR: TypeAdapter[EvaluatorConfig] = TypeAdapter(EvaluatorConfig)
_OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "lr": 0.05},
    {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.1},
    {"name": "adam", "lr": 0.01, "weight_decay": 0.1},
    {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
    {"name": "rmsprop", "lr": 0.01, "momentum": 0.5, "eps": 1e-6},
    {"name": "adagrad", "lr": 0.01, "eps": 1e-6},
    {"name": "nadam", "lr": 0.01},
]


@dataclass(frozen=True)
class Case:
    """What is trained, and how.

    Attributes:
        inputs: the kind of values that the models read.
        programs: the members' models.
        fuse: `always`, or `measured` with random costs.
        seed: of the costs, the weights and the data.
        loop: the factor by which the random costs of the loop are higher.
        single: float32 instead of float64; then the gradients of two steps are compared instead of all results.
        compares: whether the comparison of a unit's first outputs with the members' own is on.
        job: what happens to the members of a whole job; empty for a unit by itself.
        optimizers: one for each member, as positions in a list.
        batches: sizes of the batches of an epoch.
    """

    inputs: str
    programs: tuple[Program, ...]
    fuse: Literal["always", "measured"]
    seed: int
    loop: float
    single: bool
    compares: bool
    optimizers: tuple[int, ...]
    kind: Literal["classification", "regression"] = "classification"
    clip: float | None = None
    job: Literal["", "eviction", "pruning", "resume"] = ""
    batches: tuple[int, ...] = (6, 6, 4)
    epochs: int = 2

    @property
    def precision(self) -> Literal["32-true", "64-true"]:
        """The precision, as the config names it."""
        return "32-true" if self.single else "64-true"

    def config(self, member: int) -> dict[str, Any]:
        """Return the evaluator's section of a member."""
        optimizer = dict(_OPTIMIZERS[self.optimizers[member]])
        if self.single:  # so that the weights stay equal, and so does what a step leaves of the gradients
            optimizer |= {"lr": 1e-6, "weight_decay": 0.0}
        return {
            "kind": self.kind,
            "data": {"target": "data.py:data"},
            "epochs": self.epochs,
            "precision": self.precision,
            "optimizer": optimizer,
            "gradient_clip_val": self.clip,
        }


@dataclass
class Verdict:
    """The outcome of a case.

    Attributes:
        differences: where merged and alone differ.
        refused: why members were in no unit with others.
        paths: the kernels and paths that ran.
        failed_alone: the members that fail alone.
    """

    differences: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    paths: Paths = field(default_factory=Paths)
    failed_alone: set[int] = field(default_factory=set)


def evaluator_config(values: dict[str, Any]) -> EvaluatorConfig:
    """Return the section of the config."""
    return _EVALUATOR.validate_python(values)


def draw_case(seed: int, number: int) -> Case:
    """Return case `number` of a seed."""
    rng = random.Random(f"{seed} {number}")
    hidden = rng.random() < 0.08
    family = draw_family(rng, hidden=hidden)
    programs = tuple(family.programs())
    job = rng.choice(("eviction", "pruning", "resume")) if rng.random() < 0.1 else ""
    single = not hidden and not job and rng.random() < 0.2
    alike = rng.random() < 0.5
    places = [rng.randrange(3 if single else len(_OPTIMIZERS)) for _ in programs]
    return Case(
        inputs=family.inputs,
        programs=programs,
        fuse=rng.choice(("always", "measured", "measured")),
        seed=rng.randrange(1 << 30),
        loop=rng.choice((0.1, 1.0, 10.0, 1e3)),
        single=single,
        batches=(6, 6) if single else (6, 6, 4),
        epochs=1 if single else 2,
        compares=hidden or rng.random() < 0.1,
        optimizers=tuple(places[:1] * len(places) if alike else places),
        kind="classification" if job else rng.choice(("classification", "classification", "regression")),
        clip=None if single else rng.choice((None, None, 0.5)),
        job=job,
    )


def run(case: Case, may_fail: frozenset[int] | None = None) -> Verdict:
    """Train the members together and alone, and return where they differ.

    Args:
        may_fail: the members that may fail alone; there is no verdict if others do.
    """
    together = _Training(case, _members(case), Former(MergeConfig(fuse=case.fuse), HERE, {}))
    alone = _Training(case, _members(case), Former(MergeConfig(fuse="never"), HERE, {}))
    alone.run()
    verdict = Verdict(failed_alone=set(alone.failed))
    if may_fail is not None and not verdict.failed_alone <= may_fail:
        return verdict
    try:
        with as_drawn(case):
            verdict.paths.look(together.run())
    except Exception as error:  # alone, none was raised
        trace = traceback.extract_tb(error.__traceback__)[-1]
        verdict.differences = [f"raised {type(error).__name__}: {error} ({Path(trace.filename).name}:{trace.lineno})"]
        return verdict
    verdict.refused = [text.partition("\n")[0] for text in together.former.reasons.values() if _is_refusal(text)]
    if together.failed.keys() != alone.failed.keys():
        verdict.differences.append(f"failed together: {together.failed}, alone: {alone.failed}")
    if case.single:
        verdict.differences += _step_differences(together, alone, SINGLE)
        if verdict.differences:
            touchy = {
                name for nudged in _nudged(case) for name in map(_what, _step_differences(nudged, alone, SINGLE / 10))
            }
            verdict.differences = [text for text in verdict.differences if _what(text) not in touchy]
        return verdict
    found = together.differs_from(alone, EXACT)
    if found and not together.differs_from(alone, ROUNDING):  # does rounding grow as much in the model alone?
        touchy = {
            text.partition("/")[0] for nudged in _nudged(case) for text in nudged.differs_from(alone, EXACT / 100)
        }
        found = [text for text in found if text.partition("/")[0] not in touchy]
    verdict.differences += found
    return verdict


def _step_differences(one: "_Training", other: "_Training", tolerance: float) -> list[str]:
    pairs = zip(one.gradients, other.gradients, strict=True)
    return [text for step, pair in enumerate(pairs) for text in gradient_differences(*pair, tolerance, f"step {step}")]


def _what(text: str) -> str:
    return text.partition(":")[0]


def _nudged(case: Case) -> "Iterator[_Training]":
    """Yield the members alone several times, each time with their weights rounded another way."""
    for seed in range(1, 4):
        training = _Training(case, _members(case, nudge=seed), Former(MergeConfig(fuse="never"), HERE, {}))
        training.run()
        yield training


def _is_refusal(reason: str) -> bool:
    return not reason.startswith(("there is no other", "measured:"))


@contextmanager
def as_drawn(case: Case) -> Iterator[None]:
    """Set the planner's choices and the comparison as the case says."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(cost_model, "_fastest", once))
        costs = lambda device, **_: RandomCosts(device, case.seed, case.loop)  # noqa: E731
        patches.enter_context(patch.object(grouping, "CostModel", costs))
        if not case.compares:
            patches.enter_context(patch.object(grouping, "differences", lambda *_: {}))
        yield


@functools.cache
def _trainer(precision: str) -> Any:
    return make_trainer(precision)


def _members(case: Case, nudge: int = 0) -> list[Member]:
    """Return new members before their first step; each `nudge` other than 0 rounds their weights another way."""
    noise, bit = torch.Generator().manual_seed(nudge), 2**-22 if case.single else 2**-51
    members, frozen, trainer = [], FrozenPool(), _trainer(case.precision)
    for number, program in enumerate(case.programs):
        stream = RngStream(derive_seed(case.seed, number))
        with stream:
            candidate = Candidate(build(program.source), evaluator_config(case.config(number)))
            module = make_evaluator(candidate.config, HERE).module(candidate.model)
        member = Member(number, module, candidate, stream)
        frozen.share(member.module)
        trainer.precision_plugin.convert_module(member.module)
        for parameter in member.module.parameters() if nudge else ():
            drawn = torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
            parameter.data.mul_((1 + bit * drawn).to(parameter.dtype))
        member.attach(trainer, "fit", len(case.batches))
        member.start()
        members.append(member)
    return members


@dataclass
class _Training:
    """Members in training, driven as by a job.

    Attributes:
        failed: the exceptions that members raised, by number.
        gradients: after each step, of each member's parameters by name.
    """

    case: Case
    members: list[Member]
    former: Former
    failed: dict[int, str] = field(default_factory=dict)
    gradients: list[dict[str, torch.Tensor | None]] = field(default_factory=list)

    def run(self) -> list[Unit]:
        """Train all epochs and return the units."""
        batches = [_batch(self.case, number) for number in range(len(self.case.batches) + 1)]
        units: list[Unit] = []
        for _ in range(self.case.epochs):
            self._each(Member.start_epoch)
            for unit in units:
                unit.start_epoch()
            for index, batch in enumerate(batches[:-1]):
                units = units or self.former.form(self.members, batch, self._fail)
                for unit in units:
                    unit.train_batch(batch, index)
                self.gradients.append(gradients(self.members, units))
            for unit in units:
                unit.end_run()
            self._validate(units, batches[-1])
            for unit in units:
                unit.close_epoch()
            self._each(Member.end_epoch)
            units = [unit for unit in units if unit.members]
        return units

    def differs_from(self, other: "_Training", tolerance: float) -> list[str]:
        """Return where members that have not failed differ from those of another training."""
        found = []
        for one, twin in zip(self.members, other.members, strict=True):
            if one.number not in self.failed:
                states = [{**member.state_dict(), "seconds": None} for member in (one, twin)]
                found += differences(states[0], states[1], tolerance, f"member {one.number}")
        return found

    def _validate(self, units: Sequence[Unit], batch: Any) -> None:
        modes = EvaluationModes()
        modes.enter(member.module for member in self._here())
        with torch.inference_mode():
            self._each(Member.start_validation)
            for unit in units:
                unit.validate_batch(batch, 0)
            self._each(Member.end_validation)
        modes.leave()

    def _here(self) -> list[Member]:
        return [member for member in self.members if member.number not in self.failed]

    def _each(self, action: Callable[[Member], None]) -> None:
        for member in self._here():
            try:
                action(member)
            except TrialError as error:
                self._fail(member, error)

    def _fail(self, member: Member, error: BaseException) -> None:
        self.failed[member.number] = str(error)


def gradients(members: Sequence[Member], units: Sequence[Unit]) -> dict[str, torch.Tensor | None]:
    """Return the gradients of the last step, by member and parameter."""
    found: dict[nn.Parameter, torch.Tensor | None] = {}
    for unit in units:
        for stack in unit.model.stacks if isinstance(unit, FusedUnit) else ():
            grads = [None] * len(stack.parameters) if stack.tensor.grad is None else stack.tensor.grad
            found.update(zip(stack.parameters, grads, strict=True))
    named = {
        f"member {member.number} {name}": found.get(parameter, parameter.grad)
        for member in members
        for name, parameter in member.module.named_parameters()
    }
    return {name: None if grad is None else grad.clone() for name, grad in named.items()}


def _batch(case: Case, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch to train on; the last one is for validation."""
    generator = torch.Generator().manual_seed(derive_seed(case.seed, "data", number) % (1 << 31))
    size, dtype = (*case.batches, 5)[number], torch.float32 if case.single else torch.float64
    x = sample(case.inputs, size, generator, dtype)
    if case.kind == "regression":
        return x, torch.randn(size, OUTPUTS, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(OUTPUTS, (size,), generator=generator)
