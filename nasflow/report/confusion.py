"""A confusion matrix as Markdown."""

from collections.abc import Sequence

from nasflow.report.text import markdown_table


def confusion_markdown(trial: int, counts: Sequence[Sequence[int]]) -> str:
    """Return a text with a table: a row for each class of the samples, a column for each class they were taken for."""
    recalls = [row[place] / sum(row) if sum(row) else None for place, row in enumerate(counts)]
    rows = [
        {"class": label, **{str(other): count for other, count in enumerate(row)}, "recall": recall}
        for label, (row, recall) in enumerate(zip(counts, recalls, strict=True))
    ]
    words = (
        f"Trial {trial} on test data: how many samples of the class of each row it took for the class of each column."
    )
    return f"{words}\n\n{markdown_table(rows)}"
