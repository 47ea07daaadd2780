"""Data sets by name, whole and in memory: `load("mnist")`."""

from cgqbench.data.dataset import DamagedData, Dataset, MissingData, Split
from cgqbench.data.download import DownloadError, fetch
from cgqbench.data.folder import data_folder
from cgqbench.data.loading import load
from cgqbench.data.sources import NAMES

__all__ = [
    "NAMES",
    "DamagedData",
    "Dataset",
    "DownloadError",
    "MissingData",
    "Split",
    "data_folder",
    "fetch",
    "load",
]
