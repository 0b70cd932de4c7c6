"""Session configurations per model; the client itself knows no model."""

from . import minicpmo_4_5, nemotron_voicechat, neutral, personaplex

__all__ = ["minicpmo_4_5", "nemotron_voicechat", "neutral", "personaplex"]
