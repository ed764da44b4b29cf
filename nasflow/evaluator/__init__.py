"""How one candidate is trained and scored."""
