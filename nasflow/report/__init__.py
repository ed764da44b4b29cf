"""The results of a search for people: leaderboard, curves, the HTML report, model export, trackers.

Imports the config, trials and a job's events. The facts of a study come from code that can read it.
"""
