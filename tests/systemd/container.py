"""A real systemd as process 1 of a container, for tests of units: `systemd-nspawn`, without a system bus."""

import os
import shutil
import subprocess
import sys
import time
import zlib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from lab import CACHE, ROOT, Bad, Nothing, command

SUITE = "trixie"
PACKAGES = "systemd,systemd-sysv,dbus,iproute2,procps,python3"
PATIENCE = 60


def wait(what, holds, limit=PATIENCE):
    """Waits until `holds()` gives something, and gives it back."""
    end = time.monotonic() + limit
    while not (found := holds()):
        if time.monotonic() > end:
            raise Bad(f"waited {limit} s in vain: {what}")
        time.sleep(0.1)
    return found


def cgroup_root():
    """Where a cgroup of version 2 can be made."""
    for place in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        if os.path.exists(f"{place}/cgroup.procs") and os.path.exists(f"{place}/cgroup.controllers"):
            if os.access(place, os.W_OK):
                return Path(place)
    raise Nothing("no writable cgroup of version 2")


def refuse_where_impossible():
    """Nothing, with the reason, when this machine cannot have such a container."""
    if os.geteuid() != 0:
        raise Nothing("root is needed for a container")
    for program, package in (("systemd-nspawn", "systemd-container"), ("mmdebstrap", "mmdebstrap")):
        if not shutil.which(program):
            raise Nothing(f"{program} is not installed (Debian: apt-get install {package})")
    cgroup_root()


def base():
    """A folder with a small Debian, made once."""
    root = CACHE / f"systemd/{SUITE}-{zlib.crc32(PACKAGES.encode()):x}"
    if root.exists():
        return root
    loader = SourceFileLoader("get_model_server", str(ROOT / "tests/tools/get-model-server"))
    debian = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(debian)
    sources = debian.debian_sources()
    if not sources:
        raise Nothing("apt's sources on this machine name no Debian mirror")
    root.parent.mkdir(parents=True, exist_ok=True)
    new = root.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    print(f"systemd: making a small Debian {SUITE} in {root}, once", file=sys.stderr)
    command(["mmdebstrap", "--quiet", "--variant=essential", f"--include={PACKAGES}",
             f"--keyring={debian.key_of(sources[0])}", SUITE, new, sources[0].uri])
    new.rename(root)
    return root


class Container:
    """A copy of the base that has been booted; it goes when closed."""

    def __init__(self, folder, binds, fill):
        Path(folder).mkdir(exist_ok=True)
        self.root = Path(folder) / "root"
        command(["cp", "-a", "--reflink=auto", base(), self.root])
        (self.root / "etc/machine-id").write_text("uninitialized\n")
        (self.root / "etc/hostname").write_text("board\n")
        fill(self.root)
        name = f"boxmaker-{os.getpid()}-{Path(folder).name}"
        self.cgroup = cgroup_root() / name
        self.cgroup.mkdir()
        # The container's own cgroup, and a /run that is no disk: without a system bus nspawn makes neither itself.
        # The two last options are what IPAddressDeny= and SocketBindDeny= need to be in force.
        script = """
            echo $$ > "$1/cgroup.procs"
            exec unshare --mount --propagation private sh -c '
                mount -t tmpfs tmpfs /run && mkdir /run/systemd
                shift; exec systemd-nspawn --quiet --boot --register=no --keep-unit --console=pipe "$@"' sh "$@"
        """
        words = ["sh", "-euc", script, "sh", self.cgroup, "--directory", self.root, "--machine", name.replace("_", "-")[-60:],
                 "--private-network", "--capability=all", "--system-call-filter=bpf",
                 *[f"--bind-ro={source}:{target}" for source, target in binds]]
        self.console = open(Path(folder) / "console.log", "wb")
        self.process = subprocess.Popen([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=self.console,
                                        stderr=subprocess.STDOUT,
                                        env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"})
        self.leader = None
        try:
            self.leader = wait("systemd starts in the container", self.find_leader)
            wait("the container is up", lambda: self.sh("systemctl is-system-running", check=False).stdout.strip()
                 in ("running", "degraded"))
        except Bad as bad:
            said = (Path(folder) / "console.log").read_text(errors="replace")
            self.close()
            raise Bad(f"{bad}\n{said[-2000:]}") from bad

    def find_leader(self):
        """nspawn's child that is process 1 inside."""
        if self.process.poll() is not None:
            raise Bad("systemd-nspawn ended")
        try:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            for child in children:
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return int(child)
        except FileNotFoundError:
            pass
        return None

    def sh(self, script, check=True, user=None, timeout=300):
        """Runs a shell script inside, as root or another user."""
        inside = ["runuser", "-u", user, "--"] if user else []
        result = subprocess.run(["nsenter", "-t", str(self.leader), "-a", "env", "-i",
                                 "PATH=/opt/boxmaker/bin:/usr/sbin:/usr/bin:/sbin:/bin", *inside, "sh", "-c", script],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                check=False, timeout=timeout)
        if check and result.returncode != 0:
            raise Bad(f"{script}: ended with {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    def out(self, script, **options):
        """What a script prints."""
        return self.sh(script, **options).stdout.strip()

    def show(self, unit, name):
        """A property of a unit."""
        return self.out(f"systemctl show --value -p {name} {unit}")

    def close(self):
        """Ends it, and what is left of it."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            if self.leader:
                try:
                    os.kill(self.leader, 9)
                except ProcessLookupError:
                    pass
            self.process.wait(20)
        self.console.close()
        for _ in range(50):
            for folder in sorted(self.cgroup.rglob("*/"), key=lambda path: -len(path.parts)):
                try:
                    folder.rmdir()
                except OSError:
                    pass
            try:
                self.cgroup.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)
