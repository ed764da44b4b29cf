"""Ranges of rows in a batch's output, and the splits that produce them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """Rows `start..stop` of a batch's output."""

    batch: int
    start: int
    stop: int


def partitions(pieces: set[Piece], rows: int) -> list[tuple[list[Piece], list[int]]]:
    """Return splits of a value into runs that include all pieces; pieces that overlap need separate splits."""
    splits: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.start, piece.stop)):
        for chain in splits:
            if chain[-1].stop <= piece.start:
                chain.append(piece)
                break
        else:
            splits.append([piece])
    return [_filled(chain, rows) for chain in splits]


def _filled(chain: list[Piece], rows: int) -> tuple[list[Piece], list[int]]:
    """Return the chain, with its gaps filled by pieces that nothing reads, and the pieces' sizes."""
    whole: list[Piece] = []
    at = 0
    for piece in [*chain, Piece(chain[0].batch, rows, rows)]:
        if piece.start > at:
            whole.append(Piece(piece.batch, at, piece.start))
        if piece.start < rows:
            whole.append(piece)
            at = piece.stop
    return whole, [piece.stop - piece.start for piece in whole]
