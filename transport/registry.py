"""The bootstrap registry: where decode engines learn the addresses of prefill engines. HTTP and JSON.

| request | answer |
|---|---|
| `PUT /v1/engines/{instance}/{rank}` | the record |
| `GET /v1/engines/{instance}/{rank}` | the record |
| `GET /v1/engines/-/{rank}` | the record of the only instance there is |
| `GET /v1/engines` | `{"engines": [record, ...]}`, sorted |
| `DELETE /v1/engines/{instance}/{rank}?incarnation=` | `{"ok": true}` |
| `GET /health` | `{"ok": true, "registrations": n}` |

The body of a PUT is a record without `instance`, `rank` and `expires_in_s`. A record is
`{"instance", "rank", "address", "incarnation", "page_size", "layout_digest", "ttl_s", "expires_in_s"}`:

- `instance`: a letter or digit, then up to 127 of `A-Z a-z 0-9 . _ -`; `rank`: 0 to 65535
- `address`: "host:port" of the engine's control channel; `[v6]:port` for IPv6
- `incarnation`: 64 bits as 16 lower-case hexadecimal digits
- `page_size`: tokens per page; `layout_digest`: up to 128 of `A-Z a-z 0-9 : . _ -`
- `ttl_s`: seconds (0.1 to 86400) that the registration stays without another PUT; `expires_in_s`: what is left of them

A PUT replaces an earlier one; a DELETE succeeds only for the incarnation that is registered. Everything else is refused
with `{"error": "in words"}`: 400 malformed (unknown fields too), 401 without the registry's token (`Authorization:
Bearer ...`, where it has one; `/health` needs none), 404 not registered, 408 the body took too long, 409
another incarnation or several instances, 413 a body over 64 KiB, 507 the registry is full.
"""

from .registry_client import HttpRegistry
from .registry_server import RegistryServer, make_app
from .registry_table import DEFAULT_CAPACITY, Refused, RegistryTable

__all__ = ["DEFAULT_CAPACITY", "HttpRegistry", "Refused", "RegistryServer", "RegistryTable", "make_app"]
