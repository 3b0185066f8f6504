"""What nobody here wrote, run between planned layers on ranks and compared with one process.

torch's databases of modules and operators, and the argument grids of public tests of spatial convolutions
and poolings. `__main__.py` runs and goes on, `selection.py` chooses cases, and `cases.py` says what a case is
and stores what came of it. `databases.py` asks torch for samples, `embedded.py` puts a sample between planned
layers, `cuts.py` says how it is divided, `grids.py` has the layers of public tests, and `prepared.py` makes
what is run. `one_case.py` is what every rank does, `pool.py` keeps the ranks, `table.py` writes the page.
"""
