"""The parts of a program: its docstring, constants, index functions, and the passes."""
