"""Models by name: the catalogue, the cache folder, and fetching with checksums.

>>> from slipstream.hub import resolve
>>> resolve("smollm2-135m")                             # doctest: +SKIP
PosixPath('.../models/SmolLM2-135M-Instruct.Q4_1.gguf')
"""

from slipstream.hub.cache import cache_dir
from slipstream.hub.fetch import Progress
from slipstream.hub.resolve import ModelInfo, models, pull, resolve

__all__ = ["ModelInfo", "Progress", "cache_dir", "models", "pull", "resolve"]
