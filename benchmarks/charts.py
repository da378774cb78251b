"""The figures as pictures: cost by history, cost by concurrency, bytes by turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.scenarios import Figures, Growth

Point = tuple[float, float]


def draw_charts(folder: Path, figures: Sequence[Figures], growth: Sequence[Growth]) -> list[Path]:
    """Write the SVG files, and return them. A chart with fewer than two points is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = [each for each in figures if each.scenario != "turn with a tool"]
    by_history = sorted({each.messages: each for each in plain if each.at_once == 1}.items())
    by_concurrency = sorted({each.at_once: each for each in plain if each.messages == 10}.items())
    charts = [
        ("cost-by-history", "messages in the session", "CPU ms a turn", _make_lines(by_history)),
        ("cost-by-concurrency", "turns at once", "CPU ms a turn", _make_lines(by_concurrency)),
        ("bytes-by-turn", "turn", "bytes a turn", {"database": [(float(one.last_turn), one.size) for one in growth]}),
    ]
    return [_draw(folder / f"{name}.svg", *rest) for name, *rest in charts if len(next(iter(rest[-1].values()))) > 1]


def _make_lines(figures: Sequence[tuple[int, Figures]]) -> dict[str, list[Point]]:
    return {
        "Swarmkeep": [(at, each.server_ms + each.database_ms) for at, each in figures],
        "floor": [(at, each.floor_ms) for at, each in figures],
    }


def _draw(path: Path, across: str, up: str, lines: dict[str, list[Point]]) -> Path:
    # Taken from nowhere but here, and large: only whoever wants pictures loads it.
    import matplotlib

    matplotlib.use("svg")
    # The same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "swarmkeep"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    drawn: Any = axes
    for name, points in lines.items():
        drawn.plot(*zip(*points, strict=True), marker="o", label=name)
    if max(point[0] for points in lines.values() for point in points) > 100:
        drawn.set_xscale("log")
    drawn.set_ylim(bottom=0)
    drawn.set_xlabel(across)
    drawn.set_ylabel(up)
    drawn.grid(alpha=0.3)
    if len(lines) > 1:
        drawn.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
