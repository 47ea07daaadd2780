"""Data sets, whole and in memory: images by name, `load("mnist")`, and a text."""

from cgqbench.data.dataset import DamagedData, Dataset, MissingData, Split
from cgqbench.data.download import DownloadError, fetch
from cgqbench.data.folder import data_folder
from cgqbench.data.loading import load
from cgqbench.data.sources import NAMES
from cgqbench.data.stdlib import STDLIB, standard_library

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
