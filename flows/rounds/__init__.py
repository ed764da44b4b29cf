"""A sampling round: its flow, its tasks, and rounds that overlap. Imports `budget`, `session` and `ui` of `flows`."""
