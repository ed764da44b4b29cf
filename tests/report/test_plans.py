"""How a round was merged, as Markdown."""

from nasflow.job.events import DIFFERS, Planned, PlannedUnit, parse_event
from nasflow.report.plans import merging_sentence, plans_markdown
from nasflow.report.text import numbers_text

FUSED = PlannedUnit(
    members=[0, 1, 2, 7], operations=40, fused=36, kernels={"baddbmm": 3, "loop": 1}, gathers=2,
    seconds=0.001, seconds_alone=0.0036,
)  # fmt: skip
UNMEASURED = PlannedUnit(members=[4, 5], operations=10, fused=10, kernels={"dense": 1}, gathers=0)
FIRST = Planned(units=[FUSED], alone={3: "it can't be traced: a | b <script>", 6: "it can't be traced: a | b <script>"})
LATER = Planned(units=[UNMEASURED], alone={8: "there is no other to fuse it with"})


def as_told(event: Planned) -> dict[str, object]:
    told = parse_event(event.model_dump_json())
    assert told == event
    return told.model_dump(mode="json")


def test_a_table_for_each_job() -> None:
    text = plans_markdown(3, {"Batch 0: trials 0-8": [as_told(FIRST), as_told(LATER)], "Batch 1": [as_told(LATER)]})
    assert text.startswith("# Merging in round 3\n\n## Batch 0: trials 0-8\n\n| trials | members | operations fused |")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    assert rows[2] == ["0-2, 7", "4", "36 of 40", "2", "3 baddbmm, 1 loop", "1.00", "3.60", "3.6x"]
    assert rows[3] == ["4-5", "2", "10 of 10", "0", "1 dense", "", "", ""]
    assert "- trials 3, 6: it can't be traced: a \\| b &lt;script>\n- trials 8: there is no other" in text
    assert text.index("## Batch 1") > text.index("- trials 8")


def test_a_job_in_which_nothing_is_fused() -> None:
    alone = Planned(units=[], alone={0: "merge.fuse is never", 1: "merge.fuse is never"})
    text = plans_markdown(0, {"Batch 0": [as_told(alone)]})
    assert text == "# Merging in round 0\n\n## Batch 0\n\nNot merged:\n\n- trials 0-1: merge.fuse is never"


def test_trials_that_differ_come_first() -> None:
    alone = Planned(units=[UNMEASURED], alone={2: f"{DIFFERS}: its loss | <b>", 3: "there is no other", 1: DIFFERS})
    assert alone.differing.keys() == {1, 2}
    text = plans_markdown(0, {"Batch 0": [as_told(alone)]}, alone.differing)
    assert text.startswith("# Merging in round 0\n\n## Trials that would train differently when merged\n\n")
    section = text.partition("\n\n## Batch 0\n\n")[0]
    assert section.endswith(f"are right.\n\n- trials 1: {DIFFERS}\n- trials 2: {DIFFERS}: its loss \\| &lt;b>")


def test_many_units_are_counted_not_shown() -> None:
    plan = Planned(units=[UNMEASURED] * 60, alone={})
    text = plans_markdown(0, {"Batch 0": [as_told(plan)]})
    assert text.count("10 of 10") == 50
    assert "… and 10 more units" in text


def test_the_round_in_a_line() -> None:
    jobs = {"Batch 0": [as_told(FIRST), as_told(LATER)], "Batch 1": [as_told(Planned(units=[], alone={9: "x"}))]}
    assert merging_sentence(jobs) == "6 of 10 trials merged into 2 units, in 2 jobs"


def test_numbers_for_people() -> None:
    assert numbers_text([5, 0, 2, 1, 8, 9]) == "0-2, 5, 8-9"
