"""One thread per test process: the suite runs several at once."""

import torch

torch.set_num_threads(1)
