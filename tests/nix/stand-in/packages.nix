# pkgs: the machine's own programs in the shape of nixpkgs' packages. A package builds for real, with the machine's
# cargo and the crates in a folder made by `cargo vendor`; what it cannot be is what nixpkgs builds.
{
  lib,
  host,
  system,
}:

let
  # `exit 0`: without it bash becomes the last command, which then closes the output that nix waits for
  make =
    name: attributes: script:
    let
      drv = derivation (
        {
          inherit name system;
          builder = "/bin/bash";
          args = [
            "-euc"
            "${script}\nexit 0"
          ];
          PATH = host.path;
        }
        // removeAttrs attributes [
          "meta"
          "nativeBuildInputs"
        ]
      );
    in
    drv // { inherit name; } // lib.optionalAttrs (attributes ? meta) { inherit (attributes) meta; };

  # a package whose programs are the machine's; one that it lacks fails when it is used
  program =
    package:
    let
      programs = host.programs.${package} or { ${package} = package; };
    in
    make package { meta.mainProgram = lib.head (builtins.attrNames programs); } (
      "mkdir -p $out/bin\n"
      + lib.concatStringsSep "\n" (
        lib.mapAttrsToList (name: path: ''
          printf '#!/bin/sh\nexec %s "$@"\n' '${path}' > $out/bin/${name}
          chmod +x $out/bin/${name}
        '') programs
      )
    );

  buildRustPackage =
    given:
    let
      attributes = {
        buildPhase = ''
          cargo build --offline --locked --release
        '';
        installPhase = ''
          mkdir -p "$out/bin"
          find "$CARGO_TARGET_DIR/release" -maxdepth 1 -type f -executable -exec install -m755 -t "$out/bin" {} +
        '';
        postInstall = "";
        nativeBuildInputs = [ ];
      }
      // given;
    in
    make "${attributes.pname}-${attributes.version}"
      {
        inherit (attributes) src meta;
        lock = "${given.cargoLock.lockFile}";
        RUSTUP_HOME = host.rustup;
        vendor = host.vendor;
        work = host.work;
      }
      ''
        export HOME=$TMPDIR CARGO_HOME=$TMPDIR/cargo CARGO_TARGET_DIR=$work/target CARGO_INCREMENTAL=0
        # quick instead of small: this build only shows that there is one
        export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1
        mkdir -p "$CARGO_HOME" "$work"
        printf '[source.crates-io]\nreplace-with = "vendor"\n[source.vendor]\ndirectory = "%s"\n' "$vendor" > "$CARGO_HOME/config.toml"
        # the same folder each time, and one build at a time in it: cargo then keeps the dependencies. Our own files
        # get a new time, for in the store they have none that would tell cargo what has changed.
        exec 9> "$work/lock"
        flock 9
        rm -rf "$work/source"
        cp -r "$src" "$work/source"
        chmod -R u+w "$work/source"
        cd "$work/source"
        cmp Cargo.lock "$lock"
        installShellCompletion() { # --cmd NAME --bash FILE --zsh FILE --fish FILE
          install -Dm644 "$4" "$out/share/bash-completion/completions/$2.bash"
          install -Dm644 "$6" "$out/share/zsh/site-functions/_$2"
          install -Dm644 "$8" "$out/share/fish/vendor_completions.d/$2.fish"
        }
        installManPage() { install -Dm644 -t "$out/share/man/man1" "$@"; }
        ${attributes.buildPhase}
        ${attributes.installPhase}
        ${attributes.postInstall}
      ''
    // {
      inherit (attributes) pname version nativeBuildInputs;
      overrideAttrs = change: buildRustPackage (attributes // change attributes);
    };

  toml = rec {
    type = lib.types.toml;
    generate =
      name: value:
      make name
        {
          json = builtins.toJSON value;
          passAsFile = [ "json" ];
        }
        ''
          python3 - "$jsonPath" > "$out" <<'END'
          import json, sys

          # TOML's inline tables hold all that JSON does, null excepted
          def toml(value):
              if isinstance(value, dict):
                  return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
              if isinstance(value, list):
                  return "[" + ", ".join(map(toml, value)) + "]"
              return json.dumps(value)

          for key, value in json.load(open(sys.argv[1])).items():
              print(json.dumps(key), "=", toml(value))
          END
        '';
  };

  pkgs = lib.genAttrs host.names program // {
    inherit lib system;
    stdenv = {
      buildPlatform.canExecute = platform: platform.system == host.system;
      hostPlatform = { inherit system; };
    };
    callPackage = lib.callPackageWith pkgs;
    rustPlatform = { inherit buildRustPackage; };
    installShellFiles = null;
    formats.toml = _: toml;
    runCommand = make;
    mkShell = _: make "shell" { } ''mkdir "$out"'';
    python3.withPackages = _: pkgs.python;
    # what the real one does: strict mode, the programs first on PATH, shellcheck
    writeShellApplication =
      {
        name,
        runtimeInputs,
        runtimeEnv,
        text,
        meta,
      }:
      make name
        {
          meta = meta // {
            mainProgram = name;
          };
          script = ''
            #!/usr/bin/env bash
            set -o errexit
            set -o nounset
            set -o pipefail
            ${lib.concatStringsSep "\n" (
              lib.mapAttrsToList (k: v: "export ${k}=${lib.escapeShellArg v}") runtimeEnv
            )}
            export PATH="${lib.concatMapStringsSep ":" (p: "${p}/bin") runtimeInputs}:$PATH"
            ${text}
          '';
          passAsFile = [ "script" ];
        }
        ''
          install -Dm755 "$scriptPath" "$out/bin/${name}"
          shellcheck "$out/bin/${name}"
        '';
    # fetched by pip; the hash makes sure that it is the same as nixpkgs would fetch
    fetchPypi =
      {
        pname,
        version,
        hash,
        ...
      }:
      make "${pname}-${version}.whl"
        {
          outputHash = hash;
          outputHashMode = "flat";
          outputHashAlgo = "sha256";
          impureEnvVars = host.network;
        }
        ''
          export HOME=$TMPDIR
          python3 -m pip download --quiet --no-deps --no-cache-dir --only-binary :all: --dest wheel '${pname}==${version}'
          mv wheel/*.whl "$out"
        '';
    # evaluated as far as it goes: the machine's configuration and the test's script, but nothing boots
    testers.runNixOSTest =
      test:
      let
        t = test { inherit pkgs; };
        machine = lib.nixosSystem {
          modules = [
            t.nodes.machine
            {
              options.virtualisation = lib.mkOption {
                type = lib.types.anything;
                default = { };
              };
              config.nixpkgs.hostPlatform = system;
            }
          ];
        };
      in
      make "vm-test-${t.name}" {
        inherit (t) testScript;
        toplevel = machine.config.system.build.toplevel;
        passAsFile = [ "testScript" ];
      } ''cp "$testScriptPath" "$out"'';
  };
in
pkgs
