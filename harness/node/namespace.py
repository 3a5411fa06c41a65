"""Network namespaces of the calling thread, and network devices in them, by system calls. Nothing has a name: all of it goes with the last process inside.

Needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN) and /dev/net/tun. Constants: linux/sched.h, linux/if_tun.h, linux/sockios.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

from harness.errors import UnavailableError

_NEW_NETWORK = 0x40000000
_TUN_SET = 0x400454CA
_TUN_NO_INFO = 0x1001
_GET_FLAGS, _SET_FLAGS, _SET_ADDRESS, _SET_MASK, _SET_MTU = 0x8913, 0x8914, 0x8916, 0x891C, 0x8922
_UP = 0x1
MASK = "255.255.255.0"


def _call(what: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, what)(*arguments):
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def current() -> int:
    """A descriptor of the calling thread's namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def fresh() -> None:
    """Move the calling thread into a namespace of its own, in which only loopback is up; raises UnavailableError where that is not allowed."""
    try:
        _call("unshare", _NEW_NETWORK)
        up("lo")
    except OSError as error:
        raise UnavailableError(f"a network namespace needs root: {error.strerror or error}") from error


def enter(descriptor: int) -> None:
    """Move the calling thread into that namespace; raises OSError."""
    _call("setns", descriptor, _NEW_NETWORK)


def enter_that_of(pid: int) -> None:
    """Move the calling thread to where that process is; raises OSError."""
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(descriptor)
    finally:
        os.close(descriptor)


def tun(name: str) -> int:
    """A descriptor of a new TUN device in the calling thread's namespace: reads and writes are IP packets. Raises UnavailableError."""
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(descriptor, _TUN_SET, struct.pack("16sH22x", name.encode(), _TUN_NO_INFO))
    except OSError as error:
        raise UnavailableError(f"a link needs /dev/net/tun: {error.strerror or error}") from error
    return descriptor


def up(name: str, address: str = "", mtu_bytes: int = 0) -> None:
    """Give a device its IPv4 address and set it up; raises OSError."""
    device = name.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for what, value in ((_SET_ADDRESS, address), (_SET_MASK, MASK)) if address else ():
            request = struct.pack("16sHH4s16x", device, socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(any_socket, what, request)
        if mtu_bytes:
            fcntl.ioctl(any_socket, _SET_MTU, struct.pack("16si20x", device, mtu_bytes))
        (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16s24x", device)), 16)
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", device, flags | _UP))
