"""Write the pictures of docs/pictures/moving: `python -m tools.site.pictures`."""

from pathlib import Path

from frog.core.files import write_atomic
from tools.site.pictures.catalog import PICTURES

FOLDER = Path(__file__).parents[3] / "docs" / "pictures" / "moving"


def main() -> None:
    """Write each picture with its sliders' initial values."""
    for name, picture in PICTURES.items():
        write_atomic(FOLDER / f"{name}.svg", picture.initial().svg())


if __name__ == "__main__":
    main()
