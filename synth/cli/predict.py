"""`synth predict`: how long a network takes with a strategy; `synth calibrate`: times of its layers here."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from synth.base.units import whole


def register(commands: Any) -> None:
    """The commands `predict` and `calibrate`."""
    predict = commands.add_parser(
        "predict", help="time and memory of a network under a strategy on a machine"
    )
    predict.add_argument("network", metavar="NET", help="network file (YAML)")
    predict.add_argument("--procs", type=whole, metavar="P", required=True, help="processes")
    predict.add_argument(
        "--machine", metavar="FILE", required=True, help="machine file, or a shipped machine"
    )
    predict.add_argument(
        "--strategy", metavar="NAME", help="one strategy, layer by layer (default: compare all)"
    )
    predict.add_argument("--profile", metavar="CSV", help="measured times per layer: layer,forward_s,...")
    predict.add_argument("--batch", type=int, metavar="B", help="samples of one step (default: the file's N)")
    predict.add_argument("--groups", type=int, metavar="P1", help="data groups of a hybrid strategy")
    predict.add_argument("--segments", type=int, default=8, metavar="S", help="segments of a pipeline (8)")
    predict.add_argument(
        "--flows", type=float, metavar="F", help="groups that share a link (default: derived)"
    )
    predict.add_argument("--reuse", type=float, default=1.0, metavar="G", help="memory reuse factor, 0 to 1")
    predict.add_argument("--json", action="store_true", help="print one JSON object")
    predict.set_defaults(run=_predict)
    calibrate = commands.add_parser(
        "calibrate", help="measure this machine, or every layer of a network on it"
    )
    calibrate.add_argument("network", metavar="NET", nargs="?", help="network file (YAML): times per layer")
    calibrate.add_argument(
        "--procs", type=whole, metavar="P", help="without NET: measure the machine with P ranks started here"
    )
    calibrate.add_argument("--batch", type=int, default=1, metavar="B", help="samples per measurement (1)")
    calibrate.add_argument("--repeat", type=int, default=7, metavar="N", help="repetitions (7)")
    calibrate.add_argument("--timeout", type=float, default=60.0, metavar="S", help="longest wait of a rank")
    calibrate.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")
    calibrate.set_defaults(run=_calibrate)


def _predict(args: argparse.Namespace) -> int:
    from synth.machine.file import load_machine
    from synth.network.file import load_network
    from synth.prediction.predict import PredictionRequest, compare, predict
    from synth.prediction.profile import ComputeTimes, NominalRate, load_profile

    network, machine = load_network(args.network), load_machine(args.machine)
    times: ComputeTimes = load_profile(args.profile, network) if args.profile else NominalRate(machine)
    request = PredictionRequest(
        network,
        machine,
        times,
        args.procs,
        args.batch or network.input[0],
        groups=args.groups,
        segments=args.segments,
        flows=args.flows,
        reuse=args.reuse,
    )
    made = predict(request, args.strategy) if args.strategy else compare(request)
    sys.stdout.write(json.dumps(made.to_json(), indent=1) + "\n" if args.json else f"{made}\n")
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    from synth.base.atomic_write import put
    from synth.base.errors import UsageError

    if args.network and args.procs is not None:
        raise UsageError(
            f"calibrate measures the layers of {args.network}, or the machine with --procs {args.procs}; "
            "leave one of them out"
        )
    if args.repeat < 1 or args.batch < 1 or not 0 < args.timeout < 1e9:
        raise UsageError(
            f"--repeat {args.repeat}, --batch {args.batch}, --timeout {args.timeout:g}: all must be positive"
        )
    text: str | None
    if args.network:
        from synth.network.file import load_network
        from synth.prediction.calibrate_profile import calibrate

        network = load_network(args.network)
        text = calibrate(network, args.batch, args.repeat, lambda t: print(t, file=sys.stderr))
    else:
        from synth.launch.calibrate import calibrate_machine

        text = calibrate_machine(args.procs, _machine_name(args.output), args.repeat, args.timeout)
    if text is not None:
        put(text, args.output)
    return 0


def _machine_name(output: str | None) -> str:
    """The machine's name: that of the file, where it can be one."""
    from pathlib import Path

    stem = Path(output).stem if output else ""
    return stem if stem and all(c.isalnum() or c in "-_." for c in stem) else "here"
