"""The bootstrap server of one prefill rank that is ours: SGLang's decode asks it over HTTP where the rank listens, and whether it lives.

What is asked tells the generation of the asker: up to 0.5.9 by `engine_rank`, later by `prefill_dp_rank`. Newer fields of the answer have defaults.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

LOOPBACK = "127.0.0.1"
IDLE_S = 60.0
"""A connection that says nothing for so long is closed; decode looks every few seconds."""
_EARLY = {
    "prefill_attn_tp_size": 1, "prefill_dp_size": 1, "prefill_pp_size": 1, "prefill_page_size": 1,
}  # fmt: skip
_LATER = {
    "attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 1, "kv_cache_dtype": "auto",
    "follow_bootstrap_room": True,
}  # fmt: skip
"""One rank of everything, pages of one token, as a hosted release is told of itself (`harness.hosting.sglang.answers`)."""


def answer(target: str, rank_port: int) -> tuple[int, dict[str, Any] | str]:
    """(HTTP status, body) for a GET of `target`, path and query; the rank listens on loopback `rank_port`."""
    asked = urlsplit(target)
    if asked.path == "/health":
        return 200, "OK"
    query = {name: values[0] for name, values in parse_qs(asked.query).items()}
    early = "engine_rank" in query
    if asked.path != "/route" or not (early or "prefill_dp_rank" in query):
        return 404, "no such thing here"
    if query["engine_rank" if early else "prefill_dp_rank"] == "-1":
        return 200, _EARLY if early else _LATER
    return 200, {"rank_ip": LOOPBACK, "rank_port": rank_port}


class Bootstrap:
    """Serves on loopback, a port of the system's choice, until it is closed."""

    def __init__(self, rank_port: int) -> None:
        """`rank_port`: where the prefill rank's own socket listens."""

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = IDLE_S

            def do_GET(self) -> None:
                status, body = answer(self.path, rank_port)
                content = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False  # a connection that is kept alive would hold the end up
        self.address = f"{LOOPBACK}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="bootstrap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
