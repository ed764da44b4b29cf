"""What a search found, for people: leaderboard, curves, the HTML report, model export, trackers.

Imports the config, trials and a job's events; whoever can read the study fills in its facts.
"""
