"""Steps that run once for all members, where their code shows that each would compute the same from its own output.

Python runs once instead of once a member: `torch.vmap` runs a `training_step` on the stacked outputs of the models.
That is right only if the step reads nothing by which the members differ, and changes nothing; `purity` and `JointView`
see to that, and `comparison` tries it beforehand on copies.
"""

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nasflow.merge.trace.graph import Graph
from nasflow.training.member.batches import copied
from nasflow.training.member.member import Member
from nasflow.training.member.metrics.metric_log import batch_size_of
from nasflow.training.member.metrics.own_log import is_laid_under
from nasflow.training.member.own_step import loss_in
from nasflow.training.member.trainer.hooks import BATCH_HOOKS, GRADIENT_HOOKS
from nasflow.training.unit.lockstep.joint.computed import Computed
from nasflow.training.unit.lockstep.joint.looking import NotRecordableError
from nasflow.training.unit.lockstep.joint.metric import JointMetric
from nasflow.training.unit.lockstep.joint.purity import is_pure, reads_argument
from nasflow.training.unit.lockstep.joint.recorded import Recording, States, form, record
from nasflow.training.unit.lockstep.joint.recordings import Recordings
from nasflow.training.unit.lockstep.joint.view import JointView, NotJointError, reader_of, rows
from nasflow.training.unit.lockstep.pausing import refusing_inner_backward, thread_state
from nasflow.training.unit.lockstep.reading import MODEL, Reading

Forward = Callable[[torch.Tensor], torch.Tensor]

TRAINING, VALIDATION = "training_step", "validation_step"
_EPOCH = "current_epoch"
_INDEX = 2  # the place of the batch's index among a step's arguments

_Found = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, dict[str, torch.Tensor]]]


def may_be_joint(members: Sequence[Member], reading: Reading, graphs: Mapping[Member, Mapping[str, Graph]]) -> bool:
    """Whether one run of a step may serve all members, judged by classes, configs and models, before it is tried.

    Args:
        reading: how their `training_step` uses their models.
        graphs: of their models' parts.
    """
    kind, parts = type(members[0].module), reading.parts
    if list(parts) != [MODEL] or not parts[MODEL].shared or any(graphs[member][MODEL].has_opaque for member in members):
        return False
    for member in members:
        is_plain = member.config.precision in ("32-true", "64-true") and member.pace.accumulated == 1
        if not is_plain or (member.begun and not member.is_joint):  # within an epoch, it goes on as before
            return False
    for member in members:
        has_hooks = not member.hooks.names.isdisjoint((*BATCH_HOOKS, *GRADIENT_HOOKS))
        is_changed = not vars(member.module).keys().isdisjoint((TRAINING, VALIDATION))
        is_changed |= is_laid_under(member.module)
        if has_hooks or is_changed or member.hooks.callbacks or type(member.module) is not kind:
            return False
    return all(is_pure(inspect.getattr_static(kind, name, None), kind) for name in (TRAINING, VALIDATION))


