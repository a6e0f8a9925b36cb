"""Private keys of P-256 that a device keeps: they sign, and nobody can read them."""

import subprocess
import tempfile
from collections.abc import Sequence
from typing import Final, NoReturn, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from service_runtime.tls import TPM_KEY_MARK, TPM_PROPERTIES, TPM_PROVIDERS, TpmError

TIMEOUT_S: Final = 60.0
"""For an operation of the TPM; a slow one needs seconds to make a key."""


class HardwareKey(ec.EllipticCurvePrivateKey):
    """A private key that only signs; the builders of `cryptography` accept it.

    Args:
        public: Its public key.
    """

    def __init__(self, public: ec.EllipticCurvePublicKey) -> None:
        self._public = public

    @property
    def curve(self) -> ec.EllipticCurve:
        """P-256."""
        return self._public.curve

    @property
    def key_size(self) -> int:
        """In bits."""
        return self._public.key_size

    def public_key(self) -> ec.EllipticCurvePublicKey:
        """The public key, as it was when the key was found."""
        return self._public

    def exchange(self, *_: object) -> NoReturn:
        """Refuse; such a key agrees no secrets."""
        raise UnsupportedAlgorithm("the key signs and does nothing else")

    def private_numbers(self) -> NoReturn:
        """Refuse."""
        raise UnsupportedAlgorithm("the key stays in its device")

    def private_bytes(self, *_: object) -> NoReturn:
        """Refuse."""
        raise UnsupportedAlgorithm("the key stays in its device")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: object) -> Self:
        return self


class TpmKey(HardwareKey):
    """A private key of a TPM 2.0, used by the program ``openssl``.

    Args:
        pem: The key as its TPM encrypted it, in PEM.

    Raises:
        TpmError: The TPM cannot be used, or did not make this key.
    """

    def __init__(self, pem: bytes) -> None:
        if TPM_KEY_MARK not in pem:
            raise TpmError("its key must be in a file of a TPM, got another one")
        self.pem: bytes = TPM_KEY_MARK + pem.partition(TPM_KEY_MARK)[2]
        encoded = self._call("pkey", "-pubout", "-in")
        public = load_pem_public_key(encoded)
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise TpmError(f"its key must be of an elliptic curve, got {public!r}")
        super().__init__(public)

    @classmethod
    def generate(cls) -> Self:
        """Make a key in the TPM.

        Raises:
            TpmError: The TPM cannot be used.
        """
        curve = ("-algorithm", "EC", "-pkeyopt", "group:P-256")
        return cls(_call_openssl(("genpkey", *curve), query="?provider=tpm2"))

    def sign(
        self,
        data: bytes | bytearray | memoryview,
        signature_algorithm: ec.EllipticCurveSignatureAlgorithm,
    ) -> bytes:
        """Sign data in the TPM, by ECDSA with SHA-256.

        Raises:
            TpmError: The TPM cannot be used.
        """
        if not isinstance(signature_algorithm.algorithm, hashes.SHA256):
            raise UnsupportedAlgorithm("a key in a TPM signs with SHA-256 only")
        return self._call("dgst", "-sha256", "-sign", data=bytes(data))

    def _call(self, *words: str, data: bytes = b"") -> bytes:
        """Call ``openssl`` with the path of the key as the last word."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(self.pem)
            file.flush()
            return _call_openssl((*words, file.name), data)


def _call_openssl(
    words: Sequence[str], data: bytes = b"", query: str = TPM_PROPERTIES
) -> bytes:
    providers = [word for name in TPM_PROVIDERS for word in ("-provider", name)]
    command, *options = words
    call = ["openssl", command, *providers, "-propquery", query, *options]
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            call, input=data, capture_output=True, timeout=TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").splitlines()
        causes = [line for line in lines if ":error:" in line] or lines
        cause = causes[0].strip() if causes else f"status {error.returncode}"
        raise TpmError(f"openssl {command}: {cause}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TpmError(str(error)) from error
    return done.stdout
