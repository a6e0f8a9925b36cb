"""Private keys in a TPM 2.0, by OpenSSL's provider ``tpm2`` (Debian: ``tpm2-openssl``).

A file of such a key holds it encrypted by the TPM that made it, and is of no use with
another one. Source of the format: ASN.1 Specification for TPM 2.0 Key Files.
"""

import ctypes
from functools import cache
from typing import Final

from service_runtime.errors import YamamoriError

KEY_MARK: Final = b"-----BEGIN TSS2 PRIVATE KEY-----"
PROVIDERS: Final = ("default", "tpm2")
"""In this order: of two implementations OpenSSL takes the first, or the preferred."""

PROPERTIES: Final = (
    "?tpm2.signature=yes,tpm2.digest!=yes,tpm2.cipher!=yes,tpm2.rand!=yes"
)
"""Query of implementations (OpenSSL's property(7)): the TPM's for signatures only.
Without it OpenSSL 3.0 would sign by its own one, which has no private key."""

REMEDY: Final = (
    "install tpm2-openssl, see that /dev/tpmrm0 exists and that this user is in its "
    "group, tss; a key of another TPM must be replaced "
    "(docs/how-to/certificates.md#a-key-in-a-tpm)"
)


class TpmError(YamamoriError, OSError):
    """The TPM, or a key of it, cannot be used."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"the TPM 2.0 cannot be used: {cause}; {REMEDY}")


@cache
def load_provider() -> None:
    """Let the OpenSSL of `ssl` use keys in the TPM, in this process.

    Not by a configuration of OpenSSL, which would also be read by the other OpenSSL in
    the process, that of `cryptography`.

    Raises:
        TpmError: There is no provider, or no TPM; the next call tries again.
    """
    try:
        # The library that `ssl` has loaded: a second name of the same file.
        crypto = ctypes.CDLL("libcrypto.so.3")
    except OSError as error:
        raise TpmError(str(error)) from error
    crypto.OSSL_PROVIDER_load.restype = ctypes.c_void_p
    for name in PROVIDERS:
        if crypto.OSSL_PROVIDER_load(None, name.encode()) is None:
            text = ctypes.create_string_buffer(256)
            crypto.ERR_peek_last_error.restype = ctypes.c_ulong
            last = ctypes.c_ulong(crypto.ERR_peek_last_error())
            crypto.ERR_error_string_n(last, text, ctypes.c_size_t(len(text)))
            crypto.ERR_clear_error()  # otherwise `ssl` would report it as its own
            raise TpmError(f"provider {name}: {text.value.decode(errors='replace')}")
    crypto.EVP_set_default_properties(None, PROPERTIES.encode())