class JointSteps:
    """Runs the steps of members as one.

    Args:
        members: in the order of the merged model's rows.
        forward: returns the models' outputs `[n, B, ...]` for an input that all share.
        begin: called before each step.
        recordings: of the steps of all units of the job.
        outputs: what those of the models have in common in these units.
        present: returns the members that have not left. Rows of the others are computed, and not read.
    """

    def __init__(
        self,
        members: Sequence[Member],
        forward: Forward,
        *,
        begin: Callable[[], None],
        recordings: Recordings,
        outputs: Hashable,
        present: Callable[[], Sequence[Member]],
    ):
        self._members, self._present = list(members), present
        self._forward, self._begin = forward, begin
        self._recordings, self._outputs = recordings, outputs
        self._current: dict[Hashable, Recording | None] = {}  # by the form of a batch, as long as views are the same
        self._marker = torch.arange(len(members), device=next(members[0].module.parameters()).device)
        self._sums: dict[str, tuple[torch.Tensor, int]] = {}  # what was logged since the last `settle`
        self._metrics: dict[str, JointMetric] = {}
        self._logged_metrics: dict[str, str] = {}
        self._views: dict[str, JointView] = {}
        self._now = _Logged()
        self._state: tuple[Any, ...] = ()  # of torch, in which the running step began

    def recording(self, name: str, batch: Any, index: int, learn: Callable[[], Recording]) -> Recording | None:
        """Return a step's recording, made by `learn` if there is none yet; None if the step can't be recorded."""
        reader = reader_of(self.view(name, index))
        try:
            key = name, form(batch)
        except NotRecordableError:
            return None
        if key not in self._current:
            step = inspect.getattr_static(reader.kind, name)
            alike = (reader.kind, len(self._members), self._outputs, *key)
            self._current[key] = self._recordings.find(step, alike, reader, learn)
        return self._current[key]

    def compute(self, name: str, batch: Any, index: int) -> Computed:
        """Run `training_step` or `validation_step`.

        Raises:
            NotJointError: the step can't run for all members at once.
        """
        self.view(name, index)
        self._begin()
        self._now = _Logged(batch_size_of(batch))
        for metric in self._metrics.values():
            metric.begin()
        given = copied(batch)

        def one(marker: torch.Tensor) -> _Found:
            self._now.marker = marker
            return self._step(name, given, index)

        try:
            with refusing_inner_backward(NotJointError, lambda: True):
                losses, logged, states = torch.vmap(one, randomness="error")(self._marker)
        except NotJointError:
            raise
        except Exception as error:  # such as a value that is looked at; each by itself shows whose failure it is
            raise NotJointError(f"{type(error).__name__}: {error}") from error
        return self._computed(losses, logged, states)

    def failed(self) -> dict[int, Exception]:
        """Return what metrics of members that have not left raised in the last step, by row."""
        found = {row: error for metric in self._metrics.values() for row, error in metric.failed.items()}
        return {row: error for row, error in found.items() if self._members[row] in self._present()}

    def trace(self, name: str, batch: Any, index: int, outputs: torch.Tensor) -> Recording:
        """Record the operations of a step that was computed just before.

        Args:
            outputs: of the models, `[n, B, ...]`.

        Raises:
            NotRecordableError: the step can't be run again as recorded.
            Exception: it can't be recorded.
        """
        used = {key: metric for key, metric in self._metrics.items() if metric.is_used}
        if not all(metric.is_recordable for metric in used.values()):
            raise NotRecordableError("a metric is computed one by one, or depends on the number of its updates")
        step = inspect.getattr_static(type(self._present()[0].module), name)
        if self._present()[0].takes_index[name] and reads_argument(step, _INDEX):
            raise NotRecordableError("it reads the batch's index")

        def run(outputs: torch.Tensor, states: States, defaults: States, batch: Any) -> tuple[torch.Tensor, Computed]:
            self._now = _Logged(batch_size_of(batch))

            def one(output: torch.Tensor, states: States, defaults: States) -> tuple[Any, Any]:
                self._now.output, self._now.trains = output, name == TRAINING
                for key, metric in used.items():
                    metric.begin((states[key], defaults[key]))
                losses, logged, after = self._step(name, batch, index)
                return losses.get("", output), (losses, logged, after)

            if name == TRAINING:
                made = torch.vmap(torch.func.grad(one, has_aux=True), randomness="error")(outputs, states, defaults)
                gradients, found = made
            else:
                gradients, (_, found) = None, torch.vmap(one, randomness="error")(outputs, states, defaults)
            return self._now.only_input(), replace(self._computed(*found), gradients=gradients)

        given = outputs, *self._given(used), batch
        reader = reader_of(self._views[name])
        with refusing_inner_backward(NotRecordableError, lambda: False):
            recording = record(run, given, lambda: (reader.names, reader.signature(step, reader.names)))
        if _EPOCH in recording.names:
            raise NotRecordableError("it reads the number of the epoch, and would be recorded again in each")
        return recording

    def replay(self, recording: Recording, outputs: torch.Tensor, batch: Any) -> Computed:
        """Compute a step as recorded, from the models' outputs `[n, B, ...]`."""
        for metric in self._metrics.values():
            metric.begin()
        used = {name: self._metric(name) for name in recording.metrics}
        try:
            return recording.compute(outputs, *self._given(used), batch)
        except Exception as error:  # such as an index that is out of range; each by itself shows whose failure it is
            raise NotJointError(f"{type(error).__name__}: {error}") from error

    def record(self, found: Computed) -> None:
        """Keep what the last step has logged."""
        for name, values in found.logged.items():
            totals, count = self._sums.get(name) or self._so_far(name)
            self._sums[name] = (totals + values, count + found.weights[name])
        for name, states in found.states.items():
            self._metrics[name].take(states, found.updates[name])
        self._logged_metrics |= found.metrics
        for member in self._members:
            member.book.pending = self.settle

    def settle(self) -> None:
        """Give the members what was logged, and the states of their metrics."""
        for member in self._members:
            member.book.pending = None
        for name, (totals, count) in self._sums.items():
            for member, total in zip(self._members, totals.unbind(), strict=True):
                member.book.put(name, total, count)
        for metric in self._metrics.values():
            metric.give()
        for name, attribute in self._logged_metrics.items():
            for member in self._members:
                member.book.log(name, member.module._modules[attribute])
        self.discard()

    def discard(self) -> None:
        """Forget what was logged, and read anew what the members have."""
        self._sums, self._metrics, self._logged_metrics, self._views = {}, {}, {}, {}

    def view(self, name: str, index: int) -> JointView:
        """Return what takes the place of the members' modules in a step."""
        known = self._views.get(name)
        if index == 0 or known is None or reader_of(known).is_stale:  # between epochs, hooks may change anything
            self._views[name] = self._view()
            self._current.clear()
        return self._views[name]

    def _step(self, name: str, batch: Any, index: int) -> "_Found":
        """Run a step, within `torch.vmap`: its loss, if there is one, what it logs, and the states of its metrics."""
        first = self._present()[0]
        step = inspect.getattr_static(type(first.module), name)
        self._state = thread_state()
        output = step(self._views[name], batch, *([index] if first.takes_index[name] else []))
        loss = loss_in(output) if output is not None and name == TRAINING else None
        losses = {} if loss is None else {"": _number(loss, "its loss")}
        states = {key: metric.states() for key, metric in self._metrics.items() if metric.is_used}
        return losses, dict(self._now.values), states

    def _computed(self, losses: Mapping[str, torch.Tensor], logged: Any, states: Any) -> Computed:
        updates = {name: self._metrics[name].updates for name in states}
        return Computed(losses.get(""), logged, self._now.weights, states, updates, self._now.metrics)

    def _given(self, metrics: Mapping[str, JointMetric]) -> tuple[States, States]:
        stacked = {name: metric.stacked for name, metric in metrics.items()}
        return stacked, {name: metric.defaults for name, metric in metrics.items()}

    def _view(self) -> JointView:
        modules = [member.module for member in self._present()]
        if len({module.model.training for module in modules}) > 1:  # type: ignore[union-attr]
            raise NotJointError("their models are in different modes")
        answers = {MODEL: _JointModel(self._call), "log": self._log, "log_dict": self._log_dict}
        return JointView(modules, answers, self._metric)

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        if thread_state() != self._state or x.requires_grad:
            raise NotJointError("its model is called in another state of torch, or with an input that needs a gradient")
        if self._now.output is None:
            return rows(self._now.marker, self._forward, x)
        if self._now.trains and not torch.is_grad_enabled():
            raise NotRecordableError("its model is called without gradients")
        self._now.inputs.append(_of_all(x))
        return self._now.output.clone()  # a step may write into it

    def _log(self, name: str, value: Any, *args: Any, batch_size: int | None = None, **options: Any) -> None:
        """Take what `LightningModule.log` takes."""
        if len(args) > 4 or options.get("reduce_fx", "mean") not in ("mean", "avg"):
            raise NotJointError(f"it logs something else than the mean of '{name}'")
        if isinstance(value, JointMetric):
            self._now.metrics[name] = value.name
            return
        number = _number(value, f"'{name}'") if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        self._now.add(name, number, batch_size)

    def _log_dict(self, values: Mapping[str, Any], *args: Any, **options: Any) -> None:
        for name, value in values.items():
            self._log(name, value, **options)

    def _metric(self, name: str) -> JointMetric:
        if name not in self._metrics:
            own: Any = [member.module._modules[name] if member in self._present() else None for member in self._members]
            self._metrics[name] = JointMetric(name, own, lambda: self._now.marker)
        return self._metrics[name]

    def _so_far(self, name: str) -> tuple[torch.Tensor, int]:
        """Return what the members have logged before under a name."""
        sums = [member.book.peek(name) if member in self._present() else (0.0, 0) for member in self._members]
        counts = {member.book.peek(name)[1] for member in self._present()}
        if len(counts) > 1:
            raise NotJointError(f"not all have logged '{name}'")
        totals = [torch.as_tensor(total, dtype=torch.float64, device=self._marker.device) for total, _ in sums]
        return torch.stack(totals), counts.pop()


