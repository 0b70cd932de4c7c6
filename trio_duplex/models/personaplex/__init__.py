"""PersonaPlex: a full-duplex network with a clock of 80 ms that listens while it speaks. Needs torch."""

from trio_duplex.models.personaplex.options import PersonaPlexOptions
from trio_duplex.models.personaplex.plugin import PersonaPlexPlugin

__all__ = ["PersonaPlexOptions", "PersonaPlexPlugin"]
