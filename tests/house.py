"""The house drawn from its imports: `python -m tests.house`, or `make house`, writes it into CONTRIBUTING.md.

A room is a package, or a module beside packages. Its floor is one above the highest floor that it imports from, so that
the drawing has no floor at all for rooms that import one another in a circle: that is an error.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- drawn by make house -->\n", "<!-- end of the drawing -->\n"
INSIDE = ("nasflow.training", "nasflow.merge", "nasflow.training_service", "flows")


def imports(*packages: str) -> dict[str, set[str]]:
    """For each module of the packages, the modules of theirs that it imports, for types only as well."""
    sys.path.insert(0, str(ROOT))
    try:
        graph = grimp.build_graph(*packages, cache_dir=None)
    finally:
        sys.path.remove(str(ROOT))
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def rooms(modules: Mapping[str, set[str]], above: str) -> dict[str, set[str]]:
    """The same for the rooms right inside of a package: which of them import which others."""
    depth = above.count(".") + 2

    def room(module: str) -> str:
        return ".".join(module.split(".")[:depth])

    found: dict[str, set[str]] = {}
    for module, imported in modules.items():
        if module.startswith(f"{above}."):
            others = {room(other) for other in imported if other.startswith(f"{above}.")}
            found.setdefault(room(module), set()).update(others - {room(module)})
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Names that import one another in a circle, the first again as the last; empty if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def floors(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Names by floor, the lowest floor first."""
    floor: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        floor[name] = 1 + max((floor[other] for other in graph.get(name, ())), default=-1)
    return [sorted(name for name in floor if floor[name] == level) for level in range(max(floor.values()) + 1)]


def _lines(title: str, graph: Mapping[str, set[str]]) -> Iterable[str]:
    yield f"{title}/"
    for level, names in reversed(list(enumerate(floors(graph), 1))):
        yield f"  {level}  " + " · ".join(name.rsplit(".", 1)[1] for name in names)


def drawing(modules: Mapping[str, set[str]]) -> str:
    """The floors of `nasflow`, and of each large room inside it, as text."""
    parts = [_lines(place.replace(".", "/"), rooms(modules, place)) for place in ("nasflow", *INSIDE)]
    return "```text\n" + "\n\n".join("\n".join(part) for part in parts) + "\n```\n"


def main() -> int:
    """Write the drawing where it belongs."""
    page = PAGE.read_text()
    drawn = drawing(imports("nasflow", "flows"))
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: BEGIN + drawn + END, page))
    print(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
