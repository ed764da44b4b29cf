"""One attempt to train a batch of trials, followed from its submission to its record in the study.

Imports training services, the study and the job's spec and events.
"""
