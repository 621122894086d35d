"""A real nix on a machine that has none, and a stand-in for nixpkgs, for the tests of what is Nix."""

import json
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/nix"
CACHE = Path(os.environ.get("BOXMAKER_CACHE") or ROOT / ".cache").absolute()
# what the stand-in knows as programs of the machine
PROGRAMS = ["cargo-deny", "cargo-nextest", "clippy", "coreutils", "deadnix", "nixfmt", "nixfmt-tree", "python",
            "python3", "rustfmt", "shellcheck", "strace", "unzip"]
# what pip needs to reach the registry
NETWORK = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL",
           "PIP_CONFIG_FILE", "PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"]


class Bad(Exception):
    """Why a check failed."""


class Nothing(Exception):
    """Why a check cannot run here."""


def command(words, environment=None, **options):
    """Runs a command and gives back its output; Bad with the end of what it printed when it fails."""
    result = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment, check=False, **{"stdin": subprocess.DEVNULL, **options})
    if result.returncode != 0:
        raise Bad(f"{' '.join(map(str, words[:6]))} … ended with {result.returncode}\n"
                  + "\n".join((result.stderr + result.stdout).strip().splitlines()[-25:]))
    return result.stdout


class Lab:
    """A nix, a copy of the project, and the stand-in for nixpkgs."""

    def __init__(self, folder):
        self.folder = folder
        self.project, self.stand_in = folder / "project", folder / "stand-in"
        self.url = f"path:{self.project}"
        self.environment = dict(os.environ)
        self.flags = ["--override-input", "nixpkgs", f"path:{self.stand_in}", "--no-write-lock-file"]

    def nix(self, *words, **options):
        return command(["nix", *words], self.environment, **options)

    def prepare(self):
        result = subprocess.run([HERE / "get-nix", self.folder], stdin=subprocess.DEVNULL, check=False)
        if result.returncode == 3:
            raise Nothing("no nix, and no Debian packages to take one from")
        if result.returncode != 0:
            raise Bad("nix could not be fetched, see above")
        lines = command(["bash", "-c", f". '{self.folder}/env' && env -0"], self.environment).split("\0")
        self.environment = dict(line.split("=", 1) for line in lines if "=" in line)
        self.vendor()
        self.copy_project()
        self.write_stand_in()

    def vendor(self):
        """The crates of Cargo.lock, unless they are there from the last time."""
        lock, done = (ROOT / "Cargo.lock").read_text(), self.folder / "vendor.lock"
        if not done.exists() or done.read_text() != lock:
            done.unlink(missing_ok=True)
            shutil.rmtree(self.folder / "vendor", ignore_errors=True)
            command(["cargo", "vendor", "--locked", "--quiet", self.folder / "vendor"], cwd=ROOT)
            done.write_text(lock)

    def copy_project(self):
        """What git has or would add. A flake in a git repository sees the same, without what is not added yet."""
        listed = command(["git", "-C", ROOT, "ls-files", "-zco", "--exclude-standard"])
        shutil.rmtree(self.project, ignore_errors=True)
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                target = self.project / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)

    def write_stand_in(self):
        shutil.rmtree(self.stand_in, ignore_errors=True)
        shutil.copytree(HERE / "stand-in", self.stand_in)
        tools = f"{CACHE / 'tools/bin'}:{os.environ['PATH']}"
        host = {
            "path": tools,
            "system": f"{os.uname().machine}-linux",
            "rustup": os.environ.get("RUSTUP_HOME") or str(Path.home() / ".rustup"),
            "vendor": str(self.folder / "vendor"),
            "work": str(self.folder / "cargo"),
            "names": [*PROGRAMS, "llama-cpp"],
            # packages with other programs than their name says
            "programs": {
                "llama-cpp": {"llama-server": os.environ.get("BOXMAKER_LLAMA_SERVER", "llama-server")},
                "coreutils": {name: shutil.which(name) or name for name in ("kill", "rm")},
            },
            "network": NETWORK,
        }
        (self.stand_in / "host.json").write_text(json.dumps(host, indent=2))

    def build(self, output):
        """Builds an output of the flake for this system; the path of the result."""
        return Path(self.nix("build", f"{self.url}#{output}", *self.flags, "--no-link",
                             "--print-out-paths").strip())


def report(name, checks, subject):
    """Runs the checks, prints a line for each, and gives back the exit status."""
    failed = False
    for check in checks:
        try:
            check(subject)
            print(f"ok: {name} {check.__name__}", flush=True)
        except Nothing as why:
            print(f"skipped: {name} {check.__name__}: {why}", flush=True)
        except (AssertionError, Bad, LookupError, OSError, ValueError, subprocess.SubprocessError) as why:
            failed = True
            print(f"FAILED: {name} {check.__name__}: {why}", flush=True)
    return int(failed)
