"""The member of a rank: it trains on a share of each batch, and scores as one process with the whole batch would."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from nasflow.errors import ConfigError, TrialError
from nasflow.seeds import derive_seed
from nasflow.training.member.member import Member
from nasflow.training.member.metrics.metric_states import forget_rows, metric_states
from nasflow.training.member.metrics.reporting import record_of
from nasflow.training.member.own_step import loss_in
from nasflow.training.member.rng import RngStream
from nasflow.training.member.trainer.hooks import NO_STATE
from nasflow.training.member.trainer.modes import freeze_only
from nasflow.training.wide.shares import Share
from nasflow.training.wide.together import Sums, are_finite, from_all, summed

_OF_ONE_SAMPLE = "Expected more than 1 value per channel"  # torch's batch norms


class WideMember(Member):
    """A member whose twins on the other ranks take the other samples of each batch.

    All ranks draw the same random numbers: those of a step follow from the trial's seed, the epoch and the batch. So
    none of them has to be saved, and a model may decide by them what it computes, as all ranks must do alike.

    Attributes:
        share: of the batch that comes next.
        seed: of the trial.
        before_backward: called with each loss.
    """

    share = Share(0, 1, 1.0)
    seed = 0
    before_backward: Callable[[torch.Tensor], None] = staticmethod(lambda loss: None)
    _sums: Sums = {}  # noqa: RUF012 - replaced, not changed; of all ranks
    _how: dict[str, str] = {}  # noqa: RUF012

    def start(self) -> None:
        """Make the optimizer.

        Raises:
            ConfigError: the module steps in a way that several ranks can't follow.
        """
        if self.is_manual:
            raise ConfigError(
                f"evaluator.parallel: {type(self.module).__name__} optimizes manually, which can't be done on several "
                "devices yet; leave parallel out, or return the loss from training_step"
            )
        super().start()
        if self.fitting.needs_closure:
            raise ConfigError(
                f"evaluator.parallel: {type(self.fitting.optimizer).__name__} calls its step several times, which "
                "can't be done on several devices yet; leave parallel out, or choose another optimizer"
            )

    def start_epoch(self) -> None:
        """Prepare for an epoch, and call the hooks."""
        self._draw_anew("epoch")
        super().start_epoch()

    def train_batch(self, batch: Any, index: int) -> None:
        """Make one optimizer step with the other ranks, or a part of it.

        Raises:
            TrialError: its share is a single sample, and the model can't train on that.
        """
        self._draw_anew("batch", index)
        with self._counted_once():
            try:
                super().train_batch(batch, index)
            except ValueError as error:
                if self.share.stop - self.share.start == 1 and _OF_ONE_SAMPLE in str(error):
                    raise TrialError(
                        f"evaluator.parallel: a device got one sample of batch {index + 1}, of which a batch norm has "
                        "no statistics; leave out a small last batch (drop_last=True), or choose another batch_size"
                    ) from error
                raise

    def validate_batch(self, batch: Any, index: int, step: str = "validation_step") -> None:
        """Score its share of a batch."""
        self._draw_anew(step, index)
        with self._counted_once():
            super().validate_batch(batch, index, step)

    def run_step(self, name: str, batch: Any, index: int) -> Any:
        """Return what a step returns, with a loss that has the weight of its share."""
        output = super().run_step(name, batch, index)
        if name != "training_step":
            return output
        loss = loss_in(output)
        if loss is None:
            raise TrialError(
                "training_step returned no loss; on several devices (evaluator.parallel) no batch can be skipped"
            )
        if self.share.weight != 1.0:
            loss = loss * self.share.weight
            output = {**output, "loss": loss} if isinstance(output, Mapping) else loss
        self.before_backward(loss)
        return output

    def end_validation(self) -> None:
        """Call the hooks after the last validation batch, with what all ranks have logged."""
        self._put_together()
        super().end_validation()

    def metrics(self) -> dict[str, float]:
        """Return what all ranks have logged since the last call."""
        finite, should_stop = self._put_together()
        self.module.trainer.should_stop = should_stop
        self.note({}, 0.0, finite)
        self.book.go_on(self._sums)
        self._sums, self._how = {}, {}
        self._draw_anew("end")
        return super().metrics()

    def logged_so_far(self) -> dict[str, float]:
        """Return what it logged in its last epoch, with the means of what all ranks have logged since."""
        # no torchmetrics: their values are those of all ranks, of which only one may ask
        sums = {**self.book.sums(), **self._sums}
        return {**(self.history[-1] if self.history else {}), **{name: s / count for name, (s, count) in sums.items()}}

    def rest(self) -> dict[str, Any]:
        """Return all that is needed to continue but for weights and the optimizer's state."""
        hooks = self.hooks.state_dict(self._checkpoint(self.module.state_dict(), self.steps))
        return {
            **record_of(self),
            "frozen": [name for name, parameter in self.module.named_parameters() if not parameter.requires_grad],
            "fitting": {
                "schedules": [entry["scheduler"].state_dict() for entry in self.fitting.schedules],
                "steps": self.steps,
            },
            "early_stop": self._early_stop.state_dict() if self._early_stop else None,
            "should_stop": bool(self.module.trainer.should_stop),
            **({"hooks": hooks} if hooks else {}),
        }

    def load_rest(self, rest: dict[str, Any]) -> None:
        """Continue from `rest`, once weights and the optimizer's state are loaded."""
        self.finished_epochs = rest["epoch"]
        self.finished, self.stopped_early, self.pruned = rest["finished"], rest["stopped_early"], rest["pruned"]
        self.history, self.seconds = list(rest["history"]), list(rest["seconds"])
        freeze_only(self.module, rest["frozen"])
        for entry, saved in zip(self.fitting.schedules, rest["fitting"]["schedules"], strict=True):
            entry["scheduler"].load_state_dict(saved)
        self.fitting.steps = rest["fitting"]["steps"]
        if self._early_stop:
            self._early_stop.load_state_dict(rest["early_stop"])
        self.module.trainer.should_stop = rest.get("should_stop", False)
        if "hooks" in rest or "on_load_checkpoint" in self.hooks.names:
            checkpoint = self._checkpoint(self.module.state_dict(), self.steps)
            hooks = rest.get("hooks", NO_STATE)
            fitting = {**rest["fitting"], "optimizer": self.fitting.optimizer.state_dict()}
            self.hooks.load_state_dict(checkpoint, hooks, lambda _: None, fitting)  # ranks have loaded their weights

    def _end_batches(self) -> None:
        if self.fitting.may_draw:
            self._draw_anew("schedules")  # in training, ranks have drawn differently
        super()._end_batches()

    def _draw_anew(self, where: str, index: int = 0) -> None:
        seed = derive_seed(self.seed, where, self.finished_epochs, index)
        self.rng = RngStream(seed, self.rng.device)

    @contextmanager
    def _counted_once(self) -> Iterator[None]:
        """Forget what is logged within this, and what metrics count, if another rank has the same samples."""
        if not self.share.is_guest:
            yield
            return
        sums = self.book.sums()
        states = tree_map_only(torch.Tensor, torch.clone, metric_states(self.module))
        yield
        self.book.go_on(sums)
        forget_rows(self.module, states)

    def _put_together(self) -> tuple[bool, bool]:
        """Take what ranks have logged into the sums of all. Return whether weights are finite, and one is to stop."""
        mine = {
            "sums": self.book.sums(),
            "how": self.book.how(),
            "finite": are_finite(self.module),
            "stop": bool(self.module.trainer.should_stop),
        }
        told = from_all(mine)
        for one in told:
            self._how = {**self._how, **one["how"]}
        # as in the book, the last part counts
        self._sums = {**self._sums, **summed([one["sums"] for one in told], self._how)}
        self.book.go_on({})
        return all(one["finite"] for one in told), any(one["stop"] for one in told)
