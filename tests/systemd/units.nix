# The units of the module for the container: the package as the flake builds it, and a llama-server and a model where
# the test puts them. `standIn` and `project` are what tests/nix/lab.py prepares.
{ standIn, project }:

let
  nixpkgs = builtins.getFlake "path:${standIn}";
  system = builtins.currentSystem;
  pkgs = nixpkgs.legacyPackages.${system};
  inherit
    (nixpkgs.lib.nixosSystem {
      modules = [
        "${project}/nixos-module"
        {
          nixpkgs.hostPlatform = system;
          services.boxmaker = {
            enable = true;
            users = [ "alice" ];
            apiKeyFile = "/etc/boxmaker-key";
            settings = {
              model.sampling.temperature = 0;
              limits = {
                completion_tokens = 400;
                shutdown_seconds = 3;
              };
            };
            model.serve = {
              enable = true;
              package = pkgs.runCommand "llama" { } ''
                mkdir -p $out/bin
                printf '#!/bin/sh\nexec /opt/llama-server "$@"\n' > $out/bin/llama-server
                chmod +x $out/bin/llama-server
              '';
              model = "/opt/model.gguf";
              contextTokens = 2048;
              threads = 1;
            };
          };
        }
      ];
    })
    config
    ;
  unit = name: "${config.systemd.units.${name}.unit}/${name}";
  folder = path: rule: "d ${path} ${rule.d.mode} ${rule.d.user} ${rule.d.group}";
in
pkgs.runCommand "boxmaker-units"
  {
    tmpfiles = nixpkgs.lib.concatStringsSep "\n" (
      nixpkgs.lib.mapAttrsToList folder config.systemd.tmpfiles.settings.boxmaker
    );
    members = toString config.users.groups.boxmaker.members;
  }
  ''
    mkdir $out
    cp ${unit "loopd.service"} ${unit "loopd-model.service"} $out
    cp ${config.environment.etc."boxmaker/loopd.toml".source} $out/loopd.toml
    printf '%s\n' "$tmpfiles" > $out/tmpfiles.conf
    printf '%s\n' "$members" > $out/members
    ln -s ${config.services.boxmaker.package} $out/package
  ''
