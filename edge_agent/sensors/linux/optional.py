"""Import of optional libraries, with an error that names the missing package."""

import importlib
from types import ModuleType


class MissingPackageError(OSError):
    """A bus needs a package that is not installed.

    Attributes:
        package: Its name on the package index.
    """

    def __init__(self, bus: str, package: str) -> None:
        self.package = package
        super().__init__(
            f"{bus} needs the package {package}; "
            "install it with pip install 'yamamori[edge]'"
        )


def import_library(bus: str, module: str, package: str) -> ModuleType:
    """Import the library of a bus, on first use.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackageError(bus, package) from error
