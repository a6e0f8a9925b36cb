"""Errors of the authority.

AuthorityError
├── AuthorityFileError   also OSError     its folder cannot be used
└── RefusedError         also ValueError  a certificate is not given
"""


class AuthorityError(Exception):
    """Base of every error of the authority."""


class AuthorityFileError(AuthorityError, OSError):
    """The authority's folder is missing, taken, or damaged."""


class RefusedError(AuthorityError, ValueError):
    """The authority does not give what is asked; the text is its reason."""
