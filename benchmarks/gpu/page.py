"""The kit's results as a page of Markdown."""

import json
from collections.abc import Mapping
from typing import Any


def page(results: Mapping[str, Any]) -> str:
    """Return the page."""
    about = results["machine"]
    lines = [
        f"# nasflow on {about['gpu'] or about['processor']}",
        "",
        f"torch {about['torch']}, Python {about['python']}, {about['cores']} cores of {about['processor']}.",
        "",
        "| part | state | seconds | command |",
        "| --- | --- | --- | --- |",
    ]
    for name, part in results["parts"].items():
        lines.append(f"| {name}: {part['title']} | {part['state']} | {part['seconds']:.0f} | `{part['command']}` |")
    for name, part in results["parts"].items():
        if part["results"] is not None:
            lines += ["", f"## {name}: {part['title']}", "", *_shown(part["results"])]
    return "\n".join(lines) + "\n"


def _shown(found: Any) -> list[str]:
    """Return the lines of one part: a contest as a table, and all else as it was printed."""
    contests = found.get("results", []) if isinstance(found, dict) else []
    if not contests:
        return ["```json", json.dumps(found, indent=1), "```"]
    lines: list[str] = []
    for contest in contests:
        lines += [
            contest["title"],
            "",
            "| contestant | seconds | us a model-step | ratios |",
            "| --- | --- | --- | --- |",
        ]
        for name, row in contest["contestants"].items():
            over = [f"{value:.2f}x {key}" for key, value in row.items() if key.startswith("over ") and "CPU" not in key]
            lines.append(
                f"| {name} | {row['seconds']:.3f} | {row['microseconds_a_model_step']:.0f} | {', '.join(over)} |"
            )
        facts = [(key, value) for key, value in contest.items() if isinstance(value, str | int | float)]
        lines += ["", *(f"- {key}: {value}" for key, value in facts if key != "title"), ""]
    return lines
