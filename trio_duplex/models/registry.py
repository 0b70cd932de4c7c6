"""Which plugin a deploy file's ``model`` means. Imports a model's module only when that model is deployed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trio_duplex.config import DeployError, Deployment, structure
from trio_duplex.models.plugin import ModelPlugin
from trio_duplex.models.progress import Progress

if TYPE_CHECKING:
    from trio_duplex.models.vad_service import VadService

KNOWN = ("demo", "chat", "personaplex")


def build_scorer(deployment: Deployment) -> VadService:
    """The speech detector for models that do not detect speech; loads nothing yet.

    Raises :class:`DeployError` when the file that the deployment names is not there.
    """
    from trio_duplex.models.vad_service import VadService

    settings = deployment.duplex_session
    weights = settings.server_vad_model_path
    if weights is not None and not weights.is_file():
        raise DeployError(f"duplex_session.server_vad_model_path: no such file: {weights}")
    return VadService(settings.session_limit, weights=weights)


def build_plugin(deployment: Deployment, progress: Progress | None = None) -> ModelPlugin:
    """The plugin for a deployment; loads nothing heavy yet. Raises :class:`DeployError`.

    ``progress`` is told about loading by the models that have something to load.
    """
    limit = deployment.duplex_session.max_sessions
    if deployment.model == "personaplex":
        from trio_duplex.models.personaplex import PersonaPlexOptions, PersonaPlexPlugin

        persona: PersonaPlexOptions = structure(
            deployment.options, PersonaPlexOptions, where="options of the personaplex model"
        )
        return PersonaPlexPlugin(persona, max_sessions=None if limit == "auto" else limit, progress=progress)
    if limit == "auto":
        raise DeployError(f"duplex_session.max_sessions: {deployment.model!r} does not measure itself, give a number")
    if deployment.model == "demo":
        from trio_duplex.models.demo import DemoOptions, DemoPlugin

        options: DemoOptions = structure(deployment.options, DemoOptions, where="options of the demo model")
        return DemoPlugin(
            options,
            max_sessions=limit,
            progress=progress,
            warm_up=deployment.duplex_session.warmup_frames >= 0,
        )
    if deployment.model == "chat":
        from trio_duplex.models.chat import ChatOptions, ChatPlugin

        chat: ChatOptions = structure(deployment.options, ChatOptions, where="options of the chat model")
        return ChatPlugin(chat, max_sessions=limit)
    raise DeployError(f"unknown model {deployment.model!r}; known models: {', '.join(KNOWN)}")
