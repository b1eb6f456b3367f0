"""Draw the figures of the slides: `python tools/slides/figures`. Each is named after its function.

Pages of docs/ have copies of some, in docs/pictures/figures, since a learner's folder and the wheel have no tools/.
"""

import re
import sys
from pathlib import Path

import clusters
import crash
import gradients
import learning
import roadmap

DOCS = Path(__file__).parents[3] / "docs"


def main(folder: Path, copies: Path) -> None:
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    used = set(re.findall(r"pictures/figures/(\w+)\.svg", pages))
    copies.mkdir(exist_ok=True)
    for module in (crash, learning, gradients, clusters, roadmap):
        for name, draw in module.FIGURES.items():
            drawn = draw().svg((draw.__doc__ or name).splitlines()[0])
            (folder / f"{name}.svg").write_text(drawn)
            if name in used:
                (copies / f"{name}.svg").write_text(drawn)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]), Path(sys.argv[1]) / "copies")
    else:
        main(Path(__file__).parent, DOCS / "pictures" / "figures")
