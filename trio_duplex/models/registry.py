"""Which plugin a deploy file's ``model`` means. Imports a model's module only when that model is deployed."""

from __future__ import annotations

from trio_duplex.config import DeployError, Deployment, structure
from trio_duplex.models.plugin import ModelPlugin

KNOWN = ("demo", "chat")


def build_plugin(deployment: Deployment) -> ModelPlugin:
    """The plugin for a deployment; loads nothing heavy yet. Raises :class:`DeployError`."""
    if deployment.model == "demo":
        from trio_duplex.models.demo import DemoOptions, DemoPlugin

        options: DemoOptions = structure(deployment.options, DemoOptions, where="options of the demo model")
        return DemoPlugin(options, max_sessions=deployment.duplex_session.max_sessions)
    if deployment.model == "chat":
        from trio_duplex.models.chat import ChatOptions, ChatPlugin

        chat: ChatOptions = structure(deployment.options, ChatOptions, where="options of the chat model")
        return ChatPlugin(chat, max_sessions=deployment.duplex_session.max_sessions)
    raise DeployError(f"unknown model {deployment.model!r}; known models: {', '.join(KNOWN)}")
