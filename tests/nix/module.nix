# Evaluates the module in the cases of cases.nix. The result is a folder with the units of the first case; the build
# fails, with all reasons, when a case does not give what it should.
{
  pkgs,
  nixosSystem,
  module,
}:

let
  inherit (pkgs) lib;

  evaluate =
    settings:
    (nixosSystem {
      modules = [
        module
        settings
        {
          nixpkgs.hostPlatform = pkgs.stdenv.hostPlatform.system;
          system.stateVersion = "26.05";
          # no boot loader and no file systems: only the services matter here
          boot.isContainer = true;
        }
      ];
    }).config;

  failed = config: map (a: a.message) (lib.filter (a: !a.assertion) config.assertions);

  # an evaluation that throws (a wrong type, an unknown option) counts as refused as well
  outcome =
    case:
    let
      config = evaluate case.config;
      tried = builtins.tryEval (builtins.deepSeq (messages config) (messages config));
      messages =
        config:
        failed config
        ++ lib.optional (
          lib.stringLength config.systemd.services.loopd.serviceConfig.ExecStart == 0
        ) "no ExecStart";
    in
    if tried.success then tried.value else [ "evaluation failed" ];

  wrong =
    case:
    let
      messages = outcome case;
      hit = lib.any (message: lib.hasInfix case.refused message) messages;
    in
    if case ? refused then
      lib.optional (
        !hit
      ) "${case.name}: expected a refusal with '${case.refused}', got ${builtins.toJSON messages}"
    else
      lib.optional (messages != [ ]) "${case.name}: refused: ${builtins.toJSON messages}";

  cases = import ./cases.nix;
  problems = lib.concatMap wrong cases;
  good = evaluate (lib.head cases).config;
  unit = name: "${good.systemd.units.${name}.unit}/${name}";
in
pkgs.runCommand "boxmaker-module"
  {
    problems = lib.concatStringsSep "\n" problems;
    cases = toString (lib.length cases);
  }
  ''
    if [ -n "$problems" ]; then
      printf '%s\n' "$problems" >&2
      exit 1
    fi
    mkdir "$out"
    cp ${unit "loopd.service"} "$out/loopd.service"
    cp ${unit "loopd-model.service"} "$out/loopd-model.service"
    cp ${good.environment.etc."boxmaker/loopd.toml".source} "$out/loopd.toml"
    grep -q -- '--home /var/lib/boxmaker --slot 0' "$out/loopd.service"
    grep -q -- '--slot-save-path' "$out/loopd-model.service"
    echo "$cases cases" > "$out/cases"
  ''
