"""Parts of states that keep their layout from one checkpoint to the next: to pack them is to copy their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nasflow.checkpoint.json_text import MisfitError, are_plain, quoted, text_of
from nasflow.checkpoint.kinds import Kind, kind_of, refuse_unstorable

_IMMUTABLE = {bool, float, int, str, type(None)}
_NOTHING = object()
_MARK = "\0"  # in no JSON text, which has it escaped


class Layout:
    """The JSON text of a tree, but for the places of its tensors.

    Args:
        tree: of dicts, lists, tuples, JSON scalars, and tensors that share no memory.

    Attributes:
        kinds: of the tensors.
        lengths: how many elements those of each kind have together.

    Raises:
        MisfitError: the tree contains something else.
    """

    def __init__(self, tree: Any):
        found: list[torch.Tensor] = []

        def place(item: Any) -> str:
            if not isinstance(item, torch.Tensor):
                return known_text(item)
            refuse_unstorable(item)
            found.append(item)
            return _MARK

        self._pieces = text_of(tree, place).split(_MARK)
        self._forms = list(map(_form, found))
        self._kinds = [kind_of(tensor) for tensor in found]
        sizes = dict.fromkeys(self._kinds, 0)
        for kind, tensor in zip(self._kinds, found, strict=True):
            sizes[kind] += tensor.numel()
        self.kinds, self.lengths = tuple(sizes), tuple(sizes.values())
        self._last: tuple[tuple[int, ...], str] | None = None  # starts, and the text with marks for blocks' names

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the tree with these tensors, in its order, has this layout."""
        return list(map(_form, tensors)) == self._forms

    def text(self, blocks: Sequence[str], starts: tuple[int, ...]) -> str:
        """Return the JSON text of the tree.

        Args:
            blocks: the name of the block with the tensors of each kind.
            starts: where the first tensor of each kind is in it, in elements.
        """
        if self._last is None or self._last[0] != starts:
            self._last = starts, self._marked(dict(zip(self.kinds, starts, strict=True)))
        text = self._last[1]
        for number, block in enumerate(blocks):
            text = text.replace(f"{_MARK}{number}{_MARK}", block)
        return text

    def split(self, tensors: Sequence[torch.Tensor]) -> list[Sequence[torch.Tensor]]:
        """Return the tensors of each kind."""
        if len(self.kinds) == 1:
            return [tensors]
        pairs = list(zip(tensors, self._kinds, strict=True))
        return [[tensor for tensor, own in pairs if own == kind] for kind in self.kinds]

    def _marked(self, ends: dict[Kind, int]) -> str:
        parts = [self._pieces[0]]
        for (shape, *_), kind, piece in zip(self._forms, self._kinds, self._pieces[1:], strict=True):
            block = f"{_MARK}{self.kinds.index(kind)}{_MARK}"
            parts += [f'{{"$tensor":["{block}",{ends[kind]},{[*shape]}]}}', piece]
            ends[kind] += shape.numel()
        return "".join(parts)


@dataclass(frozen=True)
class LaidOut:
    """A part of a state: a tree of this layout with these tensors, in its order."""

    layout: Layout
    tensors: Sequence[torch.Tensor]


@dataclass(frozen=True)
class JsonText:
    """A part of a state whose JSON text is known."""

    text: str


def known_text(item: Any) -> str:
    """Return the text of a part that is given as `JsonText`. Raises MisfitError for anything else."""
    if isinstance(item, JsonText):
        return item.text
    raise MisfitError(type(item).__name__)


class ListText:
    """The JSON text of a list that grows at its end only."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._texts: list[str] = []

    def written(self, items: list[Any]) -> JsonText | list[Any]:
        """Return the list's text, for which known items are not written again; the list itself if it has tensors."""
        if items is not self._items or len(items) < len(self._texts):
            self._items, self._texts = items, []
        try:
            self._texts += [text_of(item, known_text) for item in items[len(self._texts) :]]
        except MisfitError:
            return items
        return JsonText(f"[{','.join(self._texts)}]")


class DictText:
    """The JSON text of a dict without tensors, of which few values change from one checkpoint to the next."""

    def __init__(self) -> None:
        self._keys: tuple[Any, ...] = ()
        self._values: list[Any] = []
        self._texts: list[str] = []

    def written(self, tree: dict[str, Any]) -> JsonText | dict[str, Any]:
        """Return the dict's text; the dict itself if there are tensors in it, or keys that JSON does not have."""
        keys = tuple(tree)
        if not are_plain(keys):
            return tree
        if keys != self._keys:
            self._keys, self._values, self._texts = keys, [_NOTHING] * len(keys), [""] * len(keys)
        values, texts = self._values, self._texts
        try:
            for position, value in enumerate(tree.values()):
                if value is not values[position] or type(value) not in _IMMUTABLE:
                    texts[position] = f"{quoted(keys[position])}:{text_of(value, known_text)}"
                    values[position] = value
        except MisfitError:
            return tree
        return JsonText(f"{{{','.join(texts)}}}")


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout
