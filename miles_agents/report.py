"""`python -m miles_agents.report RUN`: write a run's HTML report and plot again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from miles_agents.errors import UsageError
from miles_agents.runs import RunFolder


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, write report.html and plot.png, print where they are; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m miles_agents.report", description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", default=Path("outputs/last"), help="run folder (outputs/last)")
    run_path = parser.parse_args(arguments).run
    try:
        for path in write_again(run_path):
            sys.stdout.write(f"{path}\n")
    except UsageError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    return 0


def write_again(path: Path) -> list[Path]:
    """Write the report and the plot of the run in `path`; return where they are.

    Raises:
        RunFolderError: no run folder.
        DataError: a file of the run is broken.
    """
    from miles_agents.runs.html_report import write_report
    from miles_agents.runs.plot import write_plot  # matplotlib: not for `--help`

    run = RunFolder.open(path)
    write_plot(run.plot_file, run.read_metrics(), title=run.name)
    return [write_report(run), run.plot_file]


if __name__ == "__main__":
    sys.exit(main())
