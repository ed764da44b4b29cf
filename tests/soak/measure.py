"""What the processes of a search hold of the machine, sampled over time."""

import csv
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import plotly.graph_objects as go
import psutil
from plotly.subplots import make_subplots

from tests.faults.search import TroubledSearch

PARTS = {"controller": ("controller",), "workers": ("worker", "zygote"), "server": ("server",)}
SHARE = 0.1  # of the time at the beginning, in which growth is allowed


@dataclass(frozen=True)
class Sample:
    """What one part of the search held at one time.

    Attributes:
        seconds: since the beginning.
        since: of its oldest process, in seconds: one that was started again is smaller at first.
        memory: resident, in MiB, of its largest process.
        files: open ones of the process that has most.
        logs: size of all log files of the part, in KiB.
    """

    seconds: float
    part: str
    since: float
    memory: float
    files: int
    threads: int
    logs: float


class Meter:
    """Samples a search.

    Args:
        logs: of each part, the patterns of its log files below the search's folder.
    """

    def __init__(self, search: TroubledSearch, logs: dict[str, Sequence[str]]):
        self._search, self._logs = search, logs
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    def look(self) -> None:
        """Take a sample of each part that has a process now."""
        for part, kinds in PARTS.items():
            processes = [process for kind in kinds for process in self._search.living(kind)]
            readings = [reading for process in processes if (reading := _reading(process)) is not None]
            if readings:
                memory, files, threads, since = (max(column) for column in zip(*readings, strict=True))
                size = sum(file.stat().st_size for pattern in self._logs[part] for file in self._files(pattern))
                at = time.monotonic() - self._began
                self.samples.append(Sample(at, part, since, memory, int(files), int(threads), size / 2**10))

    def of(self, part: str) -> list[Sample]:
        """Return the samples of a part, the oldest first."""
        return [sample for sample in self.samples if sample.part == part]

    def _files(self, pattern: str) -> list[Path]:
        return [file for file in self._search.folder.parent.glob(pattern) if file.is_file()]


def _reading(process: psutil.Process) -> tuple[float, float, float, float] | None:
    try:
        with process.oneshot():
            memory = process.memory_info().rss / 2**20
            return memory, process.num_fds(), process.num_threads(), time.time() - process.create_time()
    except psutil.NoSuchProcess:
        return None


@dataclass(frozen=True)
class Growth:
    """How a figure of a part grew after the first tenth of the time: medians of the second and of the last tenth."""

    part: str
    figure: str
    early: float
    late: float

    @property
    def ratio(self) -> float:
        """The later by the earlier."""
        return self.late / self.early if self.early else 1.0


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """Return the growth of each part's memory, files and threads. Processes younger than a minute do not count."""
    end = max(sample.seconds for sample in samples)
    found = []
    for part in PARTS:
        grown = [sample for sample in samples if sample.part == part and sample.since > min(60, end * SHARE)]
        early = [sample for sample in grown if SHARE <= sample.seconds / end < 2.5 * SHARE]
        late = [sample for sample in grown if sample.seconds / end >= 1 - 1.5 * SHARE]
        for figure in ("memory", "files", "threads"):
            if early and late:
                values = [statistics.median(getattr(sample, figure) for sample in some) for some in (early, late)]
                found.append(Growth(part, figure, *values))
    return found


def draw(samples: Sequence[Sample], folder: Path) -> Path:
    """Write the samples as CSV and as a page with their curves; return the page."""
    with (folder / "soak.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, [field.name for field in fields(Sample)])
        rows.writeheader()
        rows.writerows(asdict(sample) for sample in samples)
    figures = {"memory": "MiB", "files": "open files", "threads": "threads", "logs": "KiB of logs"}
    page = make_subplots(rows=len(figures), cols=1, shared_xaxes=True, subplot_titles=list(figures.values()))
    for row, figure in enumerate(figures, 1):
        for part in PARTS:
            of_part = [sample for sample in samples if sample.part == part]
            x, y = [sample.seconds / 60 for sample in of_part], [getattr(sample, figure) for sample in of_part]
            page.add_trace(go.Scatter(x=x, y=y, name=part, mode="lines", showlegend=row == 1), row=row, col=1)
    page.update_layout(height=1000, title="minutes since the beginning")
    page.write_html(folder / "soak.html", include_plotlyjs=True)
    return folder / "soak.html"
