"""Golden programs: emitted text is read and reviewed as code. `pytest --update-golden` writes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import CASES

from synth.codegen.render import render
from synth.codegen.sbatch import render_sbatch

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = {
    "summa_2_5d": "conv_2p5d.py",
    "strided_shared": "conv_strided_tiles.py",
    "ker_stays_sums": "conv_ker_stays.py",
    "in_stays": "conv_in_stays.py",
    "grouped": "conv_grouped.py",
    "spatial": "conv_spatial.py",
    "volume": "conv3d_volume.py",
    "idle": "matmul_idle.py",
    "matrix_3d": "matmul_3d.py",
    "matrix_cannon": "matmul_skewed.py",
    "back_2_5d": "backward_data_2p5d.py",
    "filter_2_5d": "backward_filter_2p5d.py",
    "training_3d": "training_3d.py",
    "training_tiles": "training_tiles.py",
    "training_streams": "training_streams.py",
    "training_skewed": "training_skewed.py",
    "training_up": "training_transposed.py",
    "training_first": "training_first_layer.py",
}


def compare(path: Path, text: str, update: bool) -> None:
    if update:
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, (
        "if this is meant: pytest --update-golden, then read the diff"
    )


@pytest.mark.parametrize("case", NAMES)
def test_program(case: str, update_golden: bool) -> None:
    text = render(CASES[case], command=f"synth emit layer.yaml --procs {CASES[case].procs}")
    compare(GOLDEN / NAMES[case], text, update_golden)


@pytest.mark.parametrize("case", ["training_3d", "training_streams", "training_up", "training_first"])
def test_module(case: str, update_golden: bool) -> None:
    """Ker may be on its way before a module's turn, and sums of dKer after it."""
    command = f"synth emit layer.yaml --procs {CASES[case].procs} --pass training --module"
    text = render(CASES[case], command=command, module=True)
    compare(GOLDEN / f"module_{NAMES[case].removeprefix('training_')}", text, update_golden)


def test_standalone(update_golden: bool) -> None:
    command = "synth emit layer.yaml --procs 8 --standalone"
    compare(GOLDEN / "standalone.py", render(CASES["summa"], True, command), update_golden)


def test_sbatch(update_golden: bool) -> None:
    text = render_sbatch(
        CASES["summa_2_5d"], "conv 2p5d.py", 4, cpus_per_task=2, gpus_per_task=1, partition="gpu"
    )
    compare(GOLDEN / "job.sbatch", text, update_golden)
