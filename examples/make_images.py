"""Make the pictures of examples/images: a dozen drawings that the built-in model never saw.

python examples/make_images.py [FOLDER]
"""

import sys
from pathlib import Path

from PIL import Image

from pgcli.training.drawing import render
from pgcli.training.lessons import caption
from pgcli.training.scenes import EXAMPLE_SEEDS, Scene

HERE = Path(__file__).parent

# file and place in EXAMPLE_SEEDS
PICTURES = {
    "one.png": 84,
    "alike.png": 4,
    "blue.png": 83,
    "crosses.png": 77,
    "dusk.jpg": 63,
    "few.jpg": 82,
    "grey.png": 73,
    "night.jpg": 68,
    "pair.png": 76,
    "stars.jpg": 87,
    "tall.jpg": 51,
    "turned.jpg": 64,
}
TURNED = "turned.jpg"  # as a phone stores it: lying on its side, with a note to turn it
ORIENTATION = 0x0112  # EXIF tag; 6 means: show it turned a quarter clockwise


def save(picture: Image.Image, path: Path) -> None:
    """Write the picture in the format that its ending names."""
    if path.suffix == ".png":
        picture.save(path, optimize=True)
        return
    exif = Image.Exif()
    if path.name == TURNED:
        picture = picture.transpose(Image.Transpose.ROTATE_90)
        exif[ORIENTATION] = 6
    picture.save(path, quality=88, exif=exif)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, place in PICTURES.items():
        scene = Scene.from_seed(EXAMPLE_SEEDS[place])
        save(render(scene), folder / name)
        print(f"{name}: {caption(scene)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "images")
