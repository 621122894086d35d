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

  # all of their text, so that whatever cannot be written down is met here
  units =
    config:
    lib.concatMapStringsSep "\n" (name: config.systemd.units."${name}.service".text) (
      lib.filter (name: config.systemd.services ? ${name}) [
        "loopd"
        "loopd-model"
      ]
    );

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
          !lib.hasInfix (case.unit or "ExecStart=") (units config)
        ) "not in the units: ${case.unit or "ExecStart="}"
        ++ lib.filter (warning: case.warns or "" == "" || !lib.hasInfix case.warns warning) config.warnings
        ++ lib.optional (case ? warns && config.warnings == [ ]) "no warning";
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
  good = evaluate (lib.head cases).config;
  # a server that changes is restarted only after loopd was stopped, which saves the slot's cache
  inOrder =
    let
      inherit (good.systemd.services) loopd loopd-model;
    in
    !loopd-model.stopIfChanged
    && loopd.stopIfChanged
    && lib.elem loopd-model.serviceConfig.ExecStart loopd.restartTriggers;
  problems =
    lib.concatMap wrong cases
    ++ lib.optional (!inOrder) "a changed model server would be restarted under loopd";
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
