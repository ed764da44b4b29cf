"""Steps as one launch: a unit's steps, captured in a CUDA graph for each size of batches and replayed.

A replay launches what was captured, at the same addresses and with the same numbers. So a step is captured only where
its operations read and write memory that stays where it is, and nothing on the host decides about them. See
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs for what else must hold.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nasflow.clean_text import error_message
from nasflow.training.device.fault import refuse_fault

logger = logging.getLogger(__name__)

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Makes a step on a batch `[B, ...]` and its targets, as far as the device is concerned; returns the losses `[n]`."""

_PLAIN = 2  # steps on batches of a size before one is captured: what they set up must not be part of it
_MOST_SIZES = 4  # of batches; a tape keeps the memory of a few more
_MOST_FORMS = 32  # of the steps of a unit: one that has more captures more than it replays


class Recorder(Protocol):
    """Captures operations of one device."""

    def warming(self) -> AbstractContextManager[None]:
        """Within this, operations run as a capture expects of those before it."""

    def capture(self, step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        """Record what `step` launches, without executing it. Return its result, and what executes it.

        Raises:
            RuntimeError: it can't be recorded.
        """


@cache
def recorder_on(device: torch.device) -> Recorder | None:
    """Return what captures steps on a device, the same for all units; None if nothing can."""
    return CudaRecorder(device) if device.type == "cuda" else None


def can_capture(device: torch.device) -> bool:
    """Whether steps on a device can be captured."""
    return recorder_on(device) is not None


class CudaRecorder:
    """Captures in CUDA graphs.

    All share one pool of memory, which works because each is replayed to its end before another begins, and leaves
    nothing there that a later one reads.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None  # a pool without graphs can't be used again

    @contextmanager
    def warming(self) -> Iterator[None]:
        """Run on the stream of the captures."""
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            present.wait_stream(self._stream)

    def capture(self, step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        """As for every recorder. Other threads, such as those that load data or write checkpoints, go on meanwhile."""
        with torch.cuda.device(self._device):
            if self._first is None:
                _, self._first = self._capture(lambda: torch.zeros(1, device=self._device))
            result, graph = self._capture(step)
        return result, graph.replay

    def _capture(self, step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, torch.cuda.CUDAGraph]:
        graph, present = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                result = step()
        finally:
            torch.cuda.set_stream(present)  # after one that failed, torch leaves its own
        return result, graph


@dataclass(frozen=True)
class StepGraph:
    """A captured step.

    Attributes:
        kept: memory that it reads or writes, and that was there before.
    """

    x: torch.Tensor
    target: torch.Tensor
    losses: torch.Tensor
    replay: Callable[[], None]
    kept: tuple[torch.UntypedStorage, ...]

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Make a step on a batch; return the losses `[n]`."""
        self.x.copy_(x)
        self.target.copy_(target)
        self.replay()
        return self.losses.clone()  # the next replay writes to the same memory


class StepGraphs:
    """The captured steps of a unit, by the sizes of batches."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._refused = False
        self._forms = 0
        self._form: Hashable = None
        self._plain: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, StepGraph] = {}

    def clear(self) -> None:
        """Forget all steps: the unit's memory is another one now."""
        self._plain.clear()
        self._graphs.clear()
        self._form, self._forms = None, 0

    def find(self, form: Hashable, x: torch.Tensor, target: torch.Tensor, step: Step) -> StepGraph | None:
        """Return the graph of steps on such batches, captured if enough were made; None: not yet, or never.

        Args:
            form: on what a step depends beside memory that stays where it is. If it changes, all steps are forgotten.
            step: what is captured. It must leave nothing on the host that executing it again would change.
        """
        if self._refused:
            return None
        if form != self._form:
            self._plain.clear()
            self._graphs.clear()
            self._form = form
            self._forms += 1
        if self._forms > _MOST_FORMS:
            self._refuse("what a step does changes too often")
            return None
        key = _key(x, target)
        if key not in self._graphs and self._plain[key] == _PLAIN and len(self._graphs) < _MOST_SIZES:
            self._capture(key, x, target, step)
        return self._graphs.get(key)

    @contextmanager
    def plain_step(self, x: torch.Tensor, target: torch.Tensor) -> Iterator[None]:
        """Within this, a step on a batch without a graph is made."""
        key = _key(x, target)
        if self._refused or self._plain[key] == _PLAIN:
            yield
            return
        self._plain[key] += 1
        with ExitStack() as stack:
            stack.enter_context(self._recorder.warming())
            if last := self._plain[key] == _PLAIN:
                operations = stack.enter_context(_Operations(x.device))
            yield
        if last and operations.why:
            self._refuse(operations.why)

    def _capture(self, key: Hashable, x: torch.Tensor, target: torch.Tensor, step: Step) -> None:
        batch = x.clone(), target.clone()
        torch.clear_autocast_cache()  # weights that were cast before are not those of later steps
        try:
            with _Operations(x.device) as operations:
                losses, replay = self._recorder.capture(lambda: step(*batch))
        except Exception as error:  # whatever can't be captured fails in its own way
            refuse_fault(error)
            self._refuse(error_message(error).partition("\n")[0])
            return
        finally:
            torch.clear_autocast_cache()  # nor are those that were cast in the graph
        if operations.why:
            self._refuse(operations.why)
            return
        self._graphs[key] = StepGraph(*batch, losses, replay, operations.kept)

    def _refuse(self, why: str) -> None:
        logger.warning("steps are not captured in CUDA graphs: %s", why)
        self._refused = True
        self.clear()


def _key(*batch: torch.Tensor) -> Hashable:
    return tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in batch)


class _Operations(TorchDispatchMode):
    """Looks at the operations of a step.

    Attributes:
        why: why they can't be replayed; None if nothing speaks against it.
    """

    def __init__(self, device: torch.device):
        super().__init__()  # type: ignore[no-untyped-call]
        self.why: str | None = None
        self._device = device
        # by what they are in C++: asking for the address of a storage that is shared until it is written to copies it
        self._read: dict[int, torch.UntypedStorage] = {}
        self._made: set[int] = set()

    @property
    def kept(self) -> tuple[torch.UntypedStorage, ...]:
        """The memory they use that no operation among them has allocated."""
        return tuple(self._read.values())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation."""
        given = _tensors((args, dict(kwargs or {})))
        for tensor in given:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._made:
                self._read.setdefault(storage._cdata, storage)
        result = func(*args, **kwargs or {})
        made = _tensors(result)
        self._made |= {tensor.untyped_storage()._cdata for tensor in made} - self._read.keys()
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func._schema.arguments, args, kwargs or {}):
            self.why = f"{func} draws random numbers"
        elif torch.Tag.data_dependent_output in func.tags:
            self.why = f"the host reads a result ({func})"
        elif any(tensor.device != self._device for tensor in [*given, *made]):
            self.why = f"{func} works on another device than {self._device}"
        return result


def _draws(arguments: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation that may draw random numbers does: attention and recurrent layers only with dropout."""
    given = dict(zip((argument.name for argument in arguments), args, strict=False)) | dict(kwargs)
    for argument in arguments:
        if argument.name in ("dropout", "dropout_p"):
            return bool(given.get(argument.name, argument.default_value))
    return True


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
