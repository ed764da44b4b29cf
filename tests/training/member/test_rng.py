"""Streams: what runs inside draws as if nothing else ever drew."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from nasflow.checkpoint.packing import pack, unpack
from nasflow.training.member import python_random
from nasflow.training.member.rng import RngStream


def draw(count: int = 3) -> list[float]:
    """Numbers from each global generator, in their various ways."""
    numbers: list[float] = []
    for _ in range(count):
        numbers += [*torch.rand(2).tolist(), torch.randn(()).item(), float(torch.randint(1000, ()))]
        numbers += [*np.random.rand(2).tolist(), float(np.random.normal()), float(np.random.randint(1000))]
        numbers += [random.random(), random.gauss(0, 1), float(random.randrange(1000))]
    return numbers


def parts(stream: RngStream, times: int, between: Any = lambda: None) -> list[list[float]]:
    drawn = []
    for _ in range(times):
        with stream:
            drawn.append(draw())
        between()
    return drawn


def test_each_seed_has_its_own_numbers() -> None:
    first, second = parts(RngStream(1), 2)
    assert parts(RngStream(1), 2) == [first, second]
    other = parts(RngStream(2), 1)[0]
    assert not set(first) & set(second)
    assert not set(first) & set(other)


def test_what_happens_outside_changes_nothing_inside() -> None:
    undisturbed = parts(RngStream(7), 4)
    other = RngStream(8)

    def disturb() -> None:
        draw()
        parts(other, 1)
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        np.random.normal()

    disturb()
    assert parts(RngStream(7), 4, disturb) == undisturbed


def test_what_happens_inside_changes_nothing_outside() -> None:
    def outside() -> None:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)

    outside()
    expected = draw(4) + draw(4)  # an even number of Gaussians: NumPy's cached second one is documented to be lost
    outside()
    found = draw(4)
    with RngStream(5):
        draw()
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
    assert found + draw(4) == expected


def test_seeding_inside_stays_inside_and_is_remembered() -> None:
    def seeded_and_left() -> RngStream:
        stream = RngStream(5)
        with stream:
            torch.manual_seed(1)
            np.random.seed(1)
            random.seed(1)
        return stream

    assert parts(seeded_and_left(), 2) == parts(seeded_and_left(), 2)
    with RngStream(9):
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        expected = draw()
    assert parts(seeded_and_left(), 1) == [expected]


def test_streams_nest() -> None:
    alone = parts(RngStream(1), 2)
    inner_alone = parts(RngStream(2), 1)
    outer = RngStream(1)
    with outer:
        first = draw()
        with RngStream(2):
            inner = draw()
        with RngStream(3):
            draw()
    with outer:
        second = draw()
    assert [first, second] == alone
    assert [inner] == inner_alone


def test_an_exception_inside_leaves_the_outer_numbers_alone() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    before = (torch.get_rng_state(), np.random.get_bit_generator(), random.getstate())
    stream = RngStream(4)
    with pytest.raises(KeyError), stream:
        draw()
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_bit_generator() is before[1]
    assert random.getstate() == before[2]
    untroubled = RngStream(4)
    parts(untroubled, 1)
    assert parts(stream, 1) == parts(untroubled, 1)


@pytest.mark.parametrize("drawn_before", [0, 1, 5])
def test_a_saved_position_goes_on_exactly(drawn_before: int) -> None:
    stream = RngStream(2**62 + 11)
    parts(stream, drawn_before)
    values, tensors = pack(stream.state_dict())
    expected = parts(stream, 3)
    other = RngStream(0)
    parts(other, 2)
    other.load_state_dict(unpack(values, tensors))
    assert parts(other, 3) == expected


DRAWS: dict[str, Any] = {
    "torch": lambda: torch.rand(1).item(),
    "numpy": np.random.rand,
    "python": random.random,
    "gauss": lambda: random.gauss(0, 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_no_draw_is_missed(name: str) -> None:
    """Most of a state is the one before, where nothing was drawn: but never where something was."""
    stream, again = RngStream(5), RngStream(0)
    for _ in range(700):  # past where a generator makes new words
        saved = pack(stream.state_dict())
        with stream:
            drawn = DRAWS[name]()
        again.load_state_dict(unpack(*saved))
        with again:
            assert DRAWS[name]() == drawn


def test_pythons_numbers_are_read_where_they_are() -> None:
    """As `random.getstate` and `setstate` would, in both directions."""
    random.seed(5)
    random.gauss(0, 1)
    plain, state = random.getstate(), python_random.get_state()
    assert python_random.as_plain(state) == plain
    drawn = [random.random() for _ in range(700)]
    for going_back in (lambda: python_random.set_state(state), lambda: random.setstate(plain)):
        going_back()
        assert [random.random() for _ in range(700)] == drawn
    assert python_random.as_plain(python_random.from_plain(plain)) == plain
    for seed in (0, 7, 2**62):
        assert python_random.as_plain(python_random.seeded(seed)) == random.Random(seed).getstate()
