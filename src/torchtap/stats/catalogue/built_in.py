"""All statistics of ``tt.stats``. Importing this registers the classes that files may name."""

from torchtap.stats.catalogue.cosine import cosine as cosine
from torchtap.stats.catalogue.effective_rank import effective_rank as effective_rank
from torchtap.stats.catalogue.first_nonfinite import (
    Occurrence as Occurrence,
    first_nonfinite as first_nonfinite,
)
from torchtap.stats.catalogue.protocol import Statistic as Statistic
from torchtap.stats.catalogue.slices import Along as Along, Slices as Slices, along as along
from torchtap.stats.catalogue.top_k import Element as Element, top_k as top_k
