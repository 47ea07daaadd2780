"""Data sets, whole and in memory: images by name, `load("mnist")`, and a text."""

from cgqbench.tasks.data.dataset import DamagedData, Dataset, MissingData, Split
from cgqbench.tasks.data.download import DownloadError, fetch
from cgqbench.tasks.data.folder import data_folder
from cgqbench.tasks.data.image_sets import NAMES
from cgqbench.tasks.data.loading import load
from cgqbench.tasks.data.stdlib import STDLIB, standard_library

__all__ = [
    "NAMES",
    "STDLIB",
    "DamagedData",
    "Dataset",
    "DownloadError",
    "MissingData",
    "Split",
    "data_folder",
    "fetch",
    "load",
    "standard_library",
]
