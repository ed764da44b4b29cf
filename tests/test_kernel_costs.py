"""Costs of kernels: what is kept, what is given to jobs, and what is taken from them."""

import json
import math
import os
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from nasflow.job.events import parse_event
from nasflow.job.spec import JobSpec
from nasflow.kernel_costs import MOST_TOLD, CostCache, KernelCosts, StudyCosts, figure_name, received, sent
from nasflow.testing.service_jobs import script

HERE, THERE = "0" * 16, "f" * 16
KERNEL_COSTS: TypeAdapter[KernelCosts] = TypeAdapter(KernelCosts)


@pytest.fixture
def cache(tmp_path: Path) -> CostCache:
    return CostCache(tmp_path / "cache")


def test_a_kernel_that_cannot_run_travels_as_json() -> None:
    figures = {"a": 1e-5, "b": math.inf}
    assert json.loads(json.dumps(sent(figures), allow_nan=False)) == {"a": 1e-5, "b": None}
    assert received(sent(figures)) == figures


def test_long_and_odd_names_are_bounded_and_stay_distinct() -> None:
    long = [figure_name("Loop x2: " + "a" * 1000 + end) for end in "xy"]
    assert long[0] != long[1]
    assert {len(name) for name in long} == {400}
    assert figure_name(long[0]) == long[0]
    assert figure_name("a\x1b\udce9") == r"a\x1b\udce9"


def test_what_is_there_is_not_replaced(cache: CostCache) -> None:
    cache.add(HERE, {"a": 1.0, "b": math.inf})
    cache.add(HERE, {"b": 2.0, "c": 3.0})
    assert list(cache.read(HERE).items()) == [("a", 1.0), ("b", math.inf), ("c", 3.0)]
    assert [path.name for path in cache.path(HERE).parent.iterdir()] == [cache.path(HERE).name]


@pytest.mark.parametrize("content", ["", "[]", "7", '{"a": "x"}', '{"a": NaN, "b": -1.0, "c": true, "\\ud800": 1.0}'])
def test_a_damaged_file_has_no_figures(cache: CostCache, content: str) -> None:
    cache.add(HERE, {})
    cache.path(HERE).write_text(content)
    assert cache.read(HERE) == {}


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    costs = StudyCosts(CostCache(tmp_path / "file" / "cache"))
    costs.add(HERE, {"a": 1.0})
    assert costs.given() == {HERE: {"a": 1.0}}
    assert "costs of kernels can't be saved" in caplog.text


def test_a_study_gives_what_is_kept_and_what_its_jobs_told_first(cache: CostCache) -> None:
    cache.add(HERE, {"a": 1.0})
    costs = StudyCosts(cache)
    costs.add(HERE, {"a": 5.0, "b": None})
    costs.add(THERE, {"a": 6.0})
    costs.add(THERE, {"a": 7.0})
    assert costs.given() == {HERE: {"a": 1.0, "b": None}, THERE: {"a": 6.0}}
    assert StudyCosts(cache).given() == costs.given(), "the next controller gives the same"
    cache.path(HERE).unlink()
    assert costs.given()[HERE]["a"] == 1.0, "also if another search changes the files meanwhile"


def test_other_files_of_the_folder_are_no_places(cache: CostCache) -> None:
    cache.add(HERE, {"a": 1.0})
    for name in ("kernel-costs-old.json", "kernel-costs-" + "0" * 16 + ".123-456"):
        (cache.path(HERE).parent / name).write_text('{"a": 2.0}')
    cache.path("1" * 16).symlink_to("nowhere")
    assert StudyCosts(cache).given() == {HERE: {"a": 1.0}}


def test_a_job_is_given_no_more_than_its_file_may_have(cache: CostCache) -> None:
    for number in range(12):
        place = f"{number:016x}"
        cache.add(place, {f"{place} {index}": 1.0 for index in range(3000)})
        os.utime(cache.path(place), (number, number))
    given = StudyCosts(cache).given()
    assert {place: len(figures) for place, figures in given.items()} == {
        f"{11:016x}": 3000,
        f"{10:016x}": 3000,
        f"{9:016x}": 2000,
    }, "the newest places"
    assert f"{9:016x} 2999" in given[f"{9:016x}"], "and their newest figures"
    assert KERNEL_COSTS.validate_python(given) == given


def test_jobs_cannot_fill_the_disk_or_the_memory(cache: CostCache) -> None:
    costs = StudyCosts(cache)
    for number in range(30):
        costs.add(f"{number:016x}", {"a": 1.0})
    assert len(cache.places()) == 16
    for part in range(30):
        costs.add(HERE, {f"{part} {index}": 1.0 for index in range(MOST_TOLD)})
    assert 48_000 < len(cache.read(HERE)) <= 50_000


@pytest.mark.parametrize(
    ("place", "figures"),
    [
        ("../../evil", {}),
        (HERE + "\n", {}),
        (HERE, {"a": -1.0}),
        (HERE, {"a": math.inf}),
        (HERE, {"a": math.nan}),
        (HERE, {"a": "fast"}),
        (HERE, {"a" * 401: 1.0}),
        (HERE, {str(index): 1.0 for index in range(MOST_TOLD + 1)}),
        (HERE, []),
    ],
)
def test_what_a_host_tells_is_checked(place: str, figures: object) -> None:
    with pytest.raises(ValidationError):
        parse_event(json.dumps({"kind": "measured", "at": 1.0, "place": place, "figures": figures}))


def test_a_job_file_is_checked_and_may_be_of_an_older_version() -> None:
    spec = script("job")
    old = json.loads(spec.model_dump_json())
    del old["kernel_costs"]
    assert JobSpec.model_validate(old) == spec
    for costs in ({"elsewhere": {}}, {HERE: {str(i): 1.0 for i in range(9000)}}, {f"{i:016x}": {} for i in range(9)}):
        with pytest.raises(ValidationError, match="kernel_costs"):
            JobSpec.model_validate(old | {"kernel_costs": costs})
