"""The command line: `kvrooms bootstrap | demo | bench | soak | fuzz | verify | conformance | spec`.

Each command imports its implementation when it runs: `kvrooms --help` costs no torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .. import __version__
from ..protocol.errors import KvroomsError

app = typer.Typer(
    name="kvrooms",
    help="Rooms that carry a prompt's KV cache from a prefill process to a decode process over NIXL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Json = Annotated[
    bool, typer.Option("--json", help="Plain lines and one JSON object as the last line, no live display.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvrooms {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def bootstrap(
    host: Annotated[
        str, typer.Option(help="Address to bind. Anyone who reaches it can register engines, hence the default.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to bind; 0 lets the system choose.")] = 0,
    advertise: Annotated[
        str | None, typer.Option(help="Host to print in the URL, where it differs from the one bound.")
    ] = None,
    max_registrations: Annotated[int, typer.Option(min=1, help="How many engines may be registered.")] = 4096,
    json: Annotated[bool, typer.Option("--json", help="Print the JSON line only, nothing for people.")] = False,
) -> None:
    """Serve a bootstrap registry until SIGTERM or SIGINT.

    The only line on standard output is {"bootstrap": "http://HOST:PORT"}, printed once the registry answers.
    """
    from .bootstrap import main as run

    raise typer.Exit(run(host, port, advertise=advertise, max_registrations=max_registrations, quiet=json))


@app.command()
def demo(
    prompt: Annotated[str | None, typer.Option(help="A prompt of your own, instead of the prepared requests.")] = None,
    model: Annotated[
        str | None, typer.Option(help="A local model folder, or one kind: dense, sliding, hybrid. Default: all kinds.")
    ] = None,
    json: _Json = False,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="Seconds after which the demo is ended as failed. Default: 90, and 15 for each further rank.",
        ),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, max=64, help="Requests per model, all at the same time.")] = 3,
    tp: Annotated[
        str,
        typer.Option(
            metavar="P:D",
            help="Split each model among P prefill and D decode ranks: a process each, with its own heads only.",
        ),
    ] = "1:1",
) -> None:
    """Move real models' KV caches between processes over NIXL and check what decode makes of them.

    The last line of standard output is one JSON object; exit status 1 when anything differs from the reference.
    """
    from ..demo.run import DemoOptions
    from ..demo.run import main as run

    options = DemoOptions(prompt=prompt, model=model, json=json, timeout_s=timeout_s, requests=requests, tp=tp)
    raise typer.Exit(run(options))


@app.command()
def bench(
    json: _Json = False,
    room: Annotated[
        list[str] | None, typer.Option(help="A room size: 4KiB, 512KiB, 64MiB. May be repeated. Default: all.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs per figure; the median is shown.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rooms and runs: a look, not a measurement.")] = False,
) -> None:
    """Measure rooms beside a floor that moves the same bytes with no protocol at all."""
    from ..bench.run import BenchOptions
    from ..bench.run import main as run

    raise typer.Exit(run(BenchOptions(json=json, rooms=tuple(room or ()), runs=runs, quick=quick)))


@app.command()
def soak(
    rooms: Annotated[int | None, typer.Option(min=1, help="How many rooms. Default: 3000.")] = None,
    fault_rate: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=0.5, help="Share of rooms with a fault of their own; 0 also means no kills. Default: 0.1."
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1.0, help="Begin no more rooms after so many seconds. Default: no limit.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of every choice; what is left to timing is not repeated.")] = 0,
    json: _Json = False,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Instead: a shape of docs/topologies.md, one process per rank, or all. May be repeated."),
    ] = None,
    corrupt: Annotated[
        bool, typer.Option("--corrupt", help="With --shape: one rank changes a byte, which must be found. A control.")
    ] = False,
) -> None:
    """Carry rooms between real processes that are aborted, stopped, killed and lied to, and check every byte.

    With --shape: rooms between many ranks of unlike layouts, nothing done to them; every byte of every rank's memory is
    compared with an independent oracle. The last line of standard output is one JSON object; exit status 1 when
    anything did not hold. SIGINT or SIGTERM begins no more rooms, or shapes, and ends with the report.
    """
    if shape:
        for option, value in (("--rooms", rooms), ("--fault-rate", fault_rate), ("--seconds", seconds)):
            if value is not None:
                raise typer.BadParameter(f"{option} does not go with --shape")
        from ..soak.ranks.run import ShapeOptions
        from ..soak.ranks.run import main as run_shapes

        raise typer.Exit(run_shapes(ShapeOptions(tuple(shape), seed, corrupt)))
    if corrupt:
        raise typer.BadParameter("--corrupt goes with --shape")
    from ..soak.run import SoakOptions
    from ..soak.run import main as run

    given = {"rooms": rooms, "fault_rate": fault_rate}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    raise typer.Exit(run(SoakOptions(seconds=seconds, seed=seed, json=json, **chosen)))


@app.command()
def fuzz(
    inputs: Annotated[int, typer.Option(min=0, help="How many inputs to the decoders.")] = 200_000,
    messages: Annotated[int, typer.Option(min=0, help="How many hostile messages to live engines.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="All inputs and messages follow from it.")] = 1,
    first: Annotated[int, typer.Option(min=0, help="The number of the first input.")] = 0,
    json: _Json = False,
    replay: Annotated[str | None, typer.Option(help="One input, DECODER:HEX, and nothing else.")] = None,
) -> None:
    """Feed every decoder what it must not bear, then attack live engines while honest rooms run between them.

    The last line of standard output is one JSON object; exit status 1 when anything was found.
    """
    from ..fuzz.run import FuzzOptions
    from ..fuzz.run import main as run

    raise typer.Exit(run(FuzzOptions(inputs, messages, seed, first, json=json, replay=replay)))


@app.command()
def verify(
    quick: Annotated[
        bool, typer.Option("--quick", help="A look in about a minute: smaller scopes, fewer rooms.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Above 10 million states, and hypothesis by the hour.")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="With --deep: how long hypothesis searches. Default: 60.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Replay one simulated run exactly, with its timeline, and nothing else.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes at a time.")] = 2,
    json: _Json = False,
) -> None:
    """Show the properties of the rooms on the code that runs: exploration, simulation, hypothesis, mutants.

    Exit status 0 when every property holds, 1 when one is broken, 2 when one could not be shown.
    """
    if quick and deep:
        raise typer.BadParameter("--quick and --deep exclude each other")
    if minutes is not None and not deep:
        raise typer.BadParameter("--minutes goes with --deep")
    from .verify import main as run
    from .verify import main_seed

    if seed is not None:
        raise typer.Exit(main_seed(seed, json=json))
    scope: Literal["quick", "default", "deep"] = "quick" if quick else "deep" if deep else "default"
    raise typer.Exit(run(scope=scope, minutes=minutes, json=json, workers=workers))


@app.command()
def conformance(  # noqa: PLR0913, PLR0917 - typer makes an option of each
    subject: Annotated[
        str, typer.Argument(help="kvrooms, kvrooms-sim, sglang, module:Class, or path/to/file.py:Class.")
    ],
    version: Annotated[str | None, typer.Option(help="With sglang: the published version.")] = None,
    wheel: Annotated[str | None, typer.Option(help="With sglang: a wheel file instead of a version.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The results as Markdown.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write each counterexample as a space-time diagram to this file.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--property", help="Only this property. May be repeated.")] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Examples per property, about.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Seconds per property, about.")] = None,
    patience: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds without any change after which a real subject hangs.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything that is drawn.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the subject's class. May be repeated.")
    ] = None,
) -> None:
    """Point the properties of the rooms at an implementation, and show the smallest example that breaks each.

    Exit status 0 when every property holds, 1 when one is broken, 2 when none is but one is unknown.
    """
    from .conformance import ConformanceOptions
    from .conformance import main as run

    options = ConformanceOptions(
        subject, version, wheel, json, markdown, html, tuple(only or ()), examples, seconds, patience, seed,
        tuple(option or ()),
    )  # fmt: skip
    raise typer.Exit(run(options))


@app.command()
def spec(
    json: Annotated[bool, typer.Option("--json", help="The same as one JSON object.")] = False,
) -> None:
    """Print the protocol reference as the running tables have it: Markdown with Mermaid diagrams."""
    from .spec import main as run

    raise typer.Exit(run(json=json))


def main() -> None:
    """Run the command line and exit: 0 when all is well, 1 when the command failed, 2 for a wrong argument."""
    try:
        app()
    except KvroomsError as error:
        typer.echo(f"kvrooms: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
