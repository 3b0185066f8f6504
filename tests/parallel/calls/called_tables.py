"""All models that are called, by table and name."""

from __future__ import annotations

from collections.abc import Callable

from called import Called
from constant_calls import CONSTANTS, SEVERAL
from function_calls import FUNCTIONS, IN_PLACE
from module_calls import MODULES
from reduced_calls import REDUCED
from spectral import SPECTRAL
from wordless_calls import WORDLESS
from written_calls import WRITES

TABLES: dict[str, dict[str, Callable[[], Called]]] = {
    "modules": MODULES,
    "functions": FUNCTIONS,
    "in place": IN_PLACE,
    "writes": WRITES,
    "spectral": SPECTRAL,
    "constants": CONSTANTS,
    "several": SEVERAL,
    "reduced": REDUCED,
    "wordless": WORDLESS,
}
