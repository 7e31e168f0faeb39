"""Turn into another program that ends with its parent. Run as a file, with the standard library only.

Between fork and exec a threaded parent may not safely run Python; this small program does that work after an exec of
its own instead: about 20 ms per server.

    python -I -S launch.py PARENT_PID SIGNAL DISGUISE PROGRAM ARGUMENT...

``SIGNAL`` is sent to the program when the parent's launching *thread* ends. ``DISGUISE`` 1 shows the program a user id
other than ours, in a user namespace of its own; files it makes still belong to us.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
NOBODY = 65534


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def disguise() -> None:
    """Enter a user namespace in which this process is ``nobody``.

    Raises:
        OSError: user namespaces are forbidden here, as in many containers.
    """
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")  # the kernel's condition for writing gid_map unprivileged
    Path("/proc/self/uid_map").write_text(f"{NOBODY} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{NOBODY} {gid} 1")


def main(arguments: list[str]) -> None:
    parent, death_signal, disguised = (int(argument) for argument in arguments[:3])
    program = arguments[3:]
    if disguised:
        try:
            disguise()
        except OSError as error:
            sys.exit(
                f"Postgres does not run as this user (root, or one without a name), and a user namespace to hide "
                f"that is not allowed here ({error}). Run as an ordinary user, or set MODELMEND_DATABASE_URL."
            )
    # After the namespace: a change of credentials clears the signal. The parent may have died before it was set.
    _call("prctl", PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("The process that wanted this server is gone.")
    # What an exec keeps and a server must not get: our ignored SIGPIPE, a caller's blocked signals, its umask.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o077)
    os.execv(program[0], program)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main(sys.argv[1:])
