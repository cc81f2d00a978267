"""A site as text in a file, which reads back to the very same site."""

from __future__ import annotations

import json

from torchtap.core.errors import RunError
from torchtap.core.ports import PORTS
from torchtap.core.site import Site


def site_text(site: Site) -> str:
    """A site as text that reads back: as people write it, or where that is ambiguous as JSON.

    Example:
        >>> site_text(Site("fc", "param", "bias"))
        'fc:param[bias]'
        >>> site_text(Site("odd:output[0]"))
        'odd:output[0]:output'
    """
    text = str(site)
    is_plain = not text.startswith("[") and Site.parse(text) == site and _is_unicode(text)
    return text if is_plain else json.dumps([site.path, site.port, site.leaf])


def site_of(text: str) -> Site:
    """Read what :func:`site_text` gave.

    Raises:
        RunError: it is something else.
    """
    try:
        if not text.startswith("["):
            return Site.parse(text)
        path, port, leaf = map(str, json.loads(text))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise RunError(f"The journal names {text[:80]!r}, which is no site.") from error
    if port not in PORTS:
        raise RunError(f"The journal names {text[:80]!r}, which is no site: it has no such port.")
    return Site(path, port, leaf)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # A lone surrogate, which a name may have and a file may not.
        return False
    return True