class _Logged:
    """What one run logs: by name, the sum of the values times their weights, and of the weights.

    Attributes:
        marker: has a row for each member within `torch.vmap`.
        output: of a member's model, if the run is recorded.
        trains: whether a run that is recorded is one of training.
        inputs: of the model in a run that is recorded.
    """

    def __init__(self, batch_size: int = 1):
        self.marker = torch.zeros(())
        self.output: torch.Tensor | None = None
        self.trains = False
        self.inputs: list[torch.Tensor] = []
        self.values: dict[str, torch.Tensor] = {}
        self.weights: dict[str, int] = {}
        self.metrics: dict[str, str] = {}
        self._batch_size = batch_size

    def only_input(self) -> torch.Tensor:
        """Return what the model was called with. Raises NotRecordableError if it was not called once."""
        if len(self.inputs) != 1:
            raise NotRecordableError("its model is called several times, or not at all")
        return self.inputs[0]

    def add(self, name: str, number: torch.Tensor, batch_size: int | None) -> None:
        if name in self.values:
            raise NotJointError(f"it logs '{name}' twice in a step")
        self.weights[name] = batch_size or self._batch_size
        self.values[name] = number.detach().double() * self.weights[name]


class _JointModel:
    """Takes the place of the members' models, to be called only."""

    def __init__(self, call: Forward):
        self._call = call

    def __call__(self, x: Any) -> torch.Tensor:
        """Return one member's output."""
        if type(x) is not torch.Tensor:
            raise NotJointError(f"its model reads a {type(x).__name__}")
        return self._call(x)

    def __getattr__(self, name: str) -> Any:
        raise NotJointError(f"it uses self.{MODEL}.{name}")


def _of_all(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is the same for all members as it is outside of `torch.vmap` and `torch.func.grad`."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            raise NotRecordableError("its model reads what differs between members")
        x = torch._C._functorch.get_unwrapped(x)
    if x._version:
        raise NotRecordableError("its model reads what was written")
    return x


def _number(value: Any, what: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.ndim:
        raise NotJointError(f"{what} is no tensor with one number")
    return value
