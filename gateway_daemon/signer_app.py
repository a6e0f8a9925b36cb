"""Composition of the signer of certificates.

Apart from `app`: its libraries take 12 MB, which gateways and Managers do not need.
"""

import time

from gateway_daemon.app import Links, supervision
from gateway_daemon.ca.authority import DAY_S
from gateway_daemon.ca.signer import RenewalSigner
from gateway_daemon.ca.store import AuthorityFolder
from gateway_daemon.config import SignerSettings
from service_runtime.lifecycle import SystemdSupervisor
from service_runtime.metrics import make_metrics_servers
from service_runtime.watchdog import LoopWatchdog


def build_signer(
    settings: SignerSettings, folder: AuthorityFolder
) -> tuple[RenewalSigner, SystemdSupervisor]:
    """Build a signer of certificates and its systemd supervision."""
    section = settings.signer
    links = Links(settings.tls, LoopWatchdog(time.monotonic))
    signer = RenewalSigner(
        folder,
        section.id,
        links.to_own(section.broker),
        lifetime_s=section.life_days * DAY_S,
        watchdog=links.watchdog,
    )
    signer.attach(
        *make_metrics_servers(settings.metrics, signer.collect_metrics, settings.tls)
    )
    return signer, supervision(links.watchdog, signer.status, lambda: signer.is_up)
