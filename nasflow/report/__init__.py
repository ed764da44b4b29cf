"""What a search found, for people: leaderboard, curves, model export."""
