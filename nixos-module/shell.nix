# The development shell: what `make test` needs.
{
  mkShell,
  boxmaker,
  cargo-deny,
  cargo-nextest,
  clippy,
  deadnix,
  llama-cpp,
  nixfmt,
  python3,
  rustfmt,
  shellcheck,
  strace,
}:

mkShell {
  inputsFrom = [ boxmaker ];
  packages = [
    cargo-deny
    cargo-nextest
    clippy
    deadnix
    nixfmt
    (python3.withPackages (python: [ python.pip ]))
    rustfmt
    shellcheck
    strace
  ];
  env.BOXMAKER_LLAMA_SERVER = "${llama-cpp}/bin/llama-server";
}
