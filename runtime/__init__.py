"""What emitted programs call: the parts that are the same in every program.

Imports torch and the standard library only. A program emitted with --standalone carries
the functions it uses in its own text and does not need this package.
"""
