"""The command `turnout`. A typed error prints one line on stderr and exits with 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.errors import MissingExtra, TurnoutError

if TYPE_CHECKING:
    import typer

EXIT_ERROR = 2


def build_app() -> typer.Typer:
    """Make the typer application.

    Returns:
        The application with the commands `simulate`, `experiment`, `engine`, `serve`, `doctor`, `bench`, `replay` and
        `version`.

    Raises:
        MissingExtra: The packages of the command are not installed.
    """
    try:
        import typer

        from turnout.bench import command as bench
        from turnout.doctor.command import doctor
        from turnout.engine.command import engine
        from turnout.experiment.command import experiment
        from turnout.replay import replay
        from turnout.server.command import serve
        from turnout.simulate.command import simulate
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "turnout":
            raise
        raise MissingExtra(f"the command needs {error.name}: pip install 'turnout[simulate]'") from error
    app = typer.Typer(
        help="Route rollouts of RL post-training to inference replicas.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.command()(simulate)
    app.command()(engine)
    app.command()(experiment)
    benches = typer.Typer(help="Measure on this machine, each figure beside its bound.", no_args_is_help=True)
    benches.command()(bench.index)
    app.add_typer(benches, name="bench")
    app.command()(replay)
    app.command()(serve)
    app.command()(doctor)
    app.command()(version)
    return app


def version() -> None:
    """Print version and build: profile, kernel and file of the extension, for a bug report."""
    from turnout import build_info

    print(json.dumps(build_info(), indent=1, default=str))


def main() -> None:
    """Run the command line; the console script's entry point."""
    # `--policy mymodule:MyPolicy` means a module next to the caller, as `python -m` would find it.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        build_app()()
    except TurnoutError as error:
        print(f"turnout: {error}", file=sys.stderr)
        raise SystemExit(EXIT_ERROR) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
