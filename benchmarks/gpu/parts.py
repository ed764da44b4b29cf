"""The parts of the kit: commands, each a process of its own, the most important first."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One command. The last line of its output that is JSON has its results.

    Attributes:
        title: what it shows, for people.
        seconds: the most that it may take.
    """

    name: str
    title: str
    seconds: float
    command: tuple[str, ...]


def parts(device: str) -> list[Part]:
    """Return the parts for a device, `cuda` or `cpu`; on a CPU they are so small that they only show that all runs."""
    small = device == "cpu"

    def python(*words: object) -> tuple[str, ...]:
        return (sys.executable, "-m", *map(str, words))

    def w6(*words: object) -> tuple[str, ...]:
        return python("benchmarks.merging", "W6", "--device", device, *words)

    mlps, few = ("--model", "mlp"), ("--repeats", 1 if small else 3)
    cells = ("--members", 2 if small else 16, "--images", 256 if small else 8192, *few)
    return [
        Part("tests", "tests marked `gpu`", 150, python("pytest", "-q", "-n", 0, "-m", "gpu", "tests")),
        Part(
            "equality",
            "members merged and alone, float64",
            150,
            python("benchmarks.gpu.equality", "--device", device, *(["--members", 3, "--epochs", 1] if small else [])),
        ),
        Part(
            "steps",
            "launches, synchronizations and memory of a step",
            120,
            python("benchmarks.gpu.steps", "--device", device, "--members", *([4] if small else [16, 1024])),
        ),
        Part(
            "mlp-1024",
            "W6: 1,024 perceptrons",
            120,
            w6(*mlps, "--members", 8 if small else 1024, "--process-sample", 1 if small else 4, *few),
        ),
        Part("cells-1", "W6: networks of one cell a stage", 150, w6("--max-cells", 1, *cells, "--process-sample", 1)),
        Part("cells-5", "W6: networks of up to five cells a stage", 180, w6("--max-cells", 5, *cells)),
        Part("mlp-64", "W6: 64 perceptrons", 60, w6(*mlps, "--members", 4 if small else 64, *few)),
        Part(
            "checkpoint",
            "checkpoints of all members after every epoch",
            120,
            python(
                "benchmarks.checkpoint", "--members", 8 if small else 1024, "--seconds", 0.1 if small else 1.0,
                "--epochs", 2 if small else 4, "--repeats", 1 if small else 3,
            ),
        ),
    ]  # fmt: skip
