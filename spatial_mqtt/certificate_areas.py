"""Areas in a certificate: where its holder may publish.

A broker refuses a publication elsewhere, and only the sender's log names the refusal:
the link itself works. A check therefore compares the settings with the certificate.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from cryptography import x509

from service_runtime.errors import TlsFileError
from service_runtime.machine_check import MachineFinding, finding
from service_runtime.tls import TlsFiles, read_certificate, select_certificate
from spatial_mqtt.topics import covers

CELL_URN: Final = "urn:yamamori:cell:"
"""An area in the subject alternative name of a certificate, before its topic."""


def read_certificate_areas(certificate: x509.Certificate) -> list[str]:
    """Areas of a certificate; empty without any, as of another authority."""
    try:
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except (x509.ExtensionNotFound, ValueError):  # the latter for a damaged one
        return []
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    return [uri.removeprefix(CELL_URN) for uri in uris if uri.startswith(CELL_URN)]


def check_certificate_areas(
    files: TlsFiles, setting: str, areas: Iterable[str]
) -> Iterator[MachineFinding]:
    """Check that our certificate contains given areas; nothing if it does.

    Files that cannot be used are left to `check_tls_files`.

    Args:
        files: Our certificates. One without areas permits all.
        setting: Key of the areas.
        areas: Where we publish.
    """
    if not files.has_certificate:
        return
    try:
        path, _ = select_certificate(files)
        permitted = read_certificate_areas(read_certificate(path or ""))
    except TlsFileError:
        return
    for area in areas:
        if permitted and not any(covers(each, area) for each in permitted):
            rule = f"be inside the certificate {path} ({' '.join(permitted)})"
            remedy = (
                "issue it again with --cell, copy it here, and write the brokers' "
                "files; or correct the setting"
            )
            yield finding(setting, rule, area, remedy)
