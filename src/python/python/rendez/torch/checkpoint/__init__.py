"""`torch.distributed.checkpoint` in memory: shards stay with the processes that saved them, or with a holder, and
processes of any number load them, those of the same machine from where they lie.

    import torch.distributed.checkpoint as dcp
    from rendez.torch.checkpoint import RendezReader, RendezWriter

    writer = RendezWriter()
    dcp.save(state, storage_writer=writer)
    place = str(writer.place)                   # rank 0's is where readers ask

    dcp.load(state, storage_reader=RendezReader(place))         # in other processes

`rendez pull --from` a holder's task writes its newest checkpoint as a file of weights, and what `rendez push` pushes to
a holder's task is loaded as a flat state dict.
"""

from ._holder import Holder
from ._reader import RendezReader
from ._words import Place
from ._writer import RendezWriter

__all__ = ["Holder", "Place", "RendezReader", "RendezWriter"]
