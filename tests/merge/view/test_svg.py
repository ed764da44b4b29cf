"""The picture of a plan: every step has its boxes, nothing lies over anything else, and texts keep to their places."""

import random
import re
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch

from nasflow.merge.planning.planner import Planner
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.trace.graph import trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.view.summary import Outline, Price, Step, outline
from nasflow.merge.view.svg import plan_svg
from nasflow.space.ready import cell_cnn, mlp
from nasflow.space.space import Space

SVG = "{http://www.w3.org/2000/svg}"
WIDTHS = {"thin": 0.35, "usual": 0.58, "wide": 0.85}  # of Helvetica's and Arial's characters, in the font's size


@dataclass(frozen=True)
class Box:
    """A rectangle in the picture."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def box(rect: ET.Element) -> Box:
    left, top, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
    return Box(left, top, left + width, top + height)


def width(text: ET.Element) -> float:
    kinds = ["thin" if c in "iljtfrI.,;: ·()" else "wide" if c in "mwMW→…" else "usual" for c in text.text or ""]
    return sum(WIDTHS[kind] for kind in kinds) * float(text.get("font-size", "11"))


def unit(space: str, members: int, seed: int) -> Outline:
    build, batch = {"mlp": (mlp, (4, 64)), "cells": (cell_cnn, (4, 1, 8, 8))}[space]
    rng, candidates = random.Random(seed), Space.of(build)
    models = [candidates.build(candidates.sample(rng)) for _ in range(members)]
    plan = Planner().plan([trace(model, Spec.batch(torch.zeros(batch))) for model in models])
    streams = [nullcontext()] * members
    return outline(MergedModel(plan, streams, [torch.Generator() for _ in models], lambda _, run: run()))


@pytest.fixture(
    scope="module", params=[("mlp", 4, 0), ("mlp", 12, 1), ("cells", 2, 3), ("cells", 6, 0), ("cells", 7, 9)], ids=str
)
def drawn(request: pytest.FixtureRequest) -> tuple[Outline, int, ET.Element]:
    space, members, seed = request.param
    outlined = unit(space, members, seed)
    prices = [Price(1.234e-3 * number, None, None) for number in range(len(outlined.steps))]
    title = ["a search: " + "many words of it " * 9, "and more " * 19]
    return outlined, members, ET.fromstring(plan_svg(outlined, range(10, 10 + members), prices, title))


def step_boxes(picture: ET.Element) -> list[list[Box]]:
    """Of each step, and of the outputs, those boxes that stand for it."""
    return [[box(rect) for rect in group.iter(f"{SVG}rect")] for group in picture.iter(f"{SVG}g")]


def test_every_step_covers_the_lanes_of_its_members(drawn) -> None:
    outlined, members, picture = drawn
    names = [text for text in picture.iter(f"{SVG}text") if (text.text or "").startswith("trial ")]
    assert [text.text for text in names] == [f"trial {10 + member}" for member in range(members)]
    middles = [float(text.attrib["x"]) for text in names]
    boxes = step_boxes(picture)
    assert len(boxes) == len(outlined.steps) + 1
    for step, own in zip(outlined.steps, boxes, strict=False):
        covered = [lane for lane, x in enumerate(middles) if any(one.left < x < one.right for one in own)]
        assert covered == list(step.members)
        if step.kind == "loop":
            assert len(own) == len(step.members)
    assert all(boxes[-1][0].left < x < boxes[-1][0].right for x in middles)


def test_no_box_lies_over_another_or_outside(drawn) -> None:
    _, _, picture = drawn
    boxes = [one for own in step_boxes(picture) for one in own]
    whole = Box(0, 0, float(picture.attrib["width"]), float(picture.attrib["height"]))
    for index, one in enumerate(boxes):
        assert whole.left < one.left < one.right < whole.right
        assert whole.top < one.top < one.bottom < whole.bottom
        assert not any(one.overlaps(other) for other in boxes[:index])


def test_texts_keep_to_their_boxes(drawn) -> None:
    _, _, picture = drawn
    boxes = [one for own in step_boxes(picture) for one in own]
    right = float(picture.attrib["width"])
    inside = 0
    for text in picture.iter(f"{SVG}text"):
        x, y, room = float(text.attrib["x"]), float(text.attrib["y"]), width(text)
        if text.get("text-anchor") == "start":
            assert x + room < right
        home = [one for one in boxes if one.left < x < one.right and one.top < y < one.bottom]
        if home and text.get("text-anchor") is None and text.text != "gather":
            inside += 1
            assert home[0].left <= x - room / 2
            assert x + room / 2 <= home[0].right
    assert inside > len(boxes)


def test_values_flow_down_from_box_to_box(drawn) -> None:
    outlined, members, picture = drawn
    boxes = step_boxes(picture)
    ends = [(one, "bottom") for own in boxes for one in own] + [(one, "top") for own in boxes for one in own]
    edges = [edge for path in picture.iter(f"{SVG}path") for edge in path.attrib["d"].split("M") if "V" in edge]
    assert len(edges) == sum(len(step.reads) for step in outlined.steps) + members
    for edge in edges:
        x, start = map(float, edge.partition("V")[0].partition("L")[0].split())
        stop = float(edge.rpartition("V")[2])
        assert start < stop
        assert any(side == "bottom" and one.left < x < one.right and one.bottom == start for one, side in ends)
        assert any(side == "top" and one.left < x < one.right and one.top == stop for one, side in ends)
    for step, own in zip(outlined.steps, boxes, strict=False):
        assert all(boxes[source][0].bottom < own[0].top for source, _ in step.reads)


def test_gathers_are_marked(drawn) -> None:
    outlined, _, picture = drawn
    marks = [text for text in picture.iter(f"{SVG}text") if text.text == "gather" and text.get("fill") == "#fff"]
    assert len(marks) == sum(step.gathers > 0 for step in outlined.steps) + (outlined.output_gathers > 0)


def test_names_are_no_markup() -> None:
    step = Step("<b>&", "8 → 8", (0,), "loop", "loop", 'no "kernel" <here>', (), 0)
    text = plan_svg(Outline((step,), (0,), 0, 1, 1), [3])
    assert "<b>" not in text
    titles = [title.text for title in ET.fromstring(text).iter(f"{SVG}title")]
    assert titles[0] == '<b>&; 8 → 8; loop; no "kernel" <here>'


def test_it_reads_on_any_ground_and_needs_nothing_else(drawn) -> None:
    _, _, picture = drawn
    ground = next(picture.iter(f"{SVG}rect"))
    assert ground.attrib["fill"] == "#fff"
    assert box(ground).right >= float(picture.attrib["width"]) - 1
    text = ET.tostring(picture, encoding="unicode")
    assert not re.search(r"<(style|script|image|foreignObject)|url\(|href", text)
