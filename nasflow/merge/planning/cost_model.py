"""Measures what kernels, and gathers between them, cost on this machine, and keeps that on disk.

Each is measured once per operation and number of members.
"""

import copy
import dataclasses
import hashlib
import platform
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nasflow.kernel_costs import CostCache, Figures, figure_name, received
from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.loop import Loop
from nasflow.merge.tape.tape import Tape, Tapeable
from nasflow.merge.tape.tape_values import Spot
from nasflow.merge.trace.node import Node, map_nodes
from nasflow.merge.trace.op_properties import runs_own_code
from nasflow.merge.trace.shape_inference import Scalar, Spec
from nasflow.merge.trace.signature import untouched
from nasflow.merge.values.layout import Layout, convert, join, split
from nasflow.merge.values.parameter_stacks import Bench
from nasflow.native import is_available
from nasflow.system.processor import cpu_name

_REPEATS = 5
_ENOUGH_SECONDS = 0.05
_LARGEST = 64  # most rows that are measured; with more, the cost per row stays the same


class CostModel:
    """Seconds of forward and backward, by kernel, operation and rows.

    Figures are valid for one device, torch version, number of threads and precision, which is that of the casts and
    settings when the model is made. Each such combination has a JSON file in `$XDG_CACHE_HOME/nasflow` (or
    `~/.cache/nasflow`).

    Args:
        device: where kernels run.
        folder: where figures are kept; None for the default.
        own_code: returns a context in which an opaque node, which is a user's own code, is measured.
        given: figures by place, of which those of this one are used before the file's.

    Attributes:
        place: what the figures are valid for.
        path: of the file.
        measured: how many figures were measured because the file did not have them.
        seconds: how long that took.
    """

    def __init__(
        self,
        device: torch.device,
        folder: Path | None = None,
        own_code: Callable[[Node], AbstractContextManager[None]] = lambda _: nullcontext(),
        given: Mapping[str, Figures] | None = None,
    ):
        self._device, self._own_code = device, own_code
        self._cache = CostCache(folder)
        self.place = _place(device)
        self.path = self._cache.path(self.place)
        self.measured, self.seconds = 0, 0.0
        theirs = received((given or {}).get(self.place, {}))
        self._known: dict[str, float] = self._cache.read(self.place) | theirs
        self._new: dict[str, float] = {}
        self._told = set(theirs)
        self._untold: dict[str, float] = {}
        self._met: dict[Hashable, float] = {}

    def kernel(self, kernel: type[Kernel], node: Node, rows: int, shared: bool) -> float:
        """Return the seconds of a kernel for `rows` members like `node`, interpolated between measured sizes."""
        if kernel is Loop:
            return rows * self._measured(Loop, node, 2, shared) / 2
        below = min(1 << (rows.bit_length() - 1), _LARGEST)
        least = self._measured(kernel, node, below, shared)
        if rows <= below:
            return least
        if below == _LARGEST:
            return least * rows / below
        most = self._measured(kernel, node, 2 * below, shared)
        return least + (most - least) * (rows - below) / below

    def gather(self, layout: Layout, numbers: int) -> float:
        """Return the seconds to join a value of `numbers` float32 from two runs of rows, forward and backward."""
        if layout in (Layout.LIST, Layout.SHARED, Layout.SCALAR):
            return 0.0
        small, large = self._gathered(layout, 1 << 12), self._gathered(layout, 1 << 18)
        return max(small + (large - small) * (numbers - (1 << 12)) / ((1 << 18) - (1 << 12)), small / 2)

    def step(self) -> float:
        """Return roughly the seconds of a step beside its kernels: loss, autograd and optimizer of a minimal model."""
        return self._figure("a step of next to nothing", self._measure_step)

    def save(self) -> None:
        """Add new measurements to the file, if it can be written."""
        if self._new:
            self._cache.add(self.place, self._new)
        self._new = {}

    def untold(self) -> dict[str, float]:
        """Return the figures that were used, but neither given nor returned by this before."""
        untold, self._untold = self._untold, {}
        return untold

    def _measured(self, kernel: type[Kernel], node: Node, rows: int, shared: bool) -> float:
        short = (kernel, node.signature, rows, shared)
        if short not in self._met:
            key = figure_name(f"{kernel.__name__} x{rows}{' shared' if shared else ''}: {describe(node)}")

            def measure() -> float:
                # a copied module still refers to what its functions have captured
                whole = nullcontext() if node.module is None else untouched(node.module)
                with self._own_code(node) if runs_own_code(node) else nullcontext(), whole:
                    return self._measure(kernel, node, rows, shared)

            self._met[short] = self._figure(key, measure)
        return self._met[short]

    def _figure(self, key: str, measure: Callable[[], float]) -> float:
        if key not in self._known:
            began = time.perf_counter()
            self._known[key] = self._new[key] = measure()
            self.measured += 1
            self.seconds += time.perf_counter() - began
        if key not in self._told:
            self._told.add(key)
            self._untold[key] = self._known[key]
        return self._known[key]

    def _measure_step(self) -> float:
        model = nn.Linear(1, 2, device=self._device)
        optimizer = torch.optim.Adam(model.parameters())
        x, target = torch.zeros(1, 1, device=self._device), torch.zeros(1, dtype=torch.long, device=self._device)

        def run() -> None:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            torch.isfinite(loss).all()
            loss.backward()
            optimizer.step()

        return _fastest(run, self._device)

    def _measure(self, kernel: type[Kernel], node: Node, rows: int, shared: bool) -> float:
        streams = [nullcontext()] * rows
        generators = [torch.Generator() for _ in range(rows)]
        bench = Bench(tuple(range(rows)), streams, generators, lambda _, run: run())
        try:
            nodes = [dataclasses.replace(node, module=copy.deepcopy(node.module)) for _ in range(rows)]
            given = [_canonical(kernel, source, shared) for source in node.inputs]
            wanted, _ = kernel.layouts(node, given)
            runner = kernel(nodes, bench)
            inputs = [
                _made_up(source, rows, layout, self._device) for source, layout in zip(node.inputs, wanted, strict=True)
            ]
            if isinstance(runner, Tapeable) and runner.is_tapeable and Layout.CHANNELS not in wanted:
                return _fastest(_on_tape(runner, inputs, wanted, rows), self._device)
            return self._time(lambda: runner(inputs, True), inputs)
        except (Exception, SystemExit):  # a kernel that can't run here is no option; the loop always is
            return 0.0 if kernel is Loop else float("inf")

    def _gathered(self, layout: Layout, numbers: int) -> float:
        def measure() -> float:
            shape = (4, numbers // 4) if layout is Layout.STACK else (numbers // 1024, 64, 4, 4)
            value = torch.randn(shape, device=self._device)
            if layout is Layout.CHANNELS:
                value = value.contiguous(memory_format=torch.channels_last)
            value.requires_grad_()

            def gather() -> Any:
                return join(list(split(value, [2, 2], 4, layout))[::-1], layout, [False, False])

            return self._time(gather, [value])

        return self._figure(f"gather {layout.value} of {numbers}", measure)

    @cached_property
    def _nothing(self) -> float:
        """Seconds of a backward with nothing to do."""
        x = torch.zeros(1, device=self._device, requires_grad=True)
        return _fastest(lambda: _there_and_back(lambda: x, [x]), self._device)

    def _time(self, run: Callable[[], Any], inputs: Sequence[Any]) -> float:
        return max(_fastest(lambda: _there_and_back(run, inputs), self._device) - self._nothing, 1e-7)


def describe(node: Node) -> str:
    """Return a readable description of a node, the same in every process: its operation, with shapes."""

    def show(source: Node) -> str:
        spec = source.spec
        if isinstance(spec, Spec):
            return f"{str(spec.dtype).removeprefix('torch.')}{list(spec.shape)}"
        return str(spec.value) if isinstance(spec, Scalar) else str(spec)

    args, kwargs = (map_nodes(tree, lambda source: _Shown(show(source))) for tree in (node.args, node.kwargs))
    if node.module is None:
        return f"{node.name}{args}{kwargs or ''}"
    trains = any(parameter.requires_grad for parameter in node.module.parameters())
    module = " ".join(str(node.module).split())
    return f"{module}{args}{kwargs or ''}{'' if trains else ' frozen'}"


class _Shown(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _canonical(kernel: type[Kernel], source: Node, shared: bool) -> Layout:
    """Return the layout in which an input usually comes."""
    if isinstance(source.spec, Scalar):
        return Layout.SCALAR
    if shared:
        return Layout.SHARED
    return Layout.CHANNELS if len(getattr(source.spec, "shape", ())) == 4 else Layout.STACK


def _made_up(source: Node, rows: int, layout: Layout, device: torch.device) -> Any:
    spec = source.spec
    if isinstance(spec, Scalar):
        return spec.value
    if spec.dtype.is_floating_point:
        value = torch.randn((rows, *spec.shape), dtype=spec.dtype, device=device)
    else:
        value = torch.zeros((rows, *spec.shape), dtype=spec.dtype, device=device)
    if layout is Layout.SHARED:
        return value[0]
    made = convert(value, rows, Layout.STACK, layout)
    for tensor in made if isinstance(made, list) else [made]:
        if tensor.dtype.is_floating_point:
            tensor.requires_grad_()
    return [row.detach().requires_grad_(row.requires_grad) for row in made] if isinstance(made, list) else made


def _on_tape(kernel: Tapeable, inputs: Sequence[Any], layouts: Sequence[Layout], rows: int) -> Callable[[], None]:
    """Return a function that runs forward and backward from a tape, as most kernels do."""
    tape = Tape({}, trains=True)
    given = [
        Spot(value.detach(), rows, layout, needs_grad=value.requires_grad, fixed=True)
        for value, layout in zip(inputs, layouts, strict=True)
    ]
    ends = [tape.join(kernel.record(tape, [[spot] for spot in given], True, [0, rows]))]
    tape.end_forward()
    grads = [torch.ones_like(end.data) for end in ends]

    def run() -> None:
        tape.forward()
        tape.backward(grads, ends, given)

    return run


def _there_and_back(run: Callable[[], Any], inputs: Sequence[Any]) -> None:
    output = run()
    flat = output if isinstance(output, list | tuple) else [output]
    outputs = [tensor for tensor in flat if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(tensor) for tensor in outputs])
    for value in inputs:
        for tensor in value if isinstance(value, list) else [value]:
            if isinstance(tensor, torch.Tensor):
                tensor.grad = None


def _fastest(run: Callable[[], Any], device: torch.device) -> float:
    run()
    best, began = float("inf"), time.perf_counter()
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - began > _ENOUGH_SECONDS:
            break
    return best


def _place(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} {cpu_name()}"
    text = f"{name} torch {torch.__version__} threads {torch.get_num_threads()}{' native' if is_available() else ''}"
    text += _precision(device)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _precision(device: torch.device) -> str:
    """Describe how numbers are computed, where that is not plain float32."""
    found = []
    if torch.is_autocast_enabled(device.type):
        found.append(f"autocast {torch.get_autocast_dtype(device.type)}")
    if (products := torch.get_float32_matmul_precision()) != "highest":
        found.append(f"products {products}")
    if device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        found.append("convolutions TF32")
    if torch.are_deterministic_algorithms_enabled():
        found.append("deterministic")
    return "".join(f" {text}" for text in found)
