# The checks of the flake: the package, its lints, the formatting, the module's evaluation, the module in a NixOS VM.
{
  pkgs,
  nixosSystem,
  boxmaker,
  module,
}:

let
  inherit (pkgs) lib;
  nixFiles = lib.fileset.toSource {
    root = ../..;
    fileset = lib.fileset.unions [
      ../../flake.nix
      ../../nixos-module
      ../../tests/nix
      ../../tests/systemd
    ];
  };
in
{
  package = boxmaker;

  clippy = boxmaker.overrideAttrs (old: {
    pname = "boxmaker-clippy";
    src = lib.fileset.toSource {
      root = ../..;
      fileset = lib.fileset.unions [
        ../../Cargo.lock
        ../../Cargo.toml
        ../../build.rs
        ../../clippy.toml
        ../../rustfmt.toml
        ../../docs
        ../../src
        ../../tests
      ];
    };
    nativeBuildInputs = old.nativeBuildInputs ++ [
      pkgs.clippy
      pkgs.rustfmt
    ];
    buildPhase = ''
      cargo fmt --all --check
      cargo clippy --offline --locked --workspace --all-targets -- -D warnings
    '';
    doCheck = false;
    postInstall = "";
    installPhase = "touch $out";
  });

  formatting =
    pkgs.runCommand "boxmaker-formatting"
      {
        nativeBuildInputs = [
          pkgs.deadnix
          pkgs.nixfmt
        ];
      }
      ''
        find ${nixFiles} -name '*.nix' -exec nixfmt --check {} +
        deadnix --fail ${nixFiles}
        touch $out
      '';

  module = import ./module.nix { inherit pkgs nixosSystem module; };

  vm = pkgs.testers.runNixOSTest (import ./vm.nix { inherit module boxmaker; });
}
