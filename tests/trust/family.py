"""A family: models of one structure, each with some choices of its own."""

import random
from dataclasses import dataclass, replace

import torch

from tests.trust import shapes  # adds genes
from tests.trust.genes import GENES
from tests.trust.model import Draft, Program

OUTPUTS = 3
WORDS = 7
_INPUTS = ("rows", "rows", "images", "images", "sequences", "words")


@dataclass(frozen=True)
class Gene:
    """One part of the structure: its kind, and the seed of its choices."""

    name: str
    seed: int


@dataclass(frozen=True)
class Kin:
    """A member of a family.

    Attributes:
        seed: of its own choices.
        own: the positions of genes with choices of its own.
        without: the positions of genes that it lacks.
    """

    seed: int
    own: frozenset[int] = frozenset()
    without: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Family:
    """A structure and its members.

    Attributes:
        inputs: the kind of values that they read.
    """

    inputs: str
    genes: tuple[Gene, ...]
    kin: tuple[Kin, ...]

    def draft(self, member: int) -> Draft:
        """Return the model of one of its members."""
        kin = self.kin[member]
        with torch.random.fork_rng(devices=()):
            draft = Draft(sample(self.inputs, 2, torch.Generator().manual_seed(0), torch.float32))
            if self.inputs == "words":
                options = random.Random(self.genes[0].seed if self.genes else 0).choice(("", ", padding_idx=0"))
                draft.step(f"{draft.layer(f'nn.Embedding({WORDS}, 4{options})')}(x)")
            for place, gene in enumerate(self.genes):
                if place not in kin.without:
                    own = kin.seed if place in kin.own else ""
                    GENES[gene.name](draft, random.Random(f"{gene.seed} {own}"))
            shapes.finish(draft, OUTPUTS)
        return draft

    def programs(self) -> list[Program]:
        """Return the programs of all members."""
        return [self.draft(member).program() for member in range(len(self.kin))]

    def without_gene(self, place: int) -> "Family":
        """Return the same family with one gene fewer."""

        def moved(places: frozenset[int]) -> frozenset[int]:
            return frozenset(p - (p > place) for p in places if p != place)

        kin = [replace(one, own=moved(one.own), without=moved(one.without)) for one in self.kin]
        return replace(self, genes=self.genes[:place] + self.genes[place + 1 :], kin=tuple(kin))


def sample(inputs: str, batch: int, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Return a batch of such inputs."""
    if inputs == "words":
        return torch.randint(WORDS, (batch, 3), generator=generator)
    shape = {"rows": (4,), "images": (2, 4, 4), "sequences": (3, 4)}[inputs]
    return torch.randn((batch, *shape), generator=generator, dtype=torch.float64).to(dtype)


def draw_family(rng: random.Random, *, hidden: bool) -> Family:
    """Return a random family; with `hidden`, its models may do what a trace can't see."""
    names = [name for name in GENES if name != "hidden"]
    genes = [Gene(rng.choice(names), rng.randrange(1 << 30)) for _ in range(rng.randint(4, 14))]
    if hidden:
        genes.insert(rng.randrange(len(genes)), Gene("hidden", rng.randrange(1 << 30)))
    kin = []
    for _ in range(rng.choice((2, 2, 3, 4))):
        share = rng.choice((0.0, 0.2, 0.4))
        own, without = ({place for place in range(len(genes)) if rng.random() < share / n} for n in (1, 2))
        kin.append(Kin(rng.randrange(1 << 30), frozenset(own), frozenset(without)))
    return Family(rng.choice(_INPUTS), tuple(genes), tuple(kin))
