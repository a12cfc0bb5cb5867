"""The parts that `headrace.deploy.settings.Settings` is put together from, each declared by its subject."""

from __future__ import annotations

from headrace.deploy.access_settings import AccessSettings
from headrace.deploy.async_settings import AsyncSettings
from headrace.deploy.call_settings import CallSettings
from headrace.deploy.claim_settings import ClaimSettings
from headrace.deploy.extension_settings import ExtensionSettings
from headrace.deploy.fault_settings import FaultSettings
from headrace.deploy.grpc_options import GrpcOptions
from headrace.deploy.idempotency_settings import IdempotencySettings
from headrace.deploy.life_settings import LifeSettings


class SettingParts(
    AccessSettings,
    AsyncSettings,
    CallSettings,
    ClaimSettings,
    ExtensionSettings,
    FaultSettings,
    GrpcOptions,
    IdempotencySettings,
    LifeSettings,
):
    """All parts but those that stand in `Settings` itself."""
