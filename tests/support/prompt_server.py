"""A server of sockets that ends as soon as it is told to.

That of the standard library looks now and then whether it is to end. Most tests have a server, and would wait longer
for that look than for anything else.
"""

from __future__ import annotations

import socket
import socketserver
import threading


class PromptServer(socketserver.TCPServer):
    _is_ending = False

    def start(self) -> None:
        """Take connections, in a thread."""
        self._taker = threading.Thread(target=self._take, daemon=True)
        self._taker.start()

    def end(self) -> None:
        """Take no more connections; to be told so, it is given one."""
        if self._is_ending:
            return
        self._is_ending = True
        socket.create_connection(self.socket.getsockname()).close()
        self._taker.join()

    def _take(self) -> None:
        while True:
            request, address = self.get_request()
            if self._is_ending:
                self.shutdown_request(request)
                return
            self.process_request(request, address)
