"""Random streams: code that draws from the global generators draws from a stream that is not shared."""

import ctypes
from array import array
from types import TracebackType
from typing import Any

import numpy as np
import torch

from nasflow.training.member import python_random

_NUMPY_BYTES = 625 * 4  # the state of the Mersenne Twister: 624 words, and how many are used


class RngStream:
    """The state of every global generator (torch CPU and CUDA, NumPy, Python), active inside `with stream:`.

    Code inside sees the same random numbers whatever runs before, between or after, so members that share a process
    draw as they would alone. NumPy's generator is swapped by pointer, since copying its state takes about
    a hundred times longer; a cached second Gaussian of NumPy's legacy generator is dropped at each entry.

    Args:
        seed: any non-negative 63-bit number.
        device: where members draw; a CUDA device's generator is swapped too.

    Attributes:
        device: the CUDA device whose generator is swapped, or None.
        generator: torch's generator on the CPU; drawing from it outside of `with` advances the stream as well.
    """

    def __init__(self, seed: int, device: torch.device | None = None):
        self.device = device if device is not None and device.type == "cuda" else None
        self.generator = torch.Generator().manual_seed(seed)
        self._cuda = (
            torch.Generator(device=self.device).manual_seed(seed).get_state() if self.device is not None else None
        )
        self._numpy: Any = np.random.MT19937(seed)
        self._python = python_random.seeded(seed)
        self._outer: Any = None
        self._saved_python: tuple[Any, dict[str, Any]] | None = None  # the state, and its form in `state_dict`
        self._saved_numpy: tuple[bytes, dict[str, Any]] | None = None  # the generator's memory, likewise

    def __enter__(self) -> "RngStream":
        numpy_outer = np.random.get_bit_generator()  # type: ignore[attr-defined]
        cuda_outer = torch.cuda.get_rng_state(self.device) if self.device is not None else None
        self._outer = (torch.get_rng_state(), cuda_outer, numpy_outer, python_random.get_state())
        self._install(self.generator.get_state(), self._cuda, self._numpy, self._python)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.generator.set_state(torch.get_rng_state())
        self._cuda = torch.cuda.get_rng_state(self.device) if self.device is not None else None
        self._python = python_random.get_state()
        self._install(*self._outer)

    def _install(self, cpu: torch.Tensor, cuda: torch.Tensor | None, numpy: Any, python: Any) -> None:
        torch.set_rng_state(cpu)
        if cuda is not None and self.device is not None:
            torch.cuda.set_rng_state(cuda, self.device)
        np.random.set_bit_generator(numpy)  # type: ignore[attr-defined]
        python_random.set_state(python)

    def position(self) -> tuple[Any, ...]:
        """Return the stream's position, to compare it, or to go back to it in this process."""
        cuda = None if self._cuda is None else self._cuda.numpy().tobytes()
        memory = ctypes.string_at(self._numpy.ctypes.state_address, _NUMPY_BYTES)
        return (self.generator.get_state().numpy().tobytes(), cuda, memory, self._python)

    def go_to(self, position: tuple[Any, ...]) -> None:
        """Go back to a position."""
        if position == self.position():
            return
        cpu, cuda, memory, self._python = position
        self.generator.set_state(torch.frombuffer(bytearray(cpu), dtype=torch.uint8))
        self._cuda = None if cuda is None else torch.frombuffer(bytearray(cuda), dtype=torch.uint8)
        ctypes.memmove(self._numpy.ctypes.state_address, memory, _NUMPY_BYTES)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as tensors and plain values. Parts that have not moved are the same objects again."""
        if self._saved_python is None or self._saved_python[0] != self._python:  # converting that many takes time
            version, words, gauss = python_random.as_plain(self._python)
            key = torch.frombuffer(array("I", words), dtype=torch.int32)
            self._saved_python = self._python, {"version": version, "key": key, "gauss": gauss}
        memory = ctypes.string_at(self._numpy.ctypes.state_address, _NUMPY_BYTES)
        if self._saved_numpy is None or self._saved_numpy[0] != memory:
            state = self._numpy.state["state"]
            key = torch.from_numpy(state["key"].view(np.int32))
            self._saved_numpy = memory, {"key": key, "pos": int(state["pos"])}
        return {
            "torch": self.generator.get_state(),
            "cuda": self._cuda,
            "numpy": self._saved_numpy[1],
            "python": self._saved_python[1],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position. A CUDA state is loaded only if both sides have one."""
        self.generator.set_state(state["torch"])
        if self.device is not None and state["cuda"] is not None:
            self._cuda = state["cuda"]
        numpy, python = state["numpy"], state["python"]
        self._numpy.state = {
            "bit_generator": "MT19937",
            "state": {"key": numpy["key"].numpy().view(np.uint32), "pos": numpy["pos"]},
        }
        words = tuple(python["key"].numpy().view(np.uint32).tolist())
        self._python = python_random.from_plain((python["version"], words, python["gauss"]))
