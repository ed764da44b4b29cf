"""Non-dominated sorting: which points are best when several objectives disagree."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def pareto_ranks(points: Sequence[Sequence[float]], enough: int | None = None) -> list[int]:
    """Return the front of each point, 0 for those that no other point dominates, as in NSGA-II (Deb et al. 2002).

    Args:
        points: `[N, M]` finite numbers, all to be minimized (negate what is to be maximized).
        enough: stop once this many points have their front; all the others are given the next number.

    Raises:
        ValueError: a number is not finite.
    """
    if not points:
        return []
    import numpy as np  # noqa: PLC0415 - the command line starts without it

    values = np.asarray(points, dtype=float)
    if not np.isfinite(values).all():
        raise ValueError("points must be finite")
    ranks = np.zeros(len(points), dtype=int)
    left = np.lexsort(values.T[::-1])  # in this order no point is dominated by a later one
    rank = 0
    while left.size and (enough is None or len(points) - left.size < enough):
        front = _front(values[left])
        ranks[left[front]] = rank
        left = left[~front]
        rank += 1
    ranks[left] = rank
    return [int(value) for value in ranks]


def _front(values: "npt.NDArray[np.float64]") -> "npt.NDArray[np.bool_]":
    """Which of `values` `[N, M]`, in lexicographic order, no other dominates `[N]`."""
    import numpy as np  # noqa: PLC0415 - as above

    front = np.zeros(len(values), dtype=bool)
    candidates = np.arange(len(values))
    while candidates.size:
        best = values[candidates[0]]
        equal = (values[candidates] == best).all(axis=1)
        front[candidates[equal]] = True
        candidates = candidates[(values[candidates] < best).any(axis=1)]
    return front
