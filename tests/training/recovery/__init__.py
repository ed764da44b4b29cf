"""Jobs that are interrupted, resumed, killed or left by a member."""
