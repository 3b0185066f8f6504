"""Faults at random moments, in programs of every form: how long until all has ended, and who is named.

`__main__.py` runs a campaign, `cases.py` says what is run, `one_run.py` runs one case, `fork_start.py` starts
processes that have torch already, and `table.py` writes the table.
"""
