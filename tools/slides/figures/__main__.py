"""Draw the figures of the slides: `python tools/slides/figures`. Each is named after its function."""

import sys
from pathlib import Path

import clusters
import crash
import gradients
import learning
import roadmap


def main(folder: Path) -> None:
    for module in (crash, learning, gradients, clusters, roadmap):
        for name, draw in module.FIGURES.items():
            (folder / f"{name}.svg").write_text(draw().svg((draw.__doc__ or name).splitlines()[0]))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
