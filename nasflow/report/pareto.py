"""The Pareto front of a search with several objectives, as Markdown with small pictures."""

from collections.abc import Sequence

from nasflow.config.search import Objective
from nasflow.pareto import pareto_ranks
from nasflow.report.leaderboard import leaderboard_rows
from nasflow.report.svg import front_svg, markdown_picture
from nasflow.report.text import markdown_cell, markdown_table
from nasflow.trial import Trial

_OTHERS = 1000  # most points that are not on the front
_ROWS = 50
_PICTURES = 3


def pareto_front(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[Trial]:
    """Return the scored trials that no other dominates, sorted by the first objective. Replays are left out."""
    trained = [trial for trial in trials if trial.replayed_from is None]
    points = [[o.to_loss(trial.metrics[o.metric]) for o in objectives] for trial in trained]
    ranked = zip(points, pareto_ranks(points, enough=1), trained, strict=True)
    return [trial for _, rank, trial in sorted(ranked, key=lambda one: (one[0], one[2].number)) if rank == 0]


def pareto_markdown(trials: Sequence[Trial], objectives: Sequence[Objective]) -> str:
    """Return a section with the first objective against each of the next three, and a table of at most 50 trials.

    Args:
        trials: scored trials. Of those not on the front, the last 1000 are drawn.
        objectives: two or more.
    """
    goal = ", ".join(f"{objective.direction} {objective.metric}" for objective in objectives)
    heading = f"## Pareto front: {markdown_cell(goal)}"
    front = pareto_front(trials, objectives)
    if not front:
        return f"{heading}\n\nNo trial has a score yet."
    up = objectives[0].metric
    best = {trial.number for trial in front}
    others = [trial for trial in trials if trial.number not in best and trial.replayed_from is None][-_OTHERS:]
    pictures = [
        markdown_picture(
            front_svg(
                [(trial.metrics[other.metric], trial.metrics[up]) for trial in others],
                {trial.number: (trial.metrics[other.metric], trial.metrics[up]) for trial in front},
                up,
                other.metric,
            ),
            f"{markdown_cell(up)} against {markdown_cell(other.metric)}",
        )
        for other in objectives[1 : 1 + _PICTURES]
    ]
    words = f"Red, with their numbers: the {len(front)} trials that no other trial beats in every objective."
    rows = [
        {name: value for name, value in row.items() if name not in ("rank", "front")}
        for row in leaderboard_rows(front, objectives, _ROWS)
    ]
    more = f"\n\n… and {len(front) - _ROWS} more" if len(front) > _ROWS else ""
    return "\n\n".join([heading, words, *pictures, markdown_table(rows) + more])
