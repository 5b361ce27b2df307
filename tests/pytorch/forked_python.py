"""Stands for a Python that `cachalot simulate` starts: hands its program to the fork server that the variable FORK_SERVER names.

`python -S -E forked_python.py <arguments>` ends as the program `python <arguments>`, which has its variables, folder and streams. The
variable is the descriptor of the server's socket.
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    request = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd(), "search_at_end": False}
    file = os.memfd_create("request")
    os.write(file, json.dumps(request).encode())
    os.lseek(file, 0, os.SEEK_SET)
    replies, of_the_server = os.pipe()
    server = socket.socket(fileno=int(os.environ["FORK_SERVER"]))
    socket.send_fds(server, [b"r"], [file, 0, 1, 2, of_the_server])
    os.close(of_the_server)
    with open(replies, "rb", buffering=0) as lines:
        process = int(lines.readline().split()[1])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os.kill(process, number))
        status = os.waitstatus_to_exitcode(int(lines.readline().split()[1]))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
