"""Runs inside a unit and tries what the unit must not do, and what it must be able to do.

Prints one JSON object: for each attempt the name of the error (EPERM, …), or "done". Each attempt is harmless when it
is allowed: its arguments are invalid where it would change something.
"""

import ctypes
import errno
import json
import mmap
import os
import resource
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
# the numbers of system calls that libc has no function for: x86_64, and the generic ones of aarch64
NUMBERS = {"x86_64": {"io_uring_setup": 425, "init_module": 175, "bpf": 321, "clock_settime": 227, "keyctl": 250},
           "aarch64": {"io_uring_setup": 425, "init_module": 105, "bpf": 280, "clock_settime": 112, "keyctl": 219}}
CALLS = NUMBERS[os.uname().machine]
RESULTS = {}


def attempt(name, action):
    try:
        value = action()
        RESULTS[name] = value if isinstance(value, str) else "done"
    except OSError as error:
        RESULTS[name] = errno.errorcode.get(error.errno, str(error.errno)) if error.errno else type(error).__name__


def call(function, *arguments):
    ctypes.set_errno(0)
    if function(*arguments) == -1:
        raise OSError(ctypes.get_errno(), "refused")


def syscall(name, *arguments):
    call(libc.syscall, ctypes.c_long(CALLS[name]), *arguments)


def write(path):
    with open(path, "w", encoding="utf-8"):
        pass
    os.unlink(path)


def mode_of_new(path):
    with open(path, "w", encoding="utf-8"):
        mode = oct(os.stat(path).st_mode & 0o777)
    os.unlink(path)
    return mode


def setuid_bit(path):
    with open(path, "w", encoding="utf-8") as file:
        try:
            os.fchmod(file.fileno(), 0o4700)
        finally:
            os.unlink(path)


def connect(address):
    with socket.socket() as s:
        s.settimeout(1)
        s.connect((address, 9))


def bind():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))


def nanoseconds():
    syscall("clock_settime", 0, (ctypes.c_long * 2)(0, -1))


def ring():
    number = libc.syscall(ctypes.c_long(CALLS["io_uring_setup"]), 4, ctypes.create_string_buffer(120))
    if number < 0:
        raise OSError(ctypes.get_errno(), "refused")
    os.close(number)


def status(field):
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(line.split(":")[1].strip() for line in file if line.startswith(field + ":"))


def program():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.execv("/bin/true", ["true"])
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError(errno.EPERM, "the program failed")


home = sys.argv[1]
attempt("write /etc", lambda: write("/etc/boxmaker-probe"))
attempt("write /usr", lambda: write("/usr/boxmaker-probe"))
attempt("write /var/lib", lambda: write("/var/lib/boxmaker-probe"))
attempt("list /root", lambda: os.listdir("/root"))
attempt("see the machine's /tmp", lambda: os.stat("/tmp/boxmaker-marker"))
attempt("/dev/kmsg", lambda: os.stat("/dev/kmsg"))
attempt("see process 1", lambda: os.stat("/proc/1"))
attempt("/proc/meminfo", lambda: os.stat("/proc/meminfo"))
attempt("write a cgroup", lambda: os.mkdir("/sys/fs/cgroup/boxmaker-probe"))
attempt("write a sysctl", lambda: open("/proc/sys/kernel/hostname", "r+", encoding="utf-8").close())
attempt("other users", lambda: "seen" if open("/proc/self/uid_map").read().split()[2] == "4294967295" else "hidden")
attempt("hostname", lambda: call(libc.sethostname, b"board", 5))
attempt("clock", nanoseconds)
attempt("module", lambda: syscall("init_module", None, 0, b""))
attempt("kernel log", lambda: call(libc.klogctl, 10, None, 0))
attempt("mount", lambda: call(libc.mount, b"none", b"/nowhere", b"tmpfs", 0, None))
attempt("reboot", lambda: call(libc.syscall, ctypes.c_long({"x86_64": 169, "aarch64": 142}[os.uname().machine]), 0, 0, 0))
attempt("swap", lambda: call(libc.swapon, b"/nowhere", 0))
attempt("bpf", lambda: syscall("bpf", 9999, None, 0))
attempt("keyring", lambda: syscall("keyctl", 0, -3, 0))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close())
attempt("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close())
attempt("namespace", lambda: call(libc.unshare, 0x10000000))
attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("set-user-id", lambda: setuid_bit(f"{home}/boxmaker-probe"))
attempt("personality", lambda: call(libc.personality, ctypes.c_ulong(0x0008)))
attempt("code in data", lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close())
attempt("another machine", lambda: connect("10.99.0.1"))
attempt("listen", bind)
attempt("mode of a new file", lambda: mode_of_new(f"{home}/boxmaker-probe"))
attempt("capabilities", lambda: "none" if int(status("CapBnd"), 16) == 0 else "some")
attempt("new privileges", lambda: "never" if status("NoNewPrivs") == "1" else "possible")
attempt("core size", lambda: str(resource.getrlimit(resource.RLIMIT_CORE)[1]))
# what must work
attempt("io_uring", ring)
attempt("this machine", lambda: connect("127.0.0.1"))
attempt("write the home", lambda: write(f"{home}/boxmaker-probe"))
attempt("lower a limit", lambda: resource.setrlimit(resource.RLIMIT_NPROC, (4096, 4096)))
attempt("a program", program)
print(json.dumps(RESULTS))
