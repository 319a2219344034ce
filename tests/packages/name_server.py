"""A name server on 127.0.0.1:53 that knows one name.

    name_server.py NAME ADDRESS

It answers A with the address, and everything else with nothing. It serves from the background once this
command has ended.
"""

import os
import socket
import struct
import sys

NAME, ADDRESS = sys.argv[1:3]


def name_of(question):
    """The name in a question, and where it ends."""
    labels, at = [], 0
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    return ".".join(labels).lower(), at + 1


server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
if os.fork():
    os._exit(0)
while True:
    request, client = server.recvfrom(512)
    name, end = name_of(request[12:])
    kind = struct.unpack("!H", request[12 + end : 14 + end])[0]
    question = request[12 : 16 + end]
    is_known, is_asked = name == NAME, kind == 1
    answers = 1 if is_known and is_asked else 0
    flags = 0x8180 if is_known else 0x8183
    reply = request[:2] + struct.pack("!HHHHH", flags, 1, answers, 0, 0) + question
    if answers:
        reply += struct.pack("!HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(ADDRESS)
    server.sendto(reply, client)
