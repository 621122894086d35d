# The package: loopd and bxctl, with their completions and man pages.
{
  lib,
  stdenv,
  rustPlatform,
  installShellFiles,
}:

let
  manifest = (lib.importTOML ../Cargo.toml).package;
in
rustPlatform.buildRustPackage {
  pname = manifest.name;
  inherit (manifest) version;

  # only what the programs are made of: a change elsewhere builds nothing anew
  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      ../Cargo.lock
      ../Cargo.toml
      ../LICENSE-APACHE
      ../LICENSE-MIT
      ../build.rs
      # Cargo.toml names them
      ../tests/bench
      ../tests/counts
      ../tests/histories
      ../src
    ];
  };

  cargoLock.lockFile = ../Cargo.lock;
  strictDeps = true;
  nativeBuildInputs = [ installShellFiles ];

  # The unit tests. A builder may refuse io_uring (containers do), which is what the tests of `uring` are about;
  # the end-to-end tests need a model server: `make test` runs them all.
  cargoTestFlags = [ "--lib" ];
  checkFlags = [ "--skip=uring" ];
  checkType = "debug";

  # the programs write them themselves; one of another architecture cannot do so here
  postInstall = lib.optionalString (stdenv.buildPlatform.canExecute stdenv.hostPlatform) ''
    for program in loopd bxctl; do
      for shell in bash zsh fish; do
        "$out/bin/$program" completions "$shell" > "$program.$shell"
      done
      installShellCompletion --cmd "$program" \
        --bash "$program.bash" --zsh "$program.zsh" --fish "$program.fish"
      mkdir "$program.man"
      "$out/bin/$program" man "$program.man"
      installManPage "$program.man"/*
    done
  '';

  meta = {
    inherit (manifest) description;
    license = with lib.licenses; [
      mit
      asl20
    ];
    mainProgram = "loopd";
    platforms = lib.platforms.linux;
  };
}
