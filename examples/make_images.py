"""Makes examples/images and examples/words: drawings that the built-in model was not trained on.

python -m examples.make_images [FOLDER]
"""

import sys
from pathlib import Path

from PIL import Image

from examples.demo_model.examples import caption
from examples.demo_model.lettered import lettered_scene
from examples.demo_model.scenes import EXAMPLE_SEEDS, Scene, render

HERE = Path(__file__).parent

# files and indices in EXAMPLE_SEEDS
IMAGES = {
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
WORDS = {"bold.png": 13, "long.png": 18, "plain.png": 8, "serif.png": 5}
TURNED = "turned.jpg"  # rotated, with an EXIF orientation, as phones store images
ORIENTATION = 0x0112  # EXIF tag; 6 means: rotate by 90 degrees clockwise to display


def save(image: Image.Image, path: Path) -> None:
    """Write the image in the format of the file's suffix."""
    if path.suffix == ".png":
        image.save(path, optimize=True)
        return
    exif = Image.Exif()
    if path.name == TURNED:
        image = image.transpose(Image.Transpose.ROTATE_90)
        exif[ORIENTATION] = 6
    image.save(path, quality=88, exif=exif)


def main(folder: Path) -> None:
    for name in ("images", "words"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, offset in IMAGES.items():
        scene = Scene.from_seed(EXAMPLE_SEEDS[offset])
        save(render(scene), folder / "images" / name)
        print(f"images/{name}: {caption(scene)}")
    for name, offset in WORDS.items():
        scene = lettered_scene(EXAMPLE_SEEDS[offset])
        save(render(scene), folder / "words" / name)
        print(f"words/{name}: {scene.words[0].text}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
